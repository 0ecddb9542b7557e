"""How well raters agree, and how high that lets any judge reach.

Two ceilings, both for Spearman's correlation:

- **leave one rater out**: each rater against the mean of the other raters. This is what one person reaches; a judge can
  exceed it, because a judge need not have one person's noise.
- **panel mean**: what a judge that knew the true scores could expect to reach against these means. The formula is for
  Pearson's correlation; applied to ranks it is an approximation. Of published means without raters it is the only one:
  it follows from their standard deviations (`of_published_means`).

The section "Raters" in docs/reference/statistics.md says how they are computed and how accurate the second one is in
simulated panels. The Spearman-Brown formula (Horst, 1951) steps up to the numbers of ratings that the items really
have, items with a single rating included. Where every item has as many ratings in either half it is 2 r / (1 + r).

Each split divides the raters. Only where this leaves the ratings of an item unbalanced are raters of this item moved
to the other half at random. Splitting each item on its own would be wrong for a panel that rates (nearly) all items:
its raters' biases cancel between items, but in such a split they would count as noise, and the ceiling would be too
low.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ...core.errors import counted
from ...data_modules.ratings import RatingTable, tied
from .agreement import MIN_ITEMS, Statistic, spearman
from .bootstrap import PERCENTILES, Interval, Resamples, estimate, with_interval
from .krippendorff import krippendorff_alpha

MIN_RATER_ITEMS = 10
"""A rater who shares fewer items with others is not compared: the correlation would be noise."""

HALVINGS = 100
"""Random halvings whose correlations are averaged."""

HALVINGS_IN_RESAMPLES = 10
"""Number of these halvings used in every resample: the interval gets a little wider, in a tenth of the time."""

# Resamples x groups: 40 MB of counts
_DRAWN_VALUES = 10_000_000


@dataclass(frozen=True, eq=False)
class Reliability:
    """Agreement of the raters of one dimension with each other."""

    # Spearman of a rater with the mean of the others, averaged over raters weighted by items
    leave_one_rater_out: Statistic
    panel_mean: Statistic  # highest Spearman that a judge can be expected to reach with the panel mean
    split_half: Statistic  # mean Spearman between the means of two random parts of the panel
    # reliability of the panel mean over all rated items: `split_half` after Spearman-Brown
    panel_reliability: Statistic
    krippendorff_alpha: Statistic  # Krippendorff's alpha of single ratings, interval distance
    # per rater the Spearman with the mean of the others, and the items that it stands on
    raters: Mapping[str, Statistic]


def rated_items(
    ratings: pd.DataFrame, dimension: str, groups: Mapping[str, str], resamples: int, seed: int
) -> tuple[RatingTable, Resamples]:
    """The ratings of the pairs in `groups` that have one, and draws over these pairs (`affordable_draws`)."""
    rated = set(ratings["pair_id"][ratings["dimension"] == dimension])
    pair_ids = [pair_id for pair_id in groups if pair_id in rated]
    draws = affordable_draws([groups[pair_id] for pair_id in pair_ids], resamples, seed)
    return RatingTable.of(ratings, dimension, pair_ids), draws


def affordable_draws(
    groups: Sequence[str],
    resamples: int,
    seed: int,
    interval: Interval = "percentile",
    strata: Sequence[str] | None = None,
) -> Resamples:
    """Draws from the groups of items, see `Resamples.sample`.

    At most 1000 draws are made for 10,000 groups, fewer for more, and 100 from 100,000 groups on. This bounds time and
    memory, and the intervals of so many groups are narrow.
    """
    distinct = len(set(groups) if strata is None else set(zip(strata, groups, strict=True)))
    affordable = max(100, _DRAWN_VALUES // max(1, distinct))
    return Resamples.sample(groups, min(resamples, affordable), seed, interval, strata)


def measure(table: RatingTable, resamples: Resamples, seed: int) -> Reliability:
    """Computes all fields of `Reliability` from ratings, draws over their items, and the seed of the halvings."""
    # The rater is not in the mean that they are compared with, or they would agree with themselves
    single, raters = leave_one_rater_out(table, resamples)
    halves = split_half(table, resamples, seed, by_item=False)
    reliability = _stepped_up(halves, table.counts) if table.of_means is None else of_published_means(table, resamples)
    panel = _transformed(reliability, np.sqrt)
    alpha = krippendorff_alpha(table, "interval", resamples)
    return Reliability(single, panel, halves, reliability, alpha, raters)


def leave_one_rater_out(table: RatingTable, resamples: Resamples) -> tuple[Statistic, dict[str, Statistic]]:
    """Spearman of each rater with the mean of the others, from ratings and draws over their items.

    Returns the mean over raters, weighted by items, and a dict of rater id -> Spearman of this rater and number of its
    items. Raters with fewer than `MIN_RATER_ITEMS` shared items are left out of the mean.
    """
    others_mean = table.others_mean()
    compared = ~np.isnan(others_mean)
    raters: dict[str, Statistic] = {}
    used: list[np.ndarray] = []
    total, draws, weights = 0.0, *np.zeros((2, len(resamples.counts)))
    for rater_id, rated in zip(table.rater_ids, table.by_rater(), strict=True):
        shared = rated[compared[rated]]
        items = table.items[shared]
        # A correlation of a few items is mostly 1 or -1, and would move the mean by chance
        if len(shared) < MIN_RATER_ITEMS:
            reason = f"shares {counted(len(shared), 'item')} with other raters, at least {MIN_RATER_ITEMS} needed"
            raters[rater_id] = Statistic(None, n=len(shared), reason=reason)
            continue
        seen = resamples.select(items)
        undefined = "this rater or the mean of the others is constant"
        statistic = estimate(spearman, table.scores[shared], others_mean[shared], resamples=seen, undefined=undefined)
        raters[rater_id] = statistic
        if statistic.value is None:
            continue
        used.append(items)
        total += statistic.value * len(shared)
        # In a resample, too, a rater counts by the number of items
        drawn = seen.counts @ np.bincount(seen.codes, minlength=seen.counts.shape[1])
        draws += np.nan_to_num(statistic.draws * drawn)
        weights += np.where(np.isnan(statistic.draws), 0.0, drawn)
    if not used:
        reason = f"no rater varies and shares at least {MIN_RATER_ITEMS} items with other raters"
        return Statistic(
            None, reason=reason if table.of_means is None else "only means of the ratings are known"
        ), raters
    ratings = np.concatenate(used)
    items = np.unique(ratings)
    point = Statistic(total / len(ratings), n=len(items))
    with np.errstate(invalid="ignore"):
        mean = with_interval(point, draws / weights, resamples.select(items), correlation=True)
    return mean, raters


def split_half(table: RatingTable, resamples: Resamples, seed: int, *, by_item: bool) -> Statistic:
    shared = table.shared()
    if len(shared) < MIN_ITEMS:
        reason = f"{counted(len(shared), 'item')} with at least two raters, at least {MIN_ITEMS} needed"
        return Statistic(None, n=len(shared), reason=reason)
    rng = np.random.default_rng(seed)
    # Many halvings, since a single one is a draw, too: their mean depends on the raters and not on the seed
    halvings = (_halved(table, shared, rng, by_item=by_item) for _ in range(HALVINGS))
    return mean_spearman(halvings, resamples.select(shared))


def mean_spearman(divisions: Iterable[tuple[np.ndarray, np.ndarray]], resamples: Resamples) -> Statistic:
    """Mean Spearman between the means of two parts of the panel, each of shape (items,), over random divisions.

    The first `HALVINGS_IN_RESAMPLES` divisions are used in every resample of the items.
    """
    values, resampled = [], []
    for first, second in divisions:
        values.append(spearman(first, second))
        if len(resampled) < HALVINGS_IN_RESAMPLES:
            resampled.append(resamples.compute(spearman, first, second))
    point = Statistic(None, n=len(resamples.codes))
    if np.isnan(values).all():
        return replace(point, reason="the ratings are constant")
    usable = ~np.isnan(resampled)
    with np.errstate(invalid="ignore"):
        draws = np.nan_to_num(resampled).sum(axis=0) / usable.sum(axis=0)
    return with_interval(replace(point, value=float(np.nanmean(values))), draws, resamples, correlation=True)


def _halved(
    table: RatingTable, shared: np.ndarray, rng: np.random.Generator, *, by_item: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean rating of the shared items by either half of the panel, each of shape (shared items,).

    The panel is halved once, or for each item anew. An item with an odd number of raters gives the larger half to the
    side that has more of them.
    """
    if by_item:
        side = rng.integers(0, 2, len(table.raters))
    else:
        # A rater stays on one side for all items: the module docstring says why
        side = (rng.permutation(len(table.rater_ids)) % 2)[table.raters]
    counts = table.counts
    # Halves of each item are as equal as they can be: a part with more raters would have less noise
    on_first = np.bincount(table.items, weights=side == 0, minlength=table.n_items)
    size = counts // 2 + (counts % 2) * (on_first > counts / 2)
    first, second = _part_means(table, side + rng.random(len(side)), size)
    return first[shared], second[shared]


