"""Losses: pure functions `(prediction, target, mask, ...) -> scalar`.

What holds for all of them:

- Predictions and targets are `(batch, dimensions)` in units of the scale: 0 is its lowest score, 1 its highest. The
  caller normalises.
- `mask` has the same shape: a weight of at least 0 for every entry, or True where people rated. Targets where it is 0
  may be NaN: they are never read.
- The result is the mean with these weights over all entries that count. If none counts it is 0 with a gradient of 0,
  still part of the graph.
- The result has the dtype of the prediction: call them in float32, outside autocast.
- Shapes that differ raise a `ValueError`: broadcasting would give a number and no error.

Losses over the steps of a scale take `counts`, how many raters gave each score, the lowest first `(batch, dimensions,
steps)`, and `exists`, which steps a scale has `(dimensions, steps)`, bool. A shorter scale has the first of the steps;
what a model predicts for the others is not read. Entries without raters never count.

Memory of `soft_spearman` grows with the square of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

_LEAST_SPREAD = 1e-6
"""Least denominator of `ccc`, squared units of the scale: below it the gradient would be rounding error."""
_LEAST_RANK_VARIANCE = 1e-4
"""Variance of soft ranks, divided by the number of items, below which their correlation tends to 0.

It bounds the gradient where predictions are almost equal. Average ranks that differ at all have more in batches of up
to 2498 items."""


# Each prediction with its own target


def mse(prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Squared error."""
    target, weights = _counted(prediction, target, mask)
    return _weighted_mean((prediction - target).square(), weights)


