"""How well raters agree, and how high that lets any judge reach.

Two ceilings, both for Spearman's correlation:

- **leave one rater out**: each rater against the mean of the other raters. It is what one person reaches; a
  judge can pass it, because a judge need not have one person's noise.
- **panel mean**: the square root of the reliability of the panel mean (attenuation; Spearman, 1904). It is
  what a judge that knew the true scores could expect to reach against these means. The formula is for
  Pearson's correlation and equal numbers of ratings; applied to ranks it is an approximation.

The reliability of the panel mean comes from split halves, stepped up by Spearman-Brown (Spearman, 1910;
Brown, 1910). Each halving divides the raters, and only where that leaves an item lopsided are raters of this
item moved over at random. Halving each item on its own would be wrong for a panel that rates (nearly) all
items: its raters' biases cancel between items, but between such halves they would count as noise, and the
ceiling would come out too low. An item with one rating has no halves: the panel ceiling is that of the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .agreement import CONSTANT_TOLERANCE, MIN_ITEMS, Statistic, spearman
from .bootstrap import Resamples, statistic_draws, with_interval
from .report_schema import Ceiling, statistic_report

MIN_RATER_ITEMS = 10
"""A rater who shares fewer items with others is not compared: the correlation would be noise."""

HALVINGS = 100
"""Random halvings whose correlations are averaged."""

HALVINGS_IN_RESAMPLES = 10
"""The first of them, used in every resample: the interval grows a little and costs a tenth of the time."""


@dataclass(frozen=True, eq=False)
class RatingTable:
    """The ratings of one dimension, in long form.

    Attributes:
        items: Shape (ratings,), position of the rated item, 0 to `n_items` - 1.
        raters: Shape (ratings,), position of the rater in `rater_ids`.
        scores: Shape (ratings,), float64, rating points.
        n_items: Number of items.
        rater_ids: The raters, each with at least one rating.
    """

    items: np.ndarray
    raters: np.ndarray
    scores: np.ndarray
    n_items: int
    rater_ids: tuple[str, ...]

    @classmethod
    def of(cls, ratings: pd.DataFrame, dimension: str, pair_ids: Sequence[str]) -> RatingTable:
        """The ratings of `pair_ids` on `dimension`; items are numbered in the order of `pair_ids`."""
        index = pd.Index(pair_ids, dtype=object)
        rows = ratings.loc[(ratings["dimension"] == dimension) & ratings["pair_id"].isin(list(pair_ids))]
        raters, rater_ids = pd.factorize(rows["rater_id"], sort=True)
        scores = rows["score"].to_numpy(np.float64)
        return cls(
            index.get_indexer(pd.Index(rows["pair_id"])),
            raters,
            scores,
            len(index),
            tuple(map(str, rater_ids)),
        )

    @property
    def counts(self) -> np.ndarray:
        """Ratings per item, shape (n_items,)."""
        return np.bincount(self.items, minlength=self.n_items)

    @property
    def sums(self) -> np.ndarray:
        """Sum of the ratings per item, shape (n_items,)."""
        return np.bincount(self.items, weights=self.scores, minlength=self.n_items)

    def shared(self) -> np.ndarray:
        """Positions of the items with at least two raters."""
        return np.flatnonzero(self.counts >= 2)


@dataclass(frozen=True, eq=False)
class Estimate:
    """A statistic and its value in every resample, shape (resamples,), NaN = undefined there."""

    statistic: Statistic
    draws: np.ndarray


@dataclass(frozen=True, eq=False)
class Reliability:
    """Agreement of the raters of one dimension with each other.

    Attributes:
        leave_one_rater_out: Spearman of a rater with the mean of the others, averaged over raters weighted by
            items.
        panel_mean: Highest Spearman that a judge can be expected to reach with the panel mean.
        split_half: Mean Spearman between the means of two random halves of the panel.
        panel_reliability: Reliability of the panel mean: `split_half` after Spearman-Brown.
        krippendorff_alpha: Krippendorff's alpha of single ratings, interval distance.
        raters: Per rater the Spearman with the mean of the others, and the items that it stands on.
    """

    leave_one_rater_out: Estimate
    panel_mean: Estimate
    split_half: Estimate
    panel_reliability: Estimate
    krippendorff_alpha: Estimate
    raters: Mapping[str, Statistic]

    def report(self) -> Ceiling:
        """The ``ceiling`` of an agreement report ."""
        return {
            "spearman": statistic_report(self.leave_one_rater_out.statistic),
            "panel_mean": statistic_report(self.panel_mean.statistic),
            "split_half": statistic_report(self.split_half.statistic),
            "panel_reliability": statistic_report(self.panel_reliability.statistic),
            "krippendorff_alpha": statistic_report(self.krippendorff_alpha.statistic),
            "raters": [
                {"rater_id": rater_id, "n": own.n, "spearman": own.value, "reason": own.reason}
                for rater_id, own in self.raters.items()
            ],
        }


def reliability(
    ratings: pd.DataFrame,
    dimension: str,
    groups: Mapping[str, str],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """How well the raters of a dimension agree, ready for a report.

    Args:
        ratings: Columns ``pair_id, rater_id, dimension, score``, one row per rating.
        dimension: The dimension.
        groups: Pair id -> group of the pairs that count; ratings of other pairs are left out.
        resamples: Bootstrap resamples; they draw whole groups.
        seed: Of the halvings and the resamples.

    Returns:
        ``n_items`` (rated ones), ``n_groups`` (theirs), ``n_raters``, ``n_ratings`` and the fields of
        `report_schema.Ceiling`.
    """
    rated = set(ratings["pair_id"][ratings["dimension"] == dimension])
    pair_ids = [pair_id for pair_id in groups if pair_id in rated]
    table = RatingTable.of(ratings, dimension, pair_ids)
    draws = Resamples.draw([groups[pair_id] for pair_id in pair_ids], resamples, seed)
    return {
        "n_items": len(pair_ids),
        "n_groups": draws.n_groups,
        "n_raters": len(table.rater_ids),
        "n_ratings": len(table.scores),
        **measure(table, draws, seed).report(),
    }


def measure(table: RatingTable, resamples: Resamples, seed: int) -> Reliability:
    """All of `Reliability`.

    Args:
        table: The ratings.
        resamples: Draws over the items of `table`.
        seed: Of the halvings.
    """
    single, raters = _leave_one_rater_out(table, resamples)
    half = _split_half(table, resamples, seed)
    whole = _stepped_up(half)
    panel = _transformed(whole, np.sqrt)
    return Reliability(single, panel, half, whole, _krippendorff_alpha(table, resamples), raters)


def _leave_one_rater_out(table: RatingTable, resamples: Resamples) -> tuple[Estimate, dict[str, Statistic]]:
    others = table.counts[table.items] - 1
    compared = others > 0
    others_mean = (table.sums[table.items] - table.scores) / np.where(compared, others, 1)
    n_resamples = len(resamples.counts)
    raters: dict[str, Statistic] = {}
    used: list[np.ndarray] = []
    value, weight = 0.0, 0
    draw_values, draw_weights = np.zeros(n_resamples), np.zeros(n_resamples)
    for position, rater_id in enumerate(table.rater_ids):
        own = np.flatnonzero((table.raters == position) & compared)
        if len(own) < MIN_RATER_ITEMS:
            reason = f"shares {len(own)} items with other raters, at least {MIN_RATER_ITEMS} needed"
            raters[rater_id] = Statistic(None, n=len(own), reason=reason)
            continue
        raters[rater_id] = spearman(table.scores[own], others_mean[own])
        if (rho := raters[rater_id].value) is None:
            raters[rater_id] = replace(raters[rater_id], reason="this rater or the mean of the others is constant")
            continue
        value, weight = value + rho * len(own), weight + len(own)
        items = table.items[own]
        used.append(items)
        seen = resamples.select(items)
        draws = statistic_draws("spearman", table.scores[own], others_mean[own], seen)
        drawn = seen.counts @ np.bincount(seen.codes, minlength=seen.counts.shape[1])
        draw_values += np.where(np.isnan(draws), 0.0, draws * drawn)
        draw_weights += np.where(np.isnan(draws), 0.0, drawn)
    if not used:
        reason = f"no rater varies and shares at least {MIN_RATER_ITEMS} items with other raters"
        return Estimate(Statistic(None, reason=reason), np.full(n_resamples, np.nan)), raters
    with np.errstate(invalid="ignore"):
        draws = draw_values / draw_weights
    items = np.unique(np.concatenate(used))
    point = Statistic(value / weight, n=len(items))
    return Estimate(with_interval(point, draws, resamples.select(items).n_groups), draws), raters


def _split_half(table: RatingTable, resamples: Resamples, seed: int) -> Estimate:
    shared = table.shared()
    undefined = np.full(len(resamples.counts), np.nan)
    if len(shared) < MIN_ITEMS:
        reason = f"{len(shared)} items with at least two raters, at least {MIN_ITEMS} needed"
        return Estimate(Statistic(None, n=len(shared), reason=reason), undefined)
    rng = np.random.default_rng(seed)
    halves = [_halves(table, shared, rng) for _ in range(HALVINGS)]
    values = [result.value for result in (spearman(first, second) for first, second in halves)]
    defined = [value for value in values if value is not None]
    if not defined:
        return Estimate(Statistic(None, n=len(shared), reason="the ratings are constant"), undefined)
    seen = resamples.select(shared)
    per_halving = np.stack([statistic_draws("spearman", *pair, seen) for pair in halves[:HALVINGS_IN_RESAMPLES]])
    usable = ~np.isnan(per_halving)
    with np.errstate(invalid="ignore"):
        draws = np.where(usable, per_halving, 0.0).sum(axis=0) / usable.sum(axis=0)
    point = Statistic(float(np.mean(defined)), n=len(shared))
    return Estimate(with_interval(point, draws, seen.n_groups), draws)


def _halves(table: RatingTable, shared: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Mean rating of the shared items by either half of the panel, each of shape (shared items,).

    An item with an odd number of raters gives the larger half to the side that has more of them.
    """
    side = rng.permutation(len(table.rater_ids)) % 2
    key = side[table.raters] + rng.random(len(table.raters))
    order = np.lexsort((key, table.items))
    items = table.items[order]
    counts = table.counts
    starts = np.cumsum(counts) - counts
    position = np.arange(len(items)) - starts[items]
    on_first = np.bincount(table.items, weights=side[table.raters] == 0, minlength=table.n_items)
    first_size = counts // 2 + (counts % 2) * (on_first > counts / 2)
    in_first = position < first_size[items]
    first_sum = np.bincount(items, weights=table.scores[order] * in_first, minlength=table.n_items)
    second_sum = np.bincount(items, weights=table.scores[order] * ~in_first, minlength=table.n_items)
    return first_sum[shared] / first_size[shared], second_sum[shared] / (counts - first_size)[shared]


