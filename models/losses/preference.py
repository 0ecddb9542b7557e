"""Losses on preferences: which of two items a person found better. They leave the level of the scores open."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from .masking import counted, entry_weights, weighted_mean

_MIDDLE = 0.5  # of the scale


def bradley_terry(
    chosen: Tensor,
    rejected: Tensor,
    strength: Tensor,
    mask: Tensor,
    temperature: float = 0.1,
    strength_margin: float = 0.0,
) -> Tensor:
    """Negative log likelihood of the preferences: -log sigmoid((chosen - rejected) / temperature - margin).

    Bradley & Terry (1952). The margin is `strength_margin` times how strong the preference is (Touvron et al., 2023). A
    tie, strength 0, is half a win for each side: the mean of both directions, least where both scores are equal.

    Args:
        chosen: Scores of the items that were preferred, `(preferences,)` or `(preferences, dimensions)`, units of the
            scale.
        rejected: Scores of the others, the same shape.
        strength: At least 0; 0 is a tie. The same shape; not read where the mask is 0 (may be NaN).
        mask: Weight of each preference or True where there is one, the same shape.
        temperature: Above 0, units of the scale.
        strength_margin: Of a preference of strength 1, in units of the temperature.

    Returns:
        The weighted mean over preferences in nats, a scalar; 0 with a gradient of 0 if there is none.

    Raises:
        ValueError: If the shapes differ.
    """
    _check_sides(chosen, rejected)
    strength, weights = counted(chosen, strength, mask)
    lead = (chosen - rejected) / temperature
    won = -logsigmoid(lead - strength_margin * strength)
    tied = -(logsigmoid(lead) + logsigmoid(-lead)) / 2
    return weighted_mean(tied.where(strength == 0, won), weights)


def centring(chosen: Tensor, rejected: Tensor, mask: Tensor) -> Tensor:
    """Squared distance of the mean of both scores from the middle of the scale (Eisenstein et al., 2023).

    A small part of it beside `bradley_terry` fixes the level that preferences leave open.

    Args:
        chosen: `(preferences,)` or `(preferences, dimensions)`, units of the scale.
        rejected: The same shape.
        mask: Weight of each preference or True where there is one, the same shape.

    Returns:
        The weighted mean over preferences, a scalar; 0 with a gradient of 0 if there is none.

    Raises:
        ValueError: If the shapes differ.
    """
    _check_sides(chosen, rejected)
    middle = (chosen + rejected) / 2
    return weighted_mean((middle - _MIDDLE).square(), entry_weights(mask, middle))


def _check_sides(chosen: Tensor, rejected: Tensor) -> None:
    if chosen.shape != rejected.shape:
        raise ValueError(f"rejected {tuple(rejected.shape)} for chosen {tuple(chosen.shape)}; accepted: the same shape")
