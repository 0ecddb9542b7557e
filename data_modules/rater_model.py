"""The additive rater model: score = quality of the item + bias of the rater + noise, with missing ratings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import cg

from .rating_table import RatingTable

_DENSE_RATERS = 500  # beyond, the system of the biases is solved by conjugate gradients


@dataclass(frozen=True, eq=False)
class RaterModel:
    """A fitted model.

    Attributes:
        items: Shape (items,), quality in rating points; NaN where nobody rated.
        biases: Shape (raters,), rating points, positive = gives higher scores. Their mean over the ratings of a
            component is 0, so that the mean of its ratings stays.
        components: Shape (raters,), number of the component a rater is in: raters are linked where they rated the
            same item. Biases of different components cannot be compared: no rating connects them.
        residual: Shape (ratings,), score - item - bias.
    """

    items: np.ndarray
    biases: np.ndarray
    components: np.ndarray
    residual: np.ndarray

    @property
    def n_components(self) -> int:
        """Number of components; 1 = all raters can be compared."""
        return len(np.unique(self.components))


def fit_rater_model(table: RatingTable) -> RaterModel:
    """Least squares over all ratings (the two-way layout without interaction; Searle, 1971, chapter 7).

    A rater with few ratings gets an uncertain bias: nothing is shrunk towards zero.
    """
    items, raters, scores = table.items, table.raters, table.scores
    n_items, n_raters = table.n_items, len(table.rater_ids)
    per_item = table.counts
    divisor = np.maximum(per_item, 1)
    rated = sparse.csr_array((np.ones(len(items)), (items, raters)), shape=(n_items, n_raters))
    # With the items eliminated, the normal equations of the biases are those of a weighted graph of raters.
    shared = rated.T @ sparse.diags_array(1 / divisor) @ rated
    laplacian = sparse.csr_array(sparse.diags_array(np.bincount(raters, minlength=n_raters).astype(float)) - shared)
    item_means = np.bincount(items, weights=scores, minlength=n_items) / divisor
    deviations = np.bincount(raters, weights=scores - item_means[items], minlength=n_raters)
    _, components = connected_components(shared, directed=False)
    biases = _solve(laplacian, deviations)
    size = np.bincount(components[raters])
    biases -= (np.bincount(components[raters], weights=biases[raters]) / size)[components]
    corrected = scores - biases[raters]
    quality = np.bincount(items, weights=corrected, minlength=n_items) / divisor
    return RaterModel(np.where(per_item > 0, quality, np.nan), biases, components, corrected - quality[items])


def _solve(laplacian: sparse.csr_array, deviations: np.ndarray) -> np.ndarray:
    """A solution of the singular, consistent system; which one does not matter, biases are centred afterwards."""
    if len(deviations) <= _DENSE_RATERS:
        return np.linalg.lstsq(laplacian.toarray(), deviations, rcond=None)[0]
    solution, failed = cg(laplacian, deviations, rtol=1e-10, maxiter=100 * len(deviations))
    if failed:
        raise ArithmeticError(f"rater biases: conjugate gradients did not converge for {len(deviations)} raters")
    return solution
