"""One number per dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...data_modules.schema import Dimension
from .prediction import Prediction
from .projection import norm_and_linear
from .scales import Ends


class RegressionHead(nn.Module):
    """One score per dimension, always inside its scale.

    Layer norm, linear, sigmoid, stretched from the minimum to the maximum of the scale. Weights stay float32 and the
    computation runs outside autocast: in bfloat16 a scale of 1 to 5 has only 289 values, which ties ranks.
    """

    OUTPUT = "minimum + (maximum - minimum) * sigmoid"

    def __init__(self, hidden_size: int, dimensions: Sequence[Dimension]) -> None:
        super().__init__()
        self.norm, self.linear = norm_and_linear(hidden_size, len(dimensions))
        self.ends = Ends(dimensions)

    def forward(self, pooled: Tensor) -> Prediction:
        """Scores `(batch, dimensions)` from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            return Prediction(self.ends.points(torch.sigmoid(self.linear(self.norm(pooled.float())))))

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the bias so that an untrained head predicts these mean ratings `(dimensions,)`."""
        self.linear.bias.copy_(self.ends.start(means))
