"""Agreement within groups: does the judge tell apart the responses to one context, or only the contexts?

A correlation over all items mixes both. Here every group (items of one context or script) has a value of its own, and
the statistic is their mean: all groups count the same.

In a bootstrap resample, a group that lies in one resampled cluster is drawn with it and counts as often. A group that
spans clusters is measured anew on its drawn items and counts once, where it has a value there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from .agreement import CONSTANT_TOLERANCE, MIN_ITEMS, Statistic, kendall
from .bootstrap import CompleteItems, Estimate, Resamples, statistic_draws

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

    mean: Estimate
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
        return statistic_draws(name, x, y, seen)

    items = _Grouped.of(score, human, groups, resamples)
    too_small = items.sizes < MIN_ITEMS
    constant = ~too_small & (_constant(items.score, items) | _constant(items.human, items))
    used = ~(too_small | constant)
    values = np.full(len(used), np.nan)
    chosen = used[items.groups]
    members = np.unique(items.groups[chosen], return_inverse=True)[1]
    values[used] = _CORRELATIONS[name](items.score[chosen], items.human[chosen], members)
    return _level(values, items, draws, too_small, constant, None if not used.any() else 0.0)


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
    items = _Grouped.of(score, human, groups, resamples)
    too_small = items.sizes < 2
    constant = ~too_small & _constant(items.human, items)
    used = ~(too_small | constant)
    chosen, found = _best(items.score, items), _best(items.human, items)
    values = np.where(used, items.sums(chosen & found) / np.maximum(items.sums(chosen), 1), np.nan)
    chance = float((items.sums(found) / items.sizes)[used].mean()) if used.any() else None
    return _level(values, items, _top_1_draws, too_small, constant, chance)


@dataclass(frozen=True, eq=False)
class _Grouped:
    """Items without NaN, sorted by group: n items of g groups.

    Attributes:
        score: Shape (n,).
        human: Shape (n,).
        groups: Shape (n,), from 0 without gaps.
        starts: Shape (g,), the first item of each group.
        sizes: Shape (g,).
        resamples: Draws over these items.
        empty: A statistic without value that counts dropped items.
    """

    score: np.ndarray
    human: np.ndarray
    groups: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    resamples: Resamples
    empty: Statistic

    @classmethod
    def of(cls, score: np.ndarray, human: np.ndarray, groups: np.ndarray, resamples: Resamples) -> _Grouped:
        items = CompleteItems.of(score, human)
        codes = items.codes(groups, "groups")
        order = np.argsort(codes, kind="stable")
        if items.empty.reason is not None:  # infinite scores: nothing can be measured
            order = order[:0]
        codes = codes[order]
        sizes = np.bincount(codes)
        seen = resamples.select(np.flatnonzero(items.kept)[order])
        return cls(items.score[order], items.human[order], codes, np.cumsum(sizes) - sizes, sizes, seen, items.empty)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum of the values in each group, shape (g,)."""
        return np.bincount(self.groups, weights=values, minlength=len(self.sizes))


def _constant(values: np.ndarray, items: _Grouped) -> np.ndarray:
    """Which groups have equal values up to rounding, shape (g,)."""
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    highest, lowest = np.maximum.reduceat(values, items.starts), np.minimum.reduceat(values, items.starts)
    return highest - lowest <= CONSTANT_TOLERANCE * np.maximum(np.abs(highest), np.abs(lowest))


def _best(values: np.ndarray, items: _Grouped) -> np.ndarray:
    """Which items have the highest value of their group up to rounding, shape (n,)."""
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    highest = np.maximum.reduceat(values, items.starts)[items.groups]
    return values >= highest - CONSTANT_TOLERANCE * np.abs(highest)


def _level(
    values: np.ndarray,
    items: _Grouped,
    draws_of_group: Callable[[np.ndarray, np.ndarray, Resamples], np.ndarray],
    too_small: np.ndarray,
    constant: np.ndarray,
    chance: float | None,
) -> GroupLevel:
    """The mean of the values (g,) that are not NaN, its interval, and the counts."""
    used = ~np.isnan(values)
    counts = (int(used.sum()), int(too_small.sum()), int(constant.sum()))
    if items.empty.reason is not None or not used.any():
        reason = items.empty.reason or f"no group is left: {counts[1]} too small, {counts[2]} constant"
        nothing = Estimate(replace(items.empty, reason=reason), np.full(len(items.resamples.counts), np.nan))
        return GroupLevel(nothing, *counts, None)
    total, weight = np.zeros((2, len(items.resamples.counts)))
    codes = items.resamples.codes
    whole = used & (np.minimum.reduceat(codes, items.starts) == np.maximum.reduceat(codes, items.starts))
    times = items.resamples.select(items.starts[whole])
    if whole.any():
        total += times.apply(lambda drawn: drawn @ values[whole])
        weight += times.apply(lambda drawn: drawn.sum(axis=1))
    for group in np.flatnonzero(used & ~whole):
        members = slice(items.starts[group], items.starts[group] + items.sizes[group])
        seen = Resamples(codes[members], items.resamples.counts)
        own = draws_of_group(items.score[members], items.human[members], seen)
        total += np.where(np.isnan(own), 0.0, own)
        weight += ~np.isnan(own)
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = total / weight
    point = replace(items.empty, value=float(values[used].mean()), n=int(items.sizes[used].sum()))
    return GroupLevel(Estimate.of(point, draws, items.resamples.select(used[items.groups])), *counts, chance)


def _top_1_draws(score: np.ndarray, human: np.ndarray, resamples: Resamples) -> np.ndarray:
    """Of one group whose items are drawn apart from each other: the chance in each resample, NaN if all are tied."""

    def top(drawn: np.ndarray) -> np.ndarray:
        best = []
        for own in (score, human):
            highest = np.where(drawn > 0, own, -np.inf).max(axis=1, keepdims=True)
            best.append((drawn > 0) & (own >= highest - CONSTANT_TOLERANCE * np.abs(highest)))
        chosen, found = best
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (drawn * (chosen & found)).sum(axis=1) / (drawn * chosen).sum(axis=1)
        return np.where((found == (drawn > 0)).all(axis=1), np.nan, share)

    return resamples.apply(top)


def _spearman(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Pearson's correlation of the mean ranks; ranks of a group may start at any number."""
    sizes = np.bincount(groups)

    def centred(values: np.ndarray) -> np.ndarray:
        levels = np.unique(values, return_inverse=True)[1]
        _, code, equal = np.unique(groups * len(values) + levels, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(equal) - (equal - 1) / 2)[code]
        return ranks - (np.bincount(groups, weights=ranks) / sizes)[groups]

    dx, dy = centred(x), centred(y)
    squares = np.bincount(groups, weights=dx * dx) * np.bincount(groups, weights=dy * dy)
    return np.clip(np.bincount(groups, weights=dx * dy) / np.sqrt(squares), -1.0, 1.0)


def _kendall(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> np.ndarray:
    starts = np.cumsum(np.bincount(groups)) - np.bincount(groups)
    sides = zip(np.split(x, starts)[1:], np.split(y, starts)[1:], strict=True)
    return np.array([_tau_b(*own) for own in sides])


def _tau_b(x: np.ndarray, y: np.ndarray) -> float:
    if len(x) > 200:
        return kendall(x, y).value or 0.0
    first, second = (np.sign(own[:, None] - own) for own in (x, y))  # ten times as fast for the few items of a context
    return float((first * second).sum() / np.sqrt(np.abs(first).sum() * np.abs(second).sum()))


_CORRELATIONS: dict[GroupCorrelation, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "spearman": _spearman,
    "kendall": _kendall,
}
