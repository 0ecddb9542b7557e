"""The folder of a run: what lies in it, its lock, where a run begins, and what a run that resumes must have in common
with the checkpoint."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import lightning as L
import yaml
from lightning.pytorch.utilities import rank_zero_only

from ..core.errors import UserError, disk_error
from ..core.files import CARD_FILE
from ..core.locks import locked
from ..core.processes import say
from ..core.quiet import silence_libraries
from ..core.written import check_replaceable, write_files
from ..core.yaml_files import read_yaml
from ..data_modules.sampling import Position
from ..data_modules.settings import DataSettings
from ..models import BEST, CALIBRATION_FILE, CHECKPOINTS, CONFIG_FILE, JUDGE_FILE, LAST
from ..models.description import parse
from ..models.settings import BuiltSettings
from ..models.weight_files import damage, read_checkpoint
from .checkpointing import CannotWrite, position_of
from .settings import Recipe

KEPT = (
    "optimizer.learning_rate", "optimizer.head_learning_rate", "optimizer.weight_decay", "judge.pooling", "judge.depth",
    "judge.depth_norm", "judge.window_seconds", "judge.head", "judge.lora.alpha", "judge.lora.method",
)  # fmt: skip
"""Settings that a run keeps when it goes on: those of the optimizer stand in the checkpoint, and with another of the
judge the same weights would mean something else."""
LEFT_OUT = "left_out.csv"
"""Scores of pairs by judges that were not trained on them; it is written last: where it exists, its run is finished."""
ENSEMBLE = "ensemble"
PROBE, LORA = "probe", "lora"
"""What auto tries, in this order; the names of their folders."""
OF_A_RUN = (CHECKPOINTS, CALIBRATION_FILE, LEFT_OUT, ENSEMBLE, PROBE, LORA)
"""What training may replace in the folder of a run, apart from its `config.yaml`."""
_LOCK = ".lock"


@contextmanager
def run_lock(run: Path) -> Iterator[None]:
    """Make a folder and lock it: no other process can train in it within this context.

    The system releases the lock when this process dies (`locked`).

    Raises:
        UserError: If another process trains in it, or it holds files of these names that no run wrote.
        CannotWrite: If the folder cannot be written, now or later.
    """
    check_replaceable("train", [run / CONFIG_FILE])
    for name in () if (run / CONFIG_FILE).exists() else OF_A_RUN:
        if os.path.lexists(run / name):
            raise UserError(f"{run / name}: is of no run, as there is no {CONFIG_FILE}; expected another --run")
    taken = f"{run}: another process trains here; expected another --run, or --resume auto once it has ended"
    unlocked = f"{run}: its file system knows no locks; make sure that no other command trains here"
    with ExitStack() as until_the_end:
        try:
            until_the_end.enter_context(locked(run / _LOCK, taken, unlocked))
        except OSError as error:
            raise CannotWrite(f"{run}: cannot be written ({error.strerror}); expected a folder to write") from None
        try:
            yield
        except OSError as error:  # such as from a logger, whose errors name no file
            refused = disk_error(error)
            if refused is None:
                raise
            raise CannotWrite(
                f"{refused.filename or run}: {refused.strerror}; expected a folder that can be written and has room, "
                "then --resume auto"
            ) from None


def is_global_zero() -> bool:
    """Whether this is the first process of the run, the only one that writes files and prints."""
    return rank_zero_only.rank == 0  # pyright: ignore[reportFunctionMemberAccess]


def run_folder(recipe: Recipe) -> Path:
    """The folder of a run.

    Raises:
        UserError: If there is none, or it is a judge or a dataset.
    """
    if not recipe.run:
        raise UserError("no --run; expected the folder of this run, such as --run runs/first")
    for name, what in ((JUDGE_FILE, "a judge"), (CARD_FILE, "a pair dataset")):  # training would write into it
        if (Path(recipe.run) / name).exists():
            raise UserError(f"{recipe.run}: is {what}; expected another --run")
    return Path(recipe.run)


def starting_point(run: Path, resume: bool | Literal["auto"]) -> Path | None:
    """The checkpoint from which a run resumes; None = a new run.

    Raises:
        UserError: If there shall be one and is none, or the other way round.
    """
    checkpoint, passed_over = find_resumable(run / CHECKPOINTS)
    for line in passed_over if is_global_zero() else ():
        say(f"passed over {line}", "yellow")
    if resume is True and checkpoint is None:
        raise UserError(f"{run / CHECKPOINTS}: nothing to resume from; expected a run with a whole {LAST} or {BEST}")
    if not resume and checkpoint is not None:
        raise UserError(f"{run}: already holds a run; expected another --run, or --resume true to continue it")
    return checkpoint if resume else None


@dataclass(frozen=True)
class Resumed:
    """State that a run takes from a checkpoint before Lightning restores the rest; by default that of a new run."""

    checkpoint: Path | None = None
    position: Position = field(default_factory=Position)  # next batch
    loops: Mapping[str, Any] | None = None  # state of Lightning's loops
    batch_tokens: int | None = None  # what `data.batch_tokens` auto has found
    # of the head: it began at a probe, which may have chosen one
    kernel: Mapping[str, Any] = field(default_factory=dict)

    def data_settings(self, settings: DataSettings) -> DataSettings:
        """Settings of the data with the size of batches found then, even if more memory is free now."""
        if settings.batch_tokens != "auto":
            return settings
        return replace(settings, batch_tokens=self.batch_tokens or "auto")

    def judge_settings(self, settings: BuiltSettings) -> BuiltSettings:
        """Settings of the judge with the kernel of then."""
        return replace(settings, head_input=replace(settings.head_input, **self.kernel))


def begin(recipe: Recipe, text: str) -> tuple[Path, Resumed]:
    """Write a recipe into the folder of its run, and seed everything that is drawn from here on.

    Returns:
        The folder, and the state that the run goes on from.

    Raises:
        UserError: As `run_folder` and `starting_point`, or if the settings are others than those of the checkpoint.
    """
    folder = run_folder(recipe)
    delete_unfinished(folder)
    checkpoint = starting_point(folder, recipe.resume)
    # A probe is fitted anew, which takes no longer than resuming
    if recipe.method == PROBE:
        checkpoint = None
    # Once the new recipe is written, there is nothing left to compare the settings with
    if checkpoint is not None:
        check_same_settings(folder, text)
    if is_global_zero():
        write_files("train", folder, {CONFIG_FILE: text.encode()})
    # Before anything is built: new weights are drawn from the global seed
    L.seed_everything(recipe.seed, workers=True, verbose=False)
    silence_libraries()  # once more: Lightning has set the levels of its loggers
    if checkpoint is None:
        return folder, Resumed()
    content = read_checkpoint(checkpoint)
    # The head must have the size of its kernel before Lightning copies weights into it
    saved = parse(checkpoint, content["description"]).settings.head_input
    kernel = {"landmarks": saved.landmarks, "beside_landmarks": saved.beside_landmarks}
    found = content["order"].get("data.batch_tokens")
    return folder, Resumed(checkpoint, position_of(content), content["loops"], found, kernel)


def delete_unfinished(run: Path) -> None:
    """Delete what a kill left half-written; whoever does has the lock of the run, and is its first process: others
    could delete what it is already writing."""
    for unfinished in (run / CHECKPOINTS).glob(".*.tmp") if is_global_zero() else ():
        unfinished.unlink(missing_ok=True)


def find_resumable(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest undamaged checkpoint of a run and, for the user, the checkpoints that were skipped and why."""
    passed_over = []
    files = [file for file in folder.glob("*.ckpt") if not file.is_symlink()]
    # Where both have the same time, `last` was written later
    for file in sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.name == LAST), reverse=True):
        reason = damage(file)
        if reason is None:
            return file, passed_over
        passed_over.append(f"{file}: {reason}")
    return None, passed_over


