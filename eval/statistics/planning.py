"""How precise a measurement of judges will be: variance components of a pilot, and standard errors by formula.

Formulas and sources are under "Plans" in docs/reference/statistics.md. **Variance components**: items, raters and error
on any incomplete panel by `icc`, groups by a nested one-way analysis of variance of the items' qualities. **Standard
errors** of correlations are those on Fisher's scale, transformed back by the delta method. **Design effect**: an effect
of groups that an F test does not tell from chance counts as none, because estimates from few groups are very noisy.
Where the same systems appear in several groups, they are assumed to be the same in every further group, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...data_modules.ratings import RatingTable, spread_within
from ...data_modules.targets import fit_rater_model
from .agreement import MIN_ITEMS, is_constant
from .icc import two_way_components
from .probabilities import f_above, mean_ranks, noncentral_t_beyond, t_quantile

_LEVEL = 0.05
# Smallest design effect: smaller estimates are chance
_LEAST_EFFECT = 0.05


class Components(NamedTuple):
    """Variance components in squared rating points; NaN = cannot be told from these ratings."""

    group: float  # of groups of items, 0 where every item is a group of its own
    item: float  # of items within groups
    rater: float  # of raters' severities
    residual: float  # what is left: rater by item, and chance


def components(table: RatingTable, groups: Sequence[str]) -> Components:
    """Variance components of the ratings of one dimension, with the group of each item; estimates below 0 are 0. Of
    published means the severities of raters are not known: they are in the residual."""
    if table.of_means is None:
        items, rater, residual = two_way_components(table)
        quality = fit_rater_model(table).items
    else:
        sd, numbers = table.of_means
        items, rater, residual = math.nan, math.nan, spread_within(sd, numbers)
        quality = table.means
        if table.n_items > 1:
            items = float(np.nanvar(quality, ddof=1) - (sd**2 / numbers).mean())
    rated = np.flatnonzero(table.counts)
    # On qualities without raters' biases, which would look like groups where each group has raters of its own
    between, _ = _between_groups(quality[rated], np.asarray(groups, dtype=str)[rated], 1)
    # Both are estimates, but the part of groups cannot be larger than that of all items
    group = min(max(between, 0.0), max(items, 0.0))
    return Components(group, max(items - group, 0.0), max(rater, 0.0), residual)


def group_size(groups: Sequence[str] | np.ndarray) -> float:
    """Mean size of an item's group, sum of squared sizes over their sum: 1 where every item is its own group."""
    sizes = np.unique(np.asarray(groups, dtype=str), return_counts=True)[1].astype(float)
    return float((sizes**2).sum() / sizes.sum())


def influence(score: np.ndarray, human: np.ndarray) -> np.ndarray:
    """Influence of each item on Spearman's correlation (Croux and Dehon, 2010), up to scale, with mean 0, shape (n,).

    Scores have shape (n,) and are finite and not constant.
    """
    n = len(score)
    first, second = ((mean_ranks(values) - 0.5) / n for values in (score, human))
    influences = first * second
    for values, other_ranks in ((score, second), (human, first)):
        # mean of the other side over the items that lie above
        order = np.argsort(values, kind="stable")
        above = np.append(np.cumsum(other_ranks[order][::-1])[::-1], 0.0)
        start, end = (np.searchsorted(values[order], values, side) for side in ("left", "right"))
        influences = influences + (above[end] + (above[start] - above[end]) / 2) / n
    return influences - influences.mean()


def design_effect(
    score: np.ndarray,
    human: np.ndarray,
    groups: Sequence[str] | np.ndarray,
    systems: Sequence[str] | np.ndarray | None = None,
) -> float:
    """Variance of Spearman's correlation over that with independent items (Kish, 1965); NaN = cannot be estimated.

    `systems` has the system of each item; None = no systems, or none that several groups share.
    """
    if len(score) < MIN_ITEMS or is_constant(score) or is_constant(human):
        return math.nan
    values, fitted = influence(score, human), 1
    total = float(values @ values) / (len(values) - 1)
    if systems is not None:
        codes = np.unique(np.asarray(systems, dtype=str), return_inverse=True)[1]
        # Systems stay the same in further groups: what differs between them is no chance of the groups
        values = values - (np.bincount(codes, weights=values) / np.bincount(codes))[codes]
        fitted = int(codes.max()) + 1
    freedom = len(values) - fitted
    if freedom < 1 or total <= 0:
        return math.nan
    residual = float(values @ values) / freedom
    between, p = _between_groups(values, np.asarray(groups, dtype=str), fitted)
    # An effect that chance explains counts as none: from few groups its estimate is mostly noise
    extra = (group_size(groups) - 1) * between if p < _LEVEL else 0.0
    return max((residual + extra) / total, _LEAST_EFFECT)


def _between_groups(values: np.ndarray, groups: np.ndarray, fitted: int) -> tuple[float, float]:
    """Variance component of groups, and p of the F test that it is 0; 0 and 1 where it cannot be estimated.

    `fitted` counts the means that were subtracted from the values, the grand mean included.
    """
    codes = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(codes).astype(float)
    n, count = len(values), len(sizes)
    freedom = n - count - fitted + 1
    if count < 2 or freedom < 1:
        return 0.0, 1.0
    values = values - values.mean()
    means = np.bincount(codes, weights=values) / sizes
    among = float(sizes @ means**2) / (count - 1)
    within = float(np.square(values - means[codes]).sum()) / freedom
    # The size of equal groups with the same expected mean square between groups
    size = (n - (sizes**2).sum() / n) / (count - 1)
    p = f_above(among / within, count - 1, freedom) if within > 0 else 0.0
    return (among - within) / size, p


def standard_error(r: float, n: float, effect: float = 1.0) -> float:
    """Of Spearman's correlation r of a judge with the panel mean over n > 3 other items (Bonett and Wright, 2000), with
    its `design_effect`."""
    return (1 - r**2) * math.sqrt((1 + r**2 / 2) / (n - 3) * effect)


def standard_error_of_difference(first: float, second: float, between: float, n: float, effect: float = 1.0) -> float:
    """Of the difference of two judges' correlations with the same panel means, on the same items: two correlations that
    share a variable (Olkin and Siotani, 1976; Steiger, 1980).

    `first` and `second` are the expected correlations, `between` that of the two judges with each other.
    """
    remainder = 1 - first**2 - second**2
    covariance = (between * remainder - first * second * (remainder - between**2) / 2) / (n - 3) * effect
    variance = standard_error(first, n, effect) ** 2 + standard_error(second, n, effect) ** 2 - 2 * covariance
    return math.sqrt(max(variance, 0.0))


def paired_contexts(spread: float, difference: float, power: float) -> int:
    """The fewest contexts in which a two-sided paired t test at 5 % finds a difference with this power (noncentral t).

    Args:
        spread: Standard deviation of the paired differences between contexts, rating points.
        difference: Their mean, above 0, rating points.
        power: Between 0 and 1.
    """

    def enough(n: int) -> bool:
        shift, limit = difference * math.sqrt(n) / max(spread, 1e-9), t_quantile(0.975, n - 1)
        # Far out the power is 1, and scipy's noncentral t may be NaN
        return shift > 30 or noncentral_t_beyond(limit, n - 1, shift) >= power

    low, high = 1, 2  # of one context no variance is known
    # Power rises with n, so that doubling and halving find the fewest in a few dozen looks
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
