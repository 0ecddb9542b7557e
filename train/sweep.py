"""`empathy-judge sweep`: search the settings of a recipe that do best on the validation split, with Optuna.

Every process that is started with the same folder takes trials of its own. A killed process leaves its trial to the
next one: the lock of a trial is free as soon as its process is gone.
"""

from __future__ import annotations

import gc
import hashlib
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import yaml
from filelock import FileLock, Timeout
from jsonargparse import Namespace, get_loader
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator
from rich.table import Table

from ..data_modules.errors import DataError, UserError, shown, system_errors
from ..data_modules.folders import replace_file, replace_text
from ..data_modules.parallel import say
from ..data_modules.schema import PairDataset
from ..data_modules.unchanged import check_unchanged
from ..data_modules.yaml_files import read_yaml
from ..models.hub import require_backbone
from .recipe import RecipeParser
from .settings import find_recipe, nested

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise UserError("sweep: Optuna is not installed; pip install 'empathy-judge[sweep]'") from None

BEST_FILE = "best.yaml"
_SWEEP_FILE, _RECIPE_FILE, _JOURNAL, _LOCK = "sweep.json", "recipe.yaml", "journal.log", ".lock"
_OURS = ("run", "resume", "seed", "profile", "dry_run", "json", "clip_seconds", "gpu_gib")  # what a sweep sets itself
_STATES = {TrialState.COMPLETE: "complete", TrialState.FAIL: "failed", TrialState.RUNNING: "running"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Space(_Strict):
    """Where the values of a parameter come from: several choices, or a range. Two integers make a range of integers."""

    choices: Annotated[list[Any], Field(min_length=1)] | None = None  # values
    low: int | float | None = None  # smallest value
    high: int | float | None = None  # largest value
    log: bool = False  # draw evenly on a logarithmic scale
    step: int | float | None = None  # draw only low, low + step, ...; None = any value, of integers every one

    @model_validator(mode="after")
    def _check(self) -> Space:
        self.distribution()
        return self

    def distribution(self) -> BaseDistribution:
        """The distribution for Optuna; choices as JSON, since its journal does not keep lists and mappings.

        Raises:
            ValueError: If it is neither choices nor a range.
        """
        low, high, step = self.low, self.high, self.step
        if self.choices is not None:
            if (low, high, step, self.log) != (None, None, None, False):
                raise ValueError("choices beside a range; expected either of the two")
            _check_distinct(self.choices)
            return CategoricalDistribution([json.dumps(value) for value in self.choices])
        if low is None or high is None:
            raise ValueError("expected choices, or low and high")
        if not low < high:
            raise ValueError(f"low {low:g}, high {high:g}; expected low below high")
        if step is not None and not 0 < step <= high - low:
            raise ValueError(f"step {step:g}; expected above 0, at most {high - low:g}")
        if isinstance(low, float) or isinstance(high, float):
            return FloatDistribution(float(low), float(high), self.log, step)
        if isinstance(step, float):
            raise ValueError(f"step {step:g} between integers; expected an integer, or {low}.0 as low")
        return IntDistribution(low, high, self.log, step or 1)

    def value(self, drawn: Any) -> Any:
        """The value in a recipe for what Optuna drew."""
        return drawn if self.choices is None else json.loads(drawn)

    def examples(self) -> Sequence[Any]:
        """Values that the recipe must accept: all choices, or both ends."""
        if self.choices is not None:
            return self.choices
        distribution = self.distribution()
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        return distribution.low, distribution.high


def _check_distinct(values: Sequence[Any]) -> None:
    texts = [repr(value) for value in values]
    if duplicate := next((text for number, text in enumerate(texts) if text in texts[:number]), None):
        raise ValueError(f"{duplicate} stands there twice; expected distinct values")


class Sweep(_Strict):
    """A sweep file."""

    # files or names for ``train --config``, a later one overrides an earlier one. Relative to the working folder.
    train: Annotated[list[str], Field(min_length=1)]
    overrides: dict[str, Any] = {}  # dotted name -> value that holds in every trial
    search: Annotated[dict[str, Space], Field(min_length=1)]  # dotted name -> where its values come from
    trials: PositiveInt  # how many settings are tried, those that fail included
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1)] = [0]  # each setting is trained once with each of them
    sampler_seed: NonNegativeInt = 0  # of the choice of settings

    @model_validator(mode="after")
    def _check(self) -> Sweep:
        _check_distinct(self.seeds)
        names = [*self.overrides, *self.search]
        for name in names:
            if name in _OURS:
                raise ValueError(f"{name}: a sweep sets it itself; expected other settings of a recipe")
            if names.count(name) > 1:
                raise ValueError(f"{name} stands under overrides and search; expected one of them")
            if inside := next((other for other in names if other.startswith(f"{name}.")), None):
                raise ValueError(f"{inside} lies inside {name}; expected one of them")
        return self

    def recipe(self, parameters: Mapping[str, Any]) -> str:
        """The YAML that makes a trial of these parameters out of the recipes, overrides included."""
        return yaml.safe_dump(nested({**self.overrides, **parameters}), sort_keys=False, allow_unicode=True)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file, in the YAML of recipes (1e-4 is a number).

    Raises:
        UserError: If the file is missing or broken, or a key or value is not what a sweep has.
    """
    try:
        return Sweep.model_validate(read_yaml(path, get_loader("yaml")))
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        detail = "" if "expected" in message or first["type"] == "missing" else f" (found {shown(first['input'])})"
        raise UserError(": ".join([str(path), *map(str, first["loc"]), message]) + detail) from None


def check_recipe(sweep: Sweep, path: Path) -> Namespace:
    """Put overrides and every value of the search on the recipes, one at a time, as `train` would read them.

    Returns:
        The resolved recipe, without what is searched.

    Raises:
        UserError: If a recipe or backbone is missing, `train` does not accept a value, or devices are several.
    """
    _laid_over(sweep, path, RecipeParser(trainer=False))  # a wrong name is reported before torch is loaded
    base = _laid_over(sweep, path, RecipeParser())
    devices, nodes = base.trainer.devices, base.trainer.num_nodes
    if not (devices in (1, "1") or (isinstance(devices, list) and len(devices) == 1)) or nodes != 1:
        raise UserError(
            f"{path}: trainer.devices {shown(devices)} on {nodes} node(s); expected 1 (`trainer.devices: 1` under "
            "overrides). For several GPUs start the sweep once on each, with the same --out"
        )
    return base


def _laid_over(sweep: Sweep, path: Path, parser: RecipeParser) -> Namespace:
    """The recipe with the overrides; the values of the search are tried on it, and backbones looked up."""
    words = [word for recipe in sweep.train for word in ("--config", recipe)]
    if "data.path" in sweep.overrides:  # the only value that `train` needs and a recipe may lack
        words.append(f"--data.path={sweep.overrides['data.path']}")
    try:
        base = parser.parse(words)
    except UserError as error:
        raise UserError(f"{path}: train: {error}") from None
    base = parser.overlaid(base, sweep.overrides, f"{path}: overrides")
    backbones = {(base.judge.backbone, base.judge.revision)}
    for name, space in sweep.search.items():
        for value in space.examples():
            tried = parser.overlaid(base, {name: value}, f"{path}: search: {name}: {shown(value)}")
            backbones.add((tried.judge.backbone, tried.judge.revision))
    for backbone, revision in backbones:
        require_backbone(backbone, revision)
    return base


@dataclass(frozen=True)
class Trial:
    """What is known of a trial: its parameters (dotted name -> value), by seed the agreement of the best checkpoint on
    the validation split, by which training chose it, and why it failed, if it did. "running" may also be one that was
    killed and will go on."""

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
        return None if self.mean is None or len(self.values) < 2 else statistics.stdev(self.values.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "mean": self.mean, "sd": self.spread}


def run_sweep(path: Path, out: Path) -> tuple[Sweep, list[Trial]]:
    """Train all trials of a sweep file that no other process has. If the folder `out` holds this sweep already, what is
    missing is trained: `sweep.csv`, `best.yaml`, and a run folder for each trial and seed.

    Returns:
        The sweep, and what is known of its trials, in their order.

    Raises:
        UserError: If the file is not a sweep that `train` can run, the data cannot be read, or the folder holds
            something else.
    """
    sweep = read_sweep(path)
    check_unchanged(PairDataset.load(check_recipe(sweep, path).data.path))  # otherwise every trial would fail
    _prepare(sweep, out)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = JournalStorage(JournalFileBackend(str(out / _JOURNAL)))
    study = optuna.create_study(storage=journal, study_name="sweep", direction="maximize", load_if_exists=True)
    while (claim := _claim(study, sweep, out)) is not None:
        number, lock = claim
        try:
            _train_trial(study, sweep, number, out)
        finally:
            lock.release()
        with FileLock(out / _LOCK):
            _write_results(sweep, _all_trials(study, sweep), out)
    return sweep, _all_trials(study, sweep)


def _prepare(sweep: Sweep, out: Path) -> None:
    """Make the folder, or check that it holds this sweep; only the number of trials may differ."""
    values = sweep.model_dump(mode="json", exclude={"trials"})
    values["train"] = {path: hashlib.sha256(find_recipe(path).read_bytes()).hexdigest() for path in sweep.train}
    file = out / _SWEEP_FILE
    with system_errors(out, "made"):
        out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / _LOCK):
        if not file.is_file():
            if any(entry.name != _LOCK for entry in out.iterdir()):
                raise UserError(f"{out}: not empty, and no sweep; expected another --out")
            replace_text(file, json.dumps(values, indent=2) + "\n")
            return
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            changed = [key for key in values if before[key] != values[key]]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{file}: not what a sweep wrote: {error}") from None
    if changed:
        raise UserError(
            f"{out}: holds a sweep with other {', '.join(changed)}; expected another --out (only trials may change)"
        )


def _trial_folder(out: Path, number: int) -> Path:
    return out / f"trial-{number:04d}"


def _begun(study: optuna.Study, sweep: Sweep) -> list[FrozenTrial]:
    """Trials with all their parameters; one whose process was killed while it drew them is left out."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.params.keys() == sweep.search.keys()]