def gaussian_nll(mean: Tensor, variance: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Negative log likelihood under a normal distribution without its constant: (log v + (y - m)^2 / v) / 2, in nats
    (Nix & Weigend, 1994).

    A large variance excuses a large error, so that a mean that starts badly learns slowly (Seitzer et al., 2022); see
    `faithful_nll`. The variance has the shape of the mean, in squared units of the scale, and is above 0 also where
    nobody rated.
    """
    _check("variance", variance.shape, mean.shape)
    target, weights = _counted(mean, target, mask)
    return _weighted_mean(0.5 * (variance.log() + (target - mean).square() / variance), weights)


def faithful_nll(mean: Tensor, variance: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Half the squared error of the mean, and `gaussian_nll` of the variance around that mean (Stirn et al., 2023): the
    mean learns as it would from the squared error alone."""
    return 0.5 * mse(mean, target, mask) + gaussian_nll(mean.detach(), variance, target, mask)


# Level, spread and order over the batch


def ccc(prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """One minus Lin's concordance correlation, 2 cov / (var + var + squared difference of means) (Lin, 1989).

    The moments are taken over the batch, so that it must not be small: the coefficient of few items is noise. The
    result is the mean over the dimensions in which at least two items count, from 0 to 2. A dimension in which either
    side is constant is at 1, also where both sides are equal.
    """
    target, weights = _counted(prediction, target, mask)
    total = weights.sum(0)
    # Where nothing counts all weights are 0, and so are the moments: no 0 / 0, whose gradient is NaN
    normalised = weights / total.masked_fill(total == 0, 1)
    means = (normalised * prediction).sum(0), (normalised * target).sum(0)
    predicted, rated = prediction - means[0], target - means[1]
    covariance = (normalised * predicted * rated).sum(0)
    spread = (normalised * (predicted.square() + rated.square())).sum(0) + (means[0] - means[1]).square()
    concordance = 2 * covariance / spread.clamp(min=_LEAST_SPREAD)
    enough = (weights > 0).sum(0) >= 2
    return _weighted_mean(1 - concordance, enough.to(prediction.dtype))


def soft_spearman(prediction: Tensor, target: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """One minus the Pearson correlation between soft ranks of the predictions and the ranks of the targets.

    The soft rank of an item is 1/2 plus the sum over all items j, itself too, of sigmoid((x - x_j) / temperature)
    (Qin, Liu & Li, 2010). With a falling temperature (above 0, units of the scale) it becomes the average rank, and the
    loss one minus Spearman's. All entries that count weigh the same. The result is the mean over the dimensions in
    which at least two items count and their targets are not all equal, from 0 to 2. A dimension with constant
    predictions is at 1.
    """
    target, weights = _counted(prediction, target, mask)
    counts = (weights > 0).to(prediction.dtype)

    def centred_ranks(above: Tensor) -> Tensor:  # from how surely one item is above another (batch, batch, dimensions)
        ranks = 0.5 + (above * counts[None]).sum(1)
        return (ranks - (ranks * counts).sum(0) / counts.sum(0).clamp(min=1)) * counts

    soft = centred_ranks(torch.sigmoid((prediction[:, None] - prediction[None]) / temperature))
    ranks = centred_ranks((1 + (target[:, None] - target[None]).sign()) / 2)
    smallest = _LEAST_RANK_VARIANCE * counts.sum(0).clamp(min=1) ** 3
    spreads = soft.square().sum(0).clamp(min=smallest), ranks.square().sum(0)
    # Two unequal items have 0.5, which is the least; equal ones exactly 0
    varied = spreads[1] > 0.25
    correlation = (soft * ranks).sum(0) / (spreads[0] * spreads[1].masked_fill(~varied, 1)).sqrt()
    return _weighted_mean(1 - correlation, varied.to(prediction.dtype))


# Distributions over the steps of a scale


def corn(logits: Tensor, counts: Tensor, mask: Tensor, exists: Tensor) -> Tensor:
    """Negative log likelihood of a rater's score under conditional thresholds (Shi, Cao & Raschka, 2021), in nats.

    Each threshold counts only the raters who gave more than the step before it, so that the distribution over steps
    that belongs to the logits needs no order among them. `logits` are of P(rating above step k, given that it is above
    step k - 1), `(batch, dimensions, steps - 1)`. The mean over raters is divided by the number of thresholds of the
    scale, so that long scales do not outweigh short ones.
    """
    shape = torch.Size((*logits.shape[:-1], logits.shape[-1] + 1))  # one logit less than steps
    _check("counts", counts.shape, shape)
    _check("steps", exists.shape, shape[1:])
    # Raters above a step went on at its threshold, those at it stayed; those below never came to it
    upwards, thresholds = counts.cumsum(-1).to(logits.dtype), exists[:, 1:]
    raters, above = upwards[..., -1], upwards[..., -1:] - upwards[..., :-1]
    existing = logits.masked_fill(~thresholds, 0)
    at = counts[..., :-1].to(logits.dtype)
    surprise = -(above * logsigmoid(existing) + at * logsigmoid(-existing)) / raters.clamp(min=1)[..., None]
    per_entry = (surprise * thresholds).sum(-1) / thresholds.sum(-1).clamp(min=1)
    return _weighted_mean(per_entry, _entry_weights(mask, per_entry) * (raters > 0))


def histogram_cross_entropy(log_probabilities: Tensor, counts: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy between the raters' histogram and the predicted distribution `(batch, dimensions, steps)`, in nats;
    the latter may be minus infinity where no rater is.
    """
    _check("counts", counts.shape, log_probabilities.shape)
    raters = counts.sum(-1)
    histogram = counts.to(log_probabilities.dtype) / raters.clamp(min=1)[..., None]
    weights = _entry_weights(mask, log_probabilities[..., 0]) * (raters > 0)
    # not read where no rater is: 0 times infinity is NaN
    unread = (histogram == 0) | (weights == 0)[..., None]
    return _weighted_mean(-(histogram * log_probabilities.masked_fill(unread, 0)).sum(-1), weights)


# Preferences: which of two items a person found better


def bradley_terry(
    preferred: Tensor,
    rejected: Tensor,
    strength: Tensor,
    mask: Tensor,
    temperature: float,
) -> Tensor:
    """Negative log likelihood of the preferences: -log sigmoid((preferred - rejected) / temperature), in nats.

    Bradley & Terry (1952). A tie, strength 0, is half a win for each side: the mean of both directions, least where
    both scores are equal. The level of the scores stays open; see `centring`.

    Args:
        preferred: Scores of the preferred items, `(preferences,)` or `(preferences, dimensions)`, units of the scale.
        rejected: Scores of the others; all further arguments have this shape, too.
        strength: At least 0; 0 is a tie. Not read where the mask is 0 (may be NaN).
        mask: Weight of each preference or True where there is one.
        temperature: Above 0, units of the scale.
    """
    _check("rejected", rejected.shape, preferred.shape)
    strength, weights = _counted(preferred, strength, mask)
    lead = (preferred - rejected) / temperature
    won = -logsigmoid(lead)
    tied = -(logsigmoid(lead) + logsigmoid(-lead)) / 2
    return _weighted_mean(tied.where(strength == 0, won), weights)


def centring(preferred: Tensor, rejected: Tensor, mask: Tensor) -> Tensor:
    """Squared distance of the mean of both scores from the middle of the scale (Eisenstein et al., 2023).

    A small weight of it with `bradley_terry` fixes the level that preferences leave open. Arguments as there.
    """
    _check("rejected", rejected.shape, preferred.shape)
    mean = (preferred + rejected) / 2
    return _weighted_mean((mean - 0.5).square(), _entry_weights(mask, mean))


# What counts: weights out of masks, targets that may be missing, and means that may be empty


def _check(name: str, found: torch.Size, expected: torch.Size) -> None:
    if found != expected:
        raise ValueError(f"{name} {tuple(found)}; expected the shape {tuple(expected)}")


def _entry_weights(mask: Tensor, like: Tensor) -> Tensor:
    """The mask as weights, in the dtype of `like`."""
    _check("mask", mask.shape, like.shape)
    return mask.to(like.dtype)


def _counted(prediction: Tensor, target: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Target and weights, both in the shape and dtype of the prediction.

    Targets that do not count become 0. Multiplying them with a weight of 0 would not do: 0 times NaN is NaN.
    """
    _check("target", target.shape, prediction.shape)
    weights = _entry_weights(mask, prediction)
    return target.to(prediction.dtype).masked_fill(weights == 0, 0), weights


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean of finite `values` with `weights` of the same shape: a scalar, 0 where all weights are 0."""
    total = weights.sum()
    return (values * weights).sum() / total.masked_fill(total == 0, 1)
