"""Pairs that a judge was not trained on: their scores in `left_out.csv`, and what they say about a method."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.table import Table

from ..core.disk_store import DiskStore
from ..core.errors import AudioError, UserError, counted
from ..core.files import replace_file
from ..core.processes import say
from ..data_modules.datamodule import undecided
from ..data_modules.folds import even_folds
from ..data_modules.ratings import MIN_ITEMS
from ..data_modules.schema import Dimension, Pair, PairDataset
from ..data_modules.splits import kept_together
from ..data_modules.training_items import RatedPairs, human_comparisons
from ..data_modules.unchanged import check_unchanged
from ..eval.judges import OK
from ..eval.judges.scores_file import ScoresFile
from ..eval.statistics.agreement import spearman
from ..eval.statistics.bootstrap import MIN_GROUPS, Resamples, estimate
from ..models import CHECKPOINTS
from ..models.heads import Prediction
from ..scoring.artifact import load_any
from ..scoring.predictor import Predictor, placed
from .probe import check_probe
from .run_folder import LEFT_OUT, LORA, PROBE
from .settings import Recipe
from .validation import lead_interval

RESAMPLES = 1_000


@dataclass(frozen=True)
class AllPairs:
    """The pairs of the splits that a recipe trains and validates on, together."""

    dataset: PairDataset  # these pairs alone
    groups: np.ndarray  # what folds keep together `(pairs,)`
    of_validation: Sequence[Pair]  # those of the validation splits
    hashes: Mapping[str, str]  # of the whole dataset, by name in a `Provenance`

    @classmethod
    def of(cls, recipe: Recipe) -> AllPairs:
        """Read them.

        Raises:
            UserError: See `check_choice`.
        """
        check_choice(recipe)
        dataset = PairDataset.load(recipe.data.path)
        # Under a clip that was replaced the ratings are of another recording
        check_unchanged(dataset)
        names = [recipe.data.train_split, recipe.data.validation_split]
        training, validation = ([name] if isinstance(name, str) else list(name) for name in names)
        return cls.among(dataset, training, validation)

    @classmethod
    def among(cls, dataset: PairDataset, training: Sequence[str], validation: Sequence[str]) -> AllPairs:
        """Those of the named splits of a whole dataset."""
        both = dataset.subset([*training, *validation])
        return cls(
            both,
            kept_together(both.pairs, dataset.pairs),
            [pair for pair in both.pairs if pair.split in validation],
            {"content_hash": dataset.card.content_hash, "split_hash": dataset.split_hash()},
        )

    @property
    def pairs(self) -> Sequence[Pair]:
        """The pairs."""
        return self.dataset.pairs

    @property
    def ids(self) -> frozenset[str]:
        """Their ids."""
        return frozenset(pair.pair_id for pair in self.pairs)

    def folds(self, recipe: Recipe) -> list[frozenset[str]]:
        """The ids of the pairs of each fold."""
        ids = np.array([pair.pair_id for pair in self.pairs], dtype=object)
        splits = even_folds(self.groups, recipe.folds, recipe.seed).split()
        return [frozenset(ids[rows].tolist()) for _, rows in splits]

    def count_groups(self, ids: Collection[str]) -> int:
        """Groups, or speakers, that the named of these pairs come from."""
        return len({group for pair, group in zip(self.pairs, self.groups.tolist(), strict=True) if pair.pair_id in ids})

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What was rated."""
        return self.dataset.card.dimensions


def check_choice(recipe: Recipe) -> None:
    """Check that a recipe of several runs (method auto, folds or refit) has folds enough and ratings to choose by, and
    one with a probe what this reads.

    Raises:
        UserError: If not.
    """
    if recipe.data.preference_share >= 1 and (recipe.method == "auto" or recipe.folds or recipe.refit):
        raise UserError(
            "data.preference_share 1 with refit, folds or method auto: there are no ratings to choose by; expected "
            "method lora or probe, without folds and refit"
        )
    least = 2 if recipe.method == PROBE else 3
    if recipe.folds and recipe.folds < least:
        why = "a fold is left out, one chooses, and one is trained on" if least == 3 else "one is left out"
        raise UserError(f"folds {recipe.folds} with method {recipe.method}: {why}; expected at least {least}")
    if recipe.method != LORA:
        check_probe(recipe)


