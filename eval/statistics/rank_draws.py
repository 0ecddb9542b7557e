"""Spearman and Kendall in every resample, without sorting anew and without copies of items.

An item that was drawn w times counts as w tied items. With t the total weight of each group of ties and C the running
sum of t in the order of the values, the doubled, centred rank is 2 C - t - N, where N is the total weight; the sum of
its squares is (N^3 - N - sum(t^3 - t)) / 3 (Kendall, 1948). The order of the items is the same in all resamples. Where
a judge has no ties, only a running sum of weights and a sum of products differ between resamples; they are computed for
many resamples at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ...core.processes import available_cores
from .agreement import MIN_ITEMS

# Resamples at a time
_ROWS = 128
# Pairs of items at a time: 8 MB, of which the processor's cache keeps a part
_PAIRS = 1 << 20
# Runs into which sorted items are cut and summed side by side: arrays stay in a core's cache
_RUNS = 256


class _Ties(NamedTuple):
    """Ties of one side."""

    code: np.ndarray  # (n,), which of the distinct values each item has, 0 = lowest
    by_group: sparse.csr_array  # (distinct values, groups): items of each value in each group

    @classmethod
    def of(cls, values: np.ndarray, groups: np.ndarray, n_groups: int) -> _Ties:
        distinct, code = np.unique(values, return_inverse=True)
        shape = (len(distinct), n_groups)
        return cls(code, sparse.csr_array((np.ones(len(code)), (code, groups)), shape=shape))


class _Runs(NamedTuple):
    """Sorted items without ties, cut into `_RUNS` runs of equal length; the end is filled with items of weight 0."""

    groups: np.ndarray  # (length of a run, runs), the group of each item; the number of groups where there is none
    human: np.ndarray  # the same shape, the item's `_Ties.code` on the human side

    @classmethod
    def of(cls, values: np.ndarray, groups: np.ndarray, n_groups: int, human: np.ndarray) -> _Runs:
        order = np.argsort(values)
        length = -(-len(values) // _RUNS)
        padding = (0, length * _RUNS - len(values))

        def cut(codes: np.ndarray, filler: int) -> np.ndarray:
            filled = np.pad(codes[order], padding, constant_values=filler)
            return np.ascontiguousarray(filled.reshape(_RUNS, length).T)

        return cls(cut(groups, n_groups), cut(human, 0))


def spearman_draws(scores: np.ndarray, human: np.ndarray, groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman of each judge with people in every resample, as SciPy gives it for the items repeated as drawn.

    Args:
        scores: Shape (judges, n), finite.
        human: Shape (n,), finite.
        groups: Shape (n,), the group of each item as a column of `counts`.
        counts: Shape (resamples, groups), how often each group was drawn.

    Returns:
        Shape (judges, resamples), float64; NaN with fewer than `MIN_ITEMS` items drawn or where all scores of a side
        are equal.
    """
    correlations = np.full((len(scores), len(counts)), np.nan)
    if len(human) == 0:
        return correlations
    n_groups = counts.shape[1]
    sizes = np.bincount(groups, minlength=n_groups)
    people = _Ties.of(human, groups, n_groups)
    judges = [_Ties.of(score, groups, n_groups) for score in scores]
    runs = [
        _Runs.of(score, groups, n_groups, people.code) if judge.code.max() + 1 == len(human) > _RUNS else None
        for score, judge in zip(scores, judges, strict=True)
    ]

    def compute(start: int) -> None:
        rows = slice(start, start + _ROWS)
        # A column for each resample: sums over items then run along whole rows of memory
        weights = np.ascontiguousarray(counts[rows].T, dtype=np.float64)  # (groups, rows)
        total, squared = sizes @ weights, weights * weights
        untied_squares = _squares(sizes @ (squared * weights - weights), total)
        ranks, human_squares = _ranks(people, weights, total)
        self_products = np.einsum("vr,vr->r", people.by_group @ squared, ranks)
        for index, (judge, judge_runs) in enumerate(zip(judges, runs, strict=True)):
            if judge_runs is None:
                judge_ranks, squares = _ranks(judge, weights, total)
                covariance = _tied_covariance(judge, people, judge_ranks, ranks, groups, weights)
            else:
                squares, covariance = untied_squares, _untied_covariance(judge_runs, ranks, weights) - self_products
            squares = squares * human_squares
            defined = (squares > 0) & (total >= MIN_ITEMS)
            np.divide(covariance, np.sqrt(squares), out=correlations[index, rows], where=defined)

    starts = range(0, len(counts), _ROWS)
    # Starting threads would take longer than such a small computation
    if len(starts) * len(human) < 1_000_000:
        for start in starts:
            compute(start)
    else:
        with ThreadPoolExecutor(available_cores()) as pool:  # NumPy leaves Python's lock
            list(pool.map(compute, starts))
    return correlations


