"""What a judge is worth in human raters, and what so many raters reach.

All of it is classical test theory (Lord and Novick, 1968): a rating is a true score plus noise. With rel_1 the
reliability of a single rating, the mean of k ratings has the reliability rel_k = k rel_1 / (1 + (k - 1) rel_1)
(Spearman, 1910; Brown, 1910) and correlates with the true scores by sqrt(rel_k). rel_1 comes from
`Reliability.panel_reliability`, which is computed from ranks: the formulas are for Pearson's correlation and an
approximation for Spearman's, as `reliability` describes. In simulated panels of 2000 items and 10 raters, the mean of
k = 1, 2 or 5 other raters came out as worth k, give or take a tenth (standard deviation).

The judge and the panel must share no noise: one that was trained on these very ratings seems worth more than it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy import stats

from ...data_modules.rating_table import RatingTable
from .agreement import Statistic
from .bootstrap import Estimate, Resamples, row_pearson, statistic_draws
from .reliability import MIN_RATER_ITEMS

CHOICES = 100
"""Most choices of k raters whose correlations are averaged; where there are not more in all, each is made once."""

CHOICES_IN_RESAMPLES = 10
"""The first of them, used in every resample; see `reliability.HALVINGS_IN_RESAMPLES`."""

AS_GOOD_AS_TRUE_SCORES = "agrees with people as well as the true scores would"


@dataclass(frozen=True, eq=False)
class RatersCeiling:
    """Spearman of the mean of k randomly chosen raters with the mean of the others.

    Attributes:
        expected: What classical test theory predicts, sqrt(rel_k rel_others), for the items with more than k raters.
        measured: Mean over choices of k raters of the correlation on these items.
    """

    expected: Estimate
    measured: Estimate


def single_reliability(panel_reliability: Estimate, table: RatingTable, resamples: Resamples) -> Estimate:
    """Reliability of a single rating, from that of the panel mean over all rated items (Spearman-Brown, backwards).

    Items may have different numbers of ratings: with l the noise variance of a rating over the variance of the true
    scores and c the mean of 1 / ratings, the panel mean has the reliability 1 / (1 + l c), and a rating 1 / (1 + l).

    Args:
        panel_reliability: Of `table`, by `reliability.measure`.
        table: The ratings.
        resamples: Draws over the items of `table`, those of `panel_reliability`.
    """
    whole = panel_reliability.statistic
    if whole.value is None:
        return panel_reliability
    c = float((1 / table.counts[table.counts > 0]).mean())
    return Estimate.of(
        Statistic(float(_of_part(whole.value, c)), n=whole.n), _of_part(panel_reliability.draws, c), resamples
    )


def raters_ceiling(
    table: RatingTable, panel_reliability: Estimate, resamples: Resamples, k: int, seed: int
) -> RatersCeiling:
    """What the mean of k raters reaches against the mean of the other raters of the panel.

    Chosen are k raters of the panel, the same ones for all items; an item that they did not all rate gets others, in a
    random order that is the same for all items. Items with k raters or fewer are left out.

    Args:
        table: The ratings.
        panel_reliability: Of `table`, by `reliability.measure`.
        resamples: Draws over the items of `table`, those of `panel_reliability`.
        k: Raters, at least 1.
        seed: Of the choices.

    Returns:
        Undefined, with the reason, where fewer than `reliability.MIN_RATER_ITEMS` items have more than k raters.
    """
    if k < 1:
        raise ValueError(f"k {k}; accepted: 1 or more")
    items = np.flatnonzero(table.counts > k)
    if len(items) < MIN_RATER_ITEMS:
        raters = "1 rater" if k == 1 else f"{k} raters"
        reason = f"{len(items)} items with more than {raters}, at least {MIN_RATER_ITEMS} needed"
        nothing = Estimate.undefined(reason, resamples, len(items))
        return RatersCeiling(nothing, nothing)
    seen, others = resamples.select(items), float((1 / (table.counts[items] - k)).mean())
    expected = single_reliability(panel_reliability, table, resamples)
    if expected.statistic.value is not None:
        value, draws = (
            np.sqrt(_of_mean(single, 1 / k) * _of_mean(single, others))
            for single in (expected.statistic.value, expected.draws)
        )
        expected = Estimate.of(Statistic(float(value), n=len(items)), draws, seen)
    return RatersCeiling(expected, _measured(table, items, seen, k, seed))


def disattenuated(agreement: Estimate, panel_reliability: Estimate, resamples: Resamples) -> Estimate:
    """A judge's correlation with the true scores: that with the panel mean over the root of this mean's reliability.

    Spearman (1904). It may exceed 1 and is given as it is: by chance, because the judge shares noise with the panel, or
    because the reliability is too low an estimate.

    Args:
        agreement: The judge's Spearman with the panel mean.
        panel_reliability: Of the mean over the same items, from the same draws, by `reliability.measure`.
        resamples: These draws, over these items.
    """
    own, whole = agreement.statistic, panel_reliability.statistic
    if own.value is None or whole.value is None or whole.value <= 0:
        reason = own.reason if own.value is None else f"no reliability: {whole.reason or 'it is not above 0'}"
        return Estimate.undefined(str(reason), resamples, own.n)
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = np.where(panel_reliability.draws > 0, agreement.draws / np.sqrt(panel_reliability.draws), np.nan)
    return Estimate.of(Statistic(own.value / math.sqrt(whole.value), n=own.n, dropped=own.dropped), draws, resamples)


def raters_worth(
    agreement: Estimate, panel_reliability: Estimate, table: RatingTable, resamples: Resamples
) -> Statistic:
    """How many human raters a judge is worth: the mean of so many new ones would agree with the panel as it does.

    With r_t the judge's correlation with the true scores (`disattenuated`) it is the k for which rel_k = r_t^2,
    r_t^2 (1 - rel_1) / (rel_1 (1 - r_t^2)): in raters, not rounded. Where the Spearman is 0 or below it is 0.

    Args:
        agreement: The judge's Spearman with the panel mean.
        panel_reliability: Of the mean over the same items, from the same draws, by `reliability.measure`.
        table: The ratings of these items.
        resamples: These draws, over these items.

    Returns:
        Without a value, and with the reason `AS_GOOD_AS_TRUE_SCORES`, where r_t is 1 or more: no number of raters is
        enough. `low` then still says how many the judge is worth at least. Without `high`, and with the reason, where
        the interval has no upper end.
    """
    true = disattenuated(agreement, panel_reliability, resamples)
    single = single_reliability(panel_reliability, table, resamples)
    if true.statistic.value is None or single.statistic.value is None:
        return true.statistic
    # The interval is that of k / (1 + k), which stays finite.
    share = float(_share(true.statistic.value, single.statistic.value))
    point = Estimate.of(
        replace(true.statistic, value=share, low=None, high=None, reason=None),
        _share(true.draws, single.draws),
        resamples,
    ).statistic
    value, low, high = (_raters(end) for end in (share, point.low, point.high))
    reason = point.reason
    if value is None:
        reason = AS_GOOD_AS_TRUE_SCORES
    elif low is not None and high is None:
        reason = f"no upper end: within the interval it {AS_GOOD_AS_TRUE_SCORES}"
    return replace(point, value=value, low=low, high=high, reason=reason)


def _share(true: np.ndarray | float, single: np.ndarray | float) -> np.ndarray:
    """k / (1 + k) of a judge worth k raters, 0 to 1; NaN where either side is."""
    true, single = np.asarray(true), np.asarray(single)
    judge, rater = true**2 * (1 - single), single * (1 - true**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(true >= 1, 1.0, np.where(true <= 0, 0.0, judge / (judge + rater)))
    return np.where(np.isnan(true) | np.isnan(single), np.nan, share)


def _raters(share: float | None) -> float | None:
    return None if share is None or share >= 1 else share / (1 - share)


def _of_part(whole: np.ndarray | float, c: float) -> np.ndarray:
    """Reliability of a single rating where that of means with c as the mean of 1 / ratings is `whole`."""
    return np.asarray(whole * c / (1 - whole + whole * c))


def _of_mean(single: np.ndarray | float, c: float) -> np.ndarray:
    """The inverse of `_of_part`."""
    return np.asarray(single / (single + (1 - single) * c))


def _measured(table: RatingTable, items: np.ndarray, seen: Resamples, k: int, seed: int) -> Estimate:
    values, resampled = [], []
    for order in _choices(len(table.rater_ids), k, np.random.default_rng(seed)):
        chosen, others = (means[items] for means in _means(table, order, k))
        value = row_pearson(stats.rankdata(chosen)[None], stats.rankdata(others)[None])[0]  # Spearman
        if np.isnan(value):
            continue
        values.append(value)
        if len(resampled) < CHOICES_IN_RESAMPLES:
            resampled.append(statistic_draws("spearman", chosen, others, seen))
    if not values:
        return Estimate.undefined("the ratings are constant", seen, len(items))
    # The first choices may be of better or worse raters than all are.
    draws = np.mean(resampled, axis=0) - np.mean(values[: len(resampled)]) + np.mean(values)
    return Estimate.of(Statistic(float(np.mean(values)), n=len(items)), draws, seen)


def _choices(n_raters: int, k: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Shape (raters,), each rater's place in line; the k chosen ones stand in front."""
    every = list(combinations(range(n_raters), k)) if math.comb(n_raters, k) <= CHOICES else None
    for number in rng.permutation(CHOICES if every is None else len(every)):
        order = rng.permutation(n_raters)
        if every is not None:
            order[list(every[number])] -= n_raters
        yield order


def _means(table: RatingTable, order: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Per item the mean of the first k of its raters and of the rest, each (items,); undefined without a rest."""
    rows = np.lexsort((order[table.raters], table.items))
    items = table.items[rows]
    position = np.arange(len(items)) - (np.cumsum(table.counts) - table.counts)[items]
    chosen = np.bincount(items, weights=table.scores[rows] * (position < k), minlength=table.n_items)
    with np.errstate(invalid="ignore", divide="ignore"):
        return chosen / np.minimum(table.counts, k), (table.sums - chosen) / (table.counts - k)
