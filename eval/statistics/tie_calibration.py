"""Tie calibration: below which difference a judge's scores count as tied (Deutsch, Foster and Freitag, 2023).

People give a few scale points and often tie; a judge that scores with decimals never does, so that on pairs tied by
people it would always be wrong. Epsilon is the difference that makes `pairwise.pairwise_accuracy` highest. It is fitted
to the human scores of these items: the accuracy is the highest that a threshold can reach, also for a judge that knows
nothing (such a one reaches the share of pairs that people tie, where that is more than half). Compare it with other
calibrated accuracies on the same items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .agreement import Statistic
from .complete_items import CompleteItems
from .pairwise import MAX_PAIRS, pairwise_accuracy

_BINS = 1 << 16
_BATCH = 1 << 20  # pairs counted at a time


@dataclass(frozen=True)
class TieCalibration:
    """A judge's accuracy at its best epsilon.

    Attributes:
        accuracy: `pairwise_accuracy` of all items at this epsilon. For its interval see `pairwise_accuracy_estimate`.
        epsilon: The smallest difference of judge scores that makes the accuracy highest, 0 or one that occurs; None
            where the accuracy is undefined.
        reason: Why epsilon was chosen on some of the items, where it was.
    """

    accuracy: Statistic
    epsilon: float | None
    reason: str | None = None


def tie_calibration(
    score: np.ndarray, human: np.ndarray, within: np.ndarray | None = None, seed: int = 0
) -> TieCalibration:
    """Chooses epsilon among 0 and all observed differences of judge scores, exactly.

    All pairs are looked at twice, in batches: memory grows with n, not with the number of pairs. With more than
    `pairwise.MAX_PAIRS` pairs, epsilon comes from a random part of the items that has about so many.

    Args:
        score: Shape (n,), judge; NaN is dropped with its item.
        human: Shape (n,), the same items.
        within: Shape (n,), the group of each item, to compare items of one group only; None compares all items.
        seed: Of the random part.

    Raises:
        ValueError: If shapes differ.
    """
    plain = pairwise_accuracy(score, human, within)
    if plain.value is None:
        return TieCalibration(plain, None)
    items = CompleteItems.of(score, human)
    groups = items.codes(np.zeros(len(items.kept)) if within is None else within, "within")
    sizes = np.bincount(groups).astype(np.float64)
    share = np.sqrt(MAX_PAIRS / max(1.0, (sizes * (sizes - 1) / 2).sum()))
    x, y, reason = items.score, items.human, None
    if share < 1:
        part = np.random.default_rng(seed).permutation(len(x))[: int(share * len(x))]
        reason = f"epsilon chosen on {len(part)} random items of {len(x)}: at most {MAX_PAIRS} pairs are compared"
        x, y, groups = x[part], y[part], groups[part]
    order = np.lexsort((x, groups))
    epsilon = _best_epsilon(_RisingPairs(x[order], y[order], groups[order]))
    return TieCalibration(pairwise_accuracy(score, human, within, epsilon), epsilon, reason)


class _RisingPairs(NamedTuple):
    """Items of shape (n,), sorted by group and then by judge score."""

    score: np.ndarray
    human: np.ndarray
    groups: np.ndarray

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs whose tie would change the accuracy: the difference of the judge scores, and whether people tie them.

        A tie is right where people tie a pair, too, and wrong where both sides ordered it alike; where the judge
        ordered it the other way round, or ties it anyway, nothing changes.
        """
        buffer: list[tuple[np.ndarray, np.ndarray]] = []
        held = 0
        largest = int(np.unique(self.groups, return_counts=True)[1].max())
        one_group = largest == len(self.groups)
        for apart in range(1, largest):
            difference = self.score[apart:] - self.score[:-apart]
            lower, higher = self.human[:-apart], self.human[apart:]
            matters = (difference > 0) & (higher >= lower)
            if not one_group:
                matters &= self.groups[apart:] == self.groups[:-apart]
            buffer.append((difference[matters], (higher == lower)[matters]))
            held += len(buffer[-1][0])
            if held >= _BATCH:
                yield _joined(buffer)
                buffer, held = [], 0
        if held:
            yield _joined(buffer)


def _best_epsilon(pairs: _RisingPairs) -> float:
    """The smallest epsilon at which the most pairs are right, 0 included.

    Differences are counted in narrow bins first. Within a bin, epsilon can gain no more than the pairs there that
    people tie, so that few bins can hold the best one; the differences of these are sorted.
    """
    largest = float(np.ptp(pairs.score))
    if largest == 0:
        return 0.0
    gains, every = np.zeros((2, _BINS), dtype=np.int64)
    for difference, tied in pairs.batches():
        bins = _bins(difference, largest)
        gains += np.bincount(bins[tied], minlength=_BINS)
        every += np.bincount(bins, minlength=_BINS)
    net_gains = 2 * gains - every
    after = np.cumsum(net_gains)
    before = after - net_gains
    promising = (before + gains >= max(0, after.max())) & (gains > 0)
    if not promising.any():
        return 0.0
    best, epsilon = 0, 0.0
    distinct, net = _collected(pairs.batches(), promising, largest)
    bins = _bins(distinct, largest)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(bins)], strict=True):
        gained = before[bins[start]] + np.cumsum(net[start:end])
        if gained.max() > best:
            best, epsilon = int(gained.max()), float(distinct[start + int(gained.argmax())])
    return epsilon


def _bins(difference: np.ndarray, largest: float) -> np.ndarray:
    share = difference / largest
    share *= _BINS - 1
    return share.astype(np.int32)  # never falls as differences rise, because rounding never does


def _collected(
    batches: Iterable[tuple[np.ndarray, np.ndarray]], promising: np.ndarray, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """The different differences in these bins, rising, and for each the pairs tied by people minus the others."""
    distinct, net = np.empty(0), np.empty(0)
    buffer: list[tuple[np.ndarray, np.ndarray]] = []
    for difference, tied in batches:
        chosen = promising[_bins(difference, largest)]
        buffer.append((difference[chosen], tied[chosen]))
        if sum(len(part) for part, _ in buffer) > _BATCH + len(distinct):  # so that few merges are needed
            distinct, net = _merged(distinct, net, *_joined(buffer))
            buffer = []
    return _merged(distinct, net, *_joined(buffer)) if buffer else (distinct, net)


def _merged(
    distinct: np.ndarray, net: np.ndarray, difference: np.ndarray, tied: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    every, code = np.unique(np.concatenate([distinct, difference]), return_inverse=True)
    return every, np.bincount(code, weights=np.concatenate([net, np.where(tied, 1.0, -1.0)]))


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    differences, tied = zip(*parts, strict=True)
    return np.concatenate(differences), np.concatenate(tied)