def _all_trials(study: optuna.Study, sweep: Sweep) -> list[Trial]:
    return [_known(study, sweep, trial) for trial in _begun(study, sweep)]


def _known(study: optuna.Study, sweep: Sweep, trial: FrozenTrial) -> Trial:
    # notes are kept in the study: a trial that another process began takes none
    noted = {what: study.user_attrs.get(f"trial {trial.number}: {what}") for what in (*sweep.seeds, "reason")}
    parameters = {name: space.value(trial.params[name]) for name, space in sweep.search.items()}
    values, state = {seed: noted[seed] for seed in sweep.seeds if noted[seed] is not None}, _STATES[trial.state]
    return Trial(trial.number, state, parameters, values, noted["reason"])  # pyright: ignore[reportArgumentType]


def _claim(study: optuna.Study, sweep: Sweep, out: Path) -> tuple[int, FileLock] | None:
    """A trial that a killed process left, or else a new one; None if all are done or with other processes."""
    with FileLock(out / _LOCK):
        for number in [trial.number for trial in _begun(study, sweep) if trial.state == TrialState.RUNNING]:
            lock = FileLock(_trial_folder(out, number) / _LOCK)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            if study.trials[number].state == TrialState.RUNNING:
                return number, lock
            lock.release()  # its process has finished it meanwhile
        if len(_begun(study, sweep)) >= sweep.trials:
            return None
        # a seed for each trial: a sweep that is continued would otherwise repeat its first draws
        seed = np.random.SeedSequence([sweep.sampler_seed, len(study.trials)]).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(seed))
        number = study.ask({name: space.distribution() for name, space in sweep.search.items()}).number
        _trial_folder(out, number).mkdir(exist_ok=True)
        lock = FileLock(_trial_folder(out, number) / _LOCK)
        lock.acquire(timeout=0)
        return number, lock


