"""Losses: pure functions of prediction, target and mask."""

from __future__ import annotations

from torch import Tensor


def masked_mse(prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error over the entries where `mask` is True.

    Args:
        prediction: `(batch, dimensions)`.
        target: `(batch, dimensions)`; values where the mask is False are not read (they may be NaN).
        mask: `(batch, dimensions)`, True where people rated.

    Returns:
        A scalar; 0 with a gradient of 0 if nothing in the batch was rated.
    """
    difference = (prediction - target.nan_to_num()) * mask
    return difference.square().sum() / mask.sum().clamp(min=1)


def histogram_cross_entropy(log_probabilities: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy between the raters' histogram and the predicted distribution, averaged over rated entries.

    Args:
        log_probabilities: `(batch, dimensions, steps)`.
        counts: How many raters gave each score `(batch, dimensions, steps)`; all 0 where nobody rated.

    Returns:
        A scalar in nats; 0 with a gradient of 0 if nothing in the batch was rated.
    """
    raters = counts.sum(-1)
    entropy = -(counts * log_probabilities).sum(-1) / raters.clamp(min=1)
    return entropy.sum() / (raters > 0).sum().clamp(min=1)
