"""From a pooled vector to scores on the rating scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..data_modules.errors import UserError
from ..data_modules.schema import Dimension

HeadName = Literal["regression", "histogram"]


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

    def forward(self, pooled: Tensor) -> Tensor:
        """Scores in rating points `(batch, dimensions)`, float32, from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            return self.minimum + self.span * torch.sigmoid(self.linear(self.norm(pooled.float())))

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the bias so that an untrained head predicts these mean ratings `(dimensions,)`."""
        share = ((means - self.minimum) / self.span).clamp(0.02, 0.98)
        self.linear.bias.copy_(torch.logit(share))


class HistogramHead(nn.Module):
    """How raters would spread over the steps of each scale; the score is the mean of that distribution.

    Layer norm, linear, softmax over the steps. Float32 and outside autocast, as `RegressionHead`.
    """

    OUTPUT = "mean of softmax over the steps of the scale"

    def __init__(self, hidden_size: int, dimensions: Sequence[Dimension]) -> None:
        """A fresh head.

        Raises:
            UserError: If a scale has no steps.
        """
        super().__init__()
        for dimension in dimensions:
            if dimension.step is None:
                raise UserError(
                    f"histogram head: dimension {dimension.name} goes from {dimension.scale}; accepted: a scale with "
                    "steps, such as 1:5:1, or the regression head"
                )
        most = max(dimension.steps for dimension in dimensions)
        self.norm = nn.LayerNorm(hidden_size)
        self.linear = nn.Linear(hidden_size, len(dimensions) * most)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)
        # the scale is part of the artifact's description, not of its weights
        index = torch.arange(most)
        minimum = torch.tensor([d.minimum for d in dimensions])
        step = torch.tensor([d.step for d in dimensions])
        self.values = nn.Buffer(minimum[:, None] + step[:, None] * index, persistent=False)
        counts = torch.tensor([d.steps for d in dimensions])
        self.exists = nn.Buffer(index < counts[:, None], persistent=False)

    def log_probabilities(self, pooled: Tensor) -> Tensor:
        """Of each step `(batch, dimensions, steps)`, float32, from `(batch, hidden)`.

        Steps that only a longer scale has get the lowest finite number: a probability of 0 without a NaN in the loss.
        """
        with torch.autocast(pooled.device.type, enabled=False):
            logits = self.linear(self.norm(pooled.float())).unflatten(-1, self.values.shape)
            lowest = torch.finfo(torch.float32).min
            return torch.log_softmax(logits.masked_fill(~self.exists, lowest), dim=-1)

    def forward(self, pooled: Tensor) -> Tensor:
        """Scores in rating points `(batch, dimensions)`, float32, from `(batch, hidden)`."""
        return (self.log_probabilities(pooled).exp() * self.values).sum(-1)

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the bias so that an untrained head is a wide bell around these mean ratings `(dimensions,)`."""
        width = torch.where(self.exists, self.values - self.values[:, :1], 0).amax(-1) / 4
        bell = -0.5 * ((self.values - means[:, None]) / width[:, None]).square()
        self.linear.bias.copy_(bell.flatten())


Head = RegressionHead | HistogramHead


def build_head(name: HeadName, hidden_size: int, dimensions: Sequence[Dimension]) -> Head:
    """A fresh head.

    Raises:
        UserError: If it does not fit the scales.
    """
    return HistogramHead(hidden_size, dimensions) if name == "histogram" else RegressionHead(hidden_size, dimensions)
