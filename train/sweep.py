"""`empathy-judge sweep`: search the settings of a recipe that do best on the validation split, with Optuna.

Every process that is started with the same folder takes trials of its own. A killed process leaves its trial to the
next one: the lock of a trial is free as soon as its process is gone.
"""

from __future__ import annotations

import csv
import gc
import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from ..data_modules.errors import DataError, UserError, shown
from ..data_modules.folders import replace_file
from ..data_modules.schema import PairDataset
from ..models.checkpoints import read_checkpoint
from ..models.file_names import CHECKPOINTS
from .checkpointing import find_resumable
from .run import train

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState

    from .sweep_file import Choices, Sweep, check_recipe, read_sweep  # pydantic
except ImportError:
    raise UserError("sweep: Optuna or pydantic is not installed; pip install 'empathy-judge[sweep]'") from None

BEST_FILE = "best.yaml"
_SWEEP_FILE, _RECIPE_FILE, _TRIAL_FILE, _JOURNAL, _LOCK = (
    "sweep.json", "recipe.yaml", "trial.json", "journal.log", ".lock",
)  # fmt: skip


@dataclass
class Trial:
    """What is known of a trial.

    Attributes:
        number: Of the trial, from 0.
        state: "running" may also be one that was killed and will go on.
        parameters: Dotted name -> value.
        values: Seed -> agreement of the best checkpoint on the validation split, by which training chose it.
        reason: Why it failed, if it did.
    """

    number: int
    state: Literal["complete", "failed", "running"]
    parameters: dict[str, Any]
    values: dict[int, float]
    reason: str | None = None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None unless the trial is complete."""
        return statistics.fmean(self.values.values()) if self.state == "complete" else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds (divisor: seeds - 1); None with one seed, or if it is not complete."""
        several = self.state == "complete" and len(self.values) > 1
        return statistics.stdev(self.values.values()) if several else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "mean": self.mean, "sd": self.spread}

    def write(self, out: Path) -> None:
        """Keep the values in the trial's folder, so that a killed sweep goes on."""
        text = json.dumps({"values": self.values, "reason": self.reason}, indent=2, allow_nan=False) + "\n"
        replace_file(_trial_folder(out, self.number) / _TRIAL_FILE, lambda path: path.write_text(text))


def _trial_folder(out: Path, number: int) -> Path:
    return out / f"trial-{number:04d}"


def _read_trial(sweep: Sweep, trial: FrozenTrial, out: Path) -> Trial:
    names = {TrialState.COMPLETE: "complete", TrialState.FAIL: "failed", TrialState.RUNNING: "running"}
    parameters = {
        name: json.loads(trial.params[name]) if isinstance(space, Choices) else trial.params[name]
        for name, space in sweep.search.items()
    }
    path, content = _trial_folder(out, trial.number) / _TRIAL_FILE, {"values": {}, "reason": None}
    try:
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
        values = {int(seed): float(value) for seed, value in content["values"].items()}
        return Trial(trial.number, names[trial.state], parameters, values, content["reason"])  # pyright: ignore
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: not the values of a trial: {error}") from None


def run_sweep(path: Path, out: Path) -> tuple[Sweep, list[Trial]]:
    """Train all trials of a sweep that no other process has.

    Args:
        path: The sweep file.
        out: Folder of the sweep: `sweep.csv`, `best.yaml`, and a run folder for each trial and seed. If it holds this
            sweep already, what is missing is trained.

    Returns:
        The sweep, and what is known of its trials, in their order.

    Raises:
        UserError: If the file is not a sweep that `train` can run, the data cannot be read, or the folder holds
            something else.
    """
    sweep = read_sweep(path)
    PairDataset.load(check_recipe(sweep, path).data.path)  # without data every trial would fail
    _prepare(sweep, out)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = JournalStorage(JournalFileBackend(str(out / _JOURNAL)))
    study = optuna.create_study(storage=journal, study_name="sweep", direction="maximize", load_if_exists=True)
    while (claim := _claim(study, sweep, out)) is not None:
        trial, lock = claim
        try:
            _train_trial(study, sweep, trial, out)
        finally:
            lock.release()
        with FileLock(out / _LOCK):
            _write_results(sweep, _all_trials(study, sweep, out), out)
    return sweep, _all_trials(study, sweep, out)


def _prepare(sweep: Sweep, out: Path) -> None:
    """Make the folder, or see that it holds this sweep."""
    identity, file = json.loads(json.dumps(sweep.identity())), out / _SWEEP_FILE  # as it is read: keys are text
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror})") from None
    with FileLock(out / _LOCK):
        if not file.is_file():
            if any(entry.name != _LOCK for entry in out.iterdir()):
                raise UserError(f"{out}: not empty, and no sweep; expected another --out")
            replace_file(file, lambda path: path.write_text(json.dumps(identity, indent=2) + "\n"))
            return
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            changed = [key for key in identity if before[key] != identity[key]]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{file}: not what a sweep wrote: {error}") from None
    if changed:
        raise UserError(
            f"{out}: holds a sweep with other {', '.join(changed)}; expected another --out (only trials may change)"
        )


