"""Tables of ratings and draws for the tests of statistics."""

from __future__ import annotations

import numpy as np
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.bootstrap import Resamples

NAN = float("nan")


def table_of(scores: np.ndarray) -> RatingTable:
    """From shape (raters, items); NaN = not rated."""
    raters, items = np.nonzero(~np.isnan(scores))
    names = tuple(f"r{rater}" for rater in range(len(scores)))
    return RatingTable(items, raters, scores[raters, items], scores.shape[1], names)


def own_groups(n: int, resamples: int = 0) -> Resamples:
    """Draws of n items, each a group of its own."""
    return Resamples.draw([f"g{item}" for item in range(n)], resamples, 0)
