"""Losses of heads that ask for each step of a scale whether a rating lies above it.

Threshold k lies between step k and step k + 1. Scales may have different lengths: a shorter one fills the first of the
steps, and its last thresholds do not exist.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from .masking import entry_weights, weighted_mean


def coral(logits: Tensor, counts: Tensor, mask: Tensor, exists: Tensor) -> Tensor:
    """Binary cross-entropy of every threshold with the share of raters above it (Cao, Mirjalili & Raschka, 2020).

    Args:
        logits: Of P(rating above step k), `(batch, dimensions, steps - 1)`; not read where there is no threshold.
        counts: How many raters gave each score, the lowest first, `(batch, dimensions, steps)`.
        mask: `(batch, dimensions)`, weight of each entry or True; entries without raters never count.
        exists: Which steps a scale has, `(dimensions, steps)`, bool.

    Returns:
        In nats: the mean over the thresholds of a scale, then the weighted mean over entries, a scalar; 0 with a
        gradient of 0 if nothing was rated.

    Raises:
        ValueError: If the shapes differ.
    """
    _check_steps(logits, counts, exists)
    thresholds = exists[:, 1:]
    raters, above = _raters(counts, logits)
    share = above / raters.clamp(min=1)[..., None]
    entropy = binary_cross_entropy_with_logits(logits.masked_fill(~thresholds, 0), share, reduction="none")
    return _mean_over_thresholds(entropy, thresholds, raters, mask)


def corn(logits: Tensor, counts: Tensor, mask: Tensor, exists: Tensor) -> Tensor:
    """Negative log likelihood of a rater's score under conditional thresholds (Shi, Cao & Raschka, 2021).

    Each threshold counts only the raters who gave more than the step before it, so that the distribution over steps
    that belongs to the logits needs no order among them.

    Args:
        logits: Of P(rating above step k, given that it is above step k - 1), `(batch, dimensions, steps - 1)`; not read
            where there is no threshold.
        counts: How many raters gave each score, the lowest first, `(batch, dimensions, steps)`.
        mask: `(batch, dimensions)`, weight of each entry or True; entries without raters never count.
        exists: Which steps a scale has, `(dimensions, steps)`, bool.

    Returns:
        In nats: the mean over raters divided by the number of thresholds of the scale, so that long scales do not
        outweigh short ones, then the weighted mean over entries, a scalar; 0 with a gradient of 0 if nothing was rated.

    Raises:
        ValueError: If the shapes differ.
    """
    _check_steps(logits, counts, exists)
    thresholds = exists[:, 1:]
    raters, above = _raters(counts, logits)
    at = counts[..., :-1].to(logits.dtype)
    known = logits.masked_fill(~thresholds, 0)
    surprise = -(above * logsigmoid(known) + at * logsigmoid(-known)) / raters.clamp(min=1)[..., None]
    return _mean_over_thresholds(surprise, thresholds, raters, mask)


def _check_steps(logits: Tensor, counts: Tensor, exists: Tensor) -> None:
    shape = (*logits.shape[:-1], logits.shape[-1] + 1)
    if counts.shape != shape or exists.shape != shape[1:]:
        raise ValueError(
            f"counts {tuple(counts.shape)} and steps {tuple(exists.shape)} for logits {tuple(logits.shape)}; "
            "accepted: one logit less than steps"
        )


def _raters(counts: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """How many raters there are `(batch, dimensions)`, and above each threshold `(batch, dimensions, steps - 1)`."""
    upwards = counts.to(like.dtype).cumsum(-1)
    return upwards[..., -1], upwards[..., -1:] - upwards[..., :-1]


def _mean_over_thresholds(values: Tensor, thresholds: Tensor, raters: Tensor, mask: Tensor) -> Tensor:
    """Of `(batch, dimensions, steps - 1)`: over those that exist, then over entries that have raters."""
    per_entry = (values * thresholds).sum(-1) / thresholds.sum(-1).clamp(min=1)
    return weighted_mean(per_entry, entry_weights(mask, per_entry) * (raters > 0))
