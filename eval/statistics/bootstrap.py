"""Cluster bootstrap: intervals from drawing whole groups with replacement (Davison and Hinkley, 1997, 3.8).

Items of one group (same context or script) are not independent, so groups are drawn, never items. A statistic is a
plain function; `estimate` calls it on the items, and in each resample on the drawn items, each as often as its group
was drawn. Two statistics have a faster way to the same numbers (`rank_draws`): Spearman, which is reported everywhere,
for many resamples at a time, and Kendall, whose pairs of items are compared once and not anew in each resample.

Intervals are at the 95 % level. Those of **correlations** (Spearman, Pearson, Kendall and the like, leave-one-out human
agreement, noise ceiling, ICC, alpha) are t intervals on Fisher's scale (1921): artanh(value) +- t * sd / (1 - value^2)
* sqrt(g / (g - 1)), where sd is the standard deviation of the draws, g the number of groups, and t the quantile with
g - 1 degrees of freedom. Without these two corrections, bootstrap intervals are too narrow (Hesterberg, 2015). With 6
groups of 4 items, percentile intervals held ICC and alpha 82 % of the time, BCa as often, and t intervals 95 %
(`benchmarks/results/coverage.md`). For intraclass correlations of one of k ratings, and for alpha, the scale is
Fisher's (1925) for k ratings, (1/2) ln((1 + (k - 1) r) / (1 - r)), which is artanh for k = 2. With artanh for all k,
intervals for 6 to 10 groups lay too low in 4.5 to 6 %.

Other statistics have percentile intervals (Efron, 1979) or BCa intervals (Efron, 1987). The acceleration of BCa comes
from leaving out one group at a time. These are further rows after the resamples, so that both are computed together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ...core.errors import counted
from .agreement import CORRELATIONS, Function, Statistic, kendall, spearman, why_undefined
from .probabilities import normal_below, normal_quantile, t_quantile
from .rank_draws import kendall_draws, spearman_draws

MIN_GROUPS = 5
"""Fewest groups for an interval."""

MAX_UNDEFINED = 0.1
"""Largest share of undefined resamples; above it, an interval over the rest would mislead."""

PERCENTILES = (2.5, 97.5)

Interval = Literal["percentile", "bca"]

_AT_A_TIME = 128  # resamples of which weights of items are held
_JACKKNIFE_ROWS = 200
"""Most jackknife rows; where there are more groups, several are left out together."""

# Fisher's z of a correlation of 1 is infinite
_NEARLY_ONE = 0.999
# Draws of a share of exactly 0 begin above it by less than anybody reads
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Resamples:
    """Draws of groups with replacement, for n items.

    Statistics computed with one object, or with selections of it, share the same draws: their differences
    and ratios can be taken draw by draw.
    """

    codes: np.ndarray  # shape (n,), the group of each item as a column of `counts`
    # shape (resamples, groups), how often each group was drawn; each row sums to the number of groups. With `jackknife`
    # there are so many rows more, in which each group is drawn once or left out.
    counts: np.ndarray
    jackknife: int = 0  # rows of `counts` behind the resamples; 0 = intervals are percentile intervals

    @classmethod
    def sample(
        cls,
        groups: Sequence[str] | np.ndarray,
        resamples: int,
        seed: int,
        interval: Interval = "percentile",
        strata: Sequence[str] | None = None,
    ) -> Resamples:
        """Draws as many groups as there are, `resamples` times; the same seed and groups give the same draws.

        Args:
            groups: Length n, the group of each item.
            resamples: Number of resamples.
            seed: Seed of the draws.
            interval: Kind of the intervals that are computed from these draws.
            strata: Length n, the stratum of each item, such as its dataset. Groups are drawn within each stratum, so
                that every resample has as many groups of it as the data. Groups of different strata are different
                groups, also under one name. None = one stratum.
        """
        # Sorted by name, so that the draws depend on neither the order of items nor that of groups
        names, codes = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
        if strata is None:
            sizes = [len(names)]
        else:  # the columns of one stratum are adjacent
            stratum = np.unique(np.asarray(strata, dtype=str), return_inverse=True)[1]
            columns, codes = np.unique(stratum * len(names) + codes, return_inverse=True)
            sizes = np.bincount(columns // len(names)).tolist()
        n_groups = sum(sizes)
        if n_groups == 0:
            return cls(codes, np.zeros((resamples, 0)))
        rng = np.random.default_rng(seed)
        left_out = min(n_groups, _JACKKNIFE_ROWS) if interval == "bca" and resamples else 0
        # Whole numbers below 2^24 are exact in float32, in half the memory
        counts = np.ones((resamples + left_out, n_groups), np.float32)
        ends = np.cumsum(sizes)
        # Far faster than a multinomial where there are many groups
        for row in counts[:resamples]:
            for end, size in zip(ends, sizes, strict=True):
                row[end - size : end] = np.bincount(rng.integers(size, size=size), minlength=size)
        if left_out:
            counts[resamples + rng.permutation(n_groups) % left_out, np.arange(n_groups)] = 0
        return cls(codes, counts, left_out)

    @property
    def resamples(self) -> int:
        """Number of resamples."""
        return len(self.counts) - self.jackknife

    @property
    def n_groups(self) -> int:
        """Number of groups that the items belong to."""
        return len(np.unique(self.codes))

    def select(self, items: np.ndarray) -> Resamples:
        """The same draws for some of the items: positions, which may repeat, or a mask of shape (n,)."""
        return Resamples(self.codes[items], self.counts, self.jackknife)

    def percentile(self, count: int) -> Resamples:
        """The first `count` of the resamples, for percentile intervals."""
        return Resamples(self.codes, self.counts[: min(count, self.resamples)])

    def bootstrap_values(self, values: np.ndarray) -> np.ndarray:
        """The values of the resamples, without those of the jackknife rows after them."""
        return values[: self.resamples]

    def apply(self, function: Callable[[np.ndarray], Any]) -> np.ndarray:
        """Calls a function in every resample, shape (rows of `counts`, ...), float64; NaN where no item was drawn.

        `function` takes the positions of the drawn items in rising order, each as often as it was drawn, at least one.
        """
        positions = np.arange(len(self.codes))
        if len(positions) == 0:
            return np.full(len(self.counts), np.nan)
        # Called once on all items, to learn the shape of what it returns
        values = np.full((len(self.counts), *np.shape(function(positions))), np.nan)
        for row, counts in enumerate(self.counts):
            # Items and not weights: any function of vectors works, and ties of an item with its copies are real ties
            items = np.repeat(positions, counts[self.codes].astype(np.intp))
            if len(items):
                values[row] = function(items)
        return values

    def weigh(self, function: Callable[[np.ndarray], Any]) -> np.ndarray:
        """Calls a function for many resamples at a time, shape (rows of `counts`, ...), float64; NaN where no item was
        drawn.

        `function` takes how often each item was drawn, float64, shape (n, r) for r resamples that drew some, maybe
        none, and returns (..., r).
        """
        parts = []
        for start in range(0, len(self.counts), _AT_A_TIME):
            weights = self.counts[start : start + _AT_A_TIME, self.codes].T.astype(np.float64)
            drawn = weights.any(axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                own = np.asarray(function(weights[:, drawn]), dtype=np.float64)
            values = np.full((*own.shape[:-1], weights.shape[1]), np.nan)
            values[..., drawn] = own
            parts.append(values.T)
        return np.concatenate(parts) if parts else np.empty(0)

    def compute(self, function: Function, *vectors: np.ndarray) -> np.ndarray:
        """A function of vectors of the n items (finite) in every resample, shape (rows of `counts`,)."""
        if function is spearman:
            return spearman_draws(vectors[0][None], vectors[1], self.codes, self.counts)[0]
        if function is kendall:
            return kendall_draws(vectors[0], vectors[1], self.codes, self.counts)
        return self.apply(lambda items: function(*(vector[items] for vector in vectors)))


def estimate(
    function: Function,
    *vectors: np.ndarray,
    resamples: Resamples | None = None,
    undefined: str | None = None,
) -> Statistic:
    """A statistic with its interval.

    Args:
        function: Takes `vectors`, or some of their items; NaN = undefined. Those of `agreement.CORRELATIONS` get the
            intervals of correlations.
        vectors: Each of shape (n,), such as judge and human scores; an item with a NaN in one of them is dropped from
            all and counted.
        resamples: Draws over the same n items; None = the value alone.
        undefined: The reason where the value is NaN; None = from `agreement.why_undefined`.

    Raises:
        ValueError: If the vectors differ in length.
    """
    valid, point = complete(*vectors)
    if point.reason is not None:
        return point
    arrays = [np.asarray(vector, dtype=np.float64)[valid] for vector in vectors]
    value = float(function(*arrays))
    if np.isnan(value):
        return replace(point, reason=why_undefined(function, *arrays) if undefined is None else undefined)
    point = replace(point, value=value)
    if resamples is None:
        return point
    seen = resamples.select(valid)
    return with_interval(point, seen.compute(function, *arrays), seen, correlation=function in CORRELATIONS)


def spearmans(scores: Sequence[np.ndarray], human: np.ndarray, resamples: Resamples) -> list[Statistic]:
    """`estimate` of Spearman for several finite scores of the same n items, with the same human scores: far faster."""
    # The order and the ranks of people's scores are computed once for all judges
    draws = spearman_draws(np.stack(scores), human, resamples.codes, resamples.counts)
    return [
        with_interval(estimate(spearman, score, human), drawn, resamples, correlation=True)
        for score, drawn in zip(scores, draws, strict=True)
    ]


def estimate_share(values: np.ndarray, resamples: Resamples) -> Statistic:
    """The mean of values from 0 to 1, shape (n,), such as 1 = right and 0 = wrong; NaN is dropped and counted. Ends as
    `exact_end` says."""
    share = estimate(np.mean, values, resamples=resamples)
    return exact_end(share, resamples.select(~np.isnan(values)))


def exact_end(share: Statistic, resamples: Resamples) -> Statistic:
    """A share of 0 or 1: all draws are alike, which says nothing of other items, and the interval has the exact end for
    as many trials as `resamples` has groups (Clopper and Pearson, 1934). Any other share, or one without interval,
    stays."""
    if share.low is None or share.value not in (0.0, 1.0):
        return share
    end = float((PERCENTILES[0] / 100) ** (1 / resamples.n_groups))
    return replace(share, low=end) if share.value else replace(share, high=1 - end)


def estimates(
    function: Callable[..., Sequence[float] | np.ndarray],
    *vectors: np.ndarray,
    resamples: Resamples,
    reasons: Mapping[str, str],
) -> dict[str, Statistic]:
    """Several statistics that are computed together, by name; each as `estimate` returns it.

    The function returns one value per name; `reasons` maps each name to the reason where its value is NaN.
    """
    valid, point = complete(*vectors)
    if point.reason is not None:
        return dict.fromkeys(reasons, point)
    arrays, seen = [np.asarray(vector, dtype=np.float64)[valid] for vector in vectors], resamples.select(valid)
    draws = seen.apply(lambda items: function(*(vector[items] for vector in arrays))).reshape(-1, len(reasons))
    return {
        name: replace(point, reason=reasons[name])
        if math.isnan(value)
        else with_interval(replace(point, value=float(value)), draws[:, column], seen)
        for column, (name, value) in enumerate(zip(reasons, function(*arrays), strict=True))
    }


def complete(*vectors: np.ndarray) -> tuple[np.ndarray, Statistic]:
    """Which items have no NaN, shape (n,), and a statistic without value that counts them.

    The statistic has a reason where nothing can be computed, because there are no items or infinite scores.

    Raises:
        ValueError: If the vectors, each of shape (n,), differ in length.
    """
    values = [np.asarray(vector, dtype=np.float64) for vector in vectors]
    # Broadcasting would give a number and no error
    if any(vector.ndim != 1 or vector.shape != values[0].shape for vector in values):
        shapes = " and ".join(str(vector.shape) for vector in values)
        raise ValueError(f"scores of shape {shapes}; expected vectors of equal length")
    table = np.stack(values)
    valid = np.logical_not(np.isnan(table).any(axis=0))
    n, dropped = int(valid.sum()), int((~valid).sum())
    infinite = int(np.isinf(table[:, valid]).any(axis=0).sum())
    reason = None
    if n == 0:
        reason = "0 items" + (f", {dropped} dropped as NaN" if dropped else "")
    elif infinite:
        reason = f"{counted(infinite, 'item')} with an infinite score"
    return valid, Statistic(None, n=n, dropped=dropped, reason=reason)


def with_interval(
    point: Statistic,
    draws: np.ndarray,
    resamples: Resamples,
    *,
    correlation: bool = False,
    ratings: float = 2.0,
) -> Statistic:
    """Adds the interval of the draws.

    Args:
        point: The statistic.
        draws: Shape (rows of the counts,), NaN = undefined in that resample; empty = nothing was drawn.
        resamples: The resamples behind the draws, selected for the items of `point`.
        correlation: Whether the statistic is a correlation as listed in the module docstring.
        ratings: For an intraclass correlation of single ratings, the (harmonic mean) number of ratings per item.

    Returns:
        `point` with the draws, `low` and `high`; or without an interval, and with the reason, where `point` has no
        value, there are fewer than `MIN_GROUPS` groups, more than `MAX_UNDEFINED` of the draws are undefined, or the
        interval does not hold the value: the figure is biased then (Efron and Tibshirani, 1993, chapter 10), in
        resamples more than in the data.
    """
    drawn = resamples.bootstrap_values(draws)
    value = point.value
    if value is None or len(drawn) == 0:
        return point
    # Kept also where there is no interval: a difference of two statistics may have one
    point = replace(point, draws=draws)
    if resamples.n_groups < MIN_GROUPS:
        return replace(
            point, reason=f"no interval: {counted(resamples.n_groups, 'group')}, at least {MIN_GROUPS} needed"
        )
    undefined = int(np.isnan(drawn).sum())
    if undefined > MAX_UNDEFINED * len(drawn):
        reason = f"no interval: undefined in {undefined} of {counted(len(drawn), 'resample')}"
        return replace(point, undefined_resamples=undefined, reason=reason)
    drawn, groups = drawn[~np.isnan(drawn)], resamples.n_groups
    point = replace(point, undefined_resamples=undefined)
    if correlation:
        return t_interval(point, z_variance(value, drawn, ratings) * groups / (groups - 1), groups - 1, ratings)
    left_out = draws[resamples.resamples :]
    ends = np.percentile(drawn, bca_percentiles(value, drawn, left_out) if resamples.jackknife else PERCENTILES)
    low, high = map(float, ends)
    slack = _ROUNDING * max(1.0, abs(value))
    if not low - slack <= value <= high + slack:
        side = "above" if low > value else "below"
        return replace(point, reason=f"no interval: the resamples lie {side} the value, as of a figure with a bias")
    return replace(point, low=low, high=high)


def fisher_z(values: np.ndarray | float, ratings: float = 2.0) -> np.ndarray:
    """Fisher's z of correlations for this number of ratings; values are clipped to 0.999 of either end of the scale."""
    r = np.clip(values, -_NEARLY_ONE / (ratings - 1), _NEARLY_ONE)
    return 0.5 * np.log((1 + (ratings - 1) * r) / (1 - r))


