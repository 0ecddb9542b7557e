"""Several runs as one: a judge for each fold, the choice between probe and adapters, and the judge of all pairs.

Method auto trains the probe, then adapters, which are kept only if they are ahead of it on pairs that neither was
trained on.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.table import Table
from sklearn.model_selection import GroupKFold

from ..data_modules.datamodule import RunPairs
from ..data_modules.errors import AudioError, UserError, counted
from ..data_modules.folders import replace_file
from ..data_modules.parallel import say
from ..data_modules.schema import Pair, PairDataset
from ..data_modules.splits import kept_together
from ..data_modules.unchanged import check_unchanged
from ..data_modules.written import write_files
from ..eval.judges import OK
from ..eval.judges.scores_file import ScoresFile
from ..eval.statistics.agreement import spearman
from ..eval.statistics.bootstrap import MIN_GROUPS, Resamples, estimate
from ..models import BEST, CALIBRATION_FILE, CHECKPOINTS, CONFIG_FILE
from ..models.artifact import load_any, read_settings
from ..models.closed_form import EXACT, LANDMARKS
from ..models.disk_store import DiskStore
from ..models.ensemble import write_ensemble
from ..models.heads import Prediction
from ..models.scoring import PairScorer, placed
from ..models.weight_files import read_checkpoint
from .checkpointing import ENSEMBLE, LEFT_OUT, LORA, PROBE, check_same_data, check_same_settings
from .features import temporary_folder
from .module import RunTask
from .recipe import Recipe
from .validation import lead_interval

RESAMPLES = 1_000
_ELSEWHERE = (
    "run", "resume", "method", "refit", "profile", "log_audio", "checkpoint_steps", "gradient_checkpointing",
    "compile_layers", "expected_trainable", "cache", "data.path", "data.num_workers", "data.eval_batch_size",
    "judge.attention", *(f"trainer.{name}" for name in (
        "accelerator", "strategy", "devices", "num_nodes", "logger", "log_every_n_steps", "enable_progress_bar")),
)  # fmt: skip
"""Settings that a finished part need not share: where and how it runs, and what else is tried."""
_NOT_OF_A_PROBE = (
    "judge.lora", "objective", "optimizer", "trainer", "patience", "data.batch_size", "data.batch_tokens",
    "data.batches",
)  # fmt: skip
One = Callable[[Mapping[str, Any], RunTask], object]
"""Trains once, with changed settings of the recipe and the task of the run."""


def everything(recipe: Recipe) -> RunPairs:
    """All pairs of the splits that a recipe trains and validates on, for both.

    Raises:
        UserError: If the data has preferences alone.
    """
    ids = frozenset(pair.pair_id for pair in _Plan(recipe, Path()).pairs)
    return RunPairs(ids, ids)


def train_several(recipe: Recipe, folder: Path, one: One, text: str) -> None:
    """Train a judge for each fold, choose the method where it is `auto`, and leave the final judge in the folder.

    Args:
        recipe: With `folds`, `refit` or method auto.
        folder: Folder of the run; its parts are trained in folders below it, METHOD/foldN.
        one: Trains once.
        text: Of the `config.yaml` of the run.

    Raises:
        UserError: If the recipe does not fit the data, parts that are finished are of another, or as `one`.
    """
    plan = _Plan(recipe, folder)
    plan.check()
    plan.check_finished(text)
    write_files("train", folder, {CONFIG_FILE: text.encode()})
    with plan.shared_cache() as settings:
        overrides = {"refit": False, "folds": 0, "resume": "auto" if recipe.resume else False, **settings}
        chosen = PROBE if recipe.method == "auto" else recipe.method
        result = plan.tried(chosen, one, {**overrides, "method": chosen})
        if recipe.method == "auto":
            adapted = plan.tried(LORA, one, {**overrides, "method": LORA})
            if plan.leads(adapted, result):
                chosen, result = LORA, adapted
        if recipe.folds or recipe.refit:
            scores = result.scores if recipe.folds or chosen != PROBE else None
            epochs = result.epochs if chosen != PROBE else None
            task = RunTask(
                everything(recipe), refit=True, scores=scores, epochs=epochs, start=result.start, one_process=True
            )
            one({**overrides, "method": chosen}, task)
        else:  # the chosen run becomes the run itself
            shutil.copytree(folder / chosen / CHECKPOINTS, folder / CHECKPOINTS, dirs_exist_ok=True)
            if (folder / chosen / CALIBRATION_FILE).is_file():
                shutil.copy(folder / chosen / CALIBRATION_FILE, folder / CALIBRATION_FILE)
    if recipe.folds:
        plan.write(folder / LEFT_OUT, result.scores)
        plan.print_table(result)
        _put_together([folder / chosen / turn.name for turn in plan.turns(chosen)], folder / ENSEMBLE)


@dataclass(frozen=True)
class _Turn:
    """A run of one fold, or the only one."""

    name: str  # name of its folder
    parts: RunPairs | None  # what it trains on; None = as the splits say
    left_out: Sequence[Pair]  # pairs that it is not trained on


@dataclass(frozen=True)
class _Tried:
    """The result of a method."""

    scores: Mapping[str, Prediction]  # pair -> prediction of a judge that was not trained on it
    epochs: float  # epochs that the best checkpoint was trained for; the median of the folds
    start: dict[str, dict[str, float | None]]  # `Provenance.start`; the mean of the folds, without interval


class _Plan:
    """Plans which pairs each run trains on, runs it, and compares the methods."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe, self._folder = recipe, folder
        if recipe.data.preference_share >= 1:
            raise UserError(
                "data.preference_share 1 with refit, folds or method auto: there are no ratings to choose by; expected "
                "method lora or probe, without folds and refit"
            )
        dataset = PairDataset.load(recipe.data.path)
        check_unchanged(dataset)
        names = [recipe.data.train_split, recipe.data.validation_split]
        self._splits = [[name] if isinstance(name, str) else list(name) for name in names]
        self._hashes = {"content_hash": dataset.card.content_hash, "split_hash": dataset.split_hash()}
        self._dataset = dataset.subset([name for names in self._splits for name in names])
        self.pairs = self._dataset.pairs
        self._groups = kept_together(self.pairs, dataset.pairs)
        self._dimensions = dataset.card.dimensions

    def check(self) -> None:
        """Check that the folds fit the data, and that the folder is free or to be resumed."""
        folds, groups = self._recipe.folds, len(set(self._groups.tolist()))
        least = 2 if self._recipe.method == PROBE else 3
        if folds and folds < least:
            why = "a fold is left out, one chooses, and one is trained on" if least == 3 else "one is left out"
            raise UserError(f"folds {folds} with method {self._recipe.method}: {why}; expected at least {least}")
        if folds > groups:
            raise UserError(f"folds {folds}: the pairs have {counted(groups, 'group')}; expected at most as many folds")
        if not self._recipe.resume and any((self._folder / method).exists() for method in (PROBE, LORA)):
            raise UserError(
                f"{self._folder}: already holds runs; expected another --run, or --resume true to continue them"
            )

    def check_finished(self, text: str) -> None:
        """Check that recipe (as YAML) and data are those of the parts that are finished: they are not trained again."""
        finished = {file.parent: method for method in (PROBE, LORA) for file in (self._folder / method).rglob(LEFT_OUT)}
        if finished:
            unused = _NOT_OF_A_PROBE if LORA not in finished.values() else ()
            check_same_settings(self._folder, text, [""], [*_ELSEWHERE, *unused])
        for part in sorted(finished):
            origin = read_checkpoint(part / CHECKPOINTS / BEST)["description"]["provenance"]
            check_same_data(part, origin, self._hashes, self._recipe.data.path)

    @contextmanager
    def shared_cache(self) -> Iterator[Mapping[str, Any]]:
        """Settings by which all runs share one cache of the activations of frozen layers."""
        cache = self._recipe.cache
        if cache.what == "none" or cache.folder is not None:
            yield {}
        else:
            with temporary_folder(self._folder, 0) as folder:
                yield {"cache.folder": str(folder)}

    @cached_property
    def _folds(self) -> list[frozenset[str]]:
        ids = np.array([pair.pair_id for pair in self.pairs], dtype=object)
        folds = GroupKFold(self._recipe.folds, shuffle=True, random_state=self._recipe.seed)
        return [frozenset(ids[left_out].tolist()) for _, left_out in folds.split(ids, groups=self._groups)]

    def turns(self, method: str) -> Iterator[_Turn]:
        """The runs of a method. A probe's left-out fold chooses nothing; adapters leave out one more, to choose by."""
        if not self._recipe.folds:
            yield _Turn("", None, [pair for pair in self.pairs if pair.split in self._splits[1]])
            return
        ids = frozenset(pair.pair_id for pair in self.pairs)
        for number, fold in enumerate(self._folds):
            choosing = fold if method == PROBE else self._folds[(number + 1) % len(self._folds)]
            left_out = [pair for pair in self.pairs if pair.pair_id in fold]
            yield _Turn(f"fold{number + 1}", RunPairs(ids - fold - choosing, choosing), left_out)

    def tried(self, method: str, one: One, again: Mapping[str, Any]) -> _Tried:
        """Train the runs that are not finished yet, and score the pairs that each run has left out."""
        scores: dict[str, Prediction] = {}
        epochs: list[float] = []
        starts: list[dict[str, dict[str, float | None]]] = []
        for turn in self.turns(method):
            folder = self._folder / method / turn.name
            if not (folder / LEFT_OUT).is_file():
                if turn.name:
                    say(f"{method}: {turn.name} of {self._recipe.folds}")
                task = RunTask(turn.parts, landmarks=self._landmarks if turn.name else None, one_process=True)
                one({**again, "run": str(folder)}, task)
                cache = again.get("cache.folder", self._recipe.cache.folder)
                self.write(folder / LEFT_OUT, self._scored(folder, turn.left_out, cache))
            scores |= self._read(folder / LEFT_OUT, turn.left_out)
            best = read_checkpoint(folder / CHECKPOINTS / BEST)
            epochs.append(best["epochs"])
            starts.append(best["description"]["provenance"]["start"])
        return _Tried(scores, float(np.median(epochs)), starts[0] if len(starts) == 1 else _mean_start(starts))

    @property
    def _landmarks(self) -> int:
        """Number of landmarks, the same for all folds although they differ in their number of pairs."""
        smallest = len(self.pairs) - max(map(len, self._folds))
        return LANDMARKS if smallest > EXACT else min(len(self.pairs), EXACT)

    def _scored(self, folder: Path, pairs: Sequence[Pair], cache: str | None) -> dict[str, Prediction]:
        device = "cpu" if self._recipe.trainer.get("accelerator") == "cpu" else None
        store = None if cache is None else DiskStore(Path(cache))
        scorer = PairScorer(placed(load_any(folder), device), self._recipe.data.eval_batch_size, store=store)
        return {pair.pair_id: result for pair, result in scorer.predict(pairs) if not isinstance(result, AudioError)}

    def write(self, file: Path, scores: Mapping[str, Prediction]) -> None:
        """Write scores as `evaluate scores:FILE` reads them; the deviation of the head, if it has one, is the
        uncertainty."""
        rows: dict[str, list[Any]] = {"pair_id": [], "dimension": [], "score": []}
        for name, prediction in scores.items():
            for column, dimension in enumerate(self._dimensions):
                rows["pair_id"].append(name)
                rows["dimension"].append(dimension.name)
                rows["score"].append(prediction.score[column].item())
                if prediction.deviation is not None:
                    rows.setdefault("uncertainty", []).append(prediction.deviation[column].item())
        replace_file(file, lambda path: pd.DataFrame(rows).to_csv(path, index=False))

    def _read(self, file: Path, pairs: Sequence[Pair]) -> dict[str, Prediction]:
        table = ScoresFile(file).score(pairs)
        shape = len(pairs), len(self._dimensions)
        if len(table) != math.prod(shape) or OK not in table["status"].to_numpy():
            raise UserError(f"{file}: scores of other pairs or dimensions; expected another --run, or the same data")
        values = (torch.tensor(table[name].to_numpy().reshape(shape)).float() for name in ("score", "uncertainty"))
        predictions = Prediction.kept(*values).each()
        return {pair.pair_id: row for pair, row in zip(pairs, predictions, strict=True) if not row.score.isnan().all()}

    def _compared(self, *tried: _Tried) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """Scores and mean ratings of the pairs that every method has scored, each `(pairs, dimensions)`, and groups."""
        rows = [row for row, pair in enumerate(self.pairs) if all(pair.pair_id in result.scores for result in tried)]
        names = [self.pairs[row].pair_id for row in rows]
        scores = [np.stack([result.scores[name].score.double().numpy() for name in names]) for result in tried]
        columns = [dimension.name for dimension in self._dimensions]
        return scores, self._dataset.mean_scores()[columns].to_numpy(np.float64)[rows], self._groups[rows]

    def leads(self, adapted: _Tried, probe: _Tried) -> bool:
        """Whether adapters are ahead of the probe; says why in one line.

        They are if the 90 % interval of their lead, a bootstrap over what folds keep together, does not begin below 0;
        never where there are fewer than `MIN_GROUPS` of these.
        """
        (before, now), human, groups = self._compared(probe, adapted)
        means = [_mean_spearman(scores, human) for scores in (before, now)]
        draws = Resamples.draw(groups, RESAMPLES, self._recipe.seed)
        leads = draws.draws(
            lambda items: _mean_spearman(now[items], human[items]) - _mean_spearman(before[items], human[items])
        )
        low, high = lead_interval(draws, leads)
        ahead = low is not None and low >= 0
        if low is not None:
            interval = f"90 % interval {low:.3f} to {high:.3f}; it must not begin below 0"
        elif draws.n_groups < MIN_GROUPS:
            interval = f"no 90 % interval: {counted(draws.n_groups, 'group')}, at least {MIN_GROUPS} needed"
        else:
            interval = "no 90 % interval: it is undefined in every draw"
        say(
            f"auto: {LORA if ahead else PROBE}: mean Spearman of {LORA} {means[1]:.3f}, of the probe {means[0]:.3f} on "
            f"{len(human)} pairs that neither was trained on; {LORA} leads by {means[1] - means[0]:.3f} ({interval})"
        )
        return ahead

    def print_table(self, tried: _Tried) -> None:
        """Print the agreement on pairs that were left out, with its interval over what folds keep together."""
        (scores,), human, groups = self._compared(tried)
        draws = Resamples.draw(groups, RESAMPLES, self._recipe.seed)
        table = Table(title="pairs that were left out", title_justify="left")
        for heading in ("dimension", "Spearman", "95 % interval", "pairs", "groups"):
            table.add_column(heading, justify="left" if heading == "dimension" else "right")
        for column, dimension in enumerate(self._dimensions):
            result = estimate(spearman, scores[:, column], human[:, column], resamples=draws)
            value = str(result.reason) if result.value is None else f"{result.value:.3f}"
            ends = "" if result.low is None or result.high is None else f"{result.low:.3f} to {result.high:.3f}"
            table.add_row(dimension.name, value, ends, str(result.n), str(len(set(groups.tolist()))))
        say(table)