def check_free(recipe: Recipe, folder: Path) -> None:
    """Check that a folder has no runs with a checkpoint or scores, or that they shall be resumed.

    Raises:
        UserError: If not.
    """
    # What a run leaves that was refused is no reason to refuse the next one
    kept = (file for part in (PROBE, LORA, CHECKPOINTS) for file in (folder / part).rglob("*"))
    if not recipe.resume and any(file.suffix == ".ckpt" or file.name == LEFT_OUT for file in kept):
        raise UserError(f"{folder}: already holds runs; expected another --run, or --resume true to continue them")


def check_folds(recipe: Recipe, pairs: AllPairs) -> None:
    """Check that the pairs have a group for each fold, and each fold ratings that choose, before any is trained on.

    Raises:
        UserError: If not.
    """
    groups = pairs.count_groups(pairs.ids)
    if recipe.folds > groups:
        raise UserError(
            f"folds {recipe.folds}: the pairs have {counted(groups, 'group')}; expected at most as many folds"
        )
    for number, fold in enumerate(pairs.folds(recipe) if recipe.folds else (), start=1):
        part = pairs.dataset.only(fold)
        if (problem := undecided(pairs.dimensions, RatedPairs(part), human_comparisons(part))) is not None:
            raise UserError(
                f"folds {recipe.folds}: in fold {number} {problem}; expected fewer folds, with at least {MIN_ITEMS} "
                "pairs in each, not all rated alike"
            )


def score_pairs(recipe: Recipe, run: Path, pairs: Sequence[Pair]) -> dict[str, Prediction]:
    """Scores of pairs by the judge of a run, by id; pairs whose audio cannot be used are left out."""
    # A recipe for the CPU is scored there too, also where there is a GPU
    device = "cpu" if recipe.trainer.get("accelerator") == "cpu" else None
    store = None if recipe.cache.folder is None else DiskStore(Path(recipe.cache.folder))
    scorer = Predictor(placed(load_any(run), device), recipe.data.eval_batch_size, store=store)
    return {pair.pair_id: result for pair, result in scorer.predict(pairs) if not isinstance(result, AudioError)}


def write_scores(file: Path, scores: Mapping[str, Prediction], dimensions: Sequence[Dimension]) -> None:
    """Write scores as `evaluate scores:FILE` reads them; the deviation of the head, if it has one, is the
    uncertainty."""
    rows: dict[str, list[Any]] = {"pair_id": [], "dimension": [], "score": []}
    for name, prediction in scores.items():
        for column, dimension in enumerate(dimensions):
            rows["pair_id"].append(name)
            rows["dimension"].append(dimension.name)
            rows["score"].append(prediction.score[column].item())
            if prediction.deviation is not None:
                rows.setdefault("uncertainty", []).append(prediction.deviation[column].item())
    # Whole or not at all: where this file is, its run counts as finished
    replace_file(file, lambda path: pd.DataFrame(rows).to_csv(path, index=False))


def read_scores(file: Path, pairs: Sequence[Pair], dimensions: Sequence[Dimension]) -> dict[str, Prediction]:
    """Read scores of these pairs; pairs without any are left out.

    Raises:
        UserError: If the file has scores of others.
    """
    table = ScoresFile(file).score(pairs)
    shape = len(pairs), len(dimensions)
    if len(table) != math.prod(shape) or OK not in table["status"].to_numpy():
        raise UserError(f"{file}: scores of other pairs or dimensions; expected another --run, or the same data")
    values = (torch.tensor(table[name].to_numpy().reshape(shape)).float() for name in ("score", "uncertainty"))
    predictions = Prediction.from_stored(*values).each()
    return {pair.pair_id: row for pair, row in zip(pairs, predictions, strict=True) if not row.score.isnan().all()}


