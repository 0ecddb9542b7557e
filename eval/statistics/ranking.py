"""Several judges in one ranking: p values corrected for their number, and clusters that data can tell apart.

With many judges some pair differs by chance. Holm (1979) bounds the probability of one false difference or more,
whatever the dependence between the tests: of judges tested on the same items, neither independence nor the sign of the
dependence is known. The clusters stand on Holm's p values of the paired permutation tests.

Clusters are those of the WMT shared tasks: judges are sorted by agreement, and a new cluster begins where every judge
above is significantly better than every judge below. Judges of one cluster may still differ pairwise.

How many groups it takes to tell two judges apart: the standard error of the difference comes from the cluster bootstrap
and shrinks with the root of the number of groups; items come in groups, because more items of a group add less than new
groups do. Power is that of a two-sided test of a normally distributed difference.

Both numbers take the observed difference for the true one. `groups_needed` answers "if the judges differ by as much as
it seems, how large must the next study be?"; its range comes from the ends of the difference's interval. Power at the
observed difference says nothing that its p value does not say (Hoenig and Heisey, 2001); `detectable_difference`
needs no observed difference and is the better description of the data at hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .agreement import Statistic
from .significance import Comparison

ALPHA = 0.05
"""Level of the clusters, and of the test whose power is stated."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Judges from the best to the worst, in clusters.

    Attributes:
        judges: Those with a defined agreement, highest first; equal ones in the order given.
        clusters: Shape (judges,), number of the cluster of each, from 1 = best.
        p: Shape (judges, judges), adjusted two-sided p values in the order of `judges`; NaN on the diagonal and where
            two could not be compared.
        unranked: The other judges, in the order given -> why they have no agreement.
    """

    judges: tuple[str, ...]
    clusters: tuple[int, ...]
    p: np.ndarray
    unranked: Mapping[str, str]


def rank_judges(
    agreement: Mapping[str, Statistic], comparisons: Mapping[tuple[str, str], Comparison], alpha: float = ALPHA
) -> Ranking:
    """Sorts judges and divides them into significance clusters.

    Args:
        agreement: Judge -> its agreement with people, the higher the better.
        comparisons: What `significance.compare_all` returns for these judges; its p values are corrected together.
        alpha: Level.

    Returns:
        Two judges whose difference on the items that both scored has another sign than that of their agreement are not
        told apart: their scores are missing for different items.
    """
    tested = {
        pair: (found.difference.value or 0.0, found.permutation.p)
        for pair, found in comparisons.items()
        if found.permutation is not None
    }
    return rank_tested(agreement, tested, alpha)


def rank_tested(
    agreement: Mapping[str, Statistic], tested: Mapping[tuple[str, str], tuple[float, float]], alpha: float = ALPHA
) -> Ranking:
    """`rank_judges` from any test.

    Args:
        agreement: Judge -> its agreement with people, the higher the better.
        tested: Two judges -> the difference of their agreement, first minus second, and its p value.
        alpha: Level.
    """
    values = {name: found.value for name, found in agreement.items() if found.value is not None}
    judges = tuple(sorted(values, key=lambda name: -values[name]))
    adjusted = dict(zip(tested, holm(np.array([p for _, p in tested.values()])), strict=True))
    p = np.full((len(judges), len(judges)), np.nan)
    better = np.zeros(p.shape, dtype=bool)
    place = {name: number for number, name in enumerate(judges)}
    for (first, second), own in adjusted.items():
        if first not in place or second not in place:
            continue
        i, j = place[first], place[second]
        p[i, j] = p[j, i] = own
        difference, _ = tested[first, second]
        better[i, j], better[j, i] = own < alpha and difference > 0, own < alpha and difference < 0
    unranked = {name: found.reason or "undefined" for name, found in agreement.items() if name not in place}
    return Ranking(judges, significance_clusters(better), p, unranked)


def significance_clusters(better: np.ndarray) -> tuple[int, ...]:
    """Number of the cluster of each judge, from 1.

    Args:
        better: Shape (judges, judges), best judge first: whether the judge of the row is significantly better than that
            of the column. What cannot be compared is not better.
    """
    judges = len(better)
    begins = [first > 0 and bool(better[:first, first:].all()) for first in range(judges)]
    return tuple(int(number) for number in 1 + np.cumsum(begins, dtype=np.int64))


def holm(p: np.ndarray) -> np.ndarray:
    """Adjusted p values of the step-down procedure of Holm (1979).

    Args:
        p: Shape (tests,). NaN = not tested: stays NaN and does not count.

    Returns:
        Shape (tests,), at most 1, in the order of `p`; at a level, those below it are rejected.

    Raises:
        ValueError: If a value lies outside 0 to 1.
    """
    p = np.asarray(p, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(p))
    if len(outside := p[tested][(p[tested] < 0) | (p[tested] > 1)]):
        raise ValueError(f"p value {outside[0]:g}; expected 0 to 1, or NaN")
    order = tested[np.argsort(p[tested], kind="stable")]
    adjusted = np.full_like(p, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


POWER = 0.8

FEWEST_GROUPS = 6
"""With 5 groups there are 16 permutations, and no p value of the permutation test is below 1 / 16."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Power:
    """What it takes to separate two judges at a level of `ALPHA` with a power of `POWER`.

    Attributes:
        power: Probability that as many groups as there are show a difference as large as the observed one.
        detectable_difference: The smallest true difference that they show with a power of `POWER`.
        groups_needed: Groups in all, at the observed difference.
        groups_low: The same at the end of the difference's interval that is farther from 0.
        groups_high: The same at the end nearer to 0; None where the interval reaches 0 and no number is enough.
        items_needed: Items in these `groups_needed` groups, with as many per group as now.
        reason: Why a field is None.
    """

    power: float | None = None
    detectable_difference: float | None = None
    groups_needed: int | None = None
    groups_low: int | None = None
    groups_high: int | None = None
    items_needed: int | None = None
    reason: str | None = None


