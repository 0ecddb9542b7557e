"""A number per dimension, and how far the target may lie from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...data_modules.schema import Dimension
from .prediction import Prediction
from .projection import norm_and_linear
from .scales import Ends

_FLOOR = 0.01  # of the scale: a deviation near 0 would let one outlier rule the likelihood
_START = 0.15


class GaussianHead(nn.Module):
    """Mean and standard deviation of the target, each from the pooled vector (Nix & Weigend 1994).

    Layer norm and linear, then a sigmoid stretched over the scale for the mean and a softplus in units of the scale for
    the deviation. Float32 and outside autocast, as `RegressionHead`.

    The deviation reads what the mean has learned to hear and teaches the layers below nothing (Stirn et al. 2023):
    together with `faithful_nll` the mean is as good as that of a `RegressionHead`. On the sample the plain likelihood
    reached a Spearman of 0.57 where the squared error reached 0.79.
    """

    OUTPUT = "minimum + (maximum - minimum) * sigmoid; deviation (maximum - minimum) * softplus"

    def __init__(self, hidden_size: int, dimensions: Sequence[Dimension]) -> None:
        super().__init__()
        self.norm, self.linear = norm_and_linear(hidden_size, len(dimensions) * 2)
        self.ends = Ends(dimensions)

    def forward(self, pooled: Tensor) -> Prediction:
        """Scores and deviations `(batch, dimensions)` from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            features = self.norm(pooled.float())
            mean = self.linear(features).unflatten(-1, (-1, 2))[..., 0]
            spread = self.linear(features.detach()).unflatten(-1, (-1, 2))[..., 1]
            deviation = self.ends.span * (_FLOOR + nn.functional.softplus(spread))
            return Prediction(self.ends.points(torch.sigmoid(mean)), deviation)

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the bias so that an untrained head predicts these mean ratings `(dimensions,)`, give or take a sixth of
        the scale."""
        mean = self.ends.start(means)
        spread = torch.full_like(mean, math.log(math.expm1(_START - _FLOOR)))
        self.linear.bias.copy_(torch.stack([mean, spread], dim=-1).flatten())
