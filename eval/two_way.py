"""Intervals for other items and other raters: both are drawn, independently of each other.

The bootstrap over groups of items takes the raters as they are: it answers what the judge would reach on other items,
rated by the same people. Where few people rated, other people would have given other means. The pigeonhole bootstrap
(Owen, 2007) draws groups of items and raters, each with replacement; a rating counts as often as its item times its
rater was drawn. Its variance is somewhat too large: the interval is conservative.
"""

from __future__ import annotations

import numpy as np

from ..data_modules.rating_table import RatingTable
from .bootstrap import Resamples
from .rank_draws import spearman_draws

MIN_RATERS = 3
"""Fewest raters to draw from."""

_RANKED_VALUES = 20_000_000  # resamples x items: each resample has human means of its own, and sorts them


def two_way_draws(scores: np.ndarray, table: RatingTable, resamples: Resamples, seed: int) -> np.ndarray:
    """Spearman of each judge with the mean of drawn raters on drawn items.

    Args:
        scores: Shape (judges, n), finite, for the n items of `table`.
        table: The ratings; every item has at least one.
        resamples: Draws over the n items. Where there are very many items, only the first of them are used.
        seed: Of the draws of raters.

    Returns:
        Shape (judges, resamples used), float64. Items of which no rater was drawn do not count in that resample. NaN
        as in `rank_draws.spearman_draws`; all NaN with fewer than `MIN_RATERS` raters.
    """
    used = min(resamples.resamples, max(100, _RANKED_VALUES // max(1, table.n_items)))
    if len(table.rater_ids) < MIN_RATERS:
        return np.full((len(scores), used), np.nan)
    raters = Resamples.draw(table.rater_ids, used, seed)
    own = np.arange(table.n_items)
    columns = []
    for counts, drawn in zip(resamples.counts[:used], raters.counts[:, raters.codes], strict=True):
        times = drawn[table.raters].astype(np.float64)
        rated = np.bincount(table.items, weights=times, minlength=table.n_items)
        sums = np.bincount(table.items, weights=times * table.scores, minlength=table.n_items)
        weights = np.where(rated > 0, counts[resamples.codes], 0)
        # Rounded: means of the same ratings in another order are ties.
        means = np.round(sums / np.maximum(rated, 1), 9)
        columns.append(spearman_draws(scores, means, own, weights[None]))
    return np.concatenate(columns, axis=1) if columns else np.full((len(scores), 0), np.nan)