def can_decide(pairs: AllPairs, scores: Mapping[str, Prediction]) -> bool:
    """Whether these pairs have enough groups, or speakers, for an interval by which adapters could be kept; otherwise
    one line says why none are trained."""
    count = pairs.count_groups(scores.keys())
    if count < MIN_GROUPS:
        more = "expected more of these"
        if pairs.count_groups(pairs.ids) >= MIN_GROUPS:
            more += f" in the validation split, or --folds {MIN_GROUPS}, which compares on all pairs"
        say(
            f"auto: {PROBE}: no adapters are trained, since the pairs to compare them with the probe on come from "
            f"{counted(count, 'group')} (or speakers), at least {MIN_GROUPS} needed; {more}"
        )
    return count >= MIN_GROUPS


def is_ahead(pairs: AllPairs, adapted: Mapping[str, Prediction], probe: Mapping[str, Prediction], seed: int) -> bool:
    """Whether adapters agree better with people than the probe; prints the reason in one line.

    They do if the 90 % interval of their gain over groups or speakers does not reach below 0.
    """
    # Pairs that both have scored: a clip that one of them could not read would count for the other alone
    (before, now), human, groups = _compared(pairs, probe, adapted)
    means = [_mean_spearman(scores, human) for scores in (before, now)]
    # Both methods are measured on the same draws: what varies is their difference
    draws = Resamples.sample(groups, RESAMPLES, seed)
    leads = draws.apply(
        lambda items: _mean_spearman(now[items], human[items]) - _mean_spearman(before[items], human[items])
    )
    low, high = lead_interval(draws, leads, means[1] - means[0])
    ahead = low is not None and low >= 0
    if low is not None:
        interval = f"90 % interval {low:.3f} to {high:.3f}; it must not begin below 0"
    else:
        interval = f"no 90 % interval: it needs {MIN_GROUPS} groups, or speakers, and draws in which it is defined"
    say(
        f"auto: {LORA if ahead else PROBE}: mean Spearman of {LORA} {means[1]:.3f}, of the probe {means[0]:.3f} on "
        f"{len(human)} pairs that neither was trained on, nor chose the epoch of {LORA} by; {LORA} leads by "
        f"{means[1] - means[0]:.3f} ({interval})"
    )
    return ahead


def print_agreement(pairs: AllPairs, scores: Mapping[str, Prediction], seed: int) -> None:
    """Print the agreement on pairs that were left out, with its interval over groups or speakers."""
    (found,), human, groups = _compared(pairs, scores)
    draws = Resamples.sample(groups, RESAMPLES, seed)
    table = Table(title="pairs that were left out", title_justify="left")
    for heading in ("dimension", "Spearman", "95 % interval", "pairs", "groups"):
        table.add_column(heading, justify="left" if heading == "dimension" else "right")
    for column, dimension in enumerate(pairs.dimensions):
        result = estimate(spearman, found[:, column], human[:, column], resamples=draws)
        value = str(result.reason) if result.value is None else f"{result.value:.3f}"
        ends = "" if result.low is None or result.high is None else f"{result.low:.3f} to {result.high:.3f}"
        table.add_row(dimension.name, value, ends, str(result.n), str(len(set(groups.tolist()))))
    say(table)


def _compared(pairs: AllPairs, *judges: Mapping[str, Prediction]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Scores and mean ratings of the pairs that every judge has scored, each `(pairs, dimensions)`, and groups."""
    rows = [row for row, pair in enumerate(pairs.pairs) if all(pair.pair_id in scores for scores in judges)]
    names = [pairs.pairs[row].pair_id for row in rows]
    found = [np.stack([scores[name].score.double().numpy() for name in names]) for scores in judges]
    columns = [dimension.name for dimension in pairs.dimensions]
    return found, pairs.dataset.mean_scores()[columns].to_numpy(np.float64)[rows], pairs.groups[rows]


def _mean_spearman(scores: np.ndarray, human: np.ndarray) -> float:
    coefficients = []
    for column in range(human.shape[1]):
        rated = np.isfinite(scores[:, column]) & np.isfinite(human[:, column])
        coefficients.append(spearman(scores[rated, column], human[rated, column]) if rated.any() else math.nan)
    # A dimension on which a judge says the same of all has no correlation
    defined = [value for value in coefficients if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan
