"""How often a judge orders two items as people do, over all items and within the groups of one context.

Two statistics over all pairs of items, which differ in what ties do:

- **pairwise accuracy** (acc_eq; Deutsch, Foster and Freitag, 2023): the share of pairs on which the judge says the same
  as people, one of: first better, second better, tie. A judge that scores with decimals hardly ever ties, so its scores
  count as tied when they differ by at most epsilon; `tie_calibration` chooses epsilon.
- **concordance index** (Harrell et al., 1982): pairs that people tie are left out, and those that the judge ties count
  half. It is (1 + Somers' D) / 2, and about 0.5 for a judge that knows nothing.

Scores are tied when they are equal as float64. In a bootstrap resample a pair counts as often as both of its items were
drawn. An item and its own copy are never a pair; counted as the tie that they are, they would raise the accuracy of
every resample. A resample in which the judge's scores are constant counts by the rule for ties.

**Within groups**: does the judge tell apart the responses to one context, or only the contexts? A correlation over all
items mixes both. Here every group (items of one context or script) has a value of its own, and the statistic is their
mean: all groups count the same. In a bootstrap resample, a group that lies in one resampled cluster is drawn with it
and counts as often. A group that spans clusters is measured anew on its drawn items and counts once, where it has a
value there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from .agreement import CONSTANT_TOLERANCE, MIN_ITEMS, Function, Statistic, is_constant, kendall, spearman
from .bootstrap import Resamples, complete, with_interval
from .rank_draws import pair_sums

MAX_PAIRS = 250_000_000
"""Most pairs that are looked at one by one (those of 22,360 items): beyond it there is no interval."""

_BINS = 1 << 16
_BATCH = 1 << 20  # pairs counted at a time


@dataclass(frozen=True)
class ItemPairs:
    """Both statistics.

    Attributes:
        concordance: `concordance_index`.
        accuracy: `pairwise_accuracy` at this epsilon. Its interval leaves out the uncertainty of the choice of epsilon,
            which is the same in every resample.
        epsilon: Chosen by `tie_calibration`; None where the accuracy is undefined.
        epsilon_reason: Why epsilon was chosen on some of the items, where it was.
    """

    concordance: Statistic
    accuracy: Statistic
    epsilon: float | None
    epsilon_reason: str | None


def item_pairs(score: np.ndarray, human: np.ndarray, resamples: Resamples, seed: int = 0) -> ItemPairs:
    """How often a judge orders two items as people do.

    Args:
        score: Shape (n,), judge; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        resamples: Draws over the same n items.
        seed: Of `tie_calibration`.

    Returns:
        Undefined, with the reason, without a pair, and where the scores of either side are constant; without intervals
        where there are more than `MAX_PAIRS` pairs.

    Raises:
        ValueError: If shapes differ.
    """
    kept, point = complete(score, human)
    x, y = score[kept], human[kept]
    if point.reason is None:
        constant = [side for side, own in (("judge", x), ("human", y)) if is_constant(own)]
        if len(x) < 2:
            point = replace(point, reason=f"no pair: {len(x)} items")
        elif constant:
            point = replace(point, reason=f"the {' and the '.join(constant)} scores are constant")
    if point.reason is not None:
        return ItemPairs(point, point, None, None)
    epsilon, why = tie_calibration(x, y, seed)
    concordance = replace(point, value=concordance_index(x, y))
    accuracy = replace(point, value=pairwise_accuracy(x, y, epsilon))
    pairs, seen = len(x) * (len(x) - 1) // 2, resamples.select(kept)
    if pairs > MAX_PAIRS and len(seen.counts):
        reason = f"no interval: {pairs} pairs, at most {MAX_PAIRS} are resampled"
        return ItemPairs(replace(concordance, reason=reason), replace(accuracy, reason=reason), epsilon, why)

    def rule(judge: np.ndarray, people: np.ndarray) -> tuple[np.ndarray, ...]:
        first, second = np.sign(judge), np.sign(people)
        ordered = second != 0
        alike = (ordered + first * second) / 2
        first[np.abs(judge) <= epsilon] = 0
        return alike, ordered, first == second

    alike, ordered, agreeing = pair_sums(x, y, seen.codes, seen.counts, rule)
    sizes = np.bincount(seen.codes, minlength=seen.counts.shape[1])
    counts = seen.counts.astype(np.float64)
    drawn = ((counts @ sizes) ** 2 - counts**2 @ sizes) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        concordance = with_interval(concordance, alike / ordered, seen)
        accuracy = with_interval(accuracy, agreeing / drawn, seen)
    return ItemPairs(concordance, accuracy, epsilon, why)


def concordance_index(score: np.ndarray, human: np.ndarray) -> float:
    """Share of the pairs ordered by people that the judge orders alike; its ties count half (Harrell et al., 1982).

    Args:
        score: Shape (n,), judge, finite.
        human: Shape (n,), the same items.

    Returns:
        NaN where people tie all pairs.
    """
    pairs, concordant, judge_tied, human_tied, both_tied = count_pairs(score, human)
    ordered = pairs - human_tied
    return (2 * concordant + judge_tied - both_tied) / 2 / ordered if ordered else math.nan


def pairwise_accuracy(score: np.ndarray, human: np.ndarray, epsilon: float = 0.0) -> float:
    """Share of all pairs on which judge and people agree about order or tie (Deutsch et al., 2023: acc_eq).

    Args:
        score: Shape (n,), judge, finite.
        human: Shape (n,), the same items.
        epsilon: The judge ties two items when its scores differ by at most this; judge's points.

    Returns:
        NaN without a pair.

    Raises:
        ValueError: If epsilon is negative or NaN.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon {epsilon}; expected 0 or more")
    pairs, concordant, _, _, both_tied = count_pairs(score, human, epsilon)
    return (concordant + both_tied) / pairs if pairs else math.nan


