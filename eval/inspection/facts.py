"""What the ratings, preferences and skipped pairs of a dataset show, before any judge: distributions and disputes."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...data_modules.importers.assemble import SKIPPED_FILE
from ...data_modules.inspection import Histogram
from ...data_modules.ratings import Dimension
from ...data_modules.schema import PairDataset
from ...data_modules.storage import DataPath
from ..statistics.agreement import as_report
from ..statistics.raters import RaterFacts, rater_report

DISPUTED_ITEMS = 20
MAX_STEPS = 21
"""A scale with at most so many steps has one bin per step; any other scale has one bin less, equally wide."""
_ROUNDING = 9  # decimals of a spread; beyond, two spreads differ only by the order of a sum


@dataclass(frozen=True)
class DisputedItem:
    """An item that its raters do not agree on."""

    pair_id: str
    spread: float  # standard deviation of its ratings (over n - 1), rating points
    ratings: tuple[tuple[str, float], ...]  # rater and score, in rising order of scores, then of raters


@dataclass(frozen=True)
class RatingFacts:
    """The ratings of one dimension."""

    scores: Histogram  # all ratings in the bins of `rating_bins` (rating points)
    scores_by_rater: Mapping[str, tuple[int, ...]]  # number of ratings in each of these bins; in the order of names
    pairs_by_raters: Mapping[int, int]  # number of raters -> pairs that so many rated; 0 for pairs without a rating
    disputed: tuple[DisputedItem, ...]  # the items with the highest spread, see `most_disputed`
    raters: tuple[RaterFacts, ...]  # those who deserve a question first


@dataclass(frozen=True)
class DisputedCouple:
    """Two items that raters compared with different results."""

    pair_ids: tuple[str, str]  # in the order of their ids
    votes: tuple[int, int, int]  # raters who preferred the first, called it a tie, preferred the second

    @property
    def dissent(self) -> float:
        """Share of the votes that the most frequent verdict did not get."""
        return 1 - max(self.votes) / sum(self.votes)


@dataclass(frozen=True)
class PreferenceFacts:
    """The comparisons (one rater, two items) on one dimension."""

    comparisons: int
    raters: int
    ties: int  # comparisons of strength 0
    couples: int  # different ones, whichever item was chosen
    shared_couples: int  # that were compared more than once
    unanimous_couples: int  # shared ones of which the same item was preferred each time, or none each time
    disputed: tuple[DisputedCouple, ...]  # `DISPUTED_ITEMS`, highest dissent first, then more votes, then ids


@dataclass(frozen=True)
class InspectionFacts:
    """What `inspect` says of ratings and preferences, and of what the import left out."""

    ratings: Mapping[str, RatingFacts]  # every dimension of the dataset
    preferences: Mapping[str, PreferenceFacts]  # only dimensions that have some
    skipped: tuple[Mapping[str, str], ...]  # rows of ``skipped.csv``; empty where the import skipped nothing

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return as_report(self)


def inspection_facts(dataset: PairDataset) -> InspectionFacts:
    """Collects them from a dataset (not a subset)."""
    groups = {pair.pair_id: pair.group_id for pair in dataset.pairs}
    compared = [] if dataset.preferences is None else list(dataset.preferences.groupby("dimension", sort=False))
    path: DataPath = dataset.root / SKIPPED_FILE
    text = path.read_bytes().decode("utf-8", errors="replace") if path.is_file() else ""
    rows = list(csv.reader(io.StringIO(text, newline="")))
    return InspectionFacts(
        ratings={dimension.name: _rating_facts(dataset, dimension, groups) for dimension in dataset.card.dimensions},
        preferences={str(name): _preference_facts(rows) for name, rows in compared},
        skipped=tuple(dict(zip(rows[0], row, strict=False)) for row in rows[1:]),
    )


def rating_bins(dimension: Dimension) -> np.ndarray:
    """Edges of the bins of a scale, ascending (rating points): around each step, or of equal width; see `MAX_STEPS`."""
    low, high, step = dimension.minimum, dimension.maximum, dimension.step
    if step is not None and (steps := round((high - low) / step) + 1) <= MAX_STEPS:
        return low + step * (np.arange(steps + 1) - 0.5)
    return np.linspace(low, high, MAX_STEPS)


def most_disputed(ratings: pd.DataFrame, count: int = DISPUTED_ITEMS) -> tuple[DisputedItem, ...]:
    """The items whose ratings spread most, the most disputed first.

    An item needs two raters who differ. Equal spreads: more raters first, then the pair id in its order.

    Args:
        ratings: Those of one dimension: columns ``pair_id, rater_id, score``.
        count: How many at most.
    """
    by_pair = ratings.groupby("pair_id")["score"]
    items = pd.DataFrame({"spread": by_pair.std().round(_ROUNDING), "n": by_pair.count()})  # NaN for a single rating
    items = items.loc[items["spread"] > 0].reset_index()
    top = items.sort_values(by=["spread", "n", "pair_id"], ascending=[False, False, True]).iloc[:count]
    wanted = ratings.loc[ratings["pair_id"].isin(top["pair_id"])].sort_values(["score", "rater_id"])
    annotations: dict[Any, list[tuple[str, float]]] = {}
    for pair_id, rater, score in zip(wanted["pair_id"], wanted["rater_id"], wanted["score"], strict=True):
        annotations.setdefault(pair_id, []).append((str(rater), float(score)))
    return tuple(
        DisputedItem(pair_id, float(spread), tuple(annotations[pair_id]))
        for pair_id, spread in zip(top["pair_id"], top["spread"], strict=True)
    )


def _rating_facts(dataset: PairDataset, dimension: Dimension, groups: Mapping[str, str]) -> RatingFacts:
    ratings = dataset.ratings.loc[dataset.ratings["dimension"] == dimension.name]
    edges = rating_bins(dimension)
    # Scores may be off the scale by rounding (float32); they belong to the bin at its end.
    scores = np.clip(ratings["score"].to_numpy(np.float64), edges[0], edges[-1])
    raters, rater_ids = pd.factorize(ratings["rater_id"], sort=True)
    raters_of_pair = Counter(ratings["pair_id"])
    pairs = Counter(raters_of_pair[pair_id] for pair_id in groups)
    return RatingFacts(
        scores=Histogram(tuple(map(float, edges)), _binned(scores, edges)),
        scores_by_rater={
            str(rater_id): _binned(scores[raters == position], edges) for position, rater_id in enumerate(rater_ids)
        },
        pairs_by_raters=dict(sorted(pairs.items())),
        disputed=most_disputed(ratings),
        raters=tuple(rater_report(ratings, dimension, groups)) if len(ratings) else (),
    )


def _binned(scores: np.ndarray, edges: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, np.histogram(scores, edges)[0]))


def _preference_facts(rows: pd.DataFrame) -> PreferenceFacts:
    votes: dict[tuple[str, str], list[int]] = {}
    for chosen, rejected, strength in zip(rows["chosen_id"], rows["rejected_id"], rows["strength"], strict=True):
        first, second = sorted((chosen, rejected))
        votes.setdefault((first, second), [0, 0, 0])[1 if strength == 0 else 0 if chosen == first else 2] += 1
    shared = [DisputedCouple(ids, (own[0], own[1], own[2])) for ids, own in votes.items() if sum(own) > 1]
    disputed = [couple for couple in shared if couple.dissent > 0]
    ranked = sorted(disputed, key=lambda couple: (-couple.dissent, -sum(couple.votes), couple.pair_ids))
    return PreferenceFacts(
        comparisons=len(rows),
        raters=len(set(rows["rater_id"])),
        ties=sum(own[1] for own in votes.values()),
        couples=len(votes),
        shared_couples=len(shared),
        unanimous_couples=len(shared) - len(disputed),
        disputed=tuple(ranked[:DISPUTED_ITEMS]),
    )