def z_variance(value: float, drawn: np.ndarray, ratings: float = 2.0) -> float:
    """Variance of Fisher's z of a correlation, from the variance of its draws by the delta method.

    The variance of the draws' own z would be too large with few groups: correlations of three points are often 1 or -1.
    """
    r = min(max(value, -_NEARLY_ONE / (ratings - 1)), _NEARLY_ONE)
    slope = ratings / (2 * (1 - r) * (1 + (ratings - 1) * r))
    return float(np.nanvar(drawn, ddof=1)) * slope**2


def t_interval(point: Statistic, variance: float, freedom: float, ratings: float = 2.0) -> Statistic:
    """Adds to a correlation with a value the t interval on Fisher's scale, from the variance of its z."""
    value = 0.0 if point.value is None else point.value
    half = t_quantile(PERCENTILES[1] / 100, max(1.0, freedom)) * math.sqrt(variance)
    if half == 0:
        return replace(point, low=value, high=value)
    # The bound keeps `exp` finite; far below it the upper end is 1
    scaled = np.exp(2 * np.minimum(fisher_z(value, ratings) + np.array([-half, half]), 300.0))
    low, high = (scaled - 1) / (scaled + ratings - 1)
    # The value itself may lie beyond the ends of the scale
    return replace(point, low=min(value, float(low)), high=max(value, float(high)))


