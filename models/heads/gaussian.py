"""A number per dimension, and how far the target may lie from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...data_modules.schema import Dimension
from .prediction import Prediction

_FLOOR = 0.01  # of the scale: a deviation near 0 would let one outlier rule the likelihood
_START = 0.15


class GaussianHead(nn.Module):
    """Mean and standard deviation of the target, each from the pooled vector (Nix & Weigend 1994).

    Layer norm and linear, then a sigmoid stretched over the scale for the mean and a softplus in units of the scale for
    the deviation. Float32 and outside autocast, as `RegressionHead`.
    """

    OUTPUT = "minimum + (maximum - minimum) * sigmoid; deviation (maximum - minimum) * softplus"

    def __init__(self, hidden_size: int, dimensions: Sequence[Dimension]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.linear = nn.Linear(hidden_size, len(dimensions) * 2)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)
        # the scale is part of the artifact's description, not of its weights
        self.minimum = nn.Buffer(torch.tensor([d.minimum for d in dimensions]), persistent=False)
        self.span = nn.Buffer(torch.tensor([d.maximum - d.minimum for d in dimensions]), persistent=False)

    def forward(self, pooled: Tensor) -> Prediction:
        """Scores and deviations `(batch, dimensions)` from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            mean, spread = self.linear(self.norm(pooled.float())).unflatten(-1, (-1, 2)).unbind(-1)
            deviation = self.span * (_FLOOR + nn.functional.softplus(spread))
            return Prediction(self.minimum + self.span * torch.sigmoid(mean), deviation)

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the bias so that an untrained head predicts these mean ratings `(dimensions,)`, give or take a sixth of
        the scale."""
        share = ((means - self.minimum) / self.span).clamp(0.02, 0.98)
        spread = torch.full_like(share, math.log(math.expm1(_START - _FLOOR)))
        self.linear.bias.copy_(torch.stack([torch.logit(share), spread], dim=-1).flatten())
