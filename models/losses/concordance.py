"""Concordance of a batch: predictions must agree in level and spread, not only in order."""

from __future__ import annotations

from torch import Tensor

from .masking import counted, weighted_mean

_SMALLEST = 1e-6  # of the denominator, squared units of the scale: rounding over less would make any gradient


def ccc(prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """One minus Lin's concordance correlation, 2 cov / (var + var + squared difference of means) (Lin, 1989).

    The moments are taken over the batch, so that it must not be small: of few items the coefficient is noise.

    Args:
        prediction: `(batch, dimensions)`, units of the scale.
        target: `(batch, dimensions)`, units of the scale; not read where the mask is 0 (may be NaN).
        mask: `(batch, dimensions)`, weight of each entry or True where people rated.

    Returns:
        The mean over the dimensions in which at least two items count, a scalar from 0 to 2; 0 with a gradient of 0 if
        there is none. A dimension in which either side is constant is at 1, also where both sides are equal.

    Raises:
        ValueError: If the shapes differ.
    """
    target, weights = counted(prediction, target, mask)
    total = weights.sum(0)
    share = weights / total.masked_fill(total == 0, 1)
    means = (share * prediction).sum(0), (share * target).sum(0)
    predicted, rated = prediction - means[0], target - means[1]
    covariance = (share * predicted * rated).sum(0)
    spread = (share * (predicted.square() + rated.square())).sum(0) + (means[0] - means[1]).square()
    concordance = 2 * covariance / spread.clamp(min=_SMALLEST)
    enough = (weights > 0).sum(0) >= 2
    return weighted_mean(1 - concordance, enough.to(prediction.dtype))
