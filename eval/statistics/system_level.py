"""System level: agreement of system means, a different quantity from agreement item by item.

Averaging over items removes noise on both sides, so system-level correlations are higher, and they stand on
as few points as there are systems. They answer "does the judge rank systems right?", not "is this score
right?".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from .agreement import STATISTICS, Statistic
from .bootstrap import Resamples, row_pearson, with_interval

MIN_SYSTEMS = 3
"""Fewest systems to correlate."""

SYSTEM_STATISTICS = ("spearman", "pearson", "kendall")
"""The statistics of `agreement.STATISTICS` that are given at system level."""


def system_means(systems: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """Mean of the values (shape (n,)) of each system, by name."""
    names = np.asarray(systems, dtype=str)
    return {str(name): float(values[names == name].mean()) for name in np.unique(names)}


def system_agreement(
    systems: Sequence[str], score: np.ndarray, human: np.ndarray, resamples: Resamples
) -> dict[str, Statistic]:
    """Correlations between the systems' mean judge score and mean human score.

    Intervals draw groups of items, as everywhere; systems stay fixed. A resample that misses a system is
    undefined.

    Args:
        systems: Length n, the system of each item; at least `MIN_SYSTEMS` distinct ones.
        score: Shape (n,), finite, rating points.
        human: Shape (n,), finite, rating points.
        resamples: Draws over the same n items.

    Returns:
        A statistic per name in `SYSTEM_STATISTICS`; its `n` counts systems.
    """
    names, codes = np.unique(np.asarray(systems, dtype=str), return_inverse=True)
    member = np.zeros((len(codes), len(names)))
    member[np.arange(len(codes)), codes] = 1.0

    def means(weights: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.stack([(weights * values) @ member / (weights @ member) for values in (score, human)], axis=1)

    judge_points, human_points = means(np.ones((1, len(codes))))[0]
    drawn = resamples.apply(means).reshape(-1, 2, len(names))
    complete = ~np.isnan(drawn).any(axis=(1, 2))
    results = {}
    for name in SYSTEM_STATISTICS:
        draws = np.full(len(drawn), np.nan)
        draws[complete] = _ROWS[name](drawn[complete, 0], drawn[complete, 1])
        results[name] = with_interval(STATISTICS[name](judge_points, human_points), draws, resamples)
    return results


def _row_spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return row_pearson(stats.rankdata(x, axis=1), stats.rankdata(y, axis=1))


def _row_kendall(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.array([stats.kendalltau(*rows, method="asymptotic")[0] for rows in zip(x, y, strict=True)])


_ROWS = {"spearman": _row_spearman, "pearson": row_pearson, "kendall": _row_kendall}
