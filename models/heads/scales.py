"""The ends and the steps of rating scales as tensors.

Nothing of them is stored with the weights, because the scale is part of a judge's description.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...data_modules.errors import UserError
from ...data_modules.schema import Dimension
from .prediction import Prediction

LOWEST = torch.finfo(torch.float32).min
"""Log probability of a step that does not exist: a probability of 0 without a NaN in the loss."""


class Ends(nn.Module):
    """Where several scales begin, and how long they are.

    Attributes:
        minimum: Rating points `(dimensions,)`.
        span: Maximum less minimum, rating points `(dimensions,)`.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        super().__init__()
        self.minimum = nn.Buffer(torch.tensor([d.minimum for d in dimensions]), persistent=False)
        self.span = nn.Buffer(torch.tensor([d.maximum - d.minimum for d in dimensions]), persistent=False)

    def points(self, shares: Tensor) -> Tensor:
        """Shares of the scale `(..., dimensions)`, 0 its low end and 1 its high end, as rating points."""
        return self.minimum + self.span * shares

    def shares(self, points: Tensor) -> Tensor:
        """Rating points `(..., dimensions)` as shares of the scale."""
        return (points - self.minimum) / self.span

    def start(self, means: Tensor) -> Tensor:
        """Logits of the shares of mean ratings `(dimensions,)`, kept 2 % off the ends, where they are infinite."""
        return torch.logit(self.shares(means).clamp(0.02, 0.98))


class Steps(nn.Module):
    """The scores that raters can give, of several scales side by side.

    Attributes:
        values: Rating points `(dimensions, steps)`, the lowest first; a shorter scale goes on beyond its maximum.
        exists: False there `(dimensions, steps)`.
    """

    def __init__(self, head: str, dimensions: Sequence[Dimension]) -> None:
        """From the scales.

        Raises:
            UserError: If a scale has no steps, naming the `head` that needs them.
        """
        super().__init__()
        for dimension in dimensions:
            if dimension.step is None:
                raise UserError(
                    f"{head} head: dimension {dimension.name} goes from {dimension.scale}; accepted: a scale with "
                    "steps, such as 1:5:1, or the regression or gaussian head"
                )
        counts = torch.tensor([dimension.steps for dimension in dimensions])
        index = torch.arange(int(counts.max()))
        minimum = torch.tensor([dimension.minimum for dimension in dimensions])
        step = torch.tensor([dimension.step for dimension in dimensions])
        self.values = nn.Buffer(minimum[:, None] + step[:, None] * index, persistent=False)
        self.exists = nn.Buffer(index < counts[:, None], persistent=False)

    def __len__(self) -> int:
        return self.values.shape[-1]

    @property
    def bell_width(self) -> Tensor:
        """Deviation of a wide bell on each scale, a quarter of it, in rating points `(dimensions,)`."""
        return torch.where(self.exists, self.values - self.values[:, :1], 0).amax(-1) / 4

    def bell(self, means: Tensor) -> Tensor:
        """Log density, not normalised, of a wide bell around mean ratings `(dimensions,)`: `(dimensions, steps)`."""
        return -0.5 * ((self.values - means[:, None]) / self.bell_width[:, None]).square()

    def predict(self, log_probabilities: Tensor, thresholds: Tensor | None = None) -> Prediction:
        """Mean and standard deviation of distributions over the steps.

        Args:
            log_probabilities: `(batch, dimensions, steps)`, anything where a step does not exist.
            thresholds: Handed on.
        """
        log_probabilities = log_probabilities.masked_fill(~self.exists, LOWEST)
        probabilities = log_probabilities.exp()
        score = (probabilities * self.values).sum(-1)
        variance = (probabilities * (self.values - score[..., None]).square()).sum(-1)
        # a certain head has no spread, and the root of 0 no gradient
        deviation = (variance + 1e-6 * self.bell_width.square()).sqrt()
        return Prediction(score, deviation, log_probabilities, thresholds)
