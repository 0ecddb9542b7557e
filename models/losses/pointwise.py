"""Losses that compare each prediction with its own target."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from .masking import counted, weighted_mean


def mse(prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Squared error.

    Args:
        prediction: `(batch, dimensions)`, units of the scale.
        target: `(batch, dimensions)`, units of the scale; not read where the mask is 0 (may be NaN).
        mask: `(batch, dimensions)`, weight of each entry or True where people rated.

    Returns:
        The weighted mean over rated entries, a scalar; 0 with a gradient of 0 if nothing was rated.

    Raises:
        ValueError: If the shapes differ.
    """
    target, weights = counted(prediction, target, mask)
    return weighted_mean((prediction - target).square(), weights)


def huber(prediction: Tensor, target: Tensor, mask: Tensor, delta: float) -> Tensor:
    """Half the squared error up to an error of `delta`, straight beyond (Huber, 1964): outliers pull less.

    Args:
        prediction: `(batch, dimensions)`, units of the scale.
        target: `(batch, dimensions)`, units of the scale; not read where the mask is 0 (may be NaN).
        mask: `(batch, dimensions)`, weight of each entry or True where people rated.
        delta: Above 0, units of the scale.

    Returns:
        The weighted mean over rated entries, a scalar; 0 with a gradient of 0 if nothing was rated.

    Raises:
        ValueError: If the shapes differ.
    """
    target, weights = counted(prediction, target, mask)
    return weighted_mean(functional.huber_loss(prediction, target, reduction="none", delta=delta), weights)


def gaussian_nll(mean: Tensor, variance: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Negative log likelihood under a normal distribution without its constant: (log v + (y - m)^2 / v) / 2.

    Learns how uncertain each prediction is together with the prediction (Nix & Weigend, 1994): a large variance excuses
    a large error, so that a mean that begins badly learns slowly (Seitzer et al., 2022); see `faithful_nll`.

    Args:
        mean: `(batch, dimensions)`, units of the scale.
        variance: `(batch, dimensions)`, above 0 also where nobody rated, squared units of the scale.
        target: `(batch, dimensions)`, units of the scale; not read where the mask is 0 (may be NaN).
        mask: `(batch, dimensions)`, weight of each entry or True where people rated.

    Returns:
        The weighted mean over rated entries in nats, a scalar; 0 with a gradient of 0 if nothing was rated. It falls
        below 0 where the variance is small.

    Raises:
        ValueError: If the shapes differ.
    """
    if variance.shape != mean.shape:
        raise ValueError(f"variance {tuple(variance.shape)} for means {tuple(mean.shape)}; accepted: the same shape")
    target, weights = counted(mean, target, mask)
    return weighted_mean(0.5 * (variance.log() + (target - mean).square() / variance), weights)


def faithful_nll(mean: Tensor, variance: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Half the squared error of the mean, and `gaussian_nll` of the variance around that mean (Stirn et al., 2023).

    The mean learns as it would from the squared error alone; no gradient of the likelihood reaches it.

    Args:
        mean: `(batch, dimensions)`, units of the scale.
        variance: `(batch, dimensions)`, above 0 also where nobody rated, squared units of the scale.
        target: `(batch, dimensions)`, units of the scale; not read where the mask is 0 (may be NaN).
        mask: `(batch, dimensions)`, weight of each entry or True where people rated.

    Returns:
        The weighted mean over rated entries, a scalar; 0 with a gradient of 0 if nothing was rated.

    Raises:
        ValueError: If the shapes differ.
    """
    return 0.5 * mse(mean, target, mask) + gaussian_nll(mean.detach(), variance, target, mask)
