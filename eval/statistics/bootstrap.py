"""Cluster bootstrap: intervals from drawing whole groups with replacement (Davison and Hinkley, 1997, 3.8).

Items of one group (same context or script) are not independent, so groups are drawn, never items. A resample
is kept as the number of times each group was drawn, and every statistic is computed from those counts for
many resamples at once: what the plain function in `agreement` gives on the items repeated that often.
Spearman ranks anew in each resample (`rank_draws`). Kendall sums the signs of all item pairs once per pair of groups
(n^2 once, then groups^2 per resample), so it uses the same number of resamples as the others.

Intervals hold 95 %. Those of **correlations** (Spearman and its kind, leave-one-out human agreement, noise ceiling,
ICC, alpha) are t intervals on Fisher's scale (1921): artanh of the value, give or take the standard deviation of the
draws over 1 - value^2, times root g / (g - 1) for g groups, times the quantile of t with g - 1 degrees of freedom:
bootstrap intervals are too narrow by both (Hesterberg, 2015). Percentiles also lie too low where drawn groups are more
alike than the groups are. With 6 groups of 4 items they held ICC and alpha 82 % of the time, BCa as often, and t 95 %
(`benchmarks/results/coverage.md`). Of intraclass correlations of one of k ratings, and of alpha, the scale is Fisher's
(1925) for k ratings, (1/2) ln((1 + (k - 1) r) / (1 - r)), which is artanh for two; with artanh for all k, intervals for
6 to 10 groups lay too low in 4.5 to 6 %.

Those of other statistics are percentile intervals (Efron, 1979) or BCa intervals, bias-corrected and accelerated
(Efron, 1987). With 5 to about 20 groups they are somewhat too narrow. The acceleration of BCa comes from leaving out
one group at a time; these are further rows behind the resamples, so that whatever is computed for the one is for the
other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import stats

from .agreement import CORRELATIONS, KERNELS, STATISTICS, Statistic, bias, weighted_mean
from .rank_draws import kendall_draws, spearman_draws

MIN_GROUPS = 5
"""Fewest groups of an interval."""

MAX_UNDEFINED = 0.1
"""Largest share of undefined resamples; beyond it an interval over the others would mislead."""

PERCENTILES = (2.5, 97.5)

Interval = Literal["percentile", "bca"]

_JACKKNIFE_ROWS = 200
"""Most rows that leave out groups; where there are more groups, several are left out together."""

_NEARLY_ONE = 0.999

_BLOCK_VALUES = 1 << 20  # numbers held per temporary array: 8 MB, of which the processor's cache keeps a part


@dataclass(frozen=True, eq=False)
class Resamples:
    """Draws of groups with replacement, seen by n items.

    Statistics computed with one object, or with selections of it, stand on the same draws: their differences
    and ratios can be taken draw by draw.

    Attributes:
        codes: Shape (n,), the group of each item as a column of `counts`.
        counts: Shape (resamples, groups), how often each group was drawn; each row sums to the number of groups. With
            `jackknife` there are so many rows more, in which each group is drawn once or left out.
        jackknife: Rows of `counts` behind the resamples; 0 = intervals are percentile intervals.
    """

    codes: np.ndarray
    counts: np.ndarray
    jackknife: int = 0

    @classmethod
    def draw(
        cls,
        groups: Sequence[str] | np.ndarray,
        resamples: int,
        seed: int,
        interval: Interval = "percentile",
        strata: Sequence[str] | None = None,
    ) -> Resamples:
        """Draws as many groups as there are, `resamples` times.

        Args:
            groups: Length n, the group of each item.
            resamples: Number of resamples.
            seed: The same seed and groups give the same draws.
            interval: What intervals are made of these draws.
            strata: Length n, what is drawn from on its own, such as the dataset of each item: every resample has as
                many groups of each. Groups of different strata are different ones. None = all are one.
        """
        codes, sizes = _columns(groups, strata)
        n_groups = sum(sizes)
        if n_groups == 0:
            return cls(codes, np.zeros((resamples, 0)))
        rng = np.random.default_rng(seed)
        left_out = min(n_groups, _JACKKNIFE_ROWS) if interval == "bca" and resamples else 0
        counts = np.ones((resamples + left_out, n_groups), np.float32)  # exact, and half the memory
        ends = np.cumsum(sizes)
        for row in counts[:resamples]:  # far faster than a multinomial where there are many groups
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
        """The same draws seen by some of the items: positions, also repeated, or a mask of shape (n,)."""
        return Resamples(self.codes[items], self.counts, self.jackknife)

    def percentile(self, count: int) -> Resamples:
        """The first `count` of the resamples, for percentile intervals."""
        return Resamples(self.codes, self.counts[: min(count, self.resamples)])

    def drawn(self, values: np.ndarray) -> np.ndarray:
        """What was computed from the resamples, without the rows behind them."""
        return values[: self.resamples]

    def apply(self, kernel: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Computes something in every resample.

        Args:
            kernel: Takes how often each item was drawn, shape (block of resamples, n), and returns shape
                (block, ...).

        Returns:
            Shape (resamples, ...), float64.
        """
        step = max(1, _BLOCK_VALUES // max(1, len(self.codes)))
        starts = range(0, len(self.counts), step)
        blocks = [kernel(self.counts[start : start + step].astype(np.float64)[:, self.codes]) for start in starts]
        return np.concatenate(blocks) if blocks else np.empty(0)


def _columns(groups: Sequence[str] | np.ndarray, strata: Sequence[str] | None) -> tuple[np.ndarray, list[int]]:
    """The column of the group of each item, those of a stratum side by side, and the number of groups per stratum."""
    names, codes = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    if strata is None:
        return codes, [len(names)]
    stratum = np.unique(np.asarray(strata, dtype=str), return_inverse=True)[1]
    columns, codes = np.unique(np.stack([stratum, codes]), axis=1, return_inverse=True)
    return codes.reshape(-1), np.bincount(columns[0]).tolist()


@dataclass(frozen=True, eq=False)
class Estimate:
    """A statistic and its value in every resample, shape (resamples,), NaN = undefined there."""

    statistic: Statistic
    draws: np.ndarray

    @classmethod
    def of(
        cls,
        point: Statistic,
        draws: np.ndarray,
        resamples: Resamples,
        *,
        correlation: bool = False,
        ratings: float = 2.0,
    ) -> Estimate:
        """`point` with the interval of its draws (`with_interval`); `resamples` as seen by the items of `point`."""
        return cls(with_interval(point, draws, resamples, correlation=correlation, ratings=ratings), draws)

    def _asdict(self) -> dict[str, Any]:
        """For `agreement.as_report`: draws stand in no file."""
        return vars(self.statistic)

    @classmethod
    def undefined(cls, reason: str, resamples: Resamples, n: int = 0) -> Estimate:
        """No value, and why."""
        return cls(Statistic(None, n=n, reason=reason), np.full(len(resamples.counts), np.nan))


def estimate(name: str, score: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """A statistic of `agreement.STATISTICS` with its interval.

    Args:
        name: A key of `agreement.STATISTICS`.
        score: Shape (n,), judge scores in rating points; NaN is dropped with its item and counted.
        human: Shape (n,), human scores of the same items.
        resamples: Draws over the same n items.
    """
    point = STATISTICS[name](score, human)
    if point.value is None:
        return point
    kept = ~(np.isnan(score) | np.isnan(human))
    resamples = resamples.select(kept)
    draws = statistic_draws(name, score[kept], human[kept], resamples)
    return with_interval(point, draws, resamples, correlation=name in CORRELATIONS)


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
        draws: Shape (rows of the counts,), NaN = undefined in that resample; an empty one = nothing was drawn.
        resamples: Where they come from, as seen by the items of `point`.
        correlation: Whether the statistic is one of those that the module's text calls so.
        ratings: Of an intraclass correlation of single ratings, the (harmonic mean) number of ratings per item.

    Returns:
        `point` with `low` and `high`; or without, and with the reason, where `point` has no value, there are
        fewer than `MIN_GROUPS` groups, or more than `MAX_UNDEFINED` of the draws are undefined.
    """
    drawn = resamples.drawn(draws)
    value = point.value
    if value is None or len(drawn) == 0:
        return point
    if resamples.n_groups < MIN_GROUPS:
        return replace(point, reason=f"no interval: {resamples.n_groups} groups, at least {MIN_GROUPS} needed")
    undefined = int(np.isnan(drawn).sum())
    if undefined > MAX_UNDEFINED * len(drawn):
        reason = f"no interval: undefined in {undefined} of {len(drawn)} resamples"
        return replace(point, undefined_resamples=undefined, reason=reason)
    drawn, percentiles = drawn[~np.isnan(drawn)], PERCENTILES
    point = replace(point, undefined_resamples=undefined)
    if correlation:
        groups = resamples.n_groups
        return t_interval(point, z_variance(value, drawn, ratings) * groups / (groups - 1), groups - 1, ratings)
    if resamples.jackknife:
        percentiles = bca_percentiles(value, drawn, draws[resamples.resamples :])
    low, high = np.percentile(drawn, percentiles)
    return replace(point, low=float(low), high=float(high))


def fisher_z(values: np.ndarray | float, ratings: float = 2.0) -> np.ndarray:
    """Fisher's z of correlations of so many ratings; within 0.001 of its ends that of the value there."""
    r = np.clip(values, -_NEARLY_ONE / (ratings - 1), _NEARLY_ONE)
    return 0.5 * np.log((1 + (ratings - 1) * r) / (1 - r))


def z_variance(value: float, drawn: np.ndarray, ratings: float = 2.0) -> float:
    """Variance of Fisher's z of a correlation, from that of its draws by the delta method.

    That of the z of the draws would be too large where few groups are drawn: draws of three points are 1 or -1.
    """
    r = min(max(value, -_NEARLY_ONE / (ratings - 1)), _NEARLY_ONE)
    slope = ratings / (2 * (1 - r) * (1 + (ratings - 1) * r))
    return float(np.nanvar(drawn, ddof=1)) * slope**2


def t_interval(point: Statistic, variance: float, freedom: float, ratings: float = 2.0) -> Statistic:
    """A correlation with the t interval on Fisher's scale.

    Args:
        point: The correlation, with a value.
        variance: Of its z.
        freedom: Degrees of freedom of this variance.
        ratings: See `with_interval`.
    """
    value = 0.0 if point.value is None else point.value
    half = float(stats.t.ppf(PERCENTILES[1] / 100, max(1.0, freedom))) * math.sqrt(variance)
    if half == 0:
        return replace(point, low=value, high=value)
    grown = np.exp(2 * np.minimum(fisher_z(value, ratings) + np.array([-half, half]), 300.0))
    low, high = (grown - 1) / (grown + ratings - 1)
    # The value itself may lie beyond the ends of the scale
    return replace(point, low=min(value, float(low)), high=max(value, float(high)))


def mean_with_interval(values: np.ndarray, resamples: Resamples, dropped: int = 0) -> Statistic:
    """The mean of the items.

    Args:
        values: Shape (n,), finite, at least one.
        resamples: Draws over the n items.
        dropped: Items that have no value, which are not among them.
    """
    point = Statistic(float(values.mean()), n=len(values), dropped=dropped)
    return with_interval(point, resamples.apply(lambda weights: weighted_mean(values, weights)), resamples)


def bca_percentiles(value: float, drawn: np.ndarray, left_out: np.ndarray) -> tuple[float, float]:
    """Which percentiles of the draws are the ends of the 95 % BCa interval (Efron, 1987).

    Args:
        value: The statistic of all items.
        drawn: Its values in the resamples, finite.
        left_out: Its values with part of the groups left out; NaN does not count.
    """
    # Draws that equal the value count half; an end of 0 or 1 would send the interval to infinity.
    below = ((drawn < value).sum() + 0.5 * (drawn == value).sum()) / len(drawn)
    bias = stats.norm.ppf(np.clip(below, 1 / (len(drawn) + 1), len(drawn) / (len(drawn) + 1)))
    away = np.nanmean(left_out) - left_out[~np.isnan(left_out)] if np.isfinite(left_out).any() else np.zeros(1)
    spread = (away**2).sum() ** 1.5
    acceleration = (away**3).sum() / (6 * spread) if spread > 0 else 0.0
    ends = bias + stats.norm.ppf(np.array(PERCENTILES) / 100)
    low, high = 100 * stats.norm.cdf(bias + ends / (1 - acceleration * ends))
    return float(low), float(high)


def statistic_draws(name: str, score: np.ndarray, human: np.ndarray, resamples: Resamples) -> np.ndarray:
    """A statistic of `agreement.STATISTICS` in every resample.

    Args:
        name: A key of `agreement.STATISTICS`.
        score: Shape (n,), finite.
        human: Shape (n,), finite.
        resamples: Draws over the same n items.

    Returns:
        Shape (resamples,), float64; NaN where the statistic is undefined.
    """
    x, y = np.asarray(score, dtype=np.float64), np.asarray(human, dtype=np.float64)
    if len(x) == 0:
        return np.full(len(resamples.counts), np.nan)
    if name == "spearman":
        return spearman_draws(x[None], y, resamples.codes, resamples.counts)[0]
    if name == "kendall":
        return kendall_draws(x, y, resamples.codes, resamples.counts)
    kernel = KERNELS[name]
    return resamples.apply(lambda weights: kernel(x, y, weights))


def row_statistic(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A statistic of `agreement.STATISTICS` of each row of x with the same row of y.

    Args:
        name: A key of `agreement.STATISTICS`; Kendall is slow.
        x: Shape (rows, n), finite.
        y: Shape (rows, n), finite.

    Returns:
        Shape (rows,); NaN where it is undefined.
    """
    if name == "kendall":
        return np.array([stats.kendalltau(*own, method="asymptotic")[0] for own in zip(x, y, strict=True)])
    if name == "spearman":
        name, x, y = "pearson", stats.rankdata(x, axis=1), stats.rankdata(y, axis=1)
    return KERNELS[name](x, y, np.ones(x.shape))


ItemKernel = Callable[[np.ndarray], np.ndarray]
"""From how often each item is taken, shape (rows, n), to a statistic, shape (rows,), NaN = undefined."""


@dataclass(frozen=True, eq=False)
class CompleteItems:
    """Judge and human scores of the items where neither is NaN.

    Attributes:
        kept: Shape (n before), which items these are.
        score: Shape (n,), float64.
        human: Shape (n,), float64.
        empty: A statistic without value that counts them; it has a reason where nothing can be computed, because there
            are no items or infinite scores.
    """

    kept: np.ndarray
    score: np.ndarray
    human: np.ndarray
    empty: Statistic

    @classmethod
    def of(cls, score: np.ndarray, human: np.ndarray) -> CompleteItems:
        """Drops items where either side is NaN.

        Args:
            score: Shape (n,), judge.
            human: Shape (n,), the same items.

        Raises:
            ValueError: If the shapes differ or are not (n,).
        """
        x, y = np.asarray(score, dtype=np.float64), np.asarray(human, dtype=np.float64)
        empty = replace(bias(x, y), value=None)  # bias is defined wherever anything is
        kept = ~(np.isnan(x) | np.isnan(y))
        return cls(kept, x[kept], y[kept], empty)

    def codes(self, labels: np.ndarray, name: str) -> np.ndarray:
        """Labels of all items as numbers from 0 in their sorted order, shape (n,), of the items that count.

        Args:
            labels: Shape (n before,), names or numbers.
            name: What they are, for the error.

        Raises:
            ValueError: If there is not one label per item.
        """
        labels = np.asarray(labels)
        if labels.shape != self.kept.shape:
            raise ValueError(f"{name} of shape {labels.shape} for {len(self.kept)} items; expected one per item")
        return np.unique(labels[self.kept], return_inverse=True)[1]


def measured(items: CompleteItems, seen: Resamples, kernel: ItemKernel, undefined: str = "") -> Statistic:
    """The kernel on all items, once each, with the interval of its values in every resample.

    Args:
        items: The items; without any the statistic is undefined.
        seen: Draws over these items.
        kernel: The statistic.
        undefined: The reason where the kernel is NaN on all items.
    """
    if items.empty.reason is not None:
        return items.empty
    value = float(kernel(np.ones((1, len(items.score))))[0])
    if np.isnan(value):
        return replace(items.empty, reason=undefined)
    return with_interval(replace(items.empty, value=value), seen.apply(kernel), seen)
