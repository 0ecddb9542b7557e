"""Heads that learn the order of the steps of a scale: one yes or no for each threshold between neighbouring steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from ...data_modules.schema import Dimension
from .prediction import Prediction
from .projection import norm_and_linear
from .scales import Steps

_CERTAIN = 1e4  # a logit beyond which float32 knows no doubt, and still finite
_SMALLEST_GAP = 1e-4  # between the logits of neighbouring thresholds: a step in between keeps a probability


class CoralHead(nn.Module):
    """Consistent rank logits (CORAL, Cao, Mirjalili & Raschka 2020): one projection per dimension and a bias for each
    threshold, so that every threshold looks at the same thing.

    The logit of a rating above step k is `projection + bias_k`. The biases fall from threshold to threshold by
    construction (the first, less a sum of softplus), so that no probability of a step is ever negative. Float32 and
    outside autocast, as `RegressionHead`.
    """

    OUTPUT = "mean over the steps of the scale, from logits of a rating above each step with common weights"

    def __init__(self, hidden_size: int, dimensions: Sequence[Dimension]) -> None:
        """A fresh head.

        Raises:
            UserError: If a scale has no steps.
        """
        super().__init__()
        self.steps = Steps("coral", dimensions)
        self.norm, self.linear = norm_and_linear(hidden_size, len(dimensions))
        self.gaps = nn.Parameter(torch.ones(len(dimensions), max(len(self.steps) - 2, 0)))

    def forward(self, pooled: Tensor) -> Prediction:
        """Scores, deviations, log probabilities of the steps and logits of the thresholds from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            first = self.linear(self.norm(pooled.float()))
            gaps = softplus(self.gaps) + _SMALLEST_GAP
            falls = nn.functional.pad(gaps, (1, 0)).cumsum(-1)
            thresholds = first[..., None] - falls
            return self.steps.predict(self._log_probabilities(thresholds, gaps), thresholds)

    def _log_probabilities(self, thresholds: Tensor, gaps: Tensor) -> Tensor:
        """Of a step: that of a rating above the step before, less that of a rating above it."""
        goes_on = self.steps.exists[:, 1:]  # nobody goes beyond the last step that exists
        nothing = torch.zeros_like(thresholds[..., :1])
        above = torch.cat([nothing, logsigmoid(thresholds)], dim=-1)
        below = torch.cat([torch.where(goes_on, logsigmoid(-thresholds), 0), nothing], dim=-1)
        # log(sigmoid(a) - sigmoid(b)) = log sigmoid(a) + log sigmoid(-b) + log(1 - exp(b - a))
        between = torch.where(goes_on[:, 1:], torch.log(-torch.expm1(-gaps)), 0).expand(*thresholds.shape[:-1], -1)
        return above + below + torch.cat([nothing, between, nothing], dim=-1)

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the biases so that an untrained head is a wide bell around these mean ratings `(dimensions,)`."""
        cuts = (self.steps.values[:, 1:] + self.steps.values[:, :-1]) / 2
        biases = (means[:, None] - cuts) / (self.steps.bell_width[:, None] / 2)
        self.linear.bias.copy_(biases[:, 0])
        self.gaps.copy_(torch.log(torch.expm1(biases[:, :-1] - biases[:, 1:])))


class CornHead(nn.Module):
    """Conditional ordinal regression (CORN, Shi, Cao & Raschka 2021): for each threshold, of the ratings that reached
    the step before, the share that goes beyond.

    The logits are independent of each other, and their chain is a distribution whatever they are. Float32 and outside
    autocast, as `RegressionHead`.
    """

    OUTPUT = "mean over the steps of the scale, from logits of a rating above each step among those that reached it"

    def __init__(self, hidden_size: int, dimensions: Sequence[Dimension]) -> None:
        """A fresh head.

        Raises:
            UserError: If a scale has no steps.
        """
        super().__init__()
        self.steps = Steps("corn", dimensions)
        self.norm, self.linear = norm_and_linear(hidden_size, len(dimensions) * (len(self.steps) - 1))

    def forward(self, pooled: Tensor) -> Prediction:
        """Scores, deviations, log probabilities of the steps and logits of the thresholds from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            logits = self.linear(self.norm(pooled.float()))
            thresholds = logits.unflatten(-1, (-1, len(self.steps) - 1))
            # nobody goes beyond the last step that exists
            further = torch.where(self.steps.exists[:, 1:], thresholds, -_CERTAIN)
            nothing = torch.zeros_like(further[..., :1])
            reached = torch.cat([nothing, logsigmoid(further).cumsum(-1)], dim=-1)
            stays = torch.cat([logsigmoid(-further), nothing], dim=-1)
            return self.steps.predict(reached + stays, thresholds)

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the biases so that an untrained head is a wide bell around these mean ratings `(dimensions,)`."""
        shares = self.steps.bell(means).masked_fill(~self.steps.exists, -torch.inf).softmax(-1)
        reached = shares.flip(-1).cumsum(-1).flip(-1)
        further = (reached[:, 1:] / reached[:, :-1].clamp(min=1e-12)).clamp(1e-3, 1 - 1e-3)
        self.linear.bias.copy_(torch.logit(further).flatten())