def _mean_start(starts: Sequence[dict[str, dict[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    """Mean over folds of where the judges began and what training added, for dimensions that every fold measured."""
    means: dict[str, dict[str, float | None]] = {}
    for name in starts[0]:
        values = [(start[name]["probe"], start[name]["added"]) for start in starts if name in start]
        measured = [(probe, added) for probe, added in values if probe is not None and added is not None]
        if len(measured) == len(starts):
            probe, added = np.mean(measured, axis=0).tolist()
            means[name] = {"probe": probe, "added": added, "low": None, "high": None}
    return means


def _mean_spearman(scores: np.ndarray, human: np.ndarray) -> float:
    coefficients = []
    for column in range(human.shape[1]):
        rated = np.isfinite(scores[:, column]) & np.isfinite(human[:, column])
        coefficients.append(spearman(scores[rated, column], human[rated, column]) if rated.any() else math.nan)
    defined = [value for value in coefficients if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan


def _put_together(folders: Sequence[Path], out: Path) -> None:
    """Write an ensemble of the folds' judges that have the most common kernel: each fold chooses its own."""
    if out.exists():
        return
    kinds = [read_settings(folder).head_input for folder in folders]
    common, count = Counter(kinds).most_common(1)[0]
    others = [folder.name for folder, kind in zip(folders, kinds, strict=True) if kind != common]
    if count > 1:
        write_ensemble([folder for folder, kind in zip(folders, kinds, strict=True) if kind == common], out)
    if others:
        word = "without" if count > 1 else "none, of"
        say(f"ensemble: {word} {', '.join(others)}, which chose another kernel")