def difference(first: Statistic, second: Statistic, resamples: Resamples) -> Statistic:
    """First minus second, from the same draws; arguments and result as for `ratio`."""
    return _together(first, second, resamples, np.subtract)


def ratio(first: Statistic, second: Statistic, resamples: Resamples) -> Statistic:
    """First over second, from the same draws, selected for the items of both; ``n`` is that of the first.

    Undefined, with the reason, where either is. The value of the second must be above 0; resamples in which it is not
    are undefined.
    """
    # Near a denominator of 0 a ratio jumps from one infinity to the other: its quantiles would mean nothing
    above_0 = np.where(second.draws > 0, second.draws, np.nan)
    return _together(first, replace(second, draws=above_0), resamples, np.divide)


def _together(first: Statistic, second: Statistic, resamples: Resamples, how: Callable[[Any, Any], Any]) -> Statistic:
    for statistic in (first, second):
        if statistic.value is None:
            return Statistic(None, n=first.n, reason=statistic.reason)
    point = Statistic(float(how(first.value, second.value)), n=first.n)
    return with_interval(point, how(first.draws, second.draws), resamples)


def bca_percentiles(value: float, drawn: np.ndarray, left_out: np.ndarray) -> tuple[float, float]:
    """Percentiles of the draws that are the ends of the 95 % BCa interval (Efron, 1987).

    Takes the value of all items, its finite draws, and its values with some groups left out, NaN where undefined.
    """
    # Draws that equal the value count half; an end of 0 or 1 would send the interval to infinity.
    below = ((drawn < value).sum() + 0.5 * (drawn == value).sum()) / len(drawn)
    bias = normal_quantile(np.clip(below, 1 / (len(drawn) + 1), len(drawn) / (len(drawn) + 1)))
    # Where nothing is defined with a group left out, there is no acceleration: the interval only corrects the bias
    deviations = np.nanmean(left_out) - left_out[~np.isnan(left_out)] if np.isfinite(left_out).any() else np.zeros(1)
    spread = (deviations**2).sum() ** 1.5
    # How the standard error changes with the value, from the skewness of what each group adds
    acceleration = (deviations**3).sum() / (6 * spread) if spread > 0 else 0.0
    z = bias + normal_quantile(np.array(PERCENTILES) / 100)
    low, high = 100 * normal_below(bias + z / (1 - acceleration * z))
    return float(low), float(high)
