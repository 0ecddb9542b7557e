"""System level: agreement of system means, a different quantity from agreement item by item.

Averaging over items removes noise on both sides, so system-level correlations are higher, and they stand on
as few points as there are systems. They answer "does the judge rank systems right?", not "is this score
right?".

Does a judge say of two systems what people say? System-level pairwise accuracy (Kocmi et al., 2021) is the share of
pairs of systems, not of items, whose mean scores judge and people order alike. A pair that people can hardly tell apart
counts like one with a clear winner. It is undefined where the judge's scores are constant: without a tie between people
it would be 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .agreement import CONSTANT_TOLERANCE, STATISTICS, Statistic, is_constant
from .bootstrap import Resamples, complete, estimate, with_interval

MIN_SYSTEMS = 3
"""Fewest systems to correlate."""

SYSTEM_STATISTICS = ("spearman", "pearson", "kendall", "icc_a1", "icc_c1", "bias", "loa_lower", "loa_upper")
"""The statistics of `agreement.STATISTICS` that are given at system level."""


def system_level(
    systems: Sequence[str],
    score: np.ndarray,
    human: np.ndarray,
    resamples: Resamples,
) -> dict[str, Any]:
    """Everything about the means of systems.

    Args:
        systems: Length n, the system of each item.
        score: Shape (n,), finite, rating points.
        human: Shape (n,), finite, rating points.
        resamples: Draws over the same n items.

    Returns:
        ``n_systems``, the `SYSTEM_STATISTICS`, ``pairwise_accuracy``, and ``systems``: of each ``system_id,
        n_items``, and the means ``human`` and ``judge``.
    """
    names, codes, counts = np.unique(np.asarray(systems, dtype=str), return_inverse=True, return_counts=True)
    means = _means(codes, len(names), human, score)
    rows = zip(names.tolist(), counts.tolist(), *means.tolist(), strict=True)
    return {
        "n_systems": len(names),
        **system_agreement(systems, score, human, resamples),
        "pairwise_accuracy": system_pairwise_accuracy(systems, score, human, resamples),
        "systems": [dict(zip(("system_id", "n_items", "human", "judge"), row, strict=True)) for row in rows],
    }


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
        systems: Length n, the system of each item.
        score: Shape (n,), finite, rating points.
        human: Shape (n,), finite, rating points.
        resamples: Draws over the same n items.

    Returns:
        A statistic per name in `SYSTEM_STATISTICS`; its `n` counts systems. Undefined, with the reason, with fewer than
        `MIN_SYSTEMS` systems.
    """
    names, codes = np.unique(np.asarray(systems, dtype=str), return_inverse=True)
    if len(names) < MIN_SYSTEMS:
        reason = f"{len(names)} systems, at least {MIN_SYSTEMS} needed"
        return dict.fromkeys(SYSTEM_STATISTICS, Statistic(None, n=len(names), reason=reason))

    def means(items: np.ndarray) -> np.ndarray:
        return _means(codes[items], len(names), score[items], human[items])

    points = means(np.arange(len(codes)))
    by_system = np.unique(np.stack([codes, resamples.codes]), axis=1)
    if len(by_system[0]) == len(names) == len(np.unique(by_system[1])):
        of_systems = replace(resamples, codes=by_system[1])
        return {name: estimate(STATISTICS[name], *points, resamples=of_systems) for name in SYSTEM_STATISTICS}
    drawn = resamples.draws(means).reshape(-1, 2, len(names))
    found = {}
    for name in SYSTEM_STATISTICS:
        function = STATISTICS[name]
        draws = np.array([np.nan if np.isnan(own).any() else function(*own) for own in drawn])
        found[name] = with_interval(estimate(function, *points), draws, resamples)
    return found


def _means(codes: np.ndarray, n_systems: int, *sides: np.ndarray) -> np.ndarray:
    """Mean of each side by system, shape (sides, systems); NaN = the system has no item."""
    counts = np.bincount(codes, minlength=n_systems)
    with np.errstate(invalid="ignore"):
        return np.stack([np.bincount(codes, weights=own, minlength=n_systems) / counts for own in sides])


def system_pairwise_accuracy(
    systems: Sequence[str] | np.ndarray, score: np.ndarray, human: np.ndarray, resamples: Resamples
) -> Statistic:
    """Share of pairs of systems whose means judge and people order alike (Kocmi et al., 2021).

    Means that are equal up to rounding are tied; a tie is right where both sides tie the pair. In a resample the
    systems stay the same, and one that misses a system is undefined.

    Args:
        systems: Length n, the system of each item.
        score: Shape (n,), judge; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        resamples: Draws over the same n items.

    Returns:
        Its ``n`` counts systems. Undefined, with the reason, with fewer than two and for a constant judge.

    Raises:
        ValueError: If shapes differ.
    """
    kept, point = complete(score, human)
    codes = _codes(systems, kept, "systems")
    n_systems = int(codes.max(initial=-1)) + 1
    point = replace(point, n=n_systems)
    if point.reason is None and n_systems < 2:
        point = replace(point, reason="1 system, no pair")
    if point.reason is None and is_constant(score[kept]):
        point = replace(point, reason="the judge scores are constant")
    if point.reason is not None:
        return point
    first, second = np.triu_indices(n_systems, 1)
    sides = score[kept], human[kept]

    def accuracy(items: np.ndarray) -> float:
        means = _means(codes[items], n_systems, *(own[items] for own in sides))
        apart = means[:, first] - means[:, second]
        apart[np.abs(apart) <= CONSTANT_TOLERANCE * np.abs(means).max(axis=1, keepdims=True)] = 0
        judge, people = np.sign(apart)
        return float((judge == people).mean()) if np.isfinite(means).all() else math.nan

    point, seen = replace(point, value=accuracy(np.arange(len(codes)))), resamples.select(kept)
    return with_interval(point, seen.draws(accuracy), seen)


def _codes(labels: Sequence[str] | np.ndarray, kept: np.ndarray, name: str) -> np.ndarray:
    """Labels as numbers from 0 in their sorted order, of the items that count; `kept` is a mask of shape (n,)."""
    labels = np.asarray(labels)
    if labels.shape != kept.shape:
        raise ValueError(f"{name} of shape {labels.shape} for {len(kept)} items; expected one per item")
    return np.unique(labels[kept], return_inverse=True)[1]
