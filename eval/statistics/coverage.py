"""Do intervals hold what they promise: how often does the mean rating lie inside, and how wide are they?"""

from __future__ import annotations

import numpy as np

from .agreement import Statistic
from .bootstrap import Resamples
from .complete_items import CompleteItems, measured

_ROUNDING = 1e-9  # rating points: an end that is the rating itself holds it


def coverage(low: np.ndarray, high: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Share of the items whose mean rating lies inside its interval, ends included.

    Args:
        low: Shape (n,), lower ends, rating points; items with a NaN are dropped and counted.
        high: Shape (n,), upper ends.
        human: Shape (n,), mean ratings of the same items.
        resamples: Draws over the same n items.

    Raises:
        ValueError: If shapes differ.
    """
    known = np.isfinite(low) & np.isfinite(high)
    inside = (low - _ROUNDING <= human) & (human <= high + _ROUNDING)
    return _mean(np.where(known, inside.astype(np.float64), np.nan), human, resamples)


def mean_width(low: np.ndarray, high: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Mean width of the intervals of rated items in rating points; arguments and errors as for `coverage`."""
    return _mean(high - low, human, resamples)


def error_ratio(score: np.ndarray, standard_error: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Root mean square of the errors, each divided by its standard error: 1 = as large as stated, above 1 = larger.

    Args:
        score: Shape (n,), judge, rating points.
        standard_error: Shape (n,), above 0; other items are dropped and counted.
        human: Shape (n,), mean ratings of the same items.
        resamples: Draws over the same n items.

    Raises:
        ValueError: If shapes differ.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = np.where(standard_error > 0, ((score - human) / standard_error) ** 2, np.nan)
    items = CompleteItems.of(squared, human)
    return measured(items, resamples.select(items.kept), lambda times: np.sqrt(_weighted(items.score, times)))


def _mean(values: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    items = CompleteItems.of(values, human)
    return measured(items, resamples.select(items.kept), lambda times: _weighted(items.score, times))


def _weighted(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return times @ values / times.sum(axis=1)