def _begun(study: optuna.Study, sweep: Sweep) -> list[FrozenTrial]:
    """Trials with all their parameters; one whose process was killed while it drew them counts for nothing."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.params.keys() == sweep.search.keys()]


def _all_trials(study: optuna.Study, sweep: Sweep, out: Path) -> list[Trial]:
    return [_read_trial(sweep, trial, out) for trial in _begun(study, sweep)]


def _claim(study: optuna.Study, sweep: Sweep, out: Path) -> tuple[Trial, FileLock] | None:
    """A trial that a killed process left, or else a new one; None if all are done or with other processes."""
    with FileLock(out / _LOCK):
        for number in [trial.number for trial in _begun(study, sweep) if trial.state == TrialState.RUNNING]:
            lock = FileLock(_trial_folder(out, number) / _LOCK)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            if study.trials[number].state == TrialState.RUNNING:
                return _read_trial(sweep, study.trials[number], out), lock
            lock.release()  # its process was done in the meantime
        if len(_begun(study, sweep)) >= sweep.trials:
            return None
        # a seed for each trial: a sweep that goes on would else draw again what it drew at first
        seed = np.random.SeedSequence([sweep.sampler_seed, len(study.trials)]).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(seed))
        number = study.ask({name: space.distribution() for name, space in sweep.search.items()}).number
        _trial_folder(out, number).mkdir(exist_ok=True)
        lock = FileLock(_trial_folder(out, number) / _LOCK)
        lock.acquire(timeout=0)
        return _read_trial(sweep, study.trials[number], out), lock


def _train_trial(study: optuna.Study, sweep: Sweep, trial: Trial, out: Path) -> None:
    """Train every seed that is missing and tell Optuna the mean, or that the trial failed."""
    folder, say = _trial_folder(out, trial.number), Console(stderr=True).print
    recipe = folder / _RECIPE_FILE
    text = yaml.safe_dump(sweep.recipe(trial.parameters), sort_keys=False, allow_unicode=True)
    replace_file(recipe, lambda path: path.write_text(text, encoding="utf-8"))
    try:
        for seed in sweep.seeds:
            if seed not in trial.values:
                say(f"trial {trial.number}, seed {seed}: {trial.parameters}", markup=False, soft_wrap=True)
                trial.values[seed] = _train_seed([*sweep.train, str(recipe)], folder / f"seed-{seed}", seed)
                trial.write(out)
    except (UserError, torch.OutOfMemoryError) as error:
        trial.reason = " ".join(str(error).splitlines())
        trial.write(out)
        say(f"trial {trial.number} failed: {trial.reason}", style="yellow", markup=False, soft_wrap=True)
        study.tell(trial.number, state=TrialState.FAIL)
    else:
        study.tell(trial.number, statistics.fmean(trial.values.values()))


def _train_seed(recipes: list[str], run: Path, seed: int) -> float:
    """What the best checkpoint of a run reached on the validation split; a killed run is continued."""
    gc.collect()  # trainer and module of the run before refer to each other: their memory must be free
    torch.cuda.empty_cache()
    words = [word for recipe in recipes for word in ("--config", recipe)]
    resumable, _ = find_resumable(run / CHECKPOINTS)
    best = train([*words, "--run", str(run), "--seed", str(seed), "--resume", str(resumable is not None).lower()])
    assert best is not None  # only a dry run has none
    return read_checkpoint(best)["agreement"]


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial of the highest mean, of equal ones the first; None if none is complete."""
    return max((t for t in trials if t.mean is not None), key=lambda trial: trial.mean or 0.0, default=None)


def _write_results(sweep: Sweep, trials: Sequence[Trial], out: Path) -> None:
    """`sweep.csv`, one row for each trial, and `best.yaml`, the recipe of the best one."""

    def write(path: Path) -> None:
        with open(path, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            seeds = [f"seed {seed}" for seed in sweep.seeds]
            rows.writerow(["trial", "state", *sweep.search, *seeds, "mean", "sd", "runs", "reason"])
            for trial in trials:
                runs = [_trial_folder(out, trial.number) / f"seed-{seed}" for seed in sweep.seeds]
                rows.writerow([
                    trial.number, trial.state,
                    *(_text(trial.parameters[name]) for name in sweep.search),
                    *(trial.values.get(seed, "") for seed in sweep.seeds),
                    "" if trial.mean is None else trial.mean, "" if trial.spread is None else trial.spread,
                    " ".join(run.relative_to(out).as_posix() for run in runs if run.is_dir()), trial.reason or "",
                ])  # fmt: skip

    replace_file(out / "sweep.csv", write)
    best = best_of(trials)
    if best is None:
        return
    files = [word for recipe in [*sweep.train, out / BEST_FILE] for word in ("--config", str(recipe))]
    spread = "" if best.spread is None else f" (sd {best.spread:.3f})"
    text = (
        f"# {shlex.join(['empathy-judge', 'train', *files, '--run', str(out / 'best')])}\n"
        f"# Trial {best.number} of a sweep: agreement on the validation split {best.mean:.3f}{spread} over seeds "
        f"{', '.join(map(str, sweep.seeds))}. It was chosen by that, so that only another split says how good it is.\n"
        + yaml.safe_dump(sweep.recipe(best.parameters), sort_keys=False, allow_unicode=True)
    )
    replace_file(out / BEST_FILE, lambda path: path.write_text(text, encoding="utf-8"))


def results_table(sweep: Sweep, trials: Sequence[Trial]) -> Table:
    """All trials, the best first, for a terminal."""
    table = Table("trial", *sweep.search, "mean", "sd", "state", title="Agreement on the validation split")
    best = best_of(trials)
    for trial in sorted(trials, key=lambda trial: (trial.mean is None, -(trial.mean or 0), trial.number)):
        table.add_row(
            str(trial.number),
            *(f"{v:.4g}" if isinstance(v, float) else _text(v) for v in trial.parameters.values()),
            *("-" if value is None else f"{value:.3f}" for value in (trial.mean, trial.spread)),
            trial.state if trial.reason is None else f"{trial.state}: {shown(trial.reason)}",
            style="bold" if trial is best else None,
        )
    return table


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
