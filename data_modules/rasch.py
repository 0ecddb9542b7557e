"""Many-facet Rasch model of ratings: items, severities of raters, and thresholds of a common rating scale.

The rating scale model with raters as a facet (Andrich, 1978; Linacre, 1989): with quality b of an item, severity c of
a rater and thresholds t of steps, log(P(step k) / P(step k - 1)) = b - c - t_k, in logits. Severities of each panel of
linked raters and all thresholds have mean 0. A severity that costs a point in the middle of the scale costs less at its
ends, which the additive model (`targets.fit_rater_model`) does not know.

Severities and thresholds are estimated by marginal maximum likelihood with items drawn from a normal distribution
(Bock and Aitkin, 1981), as TAM does: unlike joint maximum likelihood, which Facets has, it does not stretch the scale
where an item has few ratings. Then items are estimated given these by Warm's (1989) weighted likelihood, which does not
draw them together and has an answer for an item that all raters gave the lowest or the highest score. Standard errors
of severities are those of the observed information (Louis, 1982) given thresholds and distribution; those of items and
of thresholds are given all else, and too short for thresholds.

**Infit** is the variance of residuals over what the model expects, **outfit** the mean of squared standardised
residuals (Wright and Masters, 1982, chapter 5): 1 = as the model, above 1 more noise, below 1 less. Residuals are taken
over the share of them that is free, so that their mean is 1 with few ratings of an item, too; Facets leaves that out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from .errors import DataError, shown
from .ratings import Dimension, RatingTable

_ROUNDS = 3000
_CLOSE = 1e-4  # logits, of the largest change in a round (TAM: 1e-4)
_FURTHEST = 1.0  # logits that an estimate moves in a round, at most
_NODES = 31  # of the quadrature over the distribution of items
_ENDS = 0.3  # of a score, by which a rater with only lowest or only highest ones is moved inside (as in Facets)


@dataclass(frozen=True, eq=False)
class RaschModel:
    """A fitted model, in logits.

    Attributes:
        items: Shape (items,), quality; NaN where nobody rated.
        item_errors: Shape (items,), standard errors.
        severities: Shape (raters,), positive = gives lower scores; their mean is 0.
        severity_errors: Shape (raters,).
        thresholds: Shape (steps - 1,), from each used score of the scale to the next used one.
        threshold_errors: Shape (steps - 1,).
        scores: Shape (steps,), the used scores of the scale, rating points, rising.
        infit: Shape (raters,), of each rater.
        outfit: Shape (raters,).
        fair_means: Shape (items,), rating points: what a rater of mean severity would give ("fair average").
    """

    items: np.ndarray
    item_errors: np.ndarray
    severities: np.ndarray
    severity_errors: np.ndarray
    thresholds: np.ndarray
    threshold_errors: np.ndarray
    scores: np.ndarray
    infit: np.ndarray
    outfit: np.ndarray
    fair_means: np.ndarray


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
    _check_linked(table, dimension)
    steps = np.rint((table.scores - dimension.minimum) / dimension.step).astype(np.intp)
    used, given = np.unique(steps, return_inverse=True)
    if len(used) < 2 or table.counts.max(initial=0) < 2:
        raise DataError(
            f"dimension {dimension.name}: a Rasch model needs two different scores and an item with two ratings"
        )
    fit = _Fit(table, given, len(used))
    fit.severities_and_thresholds()
    fit.weighted_items()
    return fit.model(dimension.minimum + dimension.step * used.astype(np.float64))


def _check_linked(table: RatingTable, dimension: Dimension) -> None:
    """Refuses raters that no chain of common items connects."""
    rated = sparse.csr_array((np.ones(len(table.items)), (table.items, table.raters)))
    count, panel = connected_components(rated.T @ rated, directed=False)
    if count > 1:
        first, second = (table.rater_ids[int(np.flatnonzero(panel == one)[0])] for one in (0, 1))
        raise DataError(
            f"dimension {dimension.name}: the raters fall into {count} panels without a common item, such as those of "
            f"{shown(first)} and {shown(second)}; severities cannot be compared: expected some items that both rate"
        )


class _Fit:
    """Estimates; `given` counts from 0."""

    def __init__(self, table: RatingTable, given: np.ndarray, n_steps: int) -> None:
        self.table, self.given = table, given
        self.steps = np.arange(n_steps)
        self.items = np.zeros(table.n_items)
        self.severities = np.zeros(len(table.rater_ids))
        self.severity_errors = np.zeros(len(table.rater_ids))
        self.thresholds = np.zeros(n_steps - 1)

    def probabilities(self, quality: np.ndarray) -> np.ndarray:
        """Of each step `(..., steps)` for quality less severity `(...)`."""
        power = self.steps * quality[..., None] - np.append(0.0, np.cumsum(self.thresholds))
        p = np.exp(power - power.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True)

    def moments(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected step and its variance from probabilities `(..., steps)`."""
        mean = p @ self.steps
        return mean, np.maximum(p @ self.steps**2 - mean**2, 1e-12)

    def sums(self, facet: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
        return np.bincount(facet, weights=values, minlength=size)

    def severities_and_thresholds(self) -> None:
        """Marginal maximum likelihood by EM: given how likely each quality of an item is, Newton's step.

        Raises:
            DataError: If it does not converge.
        """
        table, top, n = self.table, self.steps[-1], len(self.severities)
        ones = np.ones(len(self.given))
        of_item = sparse.csr_array((ones, (table.items, np.arange(len(ones)))), (table.n_items, len(ones)))
        of_rater = sparse.csr_array((ones, (table.raters, table.items)), (n, table.n_items))
        rated = table.counts > 0
        # A rater who only gave an end of the scale has no finite estimate
        scores = np.clip(self.sums(table.raters, self.given, n), _ENDS, top * of_rater.sum(axis=1) - _ENDS)
        of_step = np.bincount(self.given)
        nodes, density = np.polynomial.hermite_e.hermegauss(_NODES)
        centre, spread = 0.0, 1.0
        for _ in range(_ROUNDS):
            before = np.concatenate([self.severities, self.thresholds, [centre, spread]])
            quality = centre + spread * nodes
            p = self.probabilities(quality - self.severities[:, None])  # (raters, nodes, steps)
            likely = of_item @ np.log(p)[table.raters, :, self.given] + np.log(density)
            weights = np.exp(likely - likely.max(axis=1, keepdims=True)) * rated[:, None]
            weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)  # (items, nodes)
            counts = of_rater @ weights  # (raters, nodes)
            mean, variance = self.moments(p)
            moved = ((counts * mean).sum(axis=1) - scores) / (counts * variance).sum(axis=1)
            self.severities += np.clip(moved, -_FURTHEST, _FURTHEST)
            expected = np.einsum("rn,rns->s", counts, p)
            self.thresholds += np.clip(np.diff(np.log(expected) - np.log(of_step)), -_FURTHEST, _FURTHEST)
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
        got = self.sums(table.items, self.given.astype(float), n)
        for _ in range(_ROUNDS):
            p = self.probabilities(self.items[table.items] - self.severities[table.raters])
            mean, variance = self.moments(p)
            third = (p * (self.steps - mean[:, None]) ** 3).sum(axis=1)
            information = np.maximum(self.sums(table.items, variance, n), 1e-9)
            bias = self.sums(table.items, third, n) / (2 * information)
            moved = np.clip((got - self.sums(table.items, mean, n) + bias) / information, -_FURTHEST / 2, _FURTHEST / 2)
            self.items += moved
            if np.abs(moved).max() < _CLOSE:
                return

    def model(self, scores: np.ndarray) -> RaschModel:
        """What is reported."""
        table, rated = self.table, self.table.counts > 0
        p = self.probabilities(self.items[table.items] - self.severities[table.raters])
        mean, variance = self.moments(p)
        # As many residuals are free as there are ratings less parameters: else the mean fit of few raters is below 1
        free = 1 - (int(rated.sum()) + len(self.severities) + len(self.thresholds) - 2) / len(self.given)
        squared = (self.given - mean) ** 2 / max(free, 1 / len(self.given))
        raters = len(table.rater_ids)
        information = self.sums(table.raters, variance, raters)
        counts = np.bincount(table.raters, minlength=raters)
        with np.errstate(divide="ignore"):
            item_errors = 1 / np.sqrt(self.sums(table.items, variance, table.n_items))
        above = np.cumsum(p[:, ::-1], axis=1)[:, ::-1][:, 1:]
        return RaschModel(
            np.where(rated, self.items, np.nan),
            np.where(rated, item_errors, np.nan),
            self.severities,
            self.severity_errors,
            self.thresholds,
            _threshold_errors(above),
            scores,
            self.sums(table.raters, squared, raters) / information,
            self.sums(table.raters, squared / variance, raters) / counts,
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
        variance: Of the step, likewise.
    """
    means = of_rater.multiply((weights @ mean.T).T)
    lost = -(means @ means.T).toarray()
    for node, likely in enumerate(weights.T):
        lost += np.outer(mean[:, node], mean[:, node]) * (of_rater.multiply(likely) @ of_rater.T).toarray()
    return _errors(np.diag((of_rater @ weights * variance).sum(axis=1)) - lost)


def _threshold_errors(above: np.ndarray) -> np.ndarray:
    """Standard errors of thresholds whose sum is 0, from the probabilities to reach each (ratings, steps - 1)."""
    later = np.maximum.outer(np.arange(above.shape[1]), np.arange(above.shape[1]))
    information = above.sum(axis=0)[later] - above.T @ above  # of the numbers of ratings that reach them
    return _errors(information)


def _errors(information: np.ndarray) -> np.ndarray:
    """Standard errors of estimates whose mean is 0."""
    information = information - information.mean(axis=0)
    information -= information.mean(axis=1, keepdims=True)
    return np.sqrt(np.maximum(np.diag(np.linalg.pinv(information, hermitian=True)), 0.0))
