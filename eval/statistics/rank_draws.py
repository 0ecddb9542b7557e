"""Spearman and sums over pairs of items in every resample, without sorting anew and without copies of items.

An item that was drawn w times counts as w tied items. With t the total weight of each group of ties and C the running
sum of t in the order of the values, the doubled rank, centred, is 2 C - t - N; the sum of its squares is (N^3 - N -
sum(t^3 - t)) / 3 (Kendall, 1948). The order of the items is the same in all resamples. Items with the same scores on
both sides are one cell, so that coarse scores cost little.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from .agreement import MIN_ITEMS

_ROWS = 128  # resamples at a time
_CELLS = 256  # at a time: what is computed of them stays in the cache of a core
_PAIRS = 1 << 20  # pairs of items at a time


def spearman_draws(scores: np.ndarray, human: np.ndarray, groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman of each judge with people in every resample, what SciPy gives for the items repeated that often.

    Args:
        scores: Shape (judges, n), finite.
        human: Shape (n,), finite.
        groups: Shape (n,), the group of each item as a column of `counts`.
        counts: Shape (resamples, groups), how often each group was drawn.

    Returns:
        Shape (judges, resamples), float64; NaN with fewer than `MIN_ITEMS` items drawn or where all scores of a side
        are equal.
    """
    found = np.full((len(scores), len(counts)), np.nan)
    if len(human) == 0:
        return found
    codes = np.unique(human, return_inverse=True)[1]
    people = _parts(codes, codes, groups, counts.shape[1])
    judges = [_parts(np.unique(score, return_inverse=True)[1], codes, groups, counts.shape[1]) for score in scores]

    def compute(start: int) -> None:
        rows = slice(start, start + _ROWS)
        weights = np.ascontiguousarray(counts[rows].T, dtype=np.float64)  # (groups, rows)
        total = np.bincount(groups, minlength=len(weights)) @ weights
        human_ranks, squares = [], np.zeros(len(total))
        for _, ranks, drawn, _ in _ranked(people, weights, total):
            human_ranks.append(ranks)
            squares += (ranks * ranks * drawn).sum(axis=0)
        table = np.concatenate(human_ranks)
        for own, judge in zip(found[:, rows], judges, strict=True):
            covariance, ties = np.zeros((2, len(total)))
            for part, ranks, drawn, tied in _ranked(judge, weights, total):
                ties += (tied * tied * tied - tied).sum(axis=0)
                products = table.take(part.human, axis=0)
                products *= drawn
                covariance += np.einsum("vr,vr->r", part.sums(products), ranks)
            product = squares * (total**3 - total - ties) / 3
            np.divide(covariance, np.sqrt(product), out=own, where=(product > 0) & (total >= MIN_ITEMS))

    every = range(0, len(counts), _ROWS)
    if len(every) * len(human) < 100_000:
        for start in every:
            compute(start)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy leaves Python's lock
            list(pool.map(compute, every))
    return found


class _Part(NamedTuple):
    """Neighbouring values of a side, and the cells of the table side x people that lie there, by value.

    Attributes:
        items: Sparse, shape (cells, groups): items of each cell in each group.
        human: Shape (cells,), which human value it is.
        starts: Shape (values,), the first cell of each value.
    """

    items: sparse.csr_array
    human: np.ndarray
    starts: np.ndarray

    def sums(self, cells: np.ndarray) -> np.ndarray:
        """Of the cells of each value: (cells, rows) -> (values, rows)."""
        return cells if len(self.starts) == len(cells) else np.add.reduceat(cells, self.starts, axis=0)


def _parts(side: np.ndarray, human: np.ndarray, groups: np.ndarray, n_groups: int) -> list[_Part]:
    """Parts of about `_CELLS` cells, from the places of the values of a side and of people, each of shape (n,)."""
    cells, code = np.unique(side * len(human) + human, return_inverse=True)
    values, people = np.divmod(cells, len(human))
    items = sparse.csr_array((np.ones(len(code)), (code, groups)), shape=(len(cells), n_groups))
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    cuts = np.unique(np.searchsorted(starts, np.arange(_CELLS, len(cells), _CELLS)))
    cuts = cuts[cuts < len(starts)]
    ends = [*starts[cuts], len(cells)]
    return [
        _Part(items[own[0] : end], people[own[0] : end], own - own[0])
        for own, end in zip(np.split(starts, cuts), ends, strict=True)
    ]


def _ranked(
    side: list[_Part], weights: np.ndarray, total: np.ndarray
) -> Iterator[tuple[_Part, np.ndarray, np.ndarray, np.ndarray]]:
    """Each part with the ranks of its values, the weights of its cells and those of its values, each (..., rows)."""
    below = np.zeros(len(total))
    for part in side:
        drawn = part.items @ weights
        tied = part.sums(drawn)
        upto = below + np.cumsum(tied, axis=0)
        below = upto[-1]
        yield part, 2 * upto - tied - total, drawn, tied


def pair_sums(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    counts: np.ndarray,
    rule: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, ...]],
) -> np.ndarray:
    """Sums over the pairs of items, each as often as both of its items were drawn; shape (sums, resamples).

    Each sum is c' S c, with c the counts of a resample over groups and S the sums over the pairs between two groups. S
    is built from a few rows of items at a time, so that memory stays bounded whatever the sizes of the groups.

    Args:
        x: Shape (n,), judge.
        y: Shape (n,), human.
        groups: Shape (n,), the group of each item as a column of `counts`.
        counts: Shape (resamples, groups), how often each group was drawn.
        rule: From differences of judge and human scores of pairs (any shape): what each pair adds to each of the sums.
    """
    order = np.argsort(groups, kind="stable")
    x, y, groups = x[order], y[order], groups[order]
    present, starts = np.unique(groups, return_index=True)
    counts = counts[:, present].astype(np.float64)
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

    def signs(dx: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        first, second = np.sign(dx), np.sign(dy)
        return first * second, np.abs(first), np.abs(second)

    agreeing, x_untied, y_untied = pair_sums(score, human, groups, counts, signs)
    drawn = counts @ np.bincount(groups, minlength=counts.shape[1])
    defined = (drawn >= MIN_ITEMS) & (x_untied > 0) & (y_untied > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(defined, agreeing / np.sqrt(x_untied * y_untied), np.nan)
