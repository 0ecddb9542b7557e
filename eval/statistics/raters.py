"""Statistics of each rater, and flags for unusual ones.

A flag is a reason to look, not a verdict: it comes with its evidence. The rules are under "Flags on raters" in
docs/reference/statistics.md. Rapid responding is not checked where times are not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from ...data_modules.ratings import Dimension, RatingTable
from ...data_modules.targets import fit_rater_model
from .agreement import IN_REPORTS, Statistic, bias, is_constant
from .bootstrap import Resamples, estimate
from .probabilities import binomial_from
from .reliability import MIN_RATER_ITEMS

# Limits of the flags: "Flags on raters" in docs/reference/statistics.md has the reasons
DUPLICATE_SHARE, MIN_DUPLICATE_ITEMS = 0.95, 20
# Level of the binomial test of copies, divided by the number of pairs of raters
_CHANCE = 0.01

Kind = Literal["constant", "random", "fast", "duplicate"]


@dataclass(frozen=True)
class RaterFlag:
    """The reason to look at a rater, with the numbers in words."""

    __pydantic_config__ = IN_REPORTS

    kind: Kind
    """What it is."""
    evidence: str
    """What speaks for it."""


@dataclass(frozen=True)
class RaterFacts:
    """One rater on one dimension."""

    __pydantic_config__ = IN_REPORTS

    rater_id: str
    """The rater."""
    n_ratings: int
    """Items that the rater rated."""
    n_shared: int
    """Of those, rated by others too; the comparisons stand on these."""
    mean: float
    """Mean score (rating points)."""
    sd: float
    """Standard deviation of the scores over n (rating points)."""
    severity: Statistic
    """Mean of the others less the rater's score, over shared items (rating points): positive = lower scores than the
    others give to the same items, whether or not lower is better."""
    spread: float | None
    """Standard deviation of the scores over that of the others on the same items, each item counting once and the
    others' biases removed (`fit_rater_model`); 1 = uses the scale as widely as they do. None where either side is
    constant or there are fewer than `MIN_RATER_ITEMS` shared items."""
    agreement: Statistic
    """Spearman with the mean of the other raters."""
    scale_share: float
    """Distance between the lowest and the highest score given, as a share of the scale."""
    n_distinct: int
    """Different scores given."""
    median_seconds: float | None
    """Median time for a rating; None where no time is known."""
    flags: tuple[RaterFlag, ...]
    """What deserves a question."""


def rater_report(
    table: RatingTable, draws: Resamples, panel: Statistic, agreement: Mapping[str, Statistic], dimension: Dimension
) -> list[RaterFacts]:
    """Facts about every rater of a dimension: flagged raters first, then in the order of their ids.

    Args:
        table: The ratings.
        draws: Draws over their items.
        panel: Mean agreement of a rater with the others, from `leave_one_rater_out`.
        agreement: Rater id -> agreement of this rater with the others, also from `leave_one_rater_out`.
        dimension: The dimension and its scale.
    """
    model = fit_rater_model(table)
    # A panel of strict and lenient raters spreads wide without anybody using the scale widely
    unbiased = dataclasses.replace(table, scores=table.scores - model.biases[table.raters])
    others = table.others_mean()
    seconds = np.full(len(table.scores), np.nan) if table.seconds is None else table.seconds
    fast, duplicates = fast_raters(table), _duplicates(table)
    facts = []
    for position, (rater_id, rated) in enumerate(zip(table.rater_ids, table.by_rater(), strict=True)):
        scores = table.scores[rated]
        shared = rated[~np.isnan(others[rated])]
        compared, theirs = table.scores[shared], others[shared]
        evidence: list[tuple[Kind, str | None]] = [
            ("constant", _constant(compared, theirs)),
            ("random", _random(agreement[rater_id], panel)),
            ("fast", fast.get(position)),
            *(("duplicate", text) for text in duplicates.get(position, ())),
        ]
        facts.append(
            RaterFacts(
                rater_id=rater_id,
                n_ratings=len(rated),
                n_shared=len(shared),
                mean=float(scores.mean()),
                sd=float(scores.std()),
                severity=estimate(bias, theirs, compared, resamples=draws.select(table.items[shared])),
                spread=_spread(compared, unbiased, position, table.items[shared]),
                agreement=agreement[rater_id],
                scale_share=float(np.ptp(scores) / (dimension.maximum - dimension.minimum)),
                n_distinct=len(np.unique(scores)),
                median_seconds=float(np.nanmedian(seconds[rated])) if np.isfinite(seconds[rated]).any() else None,
                flags=tuple(RaterFlag(kind, why) for kind, why in evidence if why is not None),
            )
        )
    return sorted(facts, key=lambda rater: (not rater.flags, rater.rater_id))


def _spread(compared: np.ndarray, unbiased: RatingTable, position: int, items: np.ndarray) -> float | None:
    if len(items) < MIN_RATER_ITEMS or is_constant(compared):
        return None
    # Only items that this rater rated: others may be more, or less, alike
    theirs = np.isin(unbiased.items, items) & (unbiased.raters != position)
    scores, weights = unbiased.scores[theirs], 1 / (unbiased.counts[unbiased.items[theirs]] - 1)
    mean = np.average(scores, weights=weights)
    spread = np.sqrt(np.average((scores - mean) ** 2, weights=weights))
    return None if is_constant(scores) else float(compared.std() / spread)


def _constant(compared: np.ndarray, theirs: np.ndarray) -> str | None:
    if len(compared) < MIN_RATER_ITEMS or not is_constant(compared) or is_constant(theirs):
        return None
    return (
        f"gave {compared[0]:g} to all of {len(compared)} items; the means of the others range from "
        f"{theirs.min():.2f} to {theirs.max():.2f}"
    )


def _random(own: Statistic, panel: Statistic) -> str | None:
    if own.low is None or own.high is None or panel.value is None or panel.low is None:
        return None
    # All three: an interval that includes 0 may be wide, and a panel that does not agree cannot show who is at random
    if not (own.low <= 0 and own.high < panel.value and panel.low > 0):
        return None
    return (
        f"Spearman with the others {own.value:.2f} [{own.low:.2f}, {own.high:.2f}] over {own.n} items; the panel "
        f"has {panel.value:.2f} [{panel.low:.2f}, {panel.high:.2f}]"
    )


def _duplicates(table: RatingTable) -> dict[int, list[str]]:
    """Position of a rater -> evidence for each rater whose scores duplicate this rater's."""
    shared, equal = _equal_scores(table)
    in_common, same = np.asarray(shared.sum(axis=1)), np.asarray(equal.sum(axis=1))
    evidence: dict[int, list[str]] = {}
    # Sparse, since of thousands of raters in a crowd few pairs share items
    pairs = sparse.coo_array(sparse.triu(shared, k=1))
    first, second = pairs.coords
    equals = np.asarray(equal.tocsr()[first, second]).reshape(-1)
    enough = pairs.data >= MIN_DUPLICATE_ITEMS
    alike = enough & (equals >= DUPLICATE_SHARE * pairs.data)
    for a, b, n, hits in zip(first[alike], second[alike], pairs.data[alike], equals[alike], strict=True):
        # What is usual for these two is seen in what they share with all others
        rest = in_common[a] + in_common[b] - 2 * n
        # With nobody else rated, it is unknown how often two independent raters of these items agree
        if rest == 0:
            continue
        # One hit and one miss are added (Laplace): a panel that never agreed exactly still might once
        usual = (same[a] + same[b] - 2 * hits + 1) / (rest + 2)
        # Bonferroni: each of so many pairs of raters could be alike by chance
        if binomial_from(hits, n, usual) >= _CHANCE / enough.sum():
            continue
        for rater, twin in ((a, b), (b, a)):
            evidence.setdefault(int(rater), []).append(
                f"the same score as {table.rater_ids[twin]} on {hits:g} of {n:g} items; with the other raters on "
                f"{usual:.0%} of the items"
            )
    return evidence