def check_continues(
    checkpoint: Mapping[str, Any], description: Mapping[str, Any], order: Mapping[str, Any], data: str
) -> None:
    """Check that a run goes on from a checkpoint with the same backbone, data and, in mid-epoch, order: `description`
    and `order` are those of the run now.

    Raises:
        UserError: If something differs.
    """
    saved = checkpoint["description"]
    for key, name in (("backbone_fingerprint", "backbone"), ("dimensions", "rating scales")):
        if description[key] != saved[key]:
            raise UserError(f"checkpoint: was trained with other {name}: {saved[key]!r}, now {description[key]!r}")
    keys = "content_hash", "split_hash", "train_splits", "validation_splits", "target"
    check_same_data("checkpoint", saved["provenance"], {key: description["provenance"][key] for key in keys}, data)
    # Between epochs the order may change: none of its items was read
    for name in order if position_of(checkpoint).batch else ():
        if order[name] != (before := checkpoint["order"].get(name)):
            raise UserError(
                f"checkpoint: was written in mid-epoch with {name} {before}, now {order[name]}; expected the same, so "
                "that no item is left out or read twice"
            )


def check_same_data(where: object, saved: Mapping[str, Any], now: Mapping[str, Any], data: str) -> None:
    """Check that what is known of the data in folder `data` is what a `Provenance` says.

    Raises:
        UserError: If something differs; it begins with `where`.
    """
    for key, value in now.items():
        if saved.get(key) != value:
            raise UserError(
                f"{where}: was trained on other data: {key} differs from that of {data}; expected the same, or another "
                "--run"
            )


def check_same_settings(run: Path, text: str, names: Collection[str] = KEPT, free: Collection[str] = ()) -> None:
    """Check that settings are as the recipe that a run keeps has them.

    Args:
        run: The folder; without a recipe nothing is checked.
        text: The recipe now, as YAML.
        names: The settings, or the groups they stand in ("" = all); `free` are left out.

    Raises:
        UserError: If one differs.
    """
    if not (run / CONFIG_FILE).is_file():
        return
    before, now = flat(read_yaml(run / CONFIG_FILE)), flat(yaml.safe_load(text))
    for name in (name for name in before if name in now):
        if before[name] != now[name] and _among(name, names) and not _among(name, free):
            raise UserError(
                f"{run}: was begun with {name} {before[name]}, now {now[name]}; expected the same, or another --run"
            )


def flat(tree: Any, group: str = "") -> dict[str, Any]:
    """A tree of settings as one mapping of dotted names; an empty group stands for itself."""
    if not isinstance(tree, dict) or not tree:
        return {group: tree}
    return {
        name: value
        for key, below in tree.items()
        for name, value in flat(below, f"{group}.{key}" if group else str(key)).items()
    }


def _among(name: str, names: Collection[str]) -> bool:
    return any(not group or name == group or name.startswith(f"{group}.") for group in names)