def _part_means(table: RatingTable, key: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per item the mean of the `size` ratings with the lowest keys, and that of the rest, each of shape
    (items,)."""
    # By item, and within an item by key: one sort of sums takes a third of the time of `lexsort`
    span = 1.0 + (np.ptp(key) if len(key) else 0.0)
    rows = np.argsort(span * table.items + key)
    items, scores = table.items[rows], table.scores[rows]
    position = np.arange(len(items)) - (np.cumsum(table.counts) - table.counts)[items]
    sums = [
        np.bincount(items, weights=scores * part, minlength=table.n_items)
        for part in (position < size[items], position >= size[items])
    ]
    with np.errstate(invalid="ignore", divide="ignore"):
        return tied(sums[0] / size), tied(sums[1] / (table.counts - size))


def _stepped_up(half: Statistic, counts: np.ndarray) -> Statistic:
    """Reliability of the panel mean over all rated items, from their numbers of ratings (Horst, 1951).

    With l the noise variance of one rating over the variance of the true scores, and a, b and c the mean of 1 / ratings
    in the smaller parts, the larger parts and the whole items, the parts correlate by r = 1 / sqrt((1 + l a) (1 +
    l b)) and the means have the reliability 1 / (1 + l c).
    """
    if half.value is None:
        return half
    # The formula has a root of it, and a panel without agreement has no reliability to step up
    if half.value <= 0:
        return Statistic(None, n=half.n, reason=f"the two parts of the panel do not agree (Spearman {half.value:.3f})")
    rated, shared = counts[counts > 0], counts[counts >= 2]
    a, b, c = (1 / (shared // 2)).mean(), (1 / (shared - shared // 2)).mean(), (1 / rated).mean()

    def whole(r: Any) -> Any:
        with np.errstate(divide="ignore"):
            squared = 1 / np.maximum(r, 0.0) ** 2
        noise = (np.sqrt((a + b) ** 2 + 4 * a * b * (squared - 1)) - a - b) / (2 * a * b)
        return 1 / (1 + noise * c)

    return _transformed(half, whole)


def of_published_means(table: RatingTable, resamples: Resamples) -> Statistic:
    """Reliability of means of which n and the standard deviation are known: 1 - the mean of their squared standard
    errors SD^2 / n over their variance.

    With as many ratings of each item this is ICC(1,k) (Shrout and Fleiss, 1979); with different numbers, the separation
    reliability of Wright and Masters (1982). Raters are not known, so that their severity counts as noise: where the
    same people rated all items, the true reliability is higher. Undefined, with the reason, with fewer than `MIN_ITEMS`
    items and where the means vary no more than their errors.
    """
    assert table.of_means is not None
    sd, numbers = table.of_means
    errors = np.empty(table.n_items)
    errors[table.items] = sd**2 / numbers

    def reliability(errors: np.ndarray, means: np.ndarray) -> float:
        variance = means.var(ddof=1) if len(means) >= MIN_ITEMS else 0.0
        return max(0.0, 1 - errors.mean() / variance) if variance > 0 else math.nan

    undefined = f"fewer than {MIN_ITEMS} items, or all means are equal"
    found = estimate(reliability, errors, table.means, resamples=resamples, undefined=undefined)
    if found.value == 0:
        return Statistic(None, n=found.n, reason="the published means vary no more than their standard errors")
    return found


def _transformed(old: Statistic, rising: Callable[[Any], Any]) -> Statistic:
    """Applies a rising function to the value, the interval and the draws."""
    value, low, high = (None if x is None else float(rising(x)) for x in (old.value, old.low, old.high))
    return replace(old, value=value, low=low, high=high, draws=rising(old.draws))


# ---------------------------------------------------------------- the mean of several raters

CHOICES = 100
"""Most choices of k raters whose correlations are averaged; where no more exist, each is made once."""


def average_single_reliability(panels: Sequence[tuple[Reliability, RatingTable]]) -> Statistic:
    """Reliability of a single rating of an average dimension: of the mean of the dimensions' split-half correlations.

    Items may have different numbers of ratings: with l the noise variance of a rating over the variance of the true
    scores and c the mean of 1 / ratings, the panel mean has the reliability 1 / (1 + l c), and a rating 1 / (1 + l).
    Correlations are averaged, not reliabilities: a reliability from few items is very noisy, and its mean over
    dimensions is too low. It is undefined where the parts do not agree, and a correlation that is too high does not
    make up for one that is too low by as much. Undefined, with the reason, where no dimension has a split-half
    correlation or their mean is not positive. Dimensions of published means have no halves: there the mean is that of
    the reliabilities.

    Args:
        panels: The result of `measure` for each dimension, all with the same number of draws, and its ratings; all
            ratings or all published means.
    """
    of_means = panels[0][1].of_means is not None
    measured = [(found.panel_reliability if of_means else found.split_half, table) for found, table in panels]
    defined = [(statistic, table) for statistic, table in measured if statistic.value is not None]
    if not defined:
        return measured[0][0]
    splits, counts = [s for s, _ in defined], np.concatenate([table.numbers for _, table in defined])
    drawn = [s.draws for s in splits if len(s.draws)]
    with np.errstate(invalid="ignore"):  # a draw in which none is defined
        mean_draws = np.nansum(drawn, axis=0) / (~np.isnan(drawn)).sum(axis=0)
    draws = mean_draws if len(drawn) == len(splits) else np.empty(0)
    mean = Statistic(float(np.mean([s.value or 0.0 for s in splits])), n=sum(s.n for s in splits), draws=draws)
    whole, c = mean if of_means else _stepped_up(mean, counts), float((1 / counts[counts > 0]).mean())
    if whole.value is None:
        return whole
    draws = _of_part(whole.draws, c)
    low, high = np.nanpercentile(draws, PERCENTILES) if len(draws) else (None, None)
    return replace(whole, value=_of_part(whole.value, c), low=low, high=high, draws=draws)


def raters_ceiling(
    table: RatingTable, panel_reliability: Statistic, resamples: Resamples, k: int, seed: int
) -> dict[str, Statistic]:
    """Spearman of the mean of k randomly chosen raters with the mean of the others, for the items with more than k.

    The same k raters of the panel are chosen for all items. An item that they did not all rate gets other raters, in a
    random order that is the same for all items.

    Args:
        table: The ratings.
        panel_reliability: Reliability of the panel mean over all rated items, from `measure`.
        resamples: The draws behind it, over the items.
        k: Number of raters, at least 1.
        seed: Seed of the choices.

    Returns:
        ``expected``: what classical test theory predicts, sqrt(rel_k rel_others). ``measured``: the mean over choices
        of k raters. Undefined, with the reason, where fewer than `MIN_RATER_ITEMS` items have more than k raters.
    """
    items = np.flatnonzero(table.counts > k)
    if len(items) < MIN_RATER_ITEMS:
        reason = (
            f"{counted(len(items), 'item')} with more than {counted(k, 'rater')}, at least {MIN_RATER_ITEMS} needed"
        )
        return dict.fromkeys(("expected", "measured"), Statistic(None, n=len(items), reason=reason))
    seen, others = resamples.select(items), float((1 / (table.counts[items] - k)).mean())
    expected, c = panel_reliability, float((1 / table.counts[table.counts > 0]).mean())
    if expected.value is not None:
        singles = (_of_part(reliability, c) for reliability in (expected.value, expected.draws))
        value, draws = (np.sqrt(of_mean(single, 1 / k) * of_mean(single, others)) for single in singles)
        expected = with_interval(Statistic(float(value), n=len(items)), draws, seen, correlation=True)
    choices = _choices(len(table.rater_ids), k, np.random.default_rng(seed))
    size = np.minimum(table.counts, k)
    divisions = (_part_means(table, order[table.raters], size) for order in choices)
    measured = mean_spearman(((chosen[items], rest[items]) for chosen, rest in divisions), seen)
    return {"expected": expected, "measured": measured}


def _of_part(whole: Any, c: float) -> Any:
    """Reliability of a single rating, where `whole` is the reliability of means and c the mean of 1 / ratings."""
    return whole * c / (1 - whole + whole * c)


def of_mean(single: Any, c: float) -> Any:
    """The inverse of `_of_part`: reliability of means, where c is the mean of 1 / ratings (Spearman-Brown)."""
    return single / (single + (1 - single) * c)


def _choices(n_raters: int, k: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields the place of each rater in an order, shape (raters,); the k chosen raters come first."""
    choices = list(combinations(range(n_raters), k)) if math.comb(n_raters, k) <= CHOICES else None
    for index in rng.permutation(CHOICES if choices is None else len(choices)):
        order = rng.permutation(n_raters)
        if choices is not None:
            order[list(choices[index])] -= n_raters
        yield order