def _ranks(side: _Ties, weights: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Doubled, centred ranks (distinct values, rows), and the sum of their squares over the drawn items (rows,)."""
    # By distinct value: people's scores have few, and an item that was drawn twice ties with itself
    tied = side.by_group @ weights
    return 2 * np.cumsum(tied, axis=0) - tied - total, _squares((tied * tied * tied - tied).sum(axis=0), total)


def _squares(ties: np.ndarray, total: np.ndarray) -> np.ndarray:
    return (total**3 - total - ties) / 3


def _tied_covariance(
    judge: _Ties,
    people: _Ties,
    judge_ranks: np.ndarray,
    human_ranks: np.ndarray,
    groups: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:
    """Sum of products of doubled, centred ranks, shape (rows,), cell by cell of the table judge x people."""
    # Items with the same two values move together, and where both sides tie there are far fewer cells than items
    cells, code = np.unique(judge.code * len(human_ranks) + people.code, return_inverse=True)
    in_cell = sparse.csr_array((np.ones(len(code)), (code, groups)), shape=(len(cells), len(weights)))
    covariance = np.zeros(weights.shape[1])
    for start in range(0, len(cells), _RUNS):
        part = slice(start, start + _RUNS)
        row, column = np.divmod(cells[part], len(human_ranks))
        covariance += np.einsum("cr,cr,cr->r", in_cell[part] @ weights, judge_ranks[row], human_ranks[column])
    return covariance


def _untied_covariance(runs: _Runs, human_ranks: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """2 sum(w r C) over the sorted items, shape (rows,); r are the human ranks, whose weighted sum is 0.

    C is the running sum of weights inside a run plus the total of the runs before it.
    """
    # Whole numbers below 2^24 are exact in single precision, in half the time.
    exact = weights.max(initial=0.0) * np.abs(human_ranks).max() < 2**24
    precision = np.float32 if exact else np.float64
    drawn = np.concatenate([weights, np.zeros((1, weights.shape[1]))]).astype(precision)
    ranks = human_ranks.astype(precision)
    shape = (_RUNS, weights.shape[1])
    running, products, inside, latest = np.zeros(shape, precision), np.zeros(shape), np.zeros(shape), np.empty(shape)
    for groups, human in zip(runs.groups, runs.human, strict=True):
        weight = drawn.take(groups, axis=0)
        product = ranks.take(human, axis=0)
        product *= weight
        running += weight
        products += product
        inside += np.multiply(product, running, out=latest)
    # Runs were summed side by side, each from 0: what stands before a run is added at the end
    before = np.cumsum(running, axis=0, dtype=np.float64) - running
    return 2 * (inside + products * before).sum(axis=0)


PairRule = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, ...]]
"""Maps the differences of judge and human scores of pairs (any shape) to the terms of each pair in several sums."""


def signs(differences: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
    """1, -1, or 0 up to epsilon; one byte each, as there are very many pairs."""
    return (differences > epsilon).view(np.int8) - (differences < -epsilon).view(np.int8)


def pair_sums(x: np.ndarray, y: np.ndarray, groups: np.ndarray, counts: np.ndarray, rule: PairRule) -> np.ndarray:
    """Sums over the pairs of items, each as often as both of its items were drawn; shape (sums, resamples).

    Each sum is c' S c, with c the counts of a resample over groups and S the sums over the pairs between two groups. S
    is built from a few rows of items at a time, so that memory stays bounded whatever the sizes of the groups.

    Args:
        x: Shape (n,), judge.
        y: Shape (n,), human.
        groups: Shape (n,), the group of each item as a column of `counts`.
        counts: Shape (resamples, groups), how often each group was drawn.
        rule: Applied to each pair.
    """
    # Items of one group stand together, so that the pairs of two groups fill a rectangle
    order = np.argsort(groups, kind="stable")
    x, y, groups = x[order], y[order], groups[order]
    present, starts = np.unique(groups, return_index=True)
    counts = counts[:, present].astype(np.float64)
    # Pairs of two groups count together as often as the product of their draws, so that a resample costs groups
    # squared
    sums: Any = 0.0
    step = max(1, _PAIRS // len(x))
    for first in range(0, len(x), step):
        values = rule(x[first : first + step, None] - x[first:], y[first : first + step, None] - y[first:])
        rows = len(values[0])
        low, high = np.searchsorted(starts, (first, first + rows - 1), side="right") - 1
        columns = np.maximum(starts[low:] - first, 0)
        block = []
        for side in values:
            side[:, :rows] = np.triu(side[:, :rows], 1)  # each pair once
            between = np.add.reduceat(side, columns, axis=1, dtype=np.float64)
            between = np.add.reduceat(between, columns[: high - low + 1], axis=0)
            block.append(((counts[:, low:] @ between.T) * counts[:, low : high + 1]).sum(axis=1))
        sums = sums + np.stack(block)
    return sums


def kendall_draws(score: np.ndarray, human: np.ndarray, groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of one judge in every resample, shape (resamples,); NaN and arguments as in `spearman_draws`.

    Tau-b = sum of sign products over pairs / root of (pairs untied in x times those in y).
    """

    def rule(dx: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        first, second = signs(dx), signs(dy)
        return first * second, first != 0, second != 0

    agreeing, x_untied, y_untied = pair_sums(score, human, groups, counts, rule)
    drawn = counts @ np.bincount(groups, minlength=counts.shape[1])
    defined = (drawn >= MIN_ITEMS) & (x_untied > 0) & (y_untied > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(defined, agreeing / np.sqrt(x_untied * y_untied), np.nan)
