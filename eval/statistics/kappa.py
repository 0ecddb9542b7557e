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

import math
from typing import Literal, get_args

import numpy as np

from .agreement import MIN_ITEMS, is_constant

Weights = Literal["linear", "quadratic"]

KappaDistance = Literal["scores", "ranks"]
KAPPA_DISTANCES: tuple[KappaDistance, ...] = get_args(KappaDistance)


def weighted_kappa(score: np.ndarray, human: np.ndarray, weights: Weights, distance: KappaDistance) -> float:
    """Weighted kappa of two raters.

    Args:
        score: Shape (n,), rating points, whole or fractional, finite.
        human: Shape (n,), rating points of the same items.
        weights: How a distance counts.
        distance: What is far apart.

    Returns:
        NaN under the rules of correlations (`agreement`): fewer than 3 items or a constant side (kappa would be 0
        whatever the other side says, or 0/0).
    """
    if len(score) < MIN_ITEMS or is_constant(score) or is_constant(human):
        return math.nan
    positions, codes = np.unique(np.concatenate([score, human]), return_inverse=True)
    if distance == "ranks":
        positions = np.arange(len(positions), dtype=np.float64)
    first, second = positions[codes[: len(score)]], positions[codes[len(score) :]]
    if weights == "quadratic":
        by_chance = first.var() + second.var() + (first.mean() - second.mean()) ** 2
        return float(1 - ((first - second) ** 2).mean() / by_chance)
    # Each step between neighbouring categories counts where one side lies below it and the other above
    below = [np.cumsum(np.bincount(own, minlength=len(positions)))[:-1] / len(score) for own in np.split(codes, 2)]
    by_chance = np.diff(positions) @ (below[0] * (1 - below[1]) + below[1] * (1 - below[0]))
    return float(1 - np.abs(first - second).mean() / by_chance)
