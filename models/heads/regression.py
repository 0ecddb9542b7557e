"""One number per dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...data_modules.schema import Dimension
from .prediction import Prediction


class RegressionHead(nn.Module):
    """One score per dimension, always inside its scale.

    Layer norm, linear, sigmoid, stretched from the minimum to the maximum of the scale. Weights stay float32 and the
    computation runs outside autocast: in bfloat16 a scale of 1 to 5 has only 289 values, which ties ranks.
    """

    OUTPUT = "minimum + (maximum - minimum) * sigmoid"

    def __init__(self, hidden_size: int, dimensions: Sequence[Dimension]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.linear = nn.Linear(hidden_size, len(dimensions))
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)
        # the scale is part of the artifact's description, not of its weights
        self.minimum = nn.Buffer(torch.tensor([d.minimum for d in dimensions]), persistent=False)
        self.span = nn.Buffer(torch.tensor([d.maximum - d.minimum for d in dimensions]), persistent=False)

    def forward(self, pooled: Tensor) -> Prediction:
        """Scores `(batch, dimensions)` from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            return Prediction(self.minimum + self.span * torch.sigmoid(self.linear(self.norm(pooled.float()))))

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the bias so that an untrained head predicts these mean ratings `(dimensions,)`."""
        share = ((means - self.minimum) / self.span).clamp(0.02, 0.98)
        self.linear.bias.copy_(torch.logit(share))
