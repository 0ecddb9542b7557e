"""System level: agreement of system means, a different quantity from agreement item by item.

Averaging over items removes noise on both sides, so system-level correlations are higher, and they stand on
as few points as there are systems. They answer "does the judge rank systems right?", not "is this score
right?".

Does a judge say of two systems what people say? Pairs of systems, not of items.

- **System-level pairwise accuracy** (Kocmi et al., 2021): the share of pairs of systems whose mean scores judge and
  people order alike. A pair that people can hardly tell apart counts like one with a clear winner.
- **Soft pairwise accuracy** (Thompson, Mathur, Deutsch and Khayrallah, 2024): how near the judge's certainty about a
  pair is to people's. 1 - mean |p of people - p of the judge|, where p comes from a one-sided paired permutation test
  of the first system being better.

Both are undefined where the judge's scores are constant: without a tie between people the first would be 0, and the
second would praise a judge for every pair that people cannot tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    groups: Sequence[str],
    score: np.ndarray,
    human: np.ndarray,
    resamples: Resamples,
    seed: int,
) -> dict[str, Any]:
    """Everything about the means of systems.

    Args:
        systems: Length n, the system of each item.
        groups: Length n, what it answered.
        score: Shape (n,), finite, rating points.
        human: Shape (n,), finite, rating points.
        resamples: Draws over the same n items.
        seed: Of permutations.

    Returns:
        ``n_systems``, the `SYSTEM_STATISTICS`, ``pairwise_accuracy``, ``soft_pairwise_accuracy``, and ``systems``: of
        each ``system_id, n_items``, and the means ``human`` and ``judge``.
    """
    names, codes, counts = np.unique(np.asarray(systems, dtype=str), return_inverse=True, return_counts=True)
    means = _means(codes, len(names), human, score)
    rows = zip(names.tolist(), counts.tolist(), *means.tolist(), strict=True)
    return {
        "n_systems": len(names),
        **system_agreement(systems, score, human, resamples),
        "pairwise_accuracy": system_pairwise_accuracy(systems, score, human, resamples),
        "soft_pairwise_accuracy": soft_pairwise_accuracy(systems, groups, score, human, seed=seed),
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


PERMUTATIONS = 1000
"""Permutations of a test, as in Thompson et al. (2024)."""

_BLOCK_PROMPTS = 256

_ROUNDING = 1e-9  # share of the summed differences; sums as near as this are equal


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


@dataclass(frozen=True)
class SoftPairwiseAccuracy:
    """How near a judge's certainty about pairs of systems is to people's.

    Attributes:
        accuracy: 1 - mean |p of people - p of the judge|; ``n`` counts systems with a pair that counts, ``dropped``
            items with a NaN. It has no interval, and its ``reason`` says why.
        pairs: Pairs of systems that count.
        left_out: Pairs of systems that answered no common prompt.
        unmatched: Items whose prompt only their own system answered; they do not count.
    """

    accuracy: Statistic
    pairs: int
    left_out: int
    unmatched: int


def soft_pairwise_accuracy(
    systems: Sequence[str] | np.ndarray,
    prompts: Sequence[str] | np.ndarray,
    score: np.ndarray,
    human: np.ndarray,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> SoftPairwiseAccuracy:
    """Soft pairwise accuracy (Thompson et al., 2024).

    Two systems are compared on the prompts that both answered; what only one of them answered does not count for this
    pair. Several answers of one system to a prompt are averaged. A permutation exchanges the two answers to a random
    part of the prompts; p is the share of permutations whose summed difference is above the observed one, and half of
    those where it is equal (mid-p; Lancaster, 1961). Thompson et al. count equal ones whole, which is the same in
    fine-grained scores; in coarse ones it would make the result depend on which system of a pair is the first. Both
    sides and all pairs see the same permutations. With so few common prompts that not more than `permutations`
    exchanges are possible, all of them are taken, and p is exact.

    Args:
        systems: Length n, the system of each item.
        prompts: Length n, what the system answered: a script or context.
        score: Shape (n,), judge; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        permutations: At least 1.
        seed: Of the permutations.

    Returns:
        Undefined, with the reason, without two systems that answered a common prompt and for a constant judge.

    Raises:
        ValueError: If shapes differ.
    """
    kept, empty = complete(score, human)
    system, prompt = _codes(systems, kept, "systems"), _codes(prompts, kept, "prompts")
    shape = (int(prompt.max(initial=-1)) + 1, int(system.max(initial=-1)) + 1)
    answers = _table(prompt, system, np.ones(len(system)), shape)
    common = (answers > 0).sum(axis=1) > 1
    unmatched = int(answers[~common].sum())
    answered = (answers > 0)[common].astype(np.float64)
    first, second = np.triu_indices(shape[1], 1)
    shared = (answered.T @ answered)[first, second] > 0
    left_out, pairs = int((~shared).sum()), int(shared.sum())
    if empty.reason is None and not pairs:
        empty = replace(empty, n=shape[1], reason=f"no two of {shape[1]} systems answered a common prompt")
    elif empty.reason is None and is_constant(score[kept]):
        empty = replace(empty, n=shape[1], reason="the judge scores are constant")
    if empty.reason is not None:
        return SoftPairwiseAccuracy(empty, pairs, left_out, unmatched)
    first, second = first[shared], second[shared]
    sides = [
        (_table(prompt, system, own, shape) / np.maximum(answers, 1))[common] for own in (score[kept], human[kept])
    ]
    judge, people = _p_values(np.stack(sides), answered, first, second, permutations, seed)
    accuracy = replace(
        empty,
        value=float(1 - np.abs(judge - people).mean()),
        n=len(np.union1d(first, second)),
        reason="no interval: a prompt drawn twice is no second piece of evidence, so that p-values in a resample would "
        "be too extreme",
    )
    return SoftPairwiseAccuracy(accuracy, pairs, left_out, unmatched)


def _table(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Sum of the values in each cell."""
    return np.bincount(rows * shape[1] + columns, weights=values, minlength=shape[0] * shape[1]).reshape(shape)


def _p_values(
    means: np.ndarray, answered: np.ndarray, first: np.ndarray, second: np.ndarray, permutations: int, seed: int
) -> np.ndarray:
    """One-sided p of the first system of each pair being better; shape (sides, pairs).

    Args:
        means: Shape (sides, prompts, systems).
        answered: Shape (prompts, systems), 1 or 0.
        first: Shape (pairs,), a system.
        second: Shape (pairs,), another one.
        permutations: How many; or as many as there are, if these are fewer.
        seed: Of the permutations.
    """
    n_prompts = len(answered)
    exact = 2**n_prompts <= permutations
    every = np.arange(2**n_prompts if exact else 0)
    rng = np.random.default_rng(seed)
    permuted = np.zeros((len(means), len(every) if exact else permutations, len(first)))
    observed, magnitude = np.zeros((2, len(means), len(first)))
    for start in range(0, n_prompts, _BLOCK_PROMPTS):
        block = slice(start, start + _BLOCK_PROMPTS)
        both = answered[block][:, first] * answered[block][:, second]
        differences = (means[:, block][..., first] - means[:, block][..., second]) * both
        stays = every[:, None] >> np.arange(n_prompts) & 1 if exact else rng.integers(0, 2, (permutations, len(both)))
        permuted += (2.0 * stays - 1) @ differences
        observed += differences.sum(axis=1)
        magnitude += np.abs(differences).sum(axis=1)
    above, rounding = permuted - observed[:, None], _ROUNDING * magnitude[:, None]
    return ((above > rounding).mean(axis=1) + (above >= -rounding).mean(axis=1)) / 2
