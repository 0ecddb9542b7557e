"""Training targets: one number per pair and dimension from the ratings of several people.

- ``mean``: the plain mean over raters.
- ``bias_corrected``: the item's part of the additive rater model (`fit_rater_model`). Corrects for strict and
  lenient raters, also where they saw different items. Biases of raters whom no chain of common items connects cannot be
  compared: each such panel is corrected by itself, so that the mean of its ratings stays, and the notes say so.
- ``single``: no number per pair: each rater's judgement of a pair is a training item of its own, with the rater.

All are in rating points and inside the scale, so that the judge's head and its scores keep their meaning. On a complete
panel ``bias_corrected`` equals ``mean``, because biases that hit every item alike change nothing between items.

Beside each target, where the scales have steps, stands how many raters gave each score, for heads that predict how
ratings spread. These counts are of ratings as they were given, whatever the target corrects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from .ratings import Dimension, RatingTable
from .settings import TargetName, Weighting

if TYPE_CHECKING:
    from .schema import PairDataset

MAX_STEPS = 1001
"""With more scores on a scale there are no histograms: they would fill the memory, and nearly all counts are 0."""
_DENSE_RATERS = 500  # beyond, the system of the biases is solved by conjugate gradients


@dataclass(frozen=True, eq=False)
class Targets:
    """Training items and their target scores."""

    pairs: np.ndarray  # position of each item's pair in the dataset, rising `(items,)`
    scores: np.ndarray  # `(items, dimensions)`, float64, rating points; NaN = not rated
    # how much each score counts `(items, dimensions)`, float64; 0 where there is none, on average 1 over the others
    weights: np.ndarray
    # how many raters gave each score, the lowest first `(items, dimensions, steps)`, int32; steps that a shorter scale
    # does not have are 0. For ``single`` the one rating of that rater. None where a dimension has no steps or more than
    # `MAX_STEPS`
    histograms: np.ndarray | None = None
    # position in `rater_ids` of who gave the ratings `(items,)`, int64; None unless the target is ``single``
    raters: np.ndarray | None = None
    # the raters, sorted, each with at least one item; empty unless the target is ``single``
    rater_ids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was done that a person should know, one line each


def training_targets(dataset: PairDataset, target: TargetName, weighting: Weighting = "equal") -> Targets:
    """Targets from the ratings of the pairs in `dataset`: for training pass the training split alone.

    Args:
        dataset: Pairs and their ratings.
        target: As the module says. ``single`` gives one item per pair and rater, which holds all dimensions that this
            rater gave, and none for a pair without ratings; the others give one item per pair.
        weighting: ``equal``: every score counts 1; ``reliability``: the more, the more raters stand behind it
            (`item_weights`). Single ratings always count 1.
    """
    if target == "single":
        return _single(dataset)
    dimensions, pair_ids = dataset.card.dimensions, [pair.pair_id for pair in dataset.pairs]
    tables = [RatingTable.of(dataset.ratings, dimension.name, pair_ids) for dimension in dimensions]
    scores = dataset.mean_scores().to_numpy(copy=True)
    weights = np.isfinite(scores).astype(np.float64)
    notes = []
    for column, (dimension, table) in enumerate(zip(dimensions, tables, strict=True)):
        if target == "bias_corrected" and len(table.scores):  # else all are NaN already
            scores[:, column], remarks = _corrected(table, dimension)
            notes += [f"{dimension.name}, {target}: {remark}" for remark in remarks]
        if weighting == "reliability":
            weights[:, column], reason = item_weights(table)
            notes += [] if reason is None else [f"weights, {dimension.name}: {reason}; all ratings weigh the same"]
    return Targets(np.arange(len(pair_ids)), scores, weights, _histograms(tables, dimensions), notes=tuple(notes))


def _corrected(table: RatingTable, dimension: Dimension) -> tuple[np.ndarray, list[str]]:
    """Bias-corrected targets of one dimension, clipped to the scale, shape (items,), and remarks."""
    remarks = []
    model = fit_rater_model(table)
    values = model.items
    if model.n_components > 1:
        remarks.append(
            f"the raters fall into {model.n_components} panels without a common item; biases are corrected within "
            "each, differences between panels stay"
        )
    # A head predicts inside the scale: what lies beyond could never be reached, and would pull for ever
    bounded = np.clip(values, dimension.minimum, dimension.maximum)
    if n_clipped := int((np.abs(bounded - values) > 1e-9).sum()):
        share_text = f"{n_clipped} of {np.isfinite(values).sum()} targets"
        remarks.append(f"{share_text} left the scale {dimension.scale} and stand at its end")
    return bounded, remarks


def _single(dataset: PairDataset) -> Targets:
    pair_ids = pd.Index([pair.pair_id for pair in dataset.pairs], dtype=object)
    dimensions = dataset.card.dimensions
    rows = dataset.ratings.assign(position=pair_ids.get_indexer(pd.Index(dataset.ratings["pair_id"])))
    wide = rows.pivot(index=["position", "rater_id"], columns="dimension", values="score").sort_index()
    raters, rater_ids = pd.factorize(wide.index.get_level_values("rater_id"), sort=True)
    names = tuple(map(str, rater_ids))
    scores = wide.reindex(columns=[dimension.name for dimension in dimensions]).to_numpy(np.float64)
    rated_rows = [np.flatnonzero(np.isfinite(column)) for column in scores.T]
    tables = [
        RatingTable(items, raters[items], column[items], len(scores), names)
        for items, column in zip(rated_rows, scores.T, strict=True)
    ]
    return Targets(
        wide.index.get_level_values("position").to_numpy(np.int64),
        scores,
        np.isfinite(scores).astype(np.float64),
        _histograms(tables, dimensions),
        raters.astype(np.int64),
        names,
    )


def _histograms(tables: Sequence[RatingTable], dimensions: Sequence[Dimension]) -> np.ndarray | None:
    """As `Targets.histograms`."""
    if any(dimension.step is None or dimension.steps > MAX_STEPS for dimension in dimensions):
        return None
    shape = (tables[0].n_items, len(dimensions), max(dimension.steps for dimension in dimensions))
    counts = np.zeros(shape, np.int32)
    for column, (dimension, table) in enumerate(zip(dimensions, tables, strict=True)):
        # `rint`, since (1.7 - 1) / 0.1 is 6.999999999999999
        steps = np.rint((table.scores - dimension.minimum) / (dimension.step or 1)).astype(np.int64)
        np.add.at(counts[:, column], (table.items, steps), 1)
    return counts


@dataclass(frozen=True, eq=False)
class RaterModel:
    """A fitted model."""

    items: np.ndarray  # quality `(items,)`, rating points; NaN where nobody rated
    # `(raters,)`, rating points, positive = gives higher scores. Their mean over the ratings of a component is 0, so
    # that the mean of its ratings stays
    biases: np.ndarray
    # raters are linked where they rated the same item; between components biases cannot be compared, since no rating
    # connects them. 1 = all raters can be compared
    n_components: int
    residual: np.ndarray  # score - item - bias `(ratings,)`


def fit_rater_model(table: RatingTable) -> RaterModel:
    """Least squares over all ratings (the two-way layout without interaction; Searle, 1971, chapter 7).

    A rater with few ratings gets an uncertain bias: nothing is shrunk towards zero.
    """
    items, raters, scores = table.items, table.raters, table.scores
    n_items, n_raters = table.n_items, len(table.rater_ids)
    divisor = np.maximum(table.counts, 1)
    rated = sparse.csr_array((np.ones(len(items)), (items, raters)), shape=(n_items, n_raters))
    # With the items eliminated, the normal equations of the biases are those of a weighted graph of raters.
    shared = rated.T @ sparse.diags_array(1 / divisor) @ rated
    laplacian = sparse.csr_array(sparse.diags_array(np.bincount(raters, minlength=n_raters).astype(float)) - shared)
    deviations = np.bincount(raters, weights=scores - table.means[items], minlength=n_raters)
    if shared.nnz == n_raters**2:  # everybody shares an item with everybody
        n_components, components = 1, np.zeros(n_raters, int)
    else:
        from scipy.sparse.csgraph import connected_components  # its import takes long

        n_components, components = connected_components(shared, directed=False)
    # A solution of the singular, consistent system; which one does not matter, since biases are centred afterwards
    if n_raters <= _DENSE_RATERS:
        biases = np.linalg.lstsq(laplacian.toarray(), deviations, rcond=None)[0]
    else:
        from scipy.sparse.linalg import cg

        biases, failed = cg(laplacian, deviations, rtol=1e-10, maxiter=100 * n_raters)
        if failed:
            raise ArithmeticError(f"rater biases: conjugate gradients did not converge for {n_raters} raters")
    sizes = np.bincount(components[raters])
    # In each component by itself: between components nothing says how severe a rater is
    biases -= (np.bincount(components[raters], weights=biases[raters]) / sizes)[components]
    corrected = scores - biases[raters]
    quality = np.bincount(items, weights=corrected, minlength=n_items) / divisor
    return RaterModel(np.where(table.counts > 0, quality, np.nan), biases, n_components, corrected - quality[items])


class VarianceComponents(NamedTuple):
    """Variances of items and of their ratings, in squared rating points."""

    between: float  # variance of the items' true means; may come out negative
    within: float  # variance of the ratings of one item, with the biases of raters in it


def variance_components(table: RatingTable) -> VarianceComponents | None:
    """One-way random-effects analysis of variance of unbalanced data, by the method of moments (Searle, Casella and
    McCulloch, 1992, chapter 3).

    Items with one rating tell about `between` only, items without any are left out.

    Returns:
        None where no item has two raters, or only one item was rated: then the two cannot be separated.
    """
    all_means = table.means
    rated = table.counts > 0
    counts, means = table.counts[rated].astype(np.float64), all_means[rated]
    n_items, n_ratings = len(counts), len(table.scores)
    if n_items < 2 or n_ratings == n_items:
        return None
    # Items with one rating have no deviation, and take no degree of freedom either
    within = np.square(table.scores - all_means[table.items]).sum() / (n_ratings - n_items)
    among = (counts * np.square(means - table.scores.mean())).sum() / (n_items - 1)
    n_raters = (n_ratings - np.square(counts).sum() / n_ratings) / (n_items - 1)  # in a balanced panel their number
    return VarianceComponents(float((among - within) / n_raters), float(within))


def item_weights(table: RatingTable) -> tuple[np.ndarray, str | None]:
    """Weights by the reliability of a mean of n raters, ``between / (between + within / n)`` (Shrout and Fleiss, 1979,
    ICC(1, n)): up to a factor, the weights of weighted least squares where nothing is known about the items.

    A judge that explains much of `between` leaves less of it unexplained, and the best weights would then differ more:
    these are cautious. The variances are those of the ratings as they were given: a target that takes biases out has a
    smaller error.

    Returns:
        Shape (items,), float64, on average 1 over the rated items, 0 where nobody rated. And why all weights are 1,
        where reliability cannot be estimated: no item has two raters, or raters agree on one item no more than on
        different ones.
    """
    rated = table.counts > 0
    equal = rated.astype(np.float64)
    if not rated.any():
        return equal, None
    variances = variance_components(table)
    if variances is None:
        return equal, "no reliability without an item that has two raters, and another item"
    if variances.between <= 0:
        return equal, "no reliability, the ratings of one item differ as much as those of different items"
    weights = variances.between / (variances.between + variances.within / np.maximum(table.counts, 1)) * equal
    return weights / weights[rated].mean(), None
