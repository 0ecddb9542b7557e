"""Many-facet Rasch model of ratings: items, severities of raters, and thresholds of a common rating scale.

The rating scale model with raters as a facet (Andrich, 1978; Linacre, 1989): with quality b of an item, severity c of
a rater and thresholds t of steps, log(P(step k) / P(step k - 1)) = b - c - t_k, in logits. Severities of each panel of
linked raters and all thresholds have mean 0. A severity that costs a point in the middle of the scale costs less at its
ends, which the additive model (`targets.fit_rater_model`) does not know.

Severities and thresholds are estimated by marginal maximum likelihood with items drawn from a normal distribution
(Bock and Aitkin, 1981), as TAM does: unlike joint maximum likelihood, which Facets has, it does not stretch the scale
where an item has few ratings. Then items are estimated given these by Warm's (1989) weighted likelihood, which does not
shrink them towards their mean and is finite for an item that all raters gave the lowest or the highest score. Standard
errors of severities come from the observed information (Louis, 1982), given thresholds and distribution; items and
thresholds have none.

**Infit** is the variance of residuals over what the model expects, **outfit** the mean of squared standardised
residuals (Wright and Masters, 1982, chapter 5): 1 = as the model, above 1 more noise, below 1 less. Squared
residuals are divided by the share of residuals that are free, so that their mean is 1 even where an item has few
ratings; Facets does not do this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from .errors import DataError, shown
from .ratings import Dimension, RatingTable

_ROUNDS = 3000
_CLOSE = 1e-4  # logits: converged when no estimate changes by more in a round (TAM: 1e-4)
_FURTHEST = 1.0  # logits that an estimate moves in a round, at most
_NODES = 31  # of the quadrature over the distribution of items
_ENDS = 0.3  # of a score: totals of raters with only lowest or highest scores move inwards by it (as in Facets)


@dataclass(frozen=True, eq=False)
class RaschModel:
    """A fitted model, in logits."""

    items: np.ndarray  # quality `(items,)`; NaN where nobody rated
    severities: np.ndarray  # `(raters,)`, positive = gives lower scores; their mean is 0
    severity_errors: np.ndarray  # standard errors `(raters,)`
    thresholds: np.ndarray  # from each used score of the scale to the next used one `(steps - 1,)`
    infit: np.ndarray  # `(raters,)`
    outfit: np.ndarray  # `(raters,)`
    fair_means: np.ndarray  # what a rater of mean severity would give ("fair average") `(items,)`, rating points


def fit_rasch(table: RatingTable, dimension: Dimension) -> RaschModel:
    """Fit the model to the ratings of a dimension.

    Scores of the scale that nobody gave are left out, as Facets does: they have no threshold.

    Raises:
        DataError: If the scale has no steps, fewer than two of its scores were given, no item has two ratings, the
            raters fall into panels without a common item, so that their severities cannot be compared, or there are
            too few ratings to converge.
    """
    if dimension.step is None:
        raise DataError(f"dimension {dimension.name}: a Rasch model needs a scale with steps; it has {dimension.scale}")
    steps = np.rint((table.scores - dimension.minimum) / dimension.step).astype(np.intp)
    used_steps, step_indices = np.unique(steps, return_inverse=True)
    if len(used_steps) < 2 or table.counts.max(initial=0) < 2:
        raise DataError(
            f"dimension {dimension.name}: a Rasch model needs two different scores and an item with two ratings"
        )
    _check_linked(table, dimension)
    fit = _Fit(table, step_indices, len(used_steps))
    fit.severities_and_thresholds()
    fit.weighted_items()
    return fit.model(dimension.minimum + dimension.step * used_steps.astype(np.float64))


def _check_linked(table: RatingTable, dimension: Dimension) -> None:
    """Refuses raters that no chain of common items connects."""
    rated = sparse.csr_array((np.ones(len(table.items)), (table.items, table.raters)))
    count, panel = connected_components(rated.T @ rated, directed=False)
    if count > 1:
        first, second = (table.rater_ids[int(np.flatnonzero(panel == number)[0])] for number in (0, 1))
        raise DataError(
            f"dimension {dimension.name}: the raters fall into {count} panels without a common item, such as those of "
            f"{shown(first)} and {shown(second)}; severities cannot be compared: expected some items that both rate"
        )


class _Fit:
    """Estimates, fitted step by step. `given` is the step of each rating, counted from 0."""

    def __init__(self, table: RatingTable, given: np.ndarray, n_steps: int) -> None:
        self.table, self.given = table, given
        self.steps = np.arange(n_steps)
        self.items = np.zeros(table.n_items)
        self.severities = np.zeros(len(table.rater_ids))
        self.severity_errors = np.zeros(len(table.rater_ids))
        self.thresholds = np.zeros(n_steps - 1)

    def probabilities(self, quality: np.ndarray) -> np.ndarray:
        """Probability of each step `(..., steps)` for quality less severity `(...)`."""
        logits = self.steps * quality[..., None] - np.append(0.0, np.cumsum(self.thresholds))
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True)

    def moments(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected step and its variance from probabilities `(..., steps)`."""
        mean = p @ self.steps
        return mean, np.maximum(p @ self.steps**2 - mean**2, 1e-12)

    def sums(self, facet: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
        return np.bincount(facet, weights=values, minlength=size)

    def severities_and_thresholds(self) -> None:
        """Marginal maximum likelihood by EM. The E-step finds how likely each quality of an item is, the M-step is a
        Newton step.

        Raises:
            DataError: If it does not converge.
        """
        table, top, n_raters = self.table, self.steps[-1], len(self.severities)
        ones = np.ones(len(self.given))
        of_item = sparse.csr_array((ones, (table.items, np.arange(len(ones)))), (table.n_items, len(ones)))
        of_rater = sparse.csr_array((ones, (table.raters, table.items)), (n_raters, table.n_items))
        rated = table.counts > 0
        # A rater who only gave an end of the scale has no finite estimate
        totals = np.clip(self.sums(table.raters, self.given, n_raters), _ENDS, top * of_rater.sum(axis=1) - _ENDS)
        step_counts = np.bincount(self.given)
        nodes, density = np.polynomial.hermite_e.hermegauss(_NODES)
        centre, spread = 0.0, 1.0
        for _ in range(_ROUNDS):
            before = np.concatenate([self.severities, self.thresholds, [centre, spread]])
            quality = centre + spread * nodes
            p = self.probabilities(quality - self.severities[:, None])  # (raters, nodes, steps)
            log_posterior = of_item @ np.log(np.maximum(p, 1e-300))[table.raters, :, self.given] + np.log(density)
            weights = np.exp(log_posterior - log_posterior.max(axis=1, keepdims=True)) * rated[:, None]
            weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)  # (items, nodes)
            counts = of_rater @ weights  # (raters, nodes)
            mean, variance = self.moments(p)
            update = ((counts * mean).sum(axis=1) - totals) / (counts * variance).sum(axis=1)
            self.severities += np.clip(update, -_FURTHEST, _FURTHEST)
            expected = np.einsum("rn,rns->s", counts, p)
            self.thresholds += np.clip(np.diff(np.log(expected) - np.log(step_counts)), -_FURTHEST, _FURTHEST)
            first, second = (weights[rated] @ quality**power for power in (1, 2))
            centre, spread = first.mean(), max(1e-3, float(second.mean() - first.mean() ** 2) ** 0.5)
            centre -= self.severities.mean() + self.thresholds.mean()
            self.severities -= self.severities.mean()
            self.thresholds -= self.thresholds.mean()
            after = np.concatenate([self.severities, self.thresholds, [centre, spread]])
            if np.abs(after - before).max() < _CLOSE:
                self.severity_errors = _severity_errors(of_rater, weights, mean, variance)
                return
        raise DataError(
            f"a Rasch model of {len(self.given)} ratings does not converge in {_ROUNDS} rounds: too few ratings link "
            "the raters, or too few have some of the scores; expected more of them, or another target"
        )

    def weighted_items(self) -> None:
        """Warm's estimates of the items, given severities and thresholds."""
        table, n = self.table, self.table.n_items
        totals = self.sums(table.items, self.given.astype(float), n)
        for _ in range(_ROUNDS):
            p = self.probabilities(self.items[table.items] - self.severities[table.raters])
            mean, variance = self.moments(p)
            third_moment = (p * (self.steps - mean[:, None]) ** 3).sum(axis=1)
            information = np.maximum(self.sums(table.items, variance, n), 1e-9)
            bias = self.sums(table.items, third_moment, n) / (2 * information)
            update = (totals - self.sums(table.items, mean, n) + bias) / information
            update = np.clip(update, -_FURTHEST / 2, _FURTHEST / 2)
            self.items += update
            if np.abs(update).max() < _CLOSE:
                return

    def model(self, scores: np.ndarray) -> RaschModel:
        """The fitted model, as it is reported; `scores` are the used ones of the scale `(steps,)`, rising."""
        table, rated = self.table, self.table.counts > 0
        p = self.probabilities(self.items[table.items] - self.severities[table.raters])
        mean, variance = self.moments(p)
        # Free residuals: ratings less parameters. Without this correction the mean fit of few raters is below 1
        free_share = 1 - (int(rated.sum()) + len(self.severities) + len(self.thresholds) - 2) / len(self.given)
        squared_residuals = (self.given - mean) ** 2 / max(free_share, 1 / len(self.given))
        n_raters = len(table.rater_ids)
        information = self.sums(table.raters, variance, n_raters)
        counts = np.bincount(table.raters, minlength=n_raters)
        return RaschModel(
            np.where(rated, self.items, np.nan),
            self.severities,
            self.severity_errors,
            self.thresholds,
            self.sums(table.raters, squared_residuals, n_raters) / information,
            self.sums(table.raters, squared_residuals / variance, n_raters) / counts,
            np.where(rated, self.probabilities(self.items) @ scores, np.nan),
        )


def _severity_errors(
    of_rater: sparse.csr_array, weights: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> np.ndarray:
    """Standard errors of severities whose mean is 0: the information that there would be if the quality of the items
    were known, less what is lost because it is not (Louis, 1982).

    Args:
        of_rater: 1 where a rater rated an item, (raters, items).
        weights: How likely each quality of an item is, given its ratings, (items, nodes).
        mean: Expected step of each rater at each quality, (raters, nodes).
        variance: Variance of the step, likewise.
    """
    means = of_rater.multiply((weights @ mean.T).T)
    lost = -(means @ means.T).toarray()
    for node, node_weights in enumerate(weights.T):
        lost += np.outer(mean[:, node], mean[:, node]) * (of_rater.multiply(node_weights) @ of_rater.T).toarray()
    information = np.diag((of_rater @ weights * variance).sum(axis=1)) - lost
    information -= information.mean(axis=0)
    information -= information.mean(axis=1, keepdims=True)
    return np.sqrt(np.maximum(np.diag(np.linalg.pinv(information, hermitian=True)), 0.0))
