"""How often a judge orders two items as people do, over all items and within the groups of one context.

Two statistics over all pairs of items, which differ in how they treat ties: **pairwise accuracy** (acc_eq; Deutsch,
Foster and Freitag, 2023) and the **concordance index** (Harrell et al., 1982), which is (1 + Somers' D) / 2. The
section "Pairs of items and groups" in docs/reference/statistics.md says what they count.

Scores are tied when they are equal as float64. In a bootstrap resample a pair counts as often as both of its items were
drawn. An item and its own copy are never a pair: as ties on both sides, they would raise the accuracy of every
resample.

**Within groups**: does the judge tell apart the responses to one context, or only the contexts? Every group has a value
of its own, and the statistic is their mean: all groups count the same. In a resample, a group that lies in one cluster
is drawn with this cluster and counts as often. A group that spans clusters is measured anew on its drawn items and
counts once, if it has a value there.

Everywhere `score` is the judge's and `human` the people's of the same n items, shape (n,); an item with a NaN is
dropped and counted. `resamples` are draws over the items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...core.errors import counted
from .agreement import CONSTANT_TOLERANCE, IN_REPORTS, MIN_ITEMS, Function, Statistic, kendall, spearman, why_constant
from .bootstrap import Resamples, complete, with_interval
from .rank_draws import pair_sums, signs

MAX_PAIRS = 250_000_000
"""Most pairs that are resampled (as many as 22,360 items have); with more there is no interval."""

CALIBRATED_PAIRS = 5_000_000
"""Most pairs that epsilon is chosen on (as many as 3,162 items have)."""


@dataclass(frozen=True)
class ItemPairs:
    """Concordance index and pairwise accuracy of a judge."""

    __pydantic_config__ = IN_REPORTS

    concordance: Statistic
    """The concordance index."""
    accuracy: Statistic
    """The pairwise accuracy at this epsilon. Its interval leaves out the uncertainty of the choice of epsilon, which is
    the same in every resample."""
    epsilon: float | None
    """Chosen by `tie_calibration`; None where the accuracy is undefined."""
    epsilon_reason: str | None
    """Why epsilon was chosen on some of the items, where it was."""


def item_pairs(score: np.ndarray, human: np.ndarray, resamples: Resamples, seed: int = 0) -> ItemPairs:
    """How often a judge orders two items as people do; `seed` is that of `tie_calibration`.

    Undefined, with the reason, without a pair, and where the scores of either side are constant; without intervals
    where there are more than `MAX_PAIRS` pairs.
    """
    valid, point = complete(score, human)
    x, y, seen = score[valid], human[valid], resamples.select(valid)
    if point.reason is None:
        point = replace(point, reason=f"no pair: {counted(len(x), 'item')}" if len(x) < 2 else why_constant(x, y))
    if point.reason is not None:
        return ItemPairs(point, point, None, None)
    # Once and not in each resample: it takes a sort of all pairs
    epsilon, epsilon_reason = tie_calibration(x, y, seed)

    def rule(judge: np.ndarray, people: np.ndarray) -> tuple[np.ndarray, ...]:
        first, second = signs(judge), signs(people)
        return first * second, second != 0, signs(judge, epsilon) == second

    pairs = len(x) * (len(x) - 1) // 2
    counts = np.ones((1, seen.counts.shape[1]))  # every item once, for the values; then the resamples
    if pairs <= MAX_PAIRS:
        counts = np.concatenate([counts, seen.counts])
    surplus, ordered, agreeing = pair_sums(x, y, seen.codes, counts, rule)
    sizes = np.bincount(seen.codes, minlength=counts.shape[1])
    # All pairs of drawn items, less those of an item with itself or its own copies
    drawn = ((counts @ sizes) ** 2 - counts**2 @ sizes) / 2

    def found(above: np.ndarray, below: np.ndarray) -> Statistic:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = above / below
        statistic = with_interval(replace(point, value=float(values[0])), values[1:], seen)
        if pairs > MAX_PAIRS and len(seen.counts):
            statistic = replace(statistic, reason=f"no interval: {pairs} pairs, at most {MAX_PAIRS} are resampled")
        return statistic

    # Concordance: of the pairs that people order, those in the right order; ties of the judge count half
    return ItemPairs(found((ordered + surplus) / 2, ordered), found(agreeing, drawn), epsilon, epsilon_reason)


def tie_calibration(score: np.ndarray, human: np.ndarray, seed: int = 0) -> tuple[float, str | None]:
    """Chooses epsilon among 0 and all observed differences of judge scores, exactly (Deutsch et al., 2023).

    People use few scale points and often tie. A judge that scores with decimals never ties, so that it would always be
    wrong on pairs tied by people. Epsilon is fitted to the human scores of these items: the accuracy is the highest
    that any threshold reaches, also for a judge that knows nothing (which reaches the share of pairs that people tie,
    where that is more than half). Scores are finite. Where all items have more than `CALIBRATED_PAIRS` pairs, a random
    subset with about as many is used.

    Returns:
        The smallest epsilon with the highest accuracy, which is 0 or an observed difference; and the reason why it was
        chosen on a subset of the items, or None.
    """
    n, reason = len(score), None
    share = np.sqrt(CALIBRATED_PAIRS / max(1, n * (n - 1) // 2))
    if share < 1:
        part = np.random.default_rng(seed).permutation(n)[: int(share * n)]
        reason = f"epsilon chosen on {len(part)} random items of {n}: at most {CALIBRATED_PAIRS} pairs are compared"
        score, human = score[part], human[part]
    # Every observed difference is a candidate, and accuracy changes nowhere else: the best one is exact
    order = np.argsort(score, kind="stable")
    # With sorted scores all differences are 0 or above, and each pair comes once
    low, high = np.triu_indices(len(order), 1)
    difference, apart = score[order[high]] - score[order[low]], human[order[high]] - human[order[low]]
    # Tying a pair gains it where people tie it, and loses it where both sides order it alike; else nothing changes
    matters = (difference > 0) & (apart >= 0)
    distinct, code = np.unique(difference[matters], return_inverse=True)
    gains = np.cumsum(np.bincount(code, weights=np.where(apart[matters] == 0, 1.0, -1.0)))
    best = int(gains.argmax()) if len(gains) else 0
    return (float(distinct[best]) if gains.max(initial=0.0) > 0 else 0.0), reason


# ---------------------------------------------------------------- within groups


@dataclass(frozen=True)
class GroupLevel:
    """The mean of a statistic of single groups."""

    __pydantic_config__ = IN_REPORTS

    mean: Statistic
    """The mean over `groups` groups, with its interval. Its ``n`` counts their items."""
    groups: int
    """Groups that have a value."""
    too_small: int
    """Groups left out because they have too few items."""
    constant: int
    """Groups left out because judge or people (for ``top_1``: people) give all their items the same score."""
    chance: float | None
    """What a judge that knows nothing can expect: 0 for correlations, for ``top_1`` the mean share of items that people
    find best; None where there is no value."""


def top_1(score: np.ndarray, human: np.ndarray) -> float:
    """1 if the judge's best item is one that people rate best, else 0; NaN where people tie all items.

    Where the judge ties several items for the best, it is the share of these that people rate best: the chance of a
    random choice among them.
    """
    best = _best(human)
    return math.nan if best.all() else float(best[_best(score)].mean())


def _best(values: np.ndarray) -> np.ndarray:
    """Which items have the highest value up to rounding."""
    highest = values.max()
    return values >= highest - CONSTANT_TOLERANCE * abs(highest)


WITHIN_GROUPS: Mapping[str, tuple[Function, int, Callable[[np.ndarray], float]]] = {
    "spearman": (spearman, MIN_ITEMS, lambda _: 0.0),
    "kendall": (kendall, MIN_ITEMS, lambda _: 0.0),
    "top_1": (top_1, 2, lambda human: _best(human).mean()),
}
"""Name -> statistic to average over groups, fewest items of a group, chance level from the group's human scores."""


