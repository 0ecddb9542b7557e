"""Many-facet Rasch model of ratings: items, severities of raters, and thresholds of a common rating scale.

The rating scale model with raters as a facet (Andrich, 1978; Linacre, 1989): with quality b of an item, severity c of
a rater and thresholds t of steps, log(P(step k) / P(step k - 1)) = b - c - t_k, in logits. Severities of each panel of
linked raters and all thresholds have mean 0. A severity that costs a point in the middle of the scale costs less at its
ends, which the additive model (`targets.fit_rater_model`) does not know.

Estimated by joint maximum likelihood, as Facets does. It stretches the scale; severities and thresholds are corrected
by (k - 1) / k for k ratings of an item (Wright and Masters, 1982, chapter 5, the harmonic mean over items here), and
items are estimated anew given these, by Warm's (1989) weighted likelihood: it is less biased and has an answer for
items that all raters gave the lowest or the highest score, too. Thresholds stay 4 to 11 % too far apart in simulated
panels. Standard errors are those of maximum likelihood given the other facets (Linacre, 1989): they ignore that these
are estimated, too.

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
_CLOSE = 1e-3  # logits, of the largest change in a round (Facets: 0.01)
_FURTHEST = 1.0  # logits that an estimate moves in a round, at most
_ENDS = (
    0.3  # of a rating, by which an item or a rater with only lowest or only highest ones is moved inside (as Facets)
)


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
        item_infit: Shape (items,), NaN where nobody rated.
        item_outfit: Shape (items,).
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
    item_infit: np.ndarray
    item_outfit: np.ndarray
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
    fit.run()
    k = 1 / (1 / table.counts[table.shared()]).mean()  # an item with one rating tells nothing of raters
    fit.severities *= (k - 1) / k
    fit.thresholds *= (k - 1) / k
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
    """Newton's steps on one facet at a time."""

    def __init__(self, table: RatingTable, given: np.ndarray, n_steps: int) -> None:
        self.table, self.given = table, given
        self.steps = np.arange(n_steps)
        self.items = np.zeros(table.n_items)
        self.severities = np.zeros(len(table.rater_ids))
        self.thresholds = np.zeros(n_steps - 1)

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probabilities (ratings, steps), expected steps and their variance (ratings,)."""
        quality = self.items[self.table.items] - self.severities[self.table.raters]
        power = self.steps * quality[:, None] - np.append(0.0, np.cumsum(self.thresholds))
        p = np.exp(power - power.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        mean = p @ self.steps
        return p, mean, np.maximum(p @ self.steps**2 - mean**2, 1e-12)

    def sums(self, facet: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
        return np.bincount(facet, weights=values, minlength=size)

    def run(self) -> None:
        """Joint maximum likelihood.

        Raises:
            DataError: If it does not converge.
        """
        table, top = self.table, self.steps[-1]
        facets = ((table.items, self.items, 1.0), (table.raters, self.severities, -1.0))
        # Who only gave, or got, an end of the scale has no finite estimate: a part of these ratings is one step inside
        inside = np.zeros(len(self.given))
        for facet, values, _ in facets:
            counts = np.bincount(facet, minlength=len(values))
            for end in (0, top):
                only = self.sums(facet, (self.given == end).astype(float), len(values)) == counts
                inside = np.maximum(inside, np.where(only[facet], _ENDS / np.maximum(counts, 1)[facet], 0.0))
        neighbour = self.given + np.where(self.given == 0, 1, -1)
        observed = [
            self.sums(facet, self.given + inside * (neighbour - self.given), len(own)) for facet, own, _ in facets
        ]
        of_step = self.sums(self.given, 1 - inside, top + 1) + self.sums(neighbour, inside, top + 1)
        for _ in range(_ROUNDS):
            before = np.concatenate([self.items, self.severities, self.thresholds])
            for (facet, values, sign), own in zip(facets, observed, strict=True):
                _, mean, variance = self.moments()
                information = np.maximum(self.sums(facet, variance, len(values)), 1e-9)
                gained = sign * (own - self.sums(facet, mean, len(values))) / information
                values += np.clip(gained, -_FURTHEST, _FURTHEST)
                if sign < 0:
                    values -= values.mean()
            p, _, _ = self.moments()
            expected = p.sum(axis=0)
            moved = np.diff(np.log(expected) - np.log(of_step))
            self.thresholds += np.clip(moved, -_FURTHEST, _FURTHEST)
            self.thresholds -= self.thresholds.mean()
            after = np.concatenate([self.items, self.severities, self.thresholds])
            if np.abs(after - before).max() < _CLOSE:
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
            p, mean, variance = self.moments()
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
        p, mean, variance = self.moments()
        # As many residuals are free as there are ratings less parameters: else the mean fit of few raters is below 1
        free = 1 - (int(rated.sum()) + len(self.severities) + len(self.thresholds) - 2) / len(self.given)
        squared = (self.given - mean) ** 2 / max(free, 1 / len(self.given))
        fits, errors = [], []
        with np.errstate(divide="ignore", invalid="ignore"):
            for facet, size in ((table.items, table.n_items), (table.raters, len(table.rater_ids))):
                information = self.sums(facet, variance, size)
                counts = np.bincount(facet, minlength=size)
                fits += [self.sums(facet, squared, size) / information]
                fits += [self.sums(facet, squared / variance, size) / counts]
                errors.append(1 / np.sqrt(information))
        above = np.cumsum(p[:, ::-1], axis=1)[:, ::-1][:, 1:]
        power = self.steps * self.items[:, None] - np.append(0.0, np.cumsum(self.thresholds))
        fair = np.exp(power - power.max(axis=1, keepdims=True))
        return RaschModel(
            np.where(rated, self.items, np.nan),
            np.where(rated, errors[0], np.nan),
            self.severities,
            errors[1],
            self.thresholds,
            _threshold_errors(above),
            scores,
            fits[2],
            fits[3],
            np.where(rated, fits[0], np.nan),
            np.where(rated, fits[1], np.nan),
            np.where(rated, fair @ scores / fair.sum(axis=1), np.nan),
        )


def _threshold_errors(above: np.ndarray) -> np.ndarray:
    """Standard errors of thresholds whose sum is 0, from the probabilities to reach each (ratings, steps - 1)."""
    later = np.maximum.outer(np.arange(above.shape[1]), np.arange(above.shape[1]))
    information = above.sum(axis=0)[later] - above.T @ above  # of the numbers of ratings that reach them
    information -= information.mean(axis=0)
    information -= information.mean(axis=1, keepdims=True)
    return np.sqrt(np.maximum(np.diag(np.linalg.pinv(information, hermitian=True)), 0.0))
