"""System level: agreement of system means, a different quantity from agreement item by item.

Averaging over items removes noise on both sides, so system-level correlations are higher. They are computed from only
as many points as there are systems, and answer "does the judge rank systems right?", not "is this score right?".

Intervals draw groups of items, as everywhere; systems are fixed, and a resample that misses a system is undefined.
Where the groups are the systems, whole systems are drawn, with all of their items. The means have the noise of the
given number of items, and intervals are for the same number of other items: in simulations of 8 systems with 15 items
each, 95 % intervals of ICC contained the expected value for 15 items in 95 % of runs, and the value for infinitely many
items, which is higher, in 85 %; with 60 items each, in 94 % and 92 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import counted
from .agreement import CONSTANT_TOLERANCE, STATISTICS, Statistic, is_constant
from .bootstrap import Resamples, estimate, with_interval

MIN_SYSTEMS = 3
"""Fewest systems to correlate."""

SYSTEM_STATISTICS = ("spearman", "pearson", "kendall", "icc_a1", "icc_c1", "bias", "loa_lower", "loa_upper")
"""The statistics of `agreement.STATISTICS` that are reported at system level."""


def system_level(systems: Sequence[str], score: np.ndarray, human: np.ndarray, resamples: Resamples) -> dict[str, Any]:
    """All statistics of the means of systems, from the system, judge's and human score of each of n items (finite).

    Returns:
        ``n_systems``; the `SYSTEM_STATISTICS` and ``pairwise_accuracy`` (`pairs_in_order`), whose ``n`` counts systems,
        undefined, with the reason, with too few of them; and ``systems``: for each ``system_id, n_items``, and the
        means ``human`` and ``judge``.
    """
    names, codes, counts = np.unique(np.asarray(systems, dtype=str), return_inverse=True, return_counts=True)

    def means(items: np.ndarray) -> np.ndarray:
        """Mean of judge and people by system, shape (2, systems); NaN = the system has no item."""
        drawn = np.bincount(codes[items], minlength=len(names))
        with np.errstate(invalid="ignore"):
            sums = [np.bincount(codes[items], weights=side[items], minlength=len(names)) for side in (score, human)]
            return np.stack(sums) / drawn

    points = means(np.arange(len(codes)))
    functions = {name: STATISTICS[name] for name in SYSTEM_STATISTICS} | {"pairwise_accuracy": pairs_in_order}
    by_system = np.unique(np.stack([codes, resamples.codes]), axis=1)
    # Where the groups are the systems, whole systems are drawn: a resample has fewer of them, and is defined
    systems_are_groups = len(by_system[0]) == len(names) == len(np.unique(by_system[1]))
    drawn = resamples.apply(means).reshape(-1, 2, len(names)) if len(names) > 1 else np.empty((0, 2, 0))
    results: dict[str, Any] = {"n_systems": len(names)}
    for name, function in functions.items():
        of_pairs, reason = function is pairs_in_order, None
        if of_pairs and len(names) < 2:
            reason = ("0 items", "1 system, no pair")[len(names)]
        elif not of_pairs and len(names) < MIN_SYSTEMS:
            reason = f"{counted(len(names), 'system')}, at least {MIN_SYSTEMS} needed"
        elif of_pairs and is_constant(score):
            # Without a tie between people it would be 0, as if the judge were wrong everywhere
            reason = "the judge scores are constant"
        if reason is not None:
            results[name] = Statistic(None, n=len(names), reason=reason)
        elif systems_are_groups and not of_pairs:
            results[name] = estimate(function, *points, resamples=replace(resamples, codes=by_system[1]))
        else:
            # A resample without one of the systems cannot be compared with the others
            draws = np.array([math.nan if np.isnan(sample).any() else function(*sample) for sample in drawn])
            results[name] = with_interval(estimate(function, *points), draws, resamples)
    rows = zip(names.tolist(), counts.tolist(), *points[::-1].tolist(), strict=True)
    keys = ("system_id", "n_items", "human", "judge")
    return {**results, "systems": [dict(zip(keys, row, strict=True)) for row in rows]}


def pairs_in_order(score: np.ndarray, human: np.ndarray) -> float:
    """Share of pairs of systems whose means both sides order alike (Kocmi et al., 2021: pairwise accuracy).

    Means that are equal up to rounding are tied; a tie is right where both sides tie the pair. A pair with a very small
    difference counts like one with a clear winner.
    """
    means = np.stack([score, human])
    first, second = np.triu_indices(len(score), 1)
    apart = means[:, first] - means[:, second]
    apart[np.abs(apart) <= CONSTANT_TOLERANCE * np.abs(means).max(axis=1, keepdims=True)] = 0
    judge, people = np.sign(apart)
    return float((judge == people).mean())
