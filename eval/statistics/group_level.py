"""Agreement within groups: does the judge tell apart the responses to one context, or only the contexts?

A correlation over all items mixes both. Here every group (items of one context or script) has a value of its own, and
the statistic is their mean: all groups count the same.

In a bootstrap resample, a group that lies in one resampled cluster is drawn with it and counts as often. A group that
spans clusters is measured anew on its drawn items and counts once, where it has a value there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from .agreement import CONSTANT_TOLERANCE, MIN_ITEMS, Statistic, is_constant, kendall, spearman
from .bootstrap import Resamples, complete, with_interval
from .rank_draws import kendall_draws, spearman_draws

GroupCorrelation = Literal["spearman", "kendall"]
GROUP_CORRELATIONS: tuple[GroupCorrelation, ...] = get_args(GroupCorrelation)


@dataclass(frozen=True, eq=False)
class GroupLevel:
    """The mean of a statistic of single groups.

    Attributes:
        mean: The mean over `groups` groups, with its interval. Its ``n`` counts their items.
        groups: Groups that have a value.
        too_small: Groups left out because they have too few items.
        constant: Groups left out because judge or people (for `top_1`: people) give all their items the same score.
        chance: What a judge that knows nothing can expect: 0 for correlations; None where there is no value.
    """

    mean: Statistic
    groups: int
    too_small: int
    constant: int
    chance: float | None


def group_correlation(
    name: GroupCorrelation, score: np.ndarray, human: np.ndarray, groups: np.ndarray, resamples: Resamples
) -> GroupLevel:
    """Mean over groups of the correlation within the group.

    Groups with fewer than `MIN_ITEMS` items, and those in which either side is constant, are left out and counted.

    Args:
        name: Spearman or Kendall (tau-b).
        score: Shape (n,), judge; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        groups: Shape (n,), the group of each item, names or numbers.
        resamples: Draws over the same n items.

    Returns:
        Undefined, with the reason, where no group is left.

    Raises:
        ValueError: If shapes differ.
    """

    def draws(x: np.ndarray, y: np.ndarray, seen: Resamples) -> np.ndarray:
        if name == "spearman":
            return spearman_draws(x[None], y, seen.codes, seen.counts)[0]
        return kendall_draws(x, y, seen.codes, seen.counts)

    def usable(x: np.ndarray, y: np.ndarray) -> bool:
        return not (is_constant(x) or is_constant(y))

    found, _ = _mean_over_groups(
        kendall if name == "kendall" else spearman, draws, usable, MIN_ITEMS, score, human, groups, resamples
    )
    return found


def top_1(score: np.ndarray, human: np.ndarray, groups: np.ndarray, resamples: Resamples) -> GroupLevel:
    """Share of groups in which the judge's best item is one that people find best.

    Where the judge ties several items for the best, the group counts with the share of these that people find best:
    the chance of a random choice among them. Groups with one item, and those whose items people all tie, are left out
    and counted. The highest score is the best; where the lowest is, give both sides negated.

    Args:
        score: Shape (n,), judge; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        groups: Shape (n,), the group of each item, names or numbers.
        resamples: Draws over the same n items.

    Returns:
        ``chance`` is the mean share of items that people find best. Undefined, with the reason, where no group is left.

    Raises:
        ValueError: If shapes differ.
    """

    def share(x: np.ndarray, y: np.ndarray) -> float:
        best = _best(y)
        return math.nan if best.all() else float(best[_best(x)].mean())

    def draws(x: np.ndarray, y: np.ndarray, seen: Resamples) -> np.ndarray:
        return seen.draws(lambda items: share(x[items], y[items]))

    found, used = _mean_over_groups(share, draws, lambda _, y: not is_constant(y), 2, score, human, groups, resamples)
    chance = float(np.mean([_best(human[own]).mean() for own in used])) if used else None
    return replace(found, chance=chance)


def _best(values: np.ndarray) -> np.ndarray:
    """Which items have the highest value up to rounding."""
    highest = values.max()
    return values >= highest - CONSTANT_TOLERANCE * abs(highest)


def _mean_over_groups(
    value_of: Callable[[np.ndarray, np.ndarray], float],
    draws_of: Callable[[np.ndarray, np.ndarray, Resamples], np.ndarray],
    usable: Callable[[np.ndarray, np.ndarray], bool],
    fewest: int,
    score: np.ndarray,
    human: np.ndarray,
    groups: np.ndarray,
    resamples: Resamples,
) -> tuple[GroupLevel, list[np.ndarray]]:
    """The mean over groups, with chance 0, and the items of each group that counts.

    Args:
        value_of: The statistic of one group's items.
        draws_of: The same in resamples of them.
        usable: Whether a group's judge and human scores vary as they must.
        fewest: Items that a group must have.
        score: Shape (n,), judge.
        human: Shape (n,), the same items.
        groups: Shape (n,), their groups.
        resamples: Draws over them.
    """
    kept, point = complete(score, human)
    if np.shape(groups) != kept.shape:
        raise ValueError(f"groups of shape {np.shape(groups)} for {len(kept)} items; expected one per item")
    items = np.flatnonzero(kept) if point.reason is None else np.empty(0, dtype=np.intp)
    codes = np.unique(groups[items], return_inverse=True)[1]
    order = items[np.argsort(codes, kind="stable")]
    used, values, too_small, constant = [], [], 0, 0
    total, weight = np.zeros((2, len(resamples.counts)))
    for own in np.split(order, np.cumsum(np.bincount(codes))[:-1]) if len(items) else []:
        x, y = score[own], human[own]
        if len(own) < fewest:
            too_small += 1
            continue
        if not usable(x, y):
            constant += 1
            continue
        used.append(own)
        values.append(value_of(x, y))
        seen = resamples.select(own)
        if (seen.codes == seen.codes[0]).all():
            times = seen.counts[:, seen.codes[0]].astype(np.float64)
            total += times * values[-1]
            weight += times
        else:
            drawn = draws_of(x, y, seen)
            total += np.nan_to_num(drawn)
            weight += ~np.isnan(drawn)
    if not used:
        reason = point.reason or f"no group is left: {too_small} too small, {constant} constant"
        return GroupLevel(replace(point, reason=reason), 0, too_small, constant, None), used
    members = np.concatenate(used)
    point = replace(point, value=float(np.mean(values)), n=len(members))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = with_interval(point, total / weight, resamples.select(members))
    return GroupLevel(mean, len(used), too_small, constant, 0.0), used