def _equal_scores(table: RatingTable) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Items that two raters share, and on how many of them their scores are equal, each (raters, raters)."""

    def together(cells: np.ndarray) -> sparse.csr_array:
        shape = (int(cells.max(initial=-1)) + 1, len(table.rater_ids))
        rated = sparse.csr_array((np.ones(len(cells)), (cells, table.raters)), shape=shape)
        product = sparse.csr_array(rated.T @ rated)
        product.setdiag(0)
        return product

    # Two raters with one score for one item meet in a cell of their own
    item_and_score = np.unique(np.stack([table.items, table.scores]), axis=1, return_inverse=True)[1]
    return together(table.items), together(item_and_score)


FAST_RATIO = 1 / 3
MIN_OTHERS = 2


def fast_raters(table: RatingTable) -> dict[int, str]:
    """Raters who are too fast: position in `RatingTable.rater_ids` -> the evidence in words.

    A rater is too fast who, on more than half of at least `MIN_RATER_ITEMS` items, took less than `FAST_RATIO` of the
    time that the others took for the same item (their median; of an even number the lower of the two middle ones).
    Times are compared within items because long clips take everybody longer. The items must have at least `MIN_OTHERS`
    other raters in all: with one other rater it is unknown whether one is fast or the other slow. Unknown times do not
    count.
    """
    if table.seconds is None:
        return {}
    others = _others_median(table.items, table.seconds)
    compared = ~np.isnan(others)
    fast = compared & (table.seconds < FAST_RATIO * others)
    n_raters = len(table.rater_ids)
    n_items = np.bincount(table.raters[compared], minlength=n_raters)
    n_fast = np.bincount(table.raters[fast], minlength=n_raters)
    evidence: dict[int, str] = {}
    for position in np.flatnonzero((n_items >= MIN_RATER_ITEMS) & (n_fast > n_items / 2)):
        rated = compared & (table.raters == position)
        same_items = compared & np.isin(table.items, table.items[rated])
        if len(np.unique(table.raters[same_items])) <= MIN_OTHERS:
            continue
        evidence[int(position)] = (
            f"took less than a third of the others' time on {n_fast[position]} of {n_items[position]} items; median "
            f"{np.median(table.seconds[rated]):.1f} s, of the others {np.median(others[rated]):.1f} s"
        )
    return evidence


def _others_median(items: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Per rating the lower median time of the other raters of its item, shape (ratings,); NaN where there is none."""
    others = np.full(len(seconds), np.nan)
    known = np.flatnonzero(~np.isnan(seconds))
    order = known[np.lexsort((seconds[known], items[known]))]  # by item, each from the fastest to the slowest
    counts = np.unique(items[order], return_counts=True)[1]
    counts, starts = np.repeat(counts, counts), np.repeat(np.cumsum(counts) - counts, counts)
    rank = np.arange(len(order)) - starts
    middle = (counts - 2) // 2  # among the others, who are one fewer
    shared = counts > 1
    others[order[shared]] = seconds[order[(starts + middle + (middle >= rank))[shared]]]
    return others
