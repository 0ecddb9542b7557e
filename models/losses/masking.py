"""What counts: weights out of masks, targets that may be missing, and means that may be empty."""

from __future__ import annotations

from torch import Tensor


def entry_weights(mask: Tensor, like: Tensor) -> Tensor:
    """The mask as weights, in the dtype of `like`.

    Raises:
        ValueError: If the shapes differ.
    """
    if mask.shape != like.shape:
        raise ValueError(f"mask {tuple(mask.shape)} for values {tuple(like.shape)}; accepted: the same shape")
    return mask.to(like.dtype)


def counted(prediction: Tensor, target: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Target and weights, both in the shape and dtype of the prediction.

    Targets that do not count become 0. Multiplying them with a weight of 0 would not do: 0 times NaN is NaN.

    Raises:
        ValueError: If the shapes differ.
    """
    if target.shape != prediction.shape:
        raise ValueError(
            f"target {tuple(target.shape)} for predictions {tuple(prediction.shape)}; accepted: the same shape"
        )
    weights = entry_weights(mask, prediction)
    return target.to(prediction.dtype).masked_fill(weights == 0, 0), weights


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean of finite `values` with `weights` of the same shape: a scalar, 0 where all weights are 0."""
    total = weights.sum()
    return (values * weights).sum() / total.masked_fill(total == 0, 1)