def _train_trial(study: optuna.Study, sweep: Sweep, number: int, out: Path) -> None:
    """Train every seed that is missing and tell Optuna the mean, or that the trial failed."""
    import torch

    from .checkpointing import CannotWrite

    folder = _trial_folder(out, number)
    trial, recipe = _known(study, sweep, study.trials[number]), folder / _RECIPE_FILE
    replace_text(recipe, sweep.recipe(trial.parameters))
    values = dict(trial.values)
    try:
        for seed in sweep.seeds:
            if seed not in values:
                say(f"trial {number}, seed {seed}: {trial.parameters}")
                gc.collect()  # trainer and module of the last run refer to each other: their memory must be freed
                torch.cuda.empty_cache()
                values[seed] = _train_seed([*sweep.train, str(recipe)], folder / f"seed-{seed}", seed)
                study.set_user_attr(f"trial {number}: {seed}", values[seed])
    except CannotWrite:  # not a fault of these settings: the trial continues when the sweep does
        raise
    except (UserError, torch.OutOfMemoryError) as error:
        reason = " ".join(str(error).splitlines())
        study.set_user_attr(f"trial {number}: reason", reason)
        say(f"trial {number} failed: {reason}", style="yellow")
        study.tell(number, state=TrialState.FAIL)
    else:
        study.tell(number, statistics.fmean(values.values()))


