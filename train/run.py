"""`empathy-judge train`: one recipe in, one run folder out. `train` reads the recipe and chooses one program; each is
read from top to bottom in a file of its own: `lora.py`, `probe.py`, `cross_validate.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from ..core.errors import AudioError
from ..core.files import RemotePath
from ..data_modules.schema import PairDataset
from ..models import BEST, CALIBRATION_FILE, CHECKPOINTS
from ..models.weight_files import read_checkpoint
from .checkpointing import stopped_by_signals
from .lora import train_lora
from .probe import refit_probe, train_probe
from .recipe import Config, Recipe, RecipeParser
from .run_folder import is_global_zero, run_folder, run_lock
from .strategies import check_accelerator, refused_by_lightning
from .trainer import own_log

if TYPE_CHECKING:
    from ..eval.report.dataset import Report
    from ..scoring.scorer import Scorer


@dataclass(frozen=True)
class Run:
    """A finished training run.

    Attributes:
        folder: Checkpoints, logs and the resolved recipe; whatever takes a judge takes this folder.
        checkpoint: The best by agreement on the validation split.
        agreement: Dimension -> Spearman of that checkpoint with the mean ratings of the validation split; None where it
            is undefined. It chose the checkpoint, so that it looks a little too good: `evaluate` measures on another.
        calibration: File with what is known of the errors; None = the judge could not be calibrated.
    """

    folder: Path
    checkpoint: Path
    agreement: Mapping[str, float | None]
    calibration: Path | None

    def scorer(self, **options: Any) -> Scorer:
        """The trained judge, ready to score; options as for `Scorer.from_pretrained`, such as `device`."""
        from ..scoring.scorer import Scorer

        return Scorer.from_pretrained(self.folder, **options)

    def export(self, folder: str | Path, report: Report | None = None) -> Path:
        """Write the judge as a folder of its own, which must not exist or be empty, as `empathy-judge export` does;
        with a report of this judge, from `evaluate`, the model card shows its figures.

        Raises:
            UserError: If the folder is not empty, or the run is damaged.
        """
        from ..scoring.artifact import load_any, save_judge

        loaded = load_any(self.folder)
        save_judge(loaded, Path(folder), None if report is None else report.as_json())
        return Path(folder)


def train(
    config: Config,
    data: str | Path | PairDataset | None = None,
    run: str | Path | None = None,
    *,
    watching: Sequence[Callback] = (),
) -> Run | None:
    """Train as a recipe says, then calibrate the best checkpoint on the validation split (`RUN/calibration.json`).

    That split also chose the checkpoint: its errors look a little too small. `empathy-judge calibrate` takes another.

    Args:
        config: A recipe: its name, a YAML file, or a tree of settings (whose key `config` names one or several recipes
            that it is laid over); or words of the command line.
        data: The rated pairs, with splits: a folder, its address, or a `PairDataset` as it was loaded. Training reads
            the folder that the dataset came from: nothing is copied, and one that was changed in memory is refused.
            None = as the recipe says (`data.path`).
        run: Folder of the run; None = as the recipe says.
        watching: Further callbacks of Lightning, such as a clock.

    Returns:
        The finished run. None after a dry run (`dry_run`), which prints what would be trained and what memory a step
        needs, and writes nothing.

    Raises:
        UserError: If the run folder is taken, nothing can be resumed, data is unusable, or there is no best checkpoint.
    """
    dataset = None
    if isinstance(data, PairDataset):
        dataset, data = data, data.root.address if isinstance(data.root, RemotePath) else data.root
    parser = RecipeParser()
    values = {"data.path": data, "run": run}
    parsed = parser.parse(config, {name: str(value) for name, value in values.items() if value is not None})
    recipe = parser.recipe(parsed)
    if recipe.dry_run:
        from .dry_run import dry_run

        dry_run(recipe, parser.named)
        return None
    check_accelerator(recipe)
    folder = run_folder(recipe)
    with (
        stopped_by_signals(),
        refused_by_lightning(ValueError),
        _plain_errors(recipe),
        own_log(),
        ExitStack() as until_the_end,
    ):
        # One lock for all processes of a run, which share its folder
        if is_global_zero():
            until_the_end.enter_context(run_lock(folder))
        if recipe.several_runs:
            from .cross_validate import cross_validate  # imports the statistics, which a single run does not need

            cross_validate(recipe, parser, parsed, dataset, watching)
        elif recipe.refit:
            from .left_out import AllPairs

            # a probe is measured by regressions that leave pairs out, and needs no run before it
            refit_probe(recipe, parser.text(parsed), AllPairs.of(recipe).ids, None, dataset, watching)
        elif recipe.method == "probe":
            train_probe(recipe, parser.text(parsed), dataset, watching)
        else:
            train_lora(recipe, parser.text(parsed), dataset, watching)
        return _finished(folder)


def _finished(folder: Path) -> Run:
    best, calibration = folder / CHECKPOINTS / BEST, folder / CALIBRATION_FILE
    provenance = read_checkpoint(best)["description"]["provenance"]
    return Run(folder, best, provenance["validation"], calibration if calibration.is_file() else None)


@contextmanager
def _plain_errors(recipe: Recipe) -> Iterator[None]:
    """What refuses a long clip also names the setting that cuts it; an error of a data worker is told in its line."""
    try:
        yield
    except AudioError as error:
        if "in DataLoader worker process" in str(error):  # torch puts the traceback before it, and drops the kind
            raise type(error)(str(error).rpartition(f"{type(error).__name__}: ")[2].strip()) from None
        if error.kind != "too long" or recipe.judge.long_clips == "window":
            raise
        raise AudioError(f"{error}, or --judge.long_clips window", error.kind) from None
