"""Intervals for other items and other raters: both are drawn, independently of each other.

The bootstrap over groups of items takes the raters as they are: it answers what the judge would reach on other items,
rated by the same people. Where few people rated, other people would have given other means. The pigeonhole bootstrap
(Owen, 2007) draws groups of items and raters, each with replacement; a rating counts as often as its item times its
rater was drawn. Its variance is somewhat too large: the interval is conservative. With the items as they are, raters
alone are drawn: what the same items would show with other people.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from ...data_modules.rating_table import RatingTable
from .agreement import MIN_ITEMS
from .bootstrap import Resamples

MIN_RATERS = 3
"""Fewest raters to draw from."""

_RANKED_VALUES = 20_000_000  # resamples x items: each resample has human means of its own, and sorts them
_BLOCK_VALUES = 1 << 18  # of them at a time


def rater_draws(score: np.ndarray, table: RatingTable, count: int, seed: int) -> np.ndarray:
    """Spearman of a judge with the mean of drawn raters on the items as they are.

    Args:
        score: Shape (n,), finite, for the n items of `table`.
        table: The ratings; every item has at least one.
        count: Number of draws; where there are very many items, fewer are made.
        seed: Of the draws.

    Returns:
        As `two_way_draws` does.
    """
    whole = Resamples(np.zeros(table.n_items, dtype=np.int64), np.ones((count, 1), np.float32))
    return two_way_draws(score, table, whole, seed)


def two_way_draws(score: np.ndarray, table: RatingTable, resamples: Resamples, seed: int) -> np.ndarray:
    """Spearman of a judge with the mean of drawn raters on drawn items.

    Args:
        score: Shape (n,), finite, for the n items of `table`.
        table: The ratings; every item has at least one.
        resamples: Draws over the n items. Where there are very many items, only the first of them are used.
        seed: Of the draws of raters.

    Returns:
        Shape (resamples used,), float64. Items of which no rater was drawn do not count in that resample. NaN with
        fewer than `MIN_ITEMS` items or where either side is constant; all NaN with fewer than `MIN_RATERS` raters.
    """
    used = min(resamples.resamples, max(100, _RANKED_VALUES // max(1, table.n_items)))
    found = np.full(used, np.nan)
    if len(table.rater_ids) < MIN_RATERS:
        return found
    drawn = Resamples.draw(table.rater_ids, used, seed)
    times = drawn.counts[:, drawn.codes].astype(np.float64)  # of each rater, (resamples, raters)
    shape = (len(table.rater_ids), table.n_items)
    given = sparse.csr_array((np.ones(len(table.scores)), (table.raters, table.items)), shape=shape)
    scores = sparse.csr_array((table.scores, (table.raters, table.items)), shape=shape)
    step = max(1, _BLOCK_VALUES // max(1, table.n_items))
    for start in range(0, used, step):
        rows = slice(start, min(used, start + step))
        rated = times[rows] @ given
        # Rounded: means of the same ratings in another order are ties.
        means = np.round((times[rows] @ scores) / np.maximum(rated, 1), 9)
        weights = np.where(rated > 0, resamples.counts[rows][:, resamples.codes].astype(np.float64), 0.0)
        found[rows] = _spearman(np.broadcast_to(score, means.shape), means, weights)
    return found


def _spearman(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Spearman of each row of x with that of y, every item repeated as its weight says: all (rows, n) -> (rows,)."""
    one, other = _ranks(x, weights), _ranks(y, weights)
    squares = (weights * one**2).sum(axis=1) * (weights * other**2).sum(axis=1)
    defined = (squares > 0) & (weights.sum(axis=1) >= MIN_ITEMS)
    found = np.full(len(x), np.nan)
    np.divide((weights * one * other).sum(axis=1), np.sqrt(squares), out=found, where=defined)
    return found


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Doubled, centred mean ranks of each row, (rows, n): begin and end of each tie in the running sum of weights."""
    order = np.argsort(values, axis=1, kind="stable")
    values, own = np.take_along_axis(values, order, axis=1), np.take_along_axis(weights, order, axis=1)
    running = np.cumsum(own, axis=1)
    new = np.diff(values, axis=1, prepend=-np.inf) != 0
    begin = np.maximum.accumulate(np.where(new, running - own, -np.inf), axis=1)
    last = np.append(new[:, 1:], np.ones((len(new), 1), dtype=bool), axis=1)
    end = np.minimum.accumulate(np.where(last, running, np.inf)[:, ::-1], axis=1)[:, ::-1]
    ranks = np.empty_like(begin)
    np.put_along_axis(ranks, order, begin + end - running[:, -1:], axis=1)
    return ranks
