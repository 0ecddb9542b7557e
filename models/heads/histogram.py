"""A distribution over the steps of the scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...data_modules.schema import Dimension
from .prediction import Prediction
from .projection import norm_and_linear
from .scales import LOWEST, Steps


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
        self.steps = Steps("histogram", dimensions)
        self.norm, self.linear = norm_and_linear(hidden_size, len(dimensions) * len(self.steps))

    def forward(self, pooled: Tensor) -> Prediction:
        """Scores, deviations and log probabilities of the steps from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            logits = self.linear(self.norm(pooled.float())).unflatten(-1, self.steps.values.shape)
            return self.steps.predict(torch.log_softmax(logits.masked_fill(~self.steps.exists, LOWEST), dim=-1))

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the bias so that an untrained head is a wide bell around these mean ratings `(dimensions,)`."""
        self.linear.bias.copy_(self.steps.bell(means).flatten())