def count_pairs(score: np.ndarray, human: np.ndarray, epsilon: float = 0.0) -> tuple[int, int, int, int, int]:
    """Counts the pairs without looking at them one by one, in O(n log^2 n).

    Args:
        score: Shape (n,), finite.
        human: Shape (n,), finite.
        epsilon: The judge ties items whose scores differ by at most this.

    Returns:
        All pairs; those ordered by both sides, and alike; tied by the judge; tied by people; tied by both.
    """
    order = np.argsort(score, kind="stable")
    score = score[order]
    _, level, equal = np.unique(human[order], return_inverse=True, return_counts=True)
    ends = _lower_scored(score, epsilon)
    concordant = int(_count_below(level, ends, level).sum())
    tied_apart = int(_count_below(level, ends, level + 1).sum()) - concordant
    n = len(score)
    pairs, apart, human_tied = n * (n - 1) // 2, int(ends.sum()), int((equal * (equal - 1) // 2).sum())
    return pairs, concordant, pairs - apart, human_tied, human_tied - tied_apart


def _lower_scored(score: np.ndarray, epsilon: float) -> np.ndarray:
    """How many of the rising scores are lower by more than epsilon, for each.

    A binary search on the differences themselves, because epsilon is often one of them: ``score - epsilon`` would be
    rounded otherwise.
    """
    low, high = np.zeros(len(score), dtype=np.int64), np.arange(len(score))
    while (low < high).any():
        middle = (low + high) // 2
        lower = (low < high) & (score - score[middle] > epsilon)
        low = np.where(lower, middle + 1, low)
        high = np.where(lower, high, np.minimum(high, middle))
    return low