def _stepped_up(half: Estimate) -> Estimate:
    """Spearman-Brown: reliability of a panel twice the size of a half, 2 r / (1 + r)."""
    value = half.statistic.value
    if value is not None and value <= 0:
        reason = f"the halves of the panel do not agree (Spearman {value:.3f})"
        return Estimate(Statistic(None, n=half.statistic.n, reason=reason), np.full_like(half.draws, np.nan))
    return _transformed(half, lambda r: 2 * np.maximum(r, 0.0) / (1 + np.maximum(r, 0.0)))


def _transformed(estimate: Estimate, rising: Callable[[Any], Any]) -> Estimate:
    """Value, interval and draws through a rising function."""
    old = estimate.statistic
    value, low, high = (None if x is None else float(rising(x)) for x in (old.value, old.low, old.high))
    return Estimate(replace(old, value=value, low=low, high=high), rising(estimate.draws))


def _krippendorff_alpha(table: RatingTable, resamples: Resamples) -> Estimate:
    """1 - observed / expected disagreement, squared differences, missing ratings (Krippendorff, 2011)."""
    shared = table.shared()
    if len(shared) == 0:
        reason = "no item with at least two raters"
        return Estimate(Statistic(None, reason=reason), np.full(len(resamples.counts), np.nan))
    centred = table.scores - table.scores.mean()
    sums = np.bincount(table.items, weights=centred, minlength=table.n_items)[shared]
    squares = np.bincount(table.items, weights=centred**2, minlength=table.n_items)[shared]
    units = _Units(table.counts[shared], sums, squares)
    alpha = _alpha(units, np.ones((1, len(shared))))[0]
    if np.isnan(alpha):
        return Estimate(Statistic(None, n=len(shared), reason="the ratings are constant"), np.array([alpha]))
    seen = resamples.select(shared)
    draws = seen.apply(lambda weights: _alpha(units, weights))
    return Estimate(with_interval(Statistic(float(alpha), n=len(shared)), draws, seen.n_groups), draws)


class _Units(NamedTuple):
    """Per item with two or more ratings: their count, sum and sum of squares, each of shape (items,)."""

    counts: np.ndarray
    sums: np.ndarray
    squares: np.ndarray


def _alpha(units: _Units, weights: np.ndarray) -> np.ndarray:
    """Alpha with item i taken weights[:, i] times; shape (rows of weights,), NaN = ratings are constant."""
    counts, sums, squares = units
    # The squared differences over the ordered pairs of m numbers sum to 2 m times their sum of squared
    # deviations.
    within = 2 * (counts * squares - sums**2) / (counts - 1)
    n = weights @ counts
    with np.errstate(divide="ignore", invalid="ignore"):
        observed = weights @ within / n
        expected = 2 * (n * (weights @ squares) - (weights @ sums) ** 2) / (n * (n - 1))
        return np.where(expected > CONSTANT_TOLERANCE * squares.max(), 1 - observed / expected, np.nan)
