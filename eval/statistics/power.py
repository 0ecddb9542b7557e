"""How many groups it takes to tell two judges apart.

The standard error of the difference comes from the cluster bootstrap and shrinks with the root of the number of
groups; items come in groups, because more items of a group add less than new groups do. Power is that of a two-sided
test of a normally distributed difference.

Both numbers take the observed difference for the true one. `groups_needed` answers "if the judges differ by as much as
it seems, how large must the next study be?"; its range comes from the ends of the difference's interval. Power at the
observed difference says nothing that its p value does not say (Hoenig and Heisey, 2001); `detectable_difference`
needs no observed difference and is the better description of the data at hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from .significance import Comparison

ALPHA = 0.05
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