def _count_below(keys: np.ndarray, ends: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """For each query, how many of the first `ends` keys (0 to n - 1) are below its bound (0 to n).

    The first b keys are one block of 2^l for each bit l of b; in a sorted block the count is a binary search.
    """
    position, span = np.arange(len(keys)), len(keys) + 1
    found = np.zeros(len(ends), dtype=np.int64)
    for level in range(len(keys).bit_length()):
        blocks = np.sort((position >> level) * span + keys)
        asked = np.flatnonzero((ends >> level) & 1)
        block = (ends[asked] >> level) - 1
        found[asked] += np.searchsorted(blocks, block * span + bounds[asked]) - (block << level)
    return found


def tie_calibration(score: np.ndarray, human: np.ndarray, seed: int = 0) -> tuple[float, str | None]:
    """Chooses epsilon among 0 and all observed differences of judge scores, exactly (Deutsch et al., 2023).

    People give a few scale points and often tie; a judge that scores with decimals never does, so that on pairs tied by
    people it would always be wrong. Epsilon is fitted to the human scores of these items: the accuracy is the highest
    that a threshold can reach, also for a judge that knows nothing (such a one reaches the share of pairs that people
    tie, where that is more than half). Compare it with other calibrated accuracies on the same items.

    All pairs are looked at twice, in batches: memory grows with n, not with the number of pairs. With more than
    `MAX_PAIRS` pairs, epsilon comes from a random part of the items that has about so many.

    Args:
        score: Shape (n,), judge, finite.
        human: Shape (n,), the same items.
        seed: Of the random part.

    Returns:
        The smallest epsilon that makes the accuracy highest, 0 or a difference that occurs; and why it was chosen on
        some of the items, where it was.
    """
    n, reason = len(score), None
    share = np.sqrt(MAX_PAIRS / max(1, n * (n - 1) // 2))
    if share < 1:
        part = np.random.default_rng(seed).permutation(n)[: int(share * n)]
        reason = f"epsilon chosen on {len(part)} random items of {n}: at most {MAX_PAIRS} pairs are compared"
        score, human = score[part], human[part]
    order = np.argsort(score, kind="stable")
    return _best_epsilon(score[order], human[order]), reason


def _best_epsilon(score: np.ndarray, human: np.ndarray) -> float:
    """The smallest epsilon at which the most pairs are right, 0 included; items sorted by score.

    Differences are counted in narrow bins first. Within a bin, epsilon can gain no more than the pairs there that
    people tie, so that few bins can hold the best one; the differences of these are sorted.
    """
    largest = float(np.ptp(score))
    if largest == 0:
        return 0.0
    gains, every = np.zeros((2, _BINS), dtype=np.int64)
    for difference, tied in _deciding_pairs(score, human):
        bins = _bins(difference, largest)
        gains += np.bincount(bins[tied], minlength=_BINS)
        every += np.bincount(bins, minlength=_BINS)
    net_gains = 2 * gains - every
    after = np.cumsum(net_gains)
    before = after - net_gains
    promising = (before + gains >= max(0, after.max())) & (gains > 0)
    if not promising.any():
        return 0.0
    distinct, net = np.empty(0), np.empty(0)
    for difference, tied in _deciding_pairs(score, human):
        chosen = promising[_bins(difference, largest)]
        distinct, code = np.unique(np.concatenate([distinct, difference[chosen]]), return_inverse=True)
        net = np.bincount(code, weights=np.concatenate([net, np.where(tied[chosen], 1.0, -1.0)]))
    best, epsilon = 0.0, 0.0
    bins = _bins(distinct, largest)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(bins)], strict=True):
        gained = before[bins[start]] + np.cumsum(net[start:end])
        if gained.max() > best:
            best, epsilon = float(gained.max()), float(distinct[start + int(gained.argmax())])
    return epsilon


def _deciding_pairs(score: np.ndarray, human: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs whose tie would change the accuracy: differences of rising judge scores, and whether people tie the pair.

    A tie is right where people tie a pair, too, and wrong where both sides ordered it alike; where the judge ordered it
    the other way round, or ties it anyway, nothing changes.
    """
    held: list[tuple[np.ndarray, np.ndarray]] = []
    size = 0
    for apart in range(1, len(score)):
        difference = score[apart:] - score[:-apart]
        lower, higher = human[:-apart], human[apart:]
        matters = (difference > 0) & (higher >= lower)
        held.append((difference[matters], (higher == lower)[matters]))
        size += len(held[-1][0])
        if size >= _BATCH or apart == len(score) - 1:
            differences, tied = zip(*held, strict=True)
            yield np.concatenate(differences), np.concatenate(tied)
            held, size = [], 0


def _bins(difference: np.ndarray, largest: float) -> np.ndarray:
    # The number never falls as differences rise, because rounding never does
    return (difference / largest * (_BINS - 1)).astype(np.int32)


# ---------------------------------------------------------------- within groups

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
    function = {"spearman": spearman, "kendall": kendall}[name]
    return _mean_over_groups(function, MIN_ITEMS, lambda _: 0.0, score, human, groups, resamples)


def top_1(score: np.ndarray, human: np.ndarray, groups: np.ndarray, resamples: Resamples) -> GroupLevel:
    """Share of groups in which the judge's best item is one that people find best.

    Where the judge ties several items for the best, the group counts with the share of these that people find best:
    the chance of a random choice among them. Groups with one item, and those whose items people all tie, are left out
    and counted. The highest score is the best; where the lowest is, give both sides negated. Arguments and errors are
    those of `group_correlation`.

    Returns:
        ``chance`` is the mean share of items that people find best. Undefined, with the reason, where no group is left.
    """

    def share(x: np.ndarray, y: np.ndarray) -> float:
        return math.nan if _best(y).all() else float(_best(y)[_best(x)].mean())

    return _mean_over_groups(share, 2, lambda y: _best(y).mean(), score, human, groups, resamples)


def _best(values: np.ndarray) -> np.ndarray:
    """Which items have the highest value up to rounding."""
    highest = values.max()
    return values >= highest - CONSTANT_TOLERANCE * abs(highest)


def _mean_over_groups(
    function: Function,
    fewest: int,
    chance: Callable[[np.ndarray], float],
    score: np.ndarray,
    human: np.ndarray,
    groups: np.ndarray,
    resamples: Resamples,
) -> GroupLevel:
    """Of groups with the fewest items or more in which the function is no NaN; chance takes a group's human scores."""
    kept, point = complete(score, human)
    if np.shape(groups) != kept.shape:
        raise ValueError(f"groups of shape {np.shape(groups)} for {len(kept)} items; expected one per item")
    items = np.flatnonzero(kept) if point.reason is None else np.empty(0, dtype=np.intp)
    codes = np.unique(groups[items], return_inverse=True)[1]
    order = items[np.argsort(codes, kind="stable")]
    used, values, chances, too_small, constant = [], [], [], 0, 0
    total, weight = np.zeros((2, len(resamples.counts)))
    for own in np.split(order, np.cumsum(np.bincount(codes))[:-1]) if len(items) else []:
        x, y = score[own], human[own]
        if len(own) < fewest:
            too_small += 1
            continue
        value = function(x, y)
        if math.isnan(value):
            constant += 1
            continue
        used.append(own)
        values.append(value)
        chances.append(chance(y))
        seen = resamples.select(own)
        if (seen.codes == seen.codes[0]).all():
            times = seen.counts[:, seen.codes[0]].astype(np.float64)
            total += times * value
            weight += times
        else:
            drawn = seen.of(function, x, y)
            total += np.nan_to_num(drawn)
            weight += ~np.isnan(drawn)
    if not used:
        reason = point.reason or f"no group is left: {too_small} too small, {constant} constant"
        return GroupLevel(replace(point, reason=reason), 0, too_small, constant, None)
    members = np.concatenate(used)
    point = replace(point, value=float(np.mean(values)), n=len(members))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = with_interval(point, total / weight, resamples.select(members))
    return GroupLevel(mean, len(used), too_small, constant, float(np.mean(chances)))
