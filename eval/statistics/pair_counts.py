"""Numbers of concordant, discordant and tied pairs, without looking at the pairs one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Numbers of pairs within each of g groups, each of shape (g,).

    Attributes:
        pairs: All of them.
        concordant: Ordered by both sides, and alike.
        discordant: Ordered by both sides, but not alike.
        judge_tied: Tied by the judge, whatever people say.
        human_tied: Tied by people, whatever the judge says.
        both_tied: Tied by both.
    """

    pairs: np.ndarray
    concordant: np.ndarray
    discordant: np.ndarray
    judge_tied: np.ndarray
    human_tied: np.ndarray
    both_tied: np.ndarray


def count_pairs(score: np.ndarray, human: np.ndarray, groups: np.ndarray, epsilon: float = 0.0) -> PairCounts:
    """Counts the pairs within each group, in O(n log^2 n).

    Args:
        score: Shape (n,), finite.
        human: Shape (n,), finite.
        groups: Shape (n,), numbers from 0 without gaps.
        epsilon: The judge ties items whose scores differ by at most this.
    """
    order = np.lexsort((score, groups))
    score, human, groups = score[order], human[order], groups[order]
    sizes = np.bincount(groups)
    starts = (np.cumsum(sizes) - sizes)[groups]
    ends = _lower_scored(score, starts, epsilon)
    levels, level = np.unique(human, return_inverse=True)
    distinct, keys, equal = np.unique(groups * len(levels) + level, return_inverse=True, return_counts=True)
    concordant = _count_below(keys, ends, keys) - starts  # all items of earlier groups are below
    apart = ends - starts
    tied_apart = _count_below(keys, ends, keys + 1) - starts - concordant

    def by_group(values: np.ndarray) -> np.ndarray:
        return np.bincount(groups, weights=values, minlength=len(sizes)).astype(np.int64)

    pairs = sizes * (sizes - 1) // 2
    human_tied = np.bincount(distinct // max(1, len(levels)), weights=equal * (equal - 1) / 2, minlength=len(sizes))
    human_tied = human_tied.astype(np.int64)
    return PairCounts(
        pairs,
        by_group(concordant),
        by_group(apart - concordant - tied_apart),
        pairs - by_group(apart),
        human_tied,
        human_tied - by_group(tied_apart),
    )


def _lower_scored(score: np.ndarray, starts: np.ndarray, epsilon: float) -> np.ndarray:
    """Up to where, from `starts`, scores are lower by more than epsilon; scores rise within each group.

    A binary search on the differences themselves, because epsilon is often one of them: ``score - epsilon`` would be
    rounded otherwise.
    """
    low, high = starts.copy(), np.arange(len(score))
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
