"""Losses on the order of the items in a batch: level and spread of the predictions stay open.

Memory grows with the square of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .masking import counted, weighted_mean

_SMALLEST = 1e-4
"""Variance of soft ranks as a share of the items, below which their correlation tends to 0.

It bounds the gradient where predictions are almost equal. Average ranks that differ at all have more in batches of up
to 2498 items."""


def margin_ranking(
    prediction: Tensor,
    target: Tensor,
    mask: Tensor,
    groups: Tensor | None = None,
    margin: float = 0.05,
    tie: float = 0.0,
) -> Tensor:
    """Hinge on pairs of items: the better one must lead by `margin` (Herbrich, Graepel & Obermayer, 2000).

    Args:
        prediction: `(batch, dimensions)`, units of the scale.
        target: `(batch, dimensions)`, units of the scale; not read where the mask is 0 (may be NaN).
        mask: `(batch, dimensions)`, weight of each entry or True where people rated; a pair weighs the product.
        groups: `(batch,)`, int64: only items of one group are compared, and none of a negative group. None: all are.
        margin: Units of the scale.
        tie: Pairs whose targets differ by no more than this (units of the scale) do not count.

    Returns:
        The weighted mean over pairs and dimensions, a scalar; 0 with a gradient of 0 if no pair counts.

    Raises:
        ValueError: If the shapes differ.
    """
    lead, rated_lead, weights = _pairs(prediction, target, mask, groups)
    hinge = functional.relu(margin - rated_lead.sign() * lead)
    return weighted_mean(hinge, weights * (rated_lead.abs() > tie))


def logistic_ranking(
    prediction: Tensor,
    target: Tensor,
    mask: Tensor,
    groups: Tensor | None = None,
    temperature: float = 0.1,
    tie: float = 0.0,
) -> Tensor:
    """RankNet: cross-entropy of which item of a pair is better (Burges et al., 2005).

    The first is better with probability sigmoid(difference of the predictions / temperature).

    Args:
        prediction: `(batch, dimensions)`, units of the scale.
        target: `(batch, dimensions)`, units of the scale; not read where the mask is 0 (may be NaN).
        mask: `(batch, dimensions)`, weight of each entry or True where people rated; a pair weighs the product.
        groups: `(batch,)`, int64: only items of one group are compared, and none of a negative group. None: all are.
        temperature: Above 0, units of the scale.
        tie: Pairs whose targets differ by no more than this (units of the scale) are ties: half a win for each.

    Returns:
        The weighted mean over pairs and dimensions in nats, a scalar; 0 with a gradient of 0 if no pair counts.

    Raises:
        ValueError: If the shapes differ.
    """
    lead, rated_lead, weights = _pairs(prediction, target, mask, groups)
    wins = (1 + rated_lead.sign().masked_fill(rated_lead.abs() <= tie, 0)) / 2
    entropy = functional.binary_cross_entropy_with_logits(lead / temperature, wins, reduction="none")
    return weighted_mean(entropy, weights)


def soft_spearman(prediction: Tensor, target: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """One minus the Pearson correlation between soft ranks of the predictions and the ranks of the targets.

    The soft rank of an item is 1/2 plus the sum over all items j, itself too, of sigmoid((x - x_j) / temperature)
    (Qin, Liu & Li, 2010). With a falling temperature it becomes the average rank, and the loss one minus Spearman's.

    Args:
        prediction: `(batch, dimensions)`, units of the scale.
        target: `(batch, dimensions)`, units of the scale; not read where the mask is 0 (may be NaN).
        mask: `(batch, dimensions)`, above 0 or True where people rated; all that count weigh the same.
        temperature: Above 0, units of the scale.

    Returns:
        The mean over the dimensions in which at least two items count and their targets are not all equal, a scalar
        from 0 to 2; 0 with a gradient of 0 if there is none. A dimension with constant predictions is at 1.

    Raises:
        ValueError: If the shapes differ.
    """
    target, weights = counted(prediction, target, mask)
    counts = (weights > 0).to(prediction.dtype)
    soft = _centred(_ranks(torch.sigmoid(_differences(prediction) / temperature), counts), counts)
    ranks = _centred(_ranks((1 + _differences(target).sign()) / 2, counts), counts)
    smallest = _SMALLEST * counts.sum(0).clamp(min=1) ** 3
    spreads = soft.square().sum(0).clamp(min=smallest), ranks.square().sum(0)
    varied = spreads[1] > 0.25  # two unequal items have 0.5, which is the least; equal ones exactly 0
    correlation = (soft * ranks).sum(0) / (spreads[0] * spreads[1].masked_fill(~varied, 1)).sqrt()
    return weighted_mean(1 - correlation, varied.to(prediction.dtype))


def _pairs(prediction: Tensor, target: Tensor, mask: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """By how much the first item of each pair leads in predictions and targets, and weights: `(pairs, dimensions)`."""
    target, weights = counted(prediction, target, mask)
    first, second = torch.triu_indices(len(prediction), len(prediction), 1, device=prediction.device)
    products = weights[first] * weights[second]
    if groups is not None:
        if groups.shape != prediction.shape[:1]:
            raise ValueError(f"groups {tuple(groups.shape)} for {len(prediction)} items; accepted: one per item")
        comparable = (groups[first] == groups[second]) & (groups[first] >= 0)
        products = products * comparable[:, None]
    return prediction[first] - prediction[second], target[first] - target[second], products


def _differences(values: Tensor) -> Tensor:
    """Of all items from all items, `(batch, batch, dimensions)`."""
    return values[:, None] - values[None]


def _ranks(above: Tensor, counts: Tensor) -> Tensor:
    """Ranks `(batch, dimensions)` from how surely the first item is above the second `(batch, batch, dimensions)`."""
    return 0.5 + (above * counts[None]).sum(1)


def _centred(ranks: Tensor, counts: Tensor) -> Tensor:
    """Ranks less their mean, 0 where an item does not count."""
    return (ranks - (ranks * counts).sum(0) / counts.sum(0).clamp(min=1)) * counts
