"""Facts about ratings, preferences and skipped pairs of a dataset, without any judge: distributions and disputes.

What is wrong with pairs, clips and splits is found by `data_modules.overview`; ``pages/inspection.py`` shows both.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..core.files import DataPath
from ..data_modules.importers.assemble import SKIPPED_FILE
from ..data_modules.ratings import Dimension, raters_of
from ..data_modules.schema import PairDataset
from .report.base import Count, Part
from .report.people import PeopleReport
from .statistics.raters import RaterFacts, rater_report
from .statistics.reliability import measure, rated_items

DISPUTED_ITEMS = 20
# As `evaluate` draws by default
RESAMPLES = 1000
MAX_STEPS = 21
"""A scale with at most this many steps has one bin per step; any other has `MAX_STEPS` - 1 bins of equal width."""
# Decimals of a spread; beyond, two spreads differ only by the order of a sum
_ROUNDING = 9


class Histogram(Part):
    """How often each part of the scale was used."""

    edges: tuple[float, ...]
    """Edges of the bins, ascending, rating points."""
    counts: tuple[Count, ...]
    """Ratings in each bin."""


class Disputed(Part):
    """An item whose ratings differ."""

    pair_id: str
    """Its id in the data."""
    spread: float
    """Standard deviation over n - 1, rating points."""
    ratings: tuple[tuple[str, float], ...]
    """Rater and score, in rising order of scores, then of raters."""


class RatingFacts(Part):
    """Ratings of a dimension."""

    scores: Histogram
    """All ratings."""
    scores_by_rater: dict[str, tuple[Count, ...]]
    """Rater -> ratings in each bin, in the order of names."""
    pairs_by_raters: dict[int, Count]
    """Number of raters -> pairs with that many; 0 = unrated."""
    disputed: tuple[Disputed, ...]
    """The items whose ratings spread most."""
    raters: tuple[RaterFacts, ...]
    """Raters one by one, flagged ones first."""


class DisputedCouple(Part):
    """Two items on which raters differ."""

    pair_ids: tuple[str, str]
    """In sorted order."""
    votes: tuple[Count, Count, Count]
    """For the first, ties, for the second."""


class PreferenceFacts(Part):
    """Comparisons of a dimension."""

    comparisons: Count
    """Of two items by one rater."""
    raters: Count
    """Raters who compared."""
    ties: Count
    """Comparisons of strength 0."""
    couples: Count
    """Couples of items, in either order."""
    shared_couples: Count
    """Those that were compared more than once."""
    unanimous_couples: Count
    """Those of these that were always decided alike."""
    disputed: tuple[DisputedCouple, ...]
    """Those with the highest dissent."""


class InspectionReport(Part):
    """The ratings of a dataset, without any judge: a part of what `inspect --json` prints."""

    ratings: dict[str, RatingFacts]
    """Dimension -> its ratings."""
    preferences: dict[str, PreferenceFacts]
    """Dimension -> its comparisons; only those that have some."""
    skipped: tuple[dict[str, str], ...]
    """Rows of ``skipped.csv``: pairs that the import left out."""
    reliability: dict[str, PeopleReport]
    """Dimension -> how well its raters agree."""


# ---------------------------------------------------------------- how they are measured


def inspection_facts(dataset: PairDataset) -> InspectionReport:
    """What `inspect` reports about ratings, preferences and the pairs that the import skipped."""
    groups = {pair.pair_id: pair.group_id for pair in dataset.pairs}
    compared = [] if dataset.preferences is None else list(dataset.preferences.groupby("dimension", sort=False))
    path: DataPath = dataset.root / SKIPPED_FILE
    text = path.read_bytes().decode("utf-8", errors="replace") if path.is_file() else ""
    skipped = list(csv.reader(io.StringIO(text, newline="")))
    ratings, panels = {}, {}
    for dimension in dataset.card.dimensions:
        ratings[dimension.name], panels[dimension.name] = _rating_facts(dataset, dimension, groups)
    return InspectionReport(
        ratings=ratings,
        preferences={str(name): _preference_facts(rows) for name, rows in compared},
        skipped=tuple(dict(zip(skipped[0], row, strict=False)) for row in skipped[1:]),
        reliability=panels,
    )


def scale_steps(dimension: Dimension) -> list[float] | None:
    """The possible ratings, ascending; None where not every one has a bin of its own, see `MAX_STEPS`."""
    if dimension.step is None or dimension.steps > MAX_STEPS:
        return None
    return [dimension.minimum + position * dimension.step for position in range(dimension.steps)]


def rating_bins(dimension: Dimension) -> np.ndarray:
    """Edges of the bins of a scale, ascending (rating points): around each step, or of equal width."""
    if (steps := scale_steps(dimension)) is not None and dimension.step is not None:
        return dimension.minimum + dimension.step * (np.arange(len(steps) + 1) - 0.5)
    return np.linspace(dimension.minimum, dimension.maximum, MAX_STEPS)


def most_disputed(ratings: pd.DataFrame) -> tuple[Disputed, ...]:
    """The `DISPUTED_ITEMS` items whose ratings spread most, the most disputed first.

    An item needs two raters who differ. Items of equal spread are sorted by number of raters, most first, then by id.
    The ratings are those of one dimension.
    """
    by_pair = ratings.groupby("pair_id")["score"]
    items = pd.DataFrame({"spread": by_pair.std().round(_ROUNDING), "n": by_pair.count()})  # NaN for a single rating
    items = items.loc[items["spread"] > 0].reset_index()
    top = items.sort_values(by=["spread", "n", "pair_id"], ascending=[False, False, True]).iloc[:DISPUTED_ITEMS]
    shown = ratings.loc[ratings["pair_id"].isin(top["pair_id"])].sort_values(["score", "rater_id"])
    ratings_of = {pair_id: rows[["rater_id", "score"]].values.tolist() for pair_id, rows in shown.groupby("pair_id")}
    return tuple(
        Disputed(pair_id=pair_id, spread=float(spread), ratings=ratings_of[pair_id])
        for pair_id, spread in zip(top["pair_id"], top["spread"], strict=True)
    )


def _rating_facts(
    dataset: PairDataset, dimension: Dimension, groups: Mapping[str, str]
) -> tuple[RatingFacts, PeopleReport]:
    """The entries of one dimension under ``ratings`` and ``reliability``."""
    ratings = dataset.ratings.loc[dataset.ratings["dimension"] == dimension.name]
    edges = rating_bins(dimension)
    # Scores may be off the scale by rounding (float32); they belong to the bin at its end.
    scores = np.clip(ratings["score"].to_numpy(np.float64), edges[0], edges[-1])
    raters, rater_ids = pd.factorize(ratings["rater_id"], sort=True)
    pairs = Counter(raters_of(ratings, [*groups]).tolist())

    def binned(own: np.ndarray) -> tuple[int, ...]:
        return tuple(np.histogram(own, edges)[0].tolist())

    table, draws = rated_items(ratings, dimension.name, groups, RESAMPLES, seed=0)
    panel = measure(table, draws, seed=0)
    of_raters = rater_report(table, draws, panel.leave_one_rater_out, panel.raters, dimension) if table.n_raters else ()
    facts = RatingFacts(
        scores=Histogram(edges=tuple(edges.tolist()), counts=binned(scores)),
        scores_by_rater={
            str(rater): binned(scores[raters == number])
            for number, rater in enumerate(rater_ids if table.n_raters else ())
        },
        pairs_by_raters=dict(sorted(pairs.items())),
        disputed=most_disputed(ratings),
        raters=tuple(of_raters),
    )
    return facts, PeopleReport.measured(table, draws, panel, seed=0)


def _preference_facts(rows: pd.DataFrame) -> PreferenceFacts:
    votes: dict[tuple[str, str], list[int]] = {}
    for chosen, rejected, strength in zip(rows["chosen_id"], rows["rejected_id"], rows["strength"], strict=True):
        # Either order of two items is the same couple
        first, second = sorted((chosen, rejected))
        votes.setdefault((first, second), [0, 0, 0])[1 if strength == 0 else 0 if chosen == first else 2] += 1
    shared = [(ids, tally) for ids, tally in votes.items() if sum(tally) > 1]
    disputed = [(max(tally) / sum(tally), -sum(tally), ids, tally) for ids, tally in shared if max(tally) < sum(tally)]
    return PreferenceFacts(
        comparisons=len(rows),
        raters=len(set(rows["rater_id"])),
        ties=sum(tally[1] for tally in votes.values()),
        couples=len(votes),
        shared_couples=len(shared),
        unanimous_couples=len(shared) - len(disputed),
        disputed=tuple(
            DisputedCouple(pair_ids=ids, votes=(tally[0], tally[1], tally[2]))
            for _, _, ids, tally in sorted(disputed)[:DISPUTED_ITEMS]
        ),
    )
