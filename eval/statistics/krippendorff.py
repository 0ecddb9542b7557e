"""Krippendorff's alpha of single ratings: 1 - observed / expected disagreement, with missing ratings.

Observed: mean squared distance of the ratings within an item. Expected: of all ratings that have a partner in their
item (Krippendorff, 2019, Content Analysis, 4th edition, 12.3). The distances:

- nominal: 0 for equal scores, else 1;
- ordinal: the number of ratings between the two scores, plus half of those at either score. This is the difference of
  mean ranks, so that ordinal alpha is interval alpha of the ranks of all ratings together;
- interval: the difference of the scores.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from scipy import sparse

from ...data_modules.ratings import RatingTable
from .agreement import Statistic
from .bootstrap import Resamples, with_interval

Distance = Literal["nominal", "ordinal", "interval"]
DISTANCES: tuple[Distance, ...] = get_args(Distance)


def krippendorff_alpha(table: RatingTable, distance: Distance, resamples: Resamples) -> Statistic:
    """Alpha with a bootstrap interval over groups, from ratings and draws over their items.

    ``n`` counts items, ``dropped`` those with a single rating, which do not count. Undefined without an item with two
    ratings, and where all ratings are equal.
    """
    shared = table.shared()
    point = Statistic(None, n=len(shared))
    if len(shared) == 0:
        return replace(point, reason="no item with at least two raters")
    pairable = table.counts[table.items] >= 2
    values, codes = np.unique(table.scores[pairable], return_inverse=True)
    cells = (np.ones(len(codes)), (np.searchsorted(shared, table.items[pairable]), codes))
    counts = sparse.csr_array(cells, shape=(len(shared), len(values)))  # how often an item got each score
    # Several raters may give an item the same score, which is one entry of the matrix
    counts.sum_duplicates()
    of_score, sizes = sparse.csr_array(counts.T), np.asarray(counts.sum(axis=1))
    equal = np.asarray(counts.power(2).sum(axis=1))  # ordered pairs of equal ratings of an item, with themselves

    def alpha(weights: np.ndarray) -> np.ndarray:
        """Alpha, shape (r,), where item i counts weights[i, j] times; NaN = the ratings are constant."""
        frequencies = of_score @ weights  # how often each score
        n = frequencies.sum(axis=0)
        # Squared distances over ordered pairs of ratings, of the same item and of all
        if distance == "nominal":
            within, between = (sizes**2 - equal)[:, None], n**2 - (frequencies**2).sum(axis=0)
        else:
            positions = (values - values.mean())[:, None]
            # Alpha does not depend on the unit. A power of two changes no digit, and no square becomes 0 or infinite
            positions = np.ldexp(positions, -int(np.frexp(np.abs(positions).max())[1]))
            if distance == "ordinal":
                positions = np.cumsum(frequencies, axis=0) - frequencies / 2 - n / 2  # mean ranks among all ratings
            # Over the ordered pairs of m numbers they sum to 2 (m times their squares - their squared sum)
            totals, squares = counts @ positions, counts @ positions**2
            within = 2 * (sizes[:, None] * squares - totals**2)
            weighted = frequencies * positions
            between = 2 * (n * (weighted * positions).sum(axis=0) - weighted.sum(axis=0) ** 2)
        within = (weights * (within / (sizes - 1)[:, None])).sum(axis=0)
        return np.where((frequencies > 0).sum(axis=0) >= 2, 1 - (n - 1) * within / between, np.nan)

    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(alpha(np.ones((len(shared), 1)))[0])
    if np.isnan(value):
        return replace(point, reason="the ratings are constant")
    point = replace(point, value=value, dropped=int((table.counts == 1).sum()))
    seen = resamples.select(shared)
    draws = seen.weigh(alpha)
    return with_interval(point, draws, seen, correlation=True, ratings=float(1 / np.mean(1 / sizes)))
