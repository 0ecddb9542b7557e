"""Cohen's weighted kappa (Cohen, 1968): 1 - observed disagreement / disagreement expected by chance.

Two scores of an item disagree by their distance (linear weights) or its square (quadratic weights). Chance is every
score of one side beside every score of the other. What the distance is, is a convention:

- ``scores``: the difference of the scores. With quadratic weights kappa then equals the concordance correlation
  `agreement.ccc`.
- ``ranks``: the difference of positions in the rising list of the categories that occur on either side. This is what
  scikit-learn's ``cohen_kappa_score`` does without a list of ``labels``. It is the same for whole numbers without
  gaps; a scale point that nobody used, or a fractional score, changes it, and a score far away may count as near.

Scores that differ by rounding only are two categories, so means of ratings need care with ranks.

In a resample the categories are those that occur there: kappa is that of the items repeated so often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from scipy import sparse

from .agreement import Statistic, correlation
from .bootstrap import Resamples, with_interval

Weights = Literal["linear", "quadratic"]

KappaDistance = Literal["scores", "ranks"]
KAPPA_DISTANCES: tuple[KappaDistance, ...] = get_args(KappaDistance)


def weighted_kappa(score: np.ndarray, human: np.ndarray, weights: Weights, distance: KappaDistance) -> Statistic:
    """Weighted kappa of two raters.

    Args:
        score: Shape (n,), rating points, whole or fractional; NaN is dropped with its item and counted.
        human: Shape (n,), rating points of the same items.
        weights: How a distance counts.
        distance: What is far apart.

    Returns:
        Undefined under the rules of correlations (`agreement`): fewer than 3 items, a constant side (kappa would be 0
        whatever the other side says, or 0/0) or an infinite score.
    """
    return correlation(score, human, lambda x, y: float(_kernel(x, y, weights, distance)(np.ones((1, len(x))))[0]))


def kappa_estimate(
    score: np.ndarray, human: np.ndarray, resamples: Resamples, weights: Weights, distance: KappaDistance
) -> Statistic:
    """`weighted_kappa` with its bootstrap interval; `resamples` are draws over the same n items."""
    point = weighted_kappa(score, human, weights, distance)
    if point.value is None or len(resamples.counts) == 0:
        return point
    kept = ~(np.isnan(score) | np.isnan(human))
    seen = resamples.select(kept)
    return with_interval(point, seen.apply(_kernel(score[kept], human[kept], weights, distance)), seen)


def _kernel(
    x: np.ndarray, y: np.ndarray, weights: Weights, distance: KappaDistance
) -> Callable[[np.ndarray], np.ndarray]:
    """Kappa with item i taken times[:, i] times, shape (rows of times,); NaN = a side is constant."""
    n = len(x)
    categories, codes = np.unique(np.concatenate([x, y]), return_inverse=True)
    first, second = codes[:n], codes[n:]
    shape = (n, len(categories))
    one_hot = [sparse.csr_array((np.ones(n), (np.arange(n), own)), shape=shape) for own in (first, second)]
    disagreement = _quadratic if weights == "quadratic" else _linear

    def kappa(times: np.ndarray) -> np.ndarray:
        given = [(own.T @ times.T).T for own in one_hot]  # how often each category, shape (rows, categories)
        positions = categories[None] if distance == "scores" else np.cumsum(given[0] + given[1] > 0, axis=1) - 1.0
        positions = np.broadcast_to(positions, given[0].shape)
        total = times.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = [own / total[:, None] for own in given]
            apart = np.abs(positions[:, first] - positions[:, second])
            if weights == "quadratic":
                apart = apart**2
            observed = (times * apart).sum(axis=1) / total
            value = 1 - observed / disagreement(positions, *shares)
        vary = [(own > 0).sum(axis=1) > 1 for own in given]
        return np.where(vary[0] & vary[1], value, np.nan)

    return kappa


def _quadratic(positions: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Mean squared distance of independent categories with probabilities p and q; all of shape (rows, categories)."""
    mean = ((p + q) / 2 * positions).sum(axis=1, keepdims=True)
    centred = positions - mean
    return ((p + q) * centred**2).sum(axis=1) - 2 * (p * centred).sum(axis=1) * (q * centred).sum(axis=1)


def _linear(positions: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Mean distance: each step between neighbours counts where one category lies below it and the other above."""
    below_p, below_q = np.cumsum(p, axis=1)[:, :-1], np.cumsum(q, axis=1)[:, :-1]
    steps = np.diff(positions, axis=1)
    return (steps * (below_p * (1 - below_q) + below_q * (1 - below_p))).sum(axis=1)
