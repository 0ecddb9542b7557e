"""Intraclass correlations (ICC): which share of the variance of ratings comes from the items.

Names of McGraw and Wong (1996); in brackets those of Shrout and Fleiss (1979):

- ``ICC(1,1)`` [ICC(1,1)]: one-way; which rater gave which rating does not matter;
- ``ICC(A,1)`` [ICC(2,1)]: two-way, absolute agreement: a rater's bias counts as error;
- ``ICC(C,1)`` [ICC(3,1)]: two-way, consistency: it does not;
- ``ICC(1,k)``, ``ICC(A,k)``, ``ICC(C,k)``: the same of the mean of k ratings.

All come from the variance components of items, raters and error, estimated by equating sums of squares with their
expectations (fitting constants: Henderson, 1953, method 3; Searle, Casella and McCulloch, 1992, chapter 5). On a
complete panel this is the analysis of variance of the papers above. On an incomplete one nothing is dropped except
items with a single rating, and k is the harmonic mean of ratings per item. Estimates can be negative, as in the papers:
the ratings of one item then differ more than those of different items.

Intervals (95 %) are the F-based ones of McGraw and Wong where the panel is complete and every item is a group of its
own; otherwise they come from the bootstrap over groups, with the same raters in every resample.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy import sparse

from ...data_modules.ratings import RatingTable
from ...data_modules.targets import fit_rater_model
from .agreement import Statistic, is_constant
from .bootstrap import Resamples, with_interval
from .probabilities import f_quantile

Form = Literal["ICC(1,1)", "ICC(A,1)", "ICC(C,1)", "ICC(1,k)", "ICC(A,k)", "ICC(C,k)"]
FORMS: tuple[Form, ...] = get_args(Form)

MAX_RESAMPLED_RATERS = 300
"""Most raters of a bootstrap interval: each resample solves equations of that size."""

# A variance below this share of that of all ratings is 0
_ROUNDING = 1e-12
# Share of the largest diagonal element: biases are known up to a constant, which makes their equations singular
_RIDGE = 1e-10


def icc(table: RatingTable, resamples: Resamples) -> dict[Form, Statistic]:
    """All forms, from ratings and draws over their items.

    ``n`` counts items, ``dropped`` those with a single rating. Undefined with fewer than two items of two ratings,
    where the ratings do not vary, and, in the two-way forms, where no degree of freedom is left for the error.
    """
    panel = _Panel(table)
    # An item with one rating says nothing of how ratings of an item differ
    empty = Statistic(None, n=panel.n_items, dropped=int((table.counts == 1).sum()))
    if panel.n_items < 2:
        reason = f"items with at least two raters: {panel.n_items}; at least 2 needed"
        return dict.fromkeys(FORMS, replace(empty, reason=reason))
    components = panel.components()
    undefined = "the variance of items, raters and error is 0 or cannot be told apart"
    points: dict[Form, Statistic] = {
        form: replace(empty, reason=undefined) if math.isnan(value) else replace(empty, value=float(value))
        for form, value in _forms(components).items()
    }
    seen = resamples.select(table.shared())
    # F intervals hold for independent items and a full table alone
    if panel.complete and seen.n_groups == panel.n_items:
        return _with_f_intervals(points, components, panel)
    return _bootstrapped(points, panel, seen)


def two_way_components(table: RatingTable) -> tuple[float, float, float]:
    """Variance of items, of raters and of the error in squared rating points, from items with two raters or more.

    Estimates may be negative; NaN = cannot be estimated.
    """
    panel = _Panel(table)
    if panel.n_items < 2:
        return math.nan, math.nan, math.nan
    components = panel.components()
    return components.item, components.rater, components.error


class _Components(NamedTuple):
    """Variance components (squared rating points), numbers or arrays of shape (r,); NaN = not estimable."""

    one_way_item: Any  # when raters are ignored, and so the next
    within: Any  # of the ratings of one item
    item: Any
    rater: Any  # of the biases of raters
    error: Any
    k: Any  # harmonic mean of ratings per item


def _forms(found: _Components) -> dict[Form, Any]:
    biased = found.rater + found.error
    return {
        "ICC(1,1)": _share(found.one_way_item, found.within),
        "ICC(A,1)": _share(found.item, biased),
        "ICC(C,1)": _share(found.item, found.error),
        "ICC(1,k)": _share(found.one_way_item, found.within / found.k),
        "ICC(A,k)": _share(found.item, biased / found.k),
        "ICC(C,k)": _share(found.item, found.error / found.k),
    }


def _share(item: Any, other: Any) -> Any:
    total = item + other
    # Both may be estimates below 0, so their sum may be 0 by chance: its share would be any number
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > _ROUNDING * (abs(item) + abs(other)), np.divide(item, total), np.nan)


class _Panel:
    """The ratings of items with two raters or more, and the raters who gave them, renumbered."""

    def __init__(self, table: RatingTable) -> None:
        shared = table.counts[table.items] >= 2
        item_positions, items = np.unique(table.items[shared], return_inverse=True)
        rater_positions, raters = np.unique(table.raters[shared], return_inverse=True)
        scores = table.scores[shared]
        # Nothing depends on the mean, and differences of sums of squares would lose digits with it. Of a constant, the
        # mean in floating point may be another number
        scores = scores - scores.mean() if len(scores) and not is_constant(scores) else np.zeros(len(scores))
        self.n_items, self.n_raters = len(item_positions), len(rater_positions)
        self.complete = len(scores) == self.n_items * self.n_raters
        self.sizes = np.bincount(items, minlength=self.n_items)
        self._sums = np.bincount(items, weights=scores, minlength=self.n_items)
        self._squares = np.bincount(items, weights=scores**2, minlength=self.n_items)
        shape = (self.n_raters, self.n_items)
        # Sums by rater for any weights of the items, so that a resample needs no ratings anew
        cells = raters, items
        self._scores, self._rated = (
            # Products of a matrix that is mostly full take a tenth of the time where it is stored as full
            matrix.toarray() if 4 * matrix.nnz > self.n_items * self.n_raters else matrix
            for matrix in (sparse.csr_array((values, cells), shape=shape) for values in (scores, np.ones(len(scores))))
        )
        names = tuple(table.rater_ids[position] for position in rater_positions)
        self._model = fit_rater_model(RatingTable(items, raters, scores, self.n_items, names))

    def components(self) -> _Components:
        """Components where every item counts once."""
        found = self.weighted(np.ones((self.n_items, 1)), float((self._model.residual**2).sum()))
        return _Components(*(float(values[0]) for values in found))

    def weighted(self, weights: np.ndarray, rest: float | None = None) -> _Components:
        """Components, each of shape (r,), where item i counts as weights[i, j] different items, not all 0; `rest` is
        the sum of squares that items and raters leave, if it is known."""
        # From the equations with the ridge it is exact only to that
        rounding = 10 * _RIDGE if rest is None else _ROUNDING
        sizes, sums, squares = (values[:, None] for values in (self.sizes, self._sums, self._squares))
        n_ratings, n_items = (weights * sizes).sum(axis=0), weights.sum(axis=0)
        of_rater, rater_sums = self._rated @ weights, self._scores @ weights
        n_raters = (of_rater > 0).sum(axis=0)
        of_items, all_squares = (weights * (sums**2 / sizes)).sum(axis=0), (weights * squares).sum(axis=0)
        within_items = all_squares - of_items
        within_raters = all_squares - (rater_sums**2 / np.maximum(of_rater, 1)).sum(axis=0)
        between_items = of_items - (weights * sums).sum(axis=0) ** 2 / n_ratings
        left = within_items - self._explained_by_raters(weights, of_rater, rater_sums) if rest is None else rest
        # Each component: its sum of squares less the part from the error, over the coefficient of the component
        c = self._model.n_components
        freedom = n_ratings - n_items - n_raters + c
        with np.errstate(divide="ignore", invalid="ignore"):
            within = within_items / (n_ratings - n_items)
            error = np.where(freedom > 0, np.maximum(left, 0.0) / freedom, np.nan)
            in_items = (weights * sizes**2).sum(axis=0) / n_ratings
            variances = np.stack(
                [
                    (between_items - (n_items - 1) * within) / (n_ratings - in_items),
                    within,
                    (within_raters - left - (n_items - c) * error) / (n_ratings - n_raters),
                    (within_items - left - (n_raters - c) * error) / (n_ratings - n_items),
                    error,
                ]
            )
        # What rounding leaves of 0 would make a share of nothing but noise
        variances[np.abs(variances) <= rounding * all_squares / n_ratings] = 0
        return _Components(*variances, k=n_items / (weights / sizes).sum(axis=0))

    def _explained_by_raters(self, weights: np.ndarray, of_rater: np.ndarray, rater_sums: np.ndarray) -> np.ndarray:
        """Sums of squares that the raters explain beyond the items, shape (r,)."""
        if self.complete:
            return (rater_sums**2 / of_rater).sum(axis=0) - rater_sums.sum(axis=0) ** 2 / of_rater.sum(axis=0)
        # The items are eliminated from the normal equations: what is left has a row for each rater
        deviations = rater_sums - self._rated @ (weights * (self._sums / self.sizes)[:, None])
        explained = np.empty(weights.shape[1])
        for column, (own, drawn, rated) in enumerate(zip(deviations.T, weights.T, of_rater.T, strict=True)):
            shared = (self._rated * (drawn / self.sizes)) @ self._rated.T
            equations = np.diag(rated) - (shared.toarray() if sparse.issparse(shared) else shared)
            # Only differences of biases are known: a constant on all of them changes nothing, and the matrix is
            # singular without
            equations[np.diag_indices(self.n_raters)] += _RIDGE * rated.max()
            explained[column] = own @ np.linalg.solve(equations, own)
        return explained


def _bootstrapped(points: dict[Form, Statistic], panel: _Panel, seen: Resamples) -> dict[Form, Statistic]:
    if panel.n_raters > MAX_RESAMPLED_RATERS and not panel.complete:
        reason = f"no interval: {panel.n_raters} raters in an incomplete panel, at most {MAX_RESAMPLED_RATERS}"
        return {form: replace(point, reason=point.reason or reason) for form, point in points.items()}

    draws = seen.weigh(lambda weights: list(_forms(panel.weighted(weights)).values())).reshape(-1, len(FORMS))
    # The harmonic mean, as in k: the noise of a mean goes with one over its number of ratings
    ratings = float(1 / np.mean(1 / panel.sizes))
    return {
        form: with_interval(
            point, draws[:, column], seen, correlation=True, ratings=ratings if form.endswith("1)") else 2.0
        )
        for column, (form, point) in enumerate(points.items())
    }


def _with_f_intervals(points: dict[Form, Statistic], components: _Components, panel: _Panel) -> dict[Form, Statistic]:
    """McGraw and Wong (1996), table 7; for ICC(A,1) Satterthwaite's degrees of freedom."""
    n, k = panel.n_items, panel.n_raters
    within, error = components.within, components.error
    item, rater = k * components.item + error, n * components.rater + error
    one_way_item = k * components.one_way_item + within
    limits = {
        "1": _ratio_limits(one_way_item, within, n - 1, n * (k - 1), k),
        "C": _ratio_limits(item, error, n - 1, (n - 1) * (k - 1), k),
        "A": _absolute_limits(points["ICC(A,1)"], item, rater, error, n, k),
    }
    result = {}
    for form, point in points.items():
        # The fifth character of a form is its model: 1, A or C
        ends = limits[form[4]]
        if point.value is None:
            pass
        elif ends is None:
            why = "the raters agree perfectly" if item > 0 else "neither items nor errors vary"
            point = replace(point, reason=f"no interval: {why}")
        elif form.endswith("1)"):
            point = replace(point, low=ends[0], high=ends[1])
        elif 1 + (k - 1) * ends[0] <= _ROUNDING:
            # The limits of absolute agreement can lie below the least agreement that k raters can have
            point = replace(point, reason="no interval: it has no lower end, as the raters may not agree at all")
        else:
            low, high = (k * end / (1 + (k - 1) * end) for end in ends)  # Spearman-Brown
            point = replace(point, low=low, high=high)
        result[form] = point
    return result


def _ratio_limits(item: float, other: float, df_item: int, df_other: int, k: int) -> tuple[float, float] | None:
    """Limits for a single rating, from the ratio of two mean squares; None where the ratio is infinite."""
    if other <= _ROUNDING * item:
        return None
    low = item / other / f_quantile(0.975, df_item, df_other)
    high = item / other * f_quantile(0.975, df_other, df_item)
    return float((low - 1) / (low + k - 1)), float((high - 1) / (high + k - 1))


def _absolute_limits(
    single: Statistic, item: float, rater: float, error: float, n: int, k: int
) -> tuple[float, float] | None:
    if single.value is None or 1 - single.value <= _ROUNDING or item == error == 0:
        return None
    a = k * single.value / (n * (1 - single.value))
    b = 1 + a * (n - 1)
    freedom = (a * rater + b * error) ** 2 / ((a * rater) ** 2 / (k - 1) + (b * error) ** 2 / ((n - 1) * (k - 1)))
    above, below = f_quantile(0.975, n - 1, freedom), f_quantile(0.975, freedom, n - 1)
    others = k * rater + (k * n - k - n) * error
    low = n * (item - above * error) / (above * others + n * item)
    high = n * (below * item - error) / (others + n * below * item)
    return float(low), float(high)
