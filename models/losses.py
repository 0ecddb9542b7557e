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
