"""`empathy-judge sweep`: the settings of a recipe that do best on the validation split, searched by Optuna.

Every process that is started with the same folder takes trials of its own. What a killed process left is taken up by
the next one: a trial's lock is free as soon as its process is gone.
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from filelock import FileLock, Timeout
from rich.console import Console

from ..data_modules.errors import DataError, UserError
from ..data_modules.folders import replace_file
from ..data_modules.schema import PairDataset
from ..models.checkpoints import read_checkpoint
from ..models.file_names import CHECKPOINTS
from .checkpoints import find_resumable
from .fit import train
from .sweep_file import Choices, Range, Sweep, check_recipe, read_sweep
from .sweep_results import TrialResult, TrialValues, run_folder, trial_folder, write_results

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise UserError("sweep: Optuna is not installed; accepted: pip install optuna") from None

SWEEP_FILE = "sweep.json"
RECIPE_FILE = "recipe.yaml"
_JOURNAL = "journal.log"
_LOCK = ".lock"
_STATES: Mapping[TrialState, Literal["complete", "failed", "running"]] = {
    TrialState.COMPLETE: "complete",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}


@dataclass(frozen=True)
class _Claim:
    """A trial that this process trains.

    Attributes:
        number: Of the trial.
        parameters: Dotted name -> value.
        lock: Held while it is trained.
    """

    number: int
    parameters: dict[str, Any]
    lock: FileLock


def run_sweep(path: Path, out: Path) -> tuple[Sweep, list[TrialResult]]:
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
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(out / _JOURNAL))),
        study_name="sweep",
        direction="maximize",
        load_if_exists=True,
    )
    while (claim := _claim(study, sweep, out)) is not None:
        try:
            _train_trial(study, sweep, claim, out)
        finally:
            claim.lock.release()
        with _folder_lock(out):
            write_results(sweep, _results(study, sweep, out), out)
    return sweep, _results(study, sweep, out)


def _prepare(sweep: Sweep, out: Path) -> None:
    """Make the folder, or see that it holds this sweep."""
    identity = json.loads(json.dumps(sweep.identity()))  # as it is read: keys are text
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror})") from None
    file = out / SWEEP_FILE
    with _folder_lock(out):
        if not file.is_file():
            if any(entry.name != _LOCK for entry in out.iterdir()):
                raise UserError(f"{out}: not empty, and no sweep; accepted: another --out")
            text = json.dumps(identity, indent=2) + "\n"
            replace_file(file, lambda path: path.write_text(text, encoding="utf-8"))
            return
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            changed = [key for key in identity if before[key] != identity[key]]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{file}: not what a sweep wrote: {error}") from None
    if changed:
        raise UserError(
            f"{out}: holds a sweep with other {', '.join(changed)}; accepted: another --out (only trials may change)"
        )


def _folder_lock(out: Path) -> FileLock:
    return FileLock(out / _LOCK)


def _claim(study: optuna.Study, sweep: Sweep, out: Path) -> _Claim | None:
    """A trial that a killed process left, or else a new one; None if all are done or with other processes."""
    with _folder_lock(out):
        for number in [trial.number for trial in _begun(study, sweep) if trial.state == TrialState.RUNNING]:
            lock = _trial_lock(out, number)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            trial = study.trials[number]
            if trial.state == TrialState.RUNNING:
                return _Claim(number, _decoded(sweep, trial), lock)
            lock.release()  # its process was done in the meantime
        if len(_begun(study, sweep)) >= sweep.trials:
            return None
        # A seed for each trial: a sweep that goes on would else draw again what it drew at first
        seed = np.random.SeedSequence([sweep.sampler_seed, len(study.trials)]).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(seed))
        number = study.ask({name: _distribution(space) for name, space in sweep.search.items()}).number
        lock = _trial_lock(out, number)
        lock.acquire(timeout=0)
        return _Claim(number, _decoded(sweep, study.trials[number]), lock)


def _trial_lock(out: Path, number: int) -> FileLock:
    folder = trial_folder(out, number)
    folder.mkdir(exist_ok=True)
    return FileLock(folder / _LOCK)


def _begun(study: optuna.Study, sweep: Sweep) -> list[FrozenTrial]:
    """Trials with all their parameters; one whose process was killed while it drew them counts for nothing."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.params.keys() == sweep.search.keys()]


def _distribution(space: Choices | Range) -> BaseDistribution:
    """As Optuna says it. Choices are stored as JSON: Optuna keeps lists and mappings in memory only."""
    if isinstance(space, Choices):
        return CategoricalDistribution([json.dumps(value) for value in space.values])
    if isinstance(space.low, int) and isinstance(space.high, int):
        return IntDistribution(space.low, space.high, log=space.log, step=int(space.step or 1))
    return FloatDistribution(space.low, space.high, log=space.log, step=space.step)


def _decoded(sweep: Sweep, trial: FrozenTrial) -> dict[str, Any]:
    return {
        name: json.loads(trial.params[name]) if isinstance(space, Choices) else trial.params[name]
        for name, space in sweep.search.items()
    }


def _train_trial(study: optuna.Study, sweep: Sweep, claim: _Claim, out: Path) -> None:
    """Train every seed that is missing and tell Optuna the mean, or that the trial failed."""
    folder = trial_folder(out, claim.number)
    recipe = folder / RECIPE_FILE
    text = yaml.safe_dump(sweep.recipe(claim.parameters), sort_keys=False, allow_unicode=True)
    replace_file(recipe, lambda path: path.write_text(text, encoding="utf-8"))
    found = TrialValues.read(folder)
    say = Console(stderr=True).print
    try:
        for seed in sweep.seeds:
            if seed not in found.values:
                say(f"trial {claim.number}, seed {seed}: {claim.parameters}", markup=False, soft_wrap=True)
                found.values[seed] = _train_seed(
                    [*sweep.recipes, str(recipe)], run_folder(out, claim.number, seed), seed
                )
                found.write(folder)
    except (UserError, torch.OutOfMemoryError) as error:
        found.reason = " ".join(str(error).splitlines())
        found.write(folder)
        say(f"trial {claim.number} failed: {found.reason}", style="yellow", markup=False, soft_wrap=True)
        study.tell(claim.number, state=TrialState.FAIL)
    else:
        study.tell(claim.number, statistics.fmean(found.values.values()))


def _train_seed(recipes: list[str], run: Path, seed: int) -> float:
    """What the best checkpoint of a run reached on the validation split; a killed run is continued."""
    gc.collect()  # trainer and module of the run before refer to each other: their memory must be free
    torch.cuda.empty_cache()
    words = [word for recipe in recipes for word in ("--config", recipe)]
    resumable, _ = find_resumable(run / CHECKPOINTS)
    best = train([*words, "--run", str(run), "--seed", str(seed), "--resume", str(resumable is not None).lower()])
    assert best is not None  # only a dry run has none
    return read_checkpoint(best)["agreement"]


def _results(study: optuna.Study, sweep: Sweep, out: Path) -> list[TrialResult]:
    results = []
    for trial in _begun(study, sweep):
        found = TrialValues.read(trial_folder(out, trial.number))
        results.append(
            TrialResult(trial.number, _STATES[trial.state], _decoded(sweep, trial), found.values, found.reason)
        )
    return results