def _train_seed(recipes: list[str], run: Path, seed: int) -> float:
    """Train, or continue a killed run; returns the agreement of its best checkpoint on the validation split."""
    from ..models.weight_files import read_checkpoint
    from .run import train

    words = [word for recipe in recipes for word in ("--config", recipe)]
    done = train([*words, "--run", str(run), "--seed", str(seed), "--resume", "auto"])
    assert done is not None  # only a dry run has none
    return read_checkpoint(done.checkpoint)["agreement"]


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial of the highest mean, of equal ones the first; None if none is complete."""
    return max((t for t in trials if t.mean is not None), key=lambda trial: trial.mean or 0.0, default=None)


def _write_results(sweep: Sweep, trials: Sequence[Trial], out: Path) -> None:
    """`sweep.csv`, one row for each trial, and `best.yaml`, the recipe of the best one."""
    rows = []
    for trial in trials:
        runs = [_trial_folder(out, trial.number) / f"seed-{seed}" for seed in sweep.seeds]
        row: dict[str, Any] = {"trial": trial.number, "state": trial.state}
        row |= {name: _text(trial.parameters[name]) for name in sweep.search}
        row |= {f"seed {seed}": trial.values.get(seed) for seed in sweep.seeds}
        row |= {"mean": trial.mean, "sd": trial.spread}
        row["runs"] = " ".join(run.relative_to(out).as_posix() for run in runs if run.is_dir())
        rows.append({**row, "reason": trial.reason})
    replace_file(out / "sweep.csv", lambda path: pd.DataFrame(rows).to_csv(path, index=False))
    best = best_of(trials)
    if best is None:
        return
    files = [word for recipe in [*sweep.train, out / BEST_FILE] for word in ("--config", str(recipe))]
    spread = "" if best.spread is None else f" (sd {best.spread:.3f})"
    text = (
        f"# {shlex.join(['empathy-judge', 'train', *files, '--run', str(out / 'best')])}\n"
        f"# Trial {best.number} of a sweep: agreement on the validation split {best.mean:.3f}{spread} over seeds "
        f"{', '.join(map(str, sweep.seeds))}. It was chosen by that, so that only another split says how good it is.\n"
        f"{sweep.recipe(best.parameters)}"
    )
    replace_text(out / BEST_FILE, text)


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
