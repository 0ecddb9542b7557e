"""Spearman in every resample, without sorting anew and without copies of items.

An item that was drawn w times counts as w tied items. With t the total weight of each group of ties and C the running
sum of t in the order of the values, the doubled, centred rank is 2 C - t - N, where N is the total weight; the sum of
its squares is (N^3 - N - sum(t^3 - t)) / 3 (Kendall, 1948). The order of the items is the same in all resamples. Where
a judge has no ties, only a running sum of weights and a sum of products differ between resamples; they are computed for
many resamples at a time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from scipy import sparse

from ...data_modules.parallel import available_cores
from .agreement import MIN_ITEMS

_ROWS = 128  # resamples at a time
_RUNS = 256  # number of runs into which sorted items are cut and summed in parallel: arrays stay in a core's cache


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
    if len(starts) * len(human) < 1_000_000:
        for start in starts:
            compute(start)
    else:
        with ThreadPoolExecutor(available_cores()) as pool:  # NumPy leaves Python's lock
            list(pool.map(compute, starts))
    return correlations


def _ranks(side: _Ties, weights: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Doubled, centred ranks (distinct values, rows), and the sum of their squares over the drawn items (rows,)."""
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
    before = np.cumsum(running, axis=0, dtype=np.float64) - running
    return 2 * (inside + products * before).sum(axis=0)
