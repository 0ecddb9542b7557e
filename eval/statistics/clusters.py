"""Several judges in one ranking: p values corrected for their number, and clusters that data can tell apart.

With many judges some pair differs by chance. Holm (1979) bounds the probability of one false difference or more,
whatever the dependence between the tests; Benjamini and Hochberg (1995) bound the expected share of false ones among
those found, for independent or positively dependent tests. The clusters here stand on Holm's p values of the paired
permutation tests: of judges tested on the same items, neither independence nor the sign of the dependence is known.

Clusters are those of the WMT shared tasks: judges are sorted by agreement, and a new cluster begins where every judge
above is significantly better than every judge below. Judges of one cluster may still differ pairwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .agreement import Statistic
from .significance import Comparison

ALPHA = 0.05
"""Level of the clusters."""


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
    return _adjusted(p, lambda sorted_p, m: np.maximum.accumulate(sorted_p * np.arange(m, 0, -1)))


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Adjusted p values of the step-up procedure of Benjamini and Hochberg (1995); like `holm` otherwise."""
    return _adjusted(p, lambda sorted_p, m: np.minimum.accumulate((sorted_p * m / np.arange(1, m + 1))[::-1])[::-1])


def _adjusted(p: np.ndarray, step: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    p = np.asarray(p, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(p))
    if len(outside := p[tested][(p[tested] < 0) | (p[tested] > 1)]):
        raise ValueError(f"p value {outside[0]:g}; accepted: 0 to 1, or NaN")
    order = tested[np.argsort(p[tested], kind="stable")]
    adjusted = np.full_like(p, np.nan)
    adjusted[order] = np.minimum(step(p[order], len(order)), 1.0)
    return adjusted
