"""Several sets of trained weights on one frozen backbone: members of an ensemble, and their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .heads import Prediction

_SMALLEST_DEVIATION = 1e-6  # rating points: members that agree exactly still give a deviation above 0


class Members(nn.Module):
    """Trained weights of the members of an ensemble; none in a single judge.

    They move to a device with the judge, but are neither parameters nor part of its state.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: list[dict[str, str]] = []

    def add(self, weights: Mapping[str, Tensor]) -> None:
        """Keep a copy of a member's weights, by name."""
        number = len(self._names)
        names = {name: f"{number}:{name.replace('.', '/')}" for name in weights}  # no dots in names of buffers
        for name, weight in weights.items():
            self.register_buffer(names[name], weight.detach().clone(), persistent=False)
        self._names.append(names)

    def weights(self, member: int) -> dict[str, Tensor]:
        """Weights of a member, by name."""
        return {name: self.get_buffer(buffer) for name, buffer in self._names[member].items()}

    def __len__(self) -> int:
        return len(self._names)


def combine(predictions: Sequence[Prediction]) -> Prediction:
    """What an ensemble predicts: the mean of its members' scores, and how far the rating may lie from it.

    The variance is the mean of the members' own variances, where heads have one, plus the variance of their scores
    (divisor: members - 1), as in deep ensembles (Lakshminarayanan et al., 2017). Distributions over steps are not kept.

    Args:
        predictions: Of two or more members, of one shape.
    """
    scores = torch.stack([prediction.score for prediction in predictions])
    variance = scores.var(0, correction=1)
    own = [prediction.deviation for prediction in predictions if prediction.deviation is not None]
    if own:
        variance = variance + torch.stack(own).square().mean(0)
    return Prediction(scores.mean(0), variance.sqrt().clamp(min=_SMALLEST_DEVIATION))


def average(members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of the weights of several members (model soup; Wortsman et al., 2022), computed in float64.

    Means something only where all were trained from the same initial weights.

    Args:
        members: Weights by name, the same names and shapes in each.
    """
    return {
        name: torch.stack([member[name].double() for member in members]).mean(0).to(first.dtype)
        for name, first in members[0].items()
    }


def likeness(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float | None:
    """Cosine between the down-projections (`lora_A`) of two adapters; None where there are none.

    They begin random and move little: near 1 the adapters began alike, near 0 they did not.
    """
    names = [name for name in one if "lora_A" in name]
    if not names:
        return None
    first, second = (torch.cat([member[name].flatten().double().cpu() for name in names]) for member in (one, other))
    return float(torch.cosine_similarity(first, second, dim=0))
