"""System level: agreement of system means, a different quantity from agreement item by item.

Averaging over items removes noise on both sides, so system-level correlations are higher, and they stand on
as few points as there are systems. They answer "does the judge rank systems right?", not "is this score
right?".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .agreement import STATISTICS, Statistic
from .bootstrap import Resamples, estimate, row_statistic, with_interval

MIN_SYSTEMS = 3
"""Fewest systems to correlate."""

SYSTEM_STATISTICS = ("spearman", "pearson", "kendall", "icc_a1", "icc_c1", "bias", "loa_lower", "loa_upper")
"""The statistics of `agreement.STATISTICS` that are given at system level."""


def system_means(systems: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """Mean of the values (shape (n,)) of each system, by name."""
    names = np.asarray(systems, dtype=str)
    return {str(name): float(values[names == name].mean()) for name in np.unique(names)}


def system_agreement(
    systems: Sequence[str], score: np.ndarray, human: np.ndarray, resamples: Resamples
) -> dict[str, Statistic]:
    """Agreement of the systems' mean judge score with their mean human score.

    Intervals draw groups of items, as everywhere; systems stay fixed, and a resample that misses a system is undefined.
    Where the groups are the systems, systems are what is drawn, with all of their items.

    The means carry the noise of as many items as there are, and intervals are for other items in the same number: in
    simulations of 8 systems with 15 items each, 95 % intervals of ICC held what 15 items can be expected to give in
    95 %, and what infinitely many would give, which is more, in 85 %; with 60 items each in 94 % and 92 %.

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
    by_system = np.unique(np.stack([codes, resamples.codes]), axis=1)
    if len(by_system[0]) == len(names) == len(np.unique(by_system[1])):
        of_systems = replace(resamples, codes=by_system[1])
        return {name: estimate(name, judge_points, human_points, of_systems) for name in SYSTEM_STATISTICS}
    drawn = resamples.apply(means).reshape(-1, 2, len(names))
    complete = ~np.isnan(drawn).any(axis=(1, 2))
    results = {}
    for name in SYSTEM_STATISTICS:
        draws = np.full(len(drawn), np.nan)
        draws[complete] = row_statistic(name, drawn[complete, 0], drawn[complete, 1])
        results[name] = with_interval(STATISTICS[name](judge_points, human_points), draws, resamples)
    return results