def separation(comparison: Comparison) -> Power:
    """Power and numbers of groups for two judges; the formulas are those of `power` and `groups_needed`."""
    difference, error, groups = comparison.difference, comparison.standard_error, comparison.n_groups
    if difference.value is None or difference.low is None or difference.high is None or error is None:
        return Power(reason=difference.reason or "no standard error of the difference: no resamples")
    if error <= _ROUNDING:
        return Power(reason="the difference is the same in all resamples")
    now, detectable = power(difference.value, error), _distance() * error
    if abs(difference.value) <= _ROUNDING:
        return Power(now, detectable, reason="no difference was observed: no number of groups would show it")
    needed = groups_needed(difference.value, error, groups)
    near, far = sorted((abs(difference.low), abs(difference.high)))
    reaches_zero = difference.low <= 0 <= difference.high or near <= _ROUNDING
    return Power(
        now,
        detectable,
        needed,
        groups_needed(far, error, groups),
        None if reaches_zero else groups_needed(near, error, groups),
        math.ceil(needed * difference.n / groups),
        "no largest number of groups: the interval of the difference reaches 0" if reaches_zero else None,
    )


def power(difference: float, standard_error: float) -> float:
    """Probability that a two-sided normal test at `ALPHA` rejects.

    Args:
        difference: The true one.
        standard_error: Of its estimate, above 0.
    """
    critical, shift = stats.norm.isf(ALPHA / 2), abs(difference) / standard_error
    return float(stats.norm.sf(critical - shift) + stats.norm.cdf(-critical - shift))


def groups_needed(difference: float, standard_error: float, n_groups: int) -> int:
    """Smallest number of groups in all with a power of at least `POWER`, at least `FEWEST_GROUPS`.

    n_groups ((z_{1 - alpha / 2} + z_{power}) standard_error / difference)^2: as for a mean (Cohen, 1988, 2.4), the
    other tail being negligible at this power.

    Args:
        difference: The true one, not 0.
        standard_error: Of its estimate from `n_groups` groups.
        n_groups: Groups behind the standard error.
    """
    return max(FEWEST_GROUPS, math.ceil(n_groups * (_distance() * standard_error / difference) ** 2))


def _distance() -> float:
    """Standard errors between 0 and a difference that is shown with a power of `POWER`."""
    return float(stats.norm.isf(ALPHA / 2) + stats.norm.ppf(POWER))
