"""Losses between a predicted distribution over the steps of a scale and how the raters spread."""

from __future__ import annotations

import torch
from torch import Tensor

from .masking import entry_weights, weighted_mean


def histogram_cross_entropy(log_probabilities: Tensor, counts: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy between the raters' histogram and the predicted distribution.

    Args:
        log_probabilities: `(batch, dimensions, steps)`; may be minus infinity where no rater is.
        counts: How many raters gave each score, `(batch, dimensions, steps)`; all 0 where nobody rated.
        mask: `(batch, dimensions)`, weight of each entry or True; entries without raters never count.

    Returns:
        The weighted mean over entries in nats, a scalar; 0 with a gradient of 0 if nothing was rated.

    Raises:
        ValueError: If the shapes differ.
    """
    shares, raters = _shares(counts, log_probabilities)
    weights = entry_weights(mask, log_probabilities[..., 0]) * (raters > 0)
    # not read where no rater is: 0 times infinity is NaN
    unread = (shares == 0) | (weights == 0)[..., None]
    return weighted_mean(-(shares * log_probabilities.masked_fill(unread, 0)).sum(-1), weights)


def squared_emd(log_probabilities: Tensor, counts: Tensor, mask: Tensor, exists: Tensor) -> Tensor:
    """Squared earth mover's distance between the raters' histogram and the prediction (Hou, Yu & Samaras, 2016).

    The mean over steps of the squared difference of the cumulative distributions. A near miss costs less than a far
    one, which cross-entropy does not know.

    Args:
        log_probabilities: `(batch, dimensions, steps)`; not read where the scale has no such step.
        counts: How many raters gave each score, the lowest first, `(batch, dimensions, steps)`.
        mask: `(batch, dimensions)`, weight of each entry or True; entries without raters never count.
        exists: Which steps a scale has, the first ones, `(dimensions, steps)`, bool.

    Returns:
        The weighted mean over entries, a scalar from 0 to 1; 0 with a gradient of 0 if nothing was rated.

    Raises:
        ValueError: If the shapes differ.
    """
    shares, raters = _shares(counts, log_probabilities)
    if exists.shape != counts.shape[1:]:
        raise ValueError(f"steps {tuple(exists.shape)} for counts {tuple(counts.shape)}; accepted: (dimensions, steps)")
    probabilities = log_probabilities.masked_fill(~exists, -torch.inf).exp()
    # both have reached 1 where the scale ends: steps that it does not have add nothing
    squares = (probabilities - shares).cumsum(-1).square()
    distance = squares.sum(-1) / exists.sum(-1).clamp(min=1)
    return weighted_mean(distance, entry_weights(mask, distance) * (raters > 0))


def _shares(counts: Tensor, log_probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Share of the raters at each step, 0 where nobody rated, and how many raters there are `(batch, dimensions)`."""
    if counts.shape != log_probabilities.shape:
        raise ValueError(
            f"counts {tuple(counts.shape)} for probabilities {tuple(log_probabilities.shape)}; accepted: the same shape"
        )
    raters = counts.sum(-1)
    return counts.to(log_probabilities.dtype) / raters.clamp(min=1)[..., None], raters