def within_groups(
    name: str, score: np.ndarray, human: np.ndarray, groups: np.ndarray, resamples: Resamples
) -> GroupLevel:
    """Mean over groups of a statistic within the group; undefined, with the reason, where no group is left.

    Args:
        name: A key of `WITHIN_GROUPS`. For ``top_1`` the highest score is the best; where the lowest is, negate both
            sides.
        groups: Shape (n,), the group of each item, names or numbers.
    """
    function, fewest, chance = WITHIN_GROUPS[name]
    valid, point = complete(score, human)
    items = np.flatnonzero(valid) if point.reason is None else np.empty(0, dtype=np.intp)
    codes = np.unique(groups[items], return_inverse=True)[1]
    order = items[np.argsort(codes, kind="stable")]
    used, values, chances, too_small, constant = [], [], [], 0, 0
    total, weight = np.zeros((2, len(resamples.counts)))
    for group in np.split(order, np.cumsum(np.bincount(codes))[:-1]) if len(items) else []:
        x, y = score[group], human[group]
        if len(group) < fewest:
            too_small += 1
            continue
        value = function(x, y)
        # A group whose responses are all rated alike has no order to find, and would count as a failure
        if math.isnan(value):
            constant += 1
            continue
        used.append(group)
        values.append(value)
        chances.append(chance(y))
        seen = resamples.select(group)
        # The group is drawn as a whole: its value stays, only how often it counts changes
        if (seen.codes == seen.codes[0]).all():
            times = seen.counts[:, seen.codes[0]].astype(np.float64)
            total += times * value
            weight += times
        else:
            drawn = seen.compute(function, x, y)
            total += np.nan_to_num(drawn)
            weight += ~np.isnan(drawn)
    if not used:
        reason = point.reason or f"no group is left: {too_small} too small, {constant} constant"
        return GroupLevel(replace(point, reason=reason), 0, too_small, constant, None)
    # Clusters whose groups have no value must not count towards `MIN_GROUPS`
    members = np.concatenate(used)
    point = replace(point, value=float(np.mean(values)), n=len(members))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = with_interval(point, total / weight, resamples.select(members))
    return GroupLevel(mean, len(used), too_small, constant, float(np.mean(chances)))
