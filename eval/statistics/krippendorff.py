"""Krippendorff's alpha of single ratings: 1 - observed / expected disagreement, with missing ratings.

Observed: mean squared distance of the ratings within an item. Expected: of all ratings that have a partner in their
item (Krippendorff, 2019, Content Analysis, 4th edition, 12.3). The distances:

- nominal: 0 for equal scores, else 1;
- ordinal: how many ratings lie between the two scores, half of those at either score included. That is the
  difference of mean ranks, so that ordinal alpha is interval alpha of the ranks of all ratings together;
- interval: the difference of the scores;
- ratio: their difference over their sum; for scores of 0 or more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy import sparse

from ...data_modules.ratings import RatingTable
from .agreement import Statistic
from .bootstrap import Estimate, Resamples

Distance = Literal["nominal", "ordinal", "interval", "ratio"]
DISTANCES: tuple[Distance, ...] = get_args(Distance)

_BLOCK_VALUES = 1 << 22  # numbers held per temporary array: 32 MB


def krippendorff_alpha(table: RatingTable, distance: Distance, resamples: Resamples) -> Estimate:
    """Alpha with a bootstrap interval over groups.

    Items with fewer than two ratings do not count; they are in `dropped`.

    Args:
        table: The ratings.
        distance: How far apart two scores are.
        resamples: Draws over the items of `table`.

    Returns:
        ``n`` counts items. Undefined without an item with two ratings, where all ratings are equal, and for ratio
        distance where a score is below 0.
    """
    shared = table.shared()
    if len(shared) == 0:
        return Estimate.undefined("no item with at least two raters", resamples)
    if distance == "ratio" and table.scores.min() < 0:
        return Estimate.undefined("ratio distance needs scores of 0 or more", resamples, len(shared))
    units = _Units.of(table, shared)
    kernel = _kernel(units, distance)
    value = kernel(np.ones((1, len(shared))))[0]
    if np.isnan(value):
        return Estimate.undefined("the ratings are constant", resamples, len(shared))
    seen = resamples.select(shared)
    point = Statistic(float(value), n=len(shared), dropped=int((table.counts == 1).sum()))
    ratings = float(1 / np.mean(1 / units.sizes))
    return Estimate.of(point, seen.apply(kernel), seen, correlation=True, ratings=ratings)


@dataclass(frozen=True, eq=False)
class _Units:
    """The items with two ratings or more.

    Attributes:
        values: Shape (values,), the distinct scores, rising.
        counts: Shape (items, values), how often an item got each score.
        sizes: Shape (items,), ratings per item.
    """

    values: np.ndarray
    counts: sparse.csr_array
    sizes: np.ndarray

    @classmethod
    def of(cls, table: RatingTable, shared: np.ndarray) -> _Units:
        position = np.full(table.n_items, -1)
        position[shared] = np.arange(len(shared))
        kept = position[table.items] >= 0
        values, codes = np.unique(table.scores[kept], return_inverse=True)
        cells = (np.ones(len(codes)), (position[table.items[kept]], codes))
        counts = sparse.csr_array(cells, shape=(len(shared), len(values)))
        counts.sum_duplicates()
        return cls(values, counts, table.counts[shared])


def _kernel(units: _Units, distance: Distance) -> Callable[[np.ndarray], np.ndarray]:
    """Alpha with item i taken weights[:, i] times; shape (rows of weights,), NaN = ratings are constant."""
    sums = _disagreement(units, distance)

    def alpha(weights: np.ndarray) -> np.ndarray:
        given = (units.counts.T @ weights.T).T  # how often each score, shape (rows of weights, values)
        n = given.sum(axis=1)
        within, between = sums(weights, given)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where((given > 0).sum(axis=1) > 1, 1 - (n - 1) * within / between, np.nan)

    return alpha


_Sums = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _disagreement(units: _Units, distance: Distance) -> _Sums:
    """Squared distances summed over ordered pairs of ratings: of the same item, divided by its size - 1, and of all.

    Returns:
        A function of how often each item was drawn, shape (rows, items), and each score was given, shape (rows,
        values), that returns both sums, each of shape (rows,).
    """
    match distance:
        case "nominal":
            unequal = (units.sizes**2 - np.asarray(units.counts.power(2).sum(axis=1))) / (units.sizes - 1)
            return lambda weights, given: (weights @ unequal, given.sum(axis=1) ** 2 - (given**2).sum(axis=1))
        case "ordinal":
            return lambda weights, given: _squared_differences(units, weights, given, _mean_ranks(given))
        case "interval":
            centred = (units.values - units.values.mean())[None]
            return lambda weights, given: _squared_differences(units, weights, given, centred)
        case "ratio":
            unlike = _ratio_within(units) / (units.sizes - 1)
            return lambda weights, given: (weights @ unlike, _ratio_between(units.values, given))


def _squared_differences(
    units: _Units, weights: np.ndarray, given: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both sums for scores at these positions, shape (1 or rows, values).

    The squared differences over the ordered pairs of m numbers sum to 2 (m times their squares - their squared sum).
    """
    totals, squares = (units.counts @ positions.T).T, (units.counts @ (positions**2).T).T
    within = 2 * (units.sizes * squares - totals**2) / (units.sizes - 1)
    n = given.sum(axis=1)
    between = 2 * (n * (given * positions**2).sum(axis=1) - (given * positions).sum(axis=1) ** 2)
    return (weights * within).sum(axis=1), between


def _mean_ranks(given: np.ndarray) -> np.ndarray:
    """Of each score among all ratings, less their middle; shape (rows, values)."""
    return np.cumsum(given, axis=1) - given / 2 - given.sum(axis=1, keepdims=True) / 2


def _ratio_within(units: _Units) -> np.ndarray:
    """Sum of squared ratio distances over the ordered pairs of scores of each item, shape (items,)."""
    starts, sizes = units.counts.indptr[:-1], np.diff(units.counts.indptr)  # distinct scores of each item
    pairs = sizes**2
    items = np.repeat(np.arange(len(sizes)), pairs)
    position = np.arange(len(items)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    first, second = (starts[items] + part for part in np.divmod(position, sizes[items]))
    codes, times = units.counts.indices, units.counts.data
    distance = _ratio(units.values[codes[first]], units.values[codes[second]])
    return np.bincount(items, weights=times[first] * times[second] * distance, minlength=len(sizes))


def _ratio_between(values: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Sum of squared ratio distances over the ordered pairs of all ratings, shape (rows,)."""
    total = np.zeros(len(given))
    step = max(1, _BLOCK_VALUES // len(values))
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        total += ((given @ _ratio(values[:, None], values[None, rows])) * given[:, rows]).sum(axis=1)
    return total


def _ratio(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Squared difference over squared sum of scores of 0 or more; 0 for two zeros."""
    together = first + second
    return ((first - second) / np.where(together > 0, together, 1.0)) ** 2
