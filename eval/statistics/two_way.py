"""Intervals of a judge's Spearman with the panel mean for other raters, and for other items and other raters.

The bootstrap over groups of items keeps the raters fixed. Drawing raters with replacement as well (the pigeonhole
bootstrap; Owen, 2007) does not show the result with other raters: a panel in which some count twice has fewer different
raters, its mean is noisier, and the whole interval lies 0.05 too low. So no rater is repeated here. Each is left out
once (the jackknife over raters; Efron and Stein, 1981), and only the variance of the resulting correlations is used,
not their mean: the interval stays centred on the estimate.

All is computed on Fisher's scale z = artanh(r), with the quantiles of t:

- other raters, the same items: the variance is that of the jackknife over raters.
- other items and other raters: the variance is the sum of two parts. The first is that of the bootstrap over groups,
  which already contains the chance in single ratings. The second is the split-half covariance of the jackknife, between
  one half of the groups and the other, averaged over random splits and at least 0: the differences between raters that
  hold on any items. The degrees of freedom are those of Satterthwaite (1946).
"""

from __future__ import annotations

import numpy as np

from ...core.errors import counted
from ...data_modules.ratings import RatingTable, tied
from .agreement import Statistic, spearman
from .bootstrap import Resamples, estimate, fisher_z, t_interval, z_variance
from .like_for_like import HALVINGS, halvings
from .rank_draws import spearman_draws

MIN_RATERS = 3
"""Fewest raters for an interval for other raters."""

# Most jackknife samples; where there are more raters, several are left out at a time
_LEFT_OUT = 100


def for_other_raters(score: np.ndarray, table: RatingTable) -> Statistic:
    """Spearman with the mean of the raters, with the interval for other raters of the same items.

    Without an interval, and with the reason, with fewer than `MIN_RATERS`.

    Args:
        score: Shape (n,), finite, for the n items of `table`.
        table: The ratings; every item has at least one.
    """
    point = _point(score, table)
    if point.value is None or point.reason is not None:
        return point
    z = _left_out(score, table, np.zeros(table.n_items, dtype=np.intp), np.ones((1, 1)))[:, 0]
    return t_interval(point, _jackknife(z, z), len(z) - 1)


def for_other_items_and_raters(
    score: np.ndarray, table: RatingTable, own: Statistic, resamples: Resamples
) -> Statistic:
    """As `for_other_raters`, for other items and other raters; also without an interval where `own` has none.

    `own` is the Spearman of the score with the mean of the raters, with its draws over the n items, `resamples`.
    """
    point = _point(score, table)
    if point.value is None or point.reason is not None:
        return point
    if own.low is None:
        return own
    groups = resamples.n_groups
    items = z_variance(point.value, resamples.bootstrap_values(own.draws)) * groups / (groups - 1)
    z = _left_out(score, table, resamples.codes, halvings(resamples))
    variances = [_jackknife(z[:, half], z[:, half + 1]) for half in range(0, 2 * HALVINGS, 2)]
    defined = [variance for variance in variances if not np.isnan(variance)]
    raters = max(0.0, float(np.mean(defined))) if defined else 0.0
    squares = items**2 / (groups - 1) + raters**2 / (len(z) - 1)
    return t_interval(point, items + raters, (items + raters) ** 2 / squares if squares > 0 else groups - 1)


def _point(score: np.ndarray, table: RatingTable) -> Statistic:
    point = estimate(spearman, score, table.means)
    if point.value is None or len(table.rater_ids) >= MIN_RATERS:
        return point
    reason = f"no interval: {counted(len(table.rater_ids), 'rater')}, at least {MIN_RATERS} needed"
    return Statistic(point.value, n=point.n, reason=reason)


def _left_out(score: np.ndarray, table: RatingTable, codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Fisher's z without some of the raters, shape (jackknife samples, rows of counts); NaN = undefined."""
    raters = len(table.rater_ids)
    # Which raters leave together must not follow from the order of their ids
    part = np.random.default_rng(0).permutation(raters) % min(raters, _LEFT_OUT)
    correlations = []
    for number in range(part.max() + 1):
        remaining = part[table.raters] != number
        n_ratings = np.bincount(table.items[remaining], minlength=table.n_items)
        sums = np.bincount(table.items[remaining], weights=table.scores[remaining], minlength=table.n_items)
        # Items that nobody else rated do not count
        items = np.flatnonzero(n_ratings)
        means = tied(sums[items] / n_ratings[items])
        correlations.append(spearman_draws(score[items][None], means, codes[items], counts)[0])
    return fisher_z(np.stack(correlations))


def _jackknife(first: np.ndarray, second: np.ndarray) -> float:
    """(K - 1) / K times the sum of products of deviations; NaN with fewer than two that are defined."""
    defined = ~(np.isnan(first) | np.isnan(second))
    k = int(defined.sum())
    if k < 2:
        return float("nan")
    first, second = first[defined], second[defined]
    return float((k - 1) / k * ((first - first.mean()) * (second - second.mean())).sum())
