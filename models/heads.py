"""Heads: from a pooled vector `(batch, hidden)` to scores on each dimension's rating scale.

Every head is a layer norm (where features are not standardised before) and a linear layer, and differs in what its
outputs mean. Weights stay float32 and heads compute outside autocast: in bfloat16 a scale of 1 to 5 has only 289
values, which ties ranks. Nothing of a scale is stored with the weights, because the scale is part of a judge's
description.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad, softplus

from ..core.errors import UserError
from ..data_modules.schema import Dimension
from .backbones.inputs import begin_to_host
from .settings import HeadName

_LOWEST = torch.finfo(torch.float32).min
"""Log probability of a step that does not exist: a probability of 0 without a NaN in the loss."""
_CERTAIN = 1e4  # a logit whose sigmoid is 1 in float32, and still finite
_LEAST_DEVIATION = 0.01  # of the scale: with a deviation near 0, one outlier would dominate the likelihood
_INITIAL_DEVIATION = 0.15  # of the scale
_FURTHEST, _MOST_STEPS = 1e9, 10_000
_SMALLEST_DEVIATION = 1e-6  # rating points: members that agree exactly still give a deviation above 0


@dataclass(frozen=True)
class Prediction:
    """What a head computes of a batch, float32."""

    score: Tensor  # rating points inside the scale `(batch, dimensions)`
    # standard deviation around the score in rating points `(batch, dimensions)`, above 0: of the target (a Gaussian
    # head) or of single ratings (heads over the steps of a scale). It is not calibrated; `scoring.calibration` turns it
    # into a standard error that held on held-out ratings. None where a head has none.
    deviation: Tensor | None = None
    # of each step of the scale, the lowest first `(batch, dimensions, steps)`; of steps that only a longer scale has,
    # the lowest finite number. None where a head predicts no distribution.
    log_probabilities: Tensor | None = None
    # logits of the ordinal head `(batch, dimensions, steps - 1)`: of a rating above each step among those that reached
    # it
    thresholds: Tensor | None = None

    @classmethod
    def from_stored(cls, score: Tensor, deviation: Tensor) -> Prediction:
        """From stored score and deviation: without a deviation where it is NaN throughout."""
        return cls(score, None if deviation.isnan().all() else deviation)

    def each(self) -> list[Prediction]:
        """Score, deviation and distribution of each pair, without the dimension of the batch, on the CPU."""
        parts = self.score, self.deviation, self.log_probabilities
        rows = ([None] * len(self.score) if part is None else part.cpu() for part in parts)
        return [Prediction(*row) for row in zip(*rows, strict=True)]

    def to_host(self) -> Prediction:
        """What `each` returns, on its way from a GPU to main memory: an event after it says when it has arrived."""
        parts = self.score, self.deviation, self.log_probabilities
        return Prediction(*(None if part is None else begin_to_host(part) for part in parts))  # pyright: ignore[reportArgumentType] a score is always there

    def levels(self, dimensions: Sequence[Dimension]) -> dict[str, tuple[float, ...]] | None:
        """Of one pair, the probability of each step of each scale, the lowest first, by the name of the dimension. They
        sum to 1 in float64. None where a head predicts no distribution."""
        if self.log_probabilities is None:
            return None
        # In float32 they would sum to 1 only to rounding, which a reader of the numbers would take for an error
        probabilities = self.log_probabilities.double().exp()
        rows = [row[: own.steps] for own, row in zip(dimensions, probabilities, strict=True)]
        return {own.name: tuple((row / row.sum()).tolist()) for own, row in zip(dimensions, rows, strict=True)}


def combine(predictions: Sequence[Prediction]) -> Prediction:
    """The prediction of an ensemble of two or more members: the mean of their scores, and how far the rating may be
    from it.

    The variance is the mean of the members' own variances, where heads have one, plus the variance of their scores
    (divisor: members - 1), as in deep ensembles (Lakshminarayanan et al., 2017). The distribution over steps is the
    mean of the members' distributions, whose mean is the score.
    """
    scores = torch.stack([prediction.score for prediction in predictions])
    variance = scores.var(0, correction=1)
    deviations = [prediction.deviation for prediction in predictions if prediction.deviation is not None]
    # How members differ is what one of them cannot know; what each expects of the ratings comes on top
    if deviations:
        variance = variance + torch.stack(deviations).square().mean(0)
    own = [prediction.log_probabilities for prediction in predictions if prediction.log_probabilities is not None]
    # A mean of probabilities, not of logits: members that are sure of different steps give two camps, and no middle
    mixture = torch.stack(own).logsumexp(0) - math.log(len(own)) if own else None
    return Prediction(scores.mean(0), variance.sqrt().clamp(min=_SMALLEST_DEVIATION), mixture)


class ScaleRange(nn.Module):
    """Minimum and span (maximum less minimum) of several scales as tensors `(dimensions,)`, rating points."""

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        super().__init__()
        self.minimum = nn.Buffer(torch.tensor([d.minimum for d in dimensions]), persistent=False)
        self.span = nn.Buffer(torch.tensor([d.maximum - d.minimum for d in dimensions]), persistent=False)

    def normalise(self, points: Tensor) -> Tensor:
        """Scores from 0 (the minimum) to 1 (the maximum) of rating points `(..., dimensions)`."""
        return (points - self.minimum) / self.span

    def logits(self, means: Tensor) -> Tensor:
        """Logits of normalised mean ratings `(dimensions,)`, at least 2 % off the ends, where they are infinite."""
        return torch.logit(self.normalise(means).clamp(0.02, 0.98))

    def per_point(self, means: Tensor) -> Tensor:
        """Slope of `logits` `(dimensions,)`, per rating point."""
        normalised = self.normalise(means).clamp(0.02, 0.98)
        return 1 / (self.span * normalised * (1 - normalised))


class ScaleSteps(nn.Module):
    """The scores that raters can give, of several scales side by side."""

    def __init__(self, head: str, dimensions: Sequence[Dimension]) -> None:
        super().__init__()
        for dimension in dimensions:
            if dimension.step is None:
                raise UserError(
                    f"{head} head: dimension {dimension.name} goes from {dimension.scale}; expected a scale with "
                    "steps, such as 1:5:1, or the regression or gaussian head"
                )
        counts = torch.tensor([dimension.steps for dimension in dimensions])
        index = torch.arange(int(counts.max()))
        minimum = torch.tensor([dimension.minimum for dimension in dimensions])
        step = torch.tensor([dimension.step for dimension in dimensions])
        # Rating points, the lowest first; a shorter scale goes on above its maximum, where `exists` is False. Both
        # `(dimensions, steps)`
        self.values = nn.Buffer(minimum[:, None] + step[:, None] * index, persistent=False)
        self.exists = nn.Buffer(index < counts[:, None], persistent=False)

    def __len__(self) -> int:
        return self.values.shape[-1]

    @property
    def bell_width(self) -> Tensor:
        """Standard deviation of a wide bell on each scale, a quarter of its range, in rating points `(dimensions,)`."""
        return torch.where(self.exists, self.values - self.values[:, :1], 0).amax(-1) / 4

    def width(self, spread: Tensor | None) -> Tensor:
        """The standard deviation of ratings from which a head starts, rating points `(dimensions,)`: that of a wide
        bell where nothing is known, and at least half a step."""
        return self.bell_width if spread is None else torch.maximum(spread, (self.values[:, 1] - self.values[:, 0]) / 2)

    def bell(self, means: Tensor, spread: Tensor | None) -> Tensor:
        """Log density, not normalised, of a bell around mean ratings `(dimensions,)`: `(dimensions, steps)`."""
        return -0.5 * ((self.values - means[:, None]) / self.width(spread)[:, None]).square()

    def predict(self, log_probabilities: Tensor, thresholds: Tensor | None = None) -> Prediction:
        """Mean and standard deviation of distributions over the steps `(batch, dimensions, steps)`, whose values are
        not read where a step does not exist; thresholds are passed on.
        """
        log_probabilities = log_probabilities.masked_fill(~self.exists, _LOWEST)
        probabilities = log_probabilities.exp()
        score = (probabilities * self.values).sum(-1)
        variance = (probabilities * (self.values - score[..., None]).square()).sum(-1)
        # the square root has no gradient at 0, where a head is certain
        deviation = (variance + 1e-6 * self.bell_width.square()).sqrt()
        return Prediction(score, deviation, log_probabilities, thresholds)


class Head(nn.Module):
    """Layer norm and linear layer; subclasses define what the outputs of the linear layer mean."""

    OUTPUT: str  # how scores are computed, for `judge.json`

    def __init__(self, features: int, outputs: int, standardised: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if standardised else nn.LayerNorm(features)
        self.linear = nn.Linear(features, outputs)
        # Small, so that an untrained head predicts what its bias says
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, pooled: Tensor) -> Prediction:
        """Scores and what else the head knows, from `(batch, hidden)`."""
        with torch.autocast(pooled.device.type, enabled=False):
            return self.predict(self.norm(pooled.float()))

    def predict(self, features: Tensor) -> Prediction:
        """The prediction from normalised features `(batch, features)`, float32."""
        raise NotImplementedError

    def start_at(self, means: Tensor, spread: Tensor | None = None) -> None:
        """Set the bias so that an untrained head predicts these mean ratings, and that single ratings spread around
        them with this standard deviation, where it predicts how they do; both in rating points `(dimensions,)`."""
        raise NotImplementedError

    def per_point(self, means: Tensor, spread: Tensor | None = None) -> Tensor:
        """How much each output of the linear layer must rise for the score to rise by one rating point, near these mean
        ratings and with this spread, both `(dimensions,)`: `(dimensions, outputs of each)`."""
        raise NotImplementedError

    @torch.no_grad()
    def start_from(self, weights: Tensor, bias: Tensor, means: Tensor, spread: Tensor | None = None) -> None:
        """Start from a fitted regression: scores rise with `bias + features @ weights`.

        Scores equal the regression near the mean ratings `(dimensions,)`, and keep its order everywhere; towards the
        ends of a scale they flatten, as scores stay inside it. Weights `(features, dimensions)`, bias and the spread of
        single ratings `(dimensions,)` are in rating points.
        """
        self.start_at(means, spread)
        rise = self.per_point(means, spread)
        self.linear.weight.copy_((rise[..., None] * weights.T[:, None]).flatten(0, 1))
        # The head predicts `means` at 0, and the regression its bias: the difference moves the one to the other
        self.linear.bias.add_((rise * (bias - means)[:, None]).flatten())


class RegressionHead(Head):
    """One score per dimension: a sigmoid stretched from the minimum to the maximum of the scale."""

    OUTPUT = "minimum + (maximum - minimum) * sigmoid"

    def __init__(self, features: int, dimensions: Sequence[Dimension], standardised: bool = False) -> None:
        super().__init__(features, len(dimensions), standardised)
        self.range = ScaleRange(dimensions)

    def predict(self, features: Tensor) -> Prediction:
        return Prediction(self.range.minimum + self.range.span * torch.sigmoid(self.linear(features)))

    @torch.no_grad()
    def start_at(self, means: Tensor, spread: Tensor | None = None) -> None:
        self.linear.bias.copy_(self.range.logits(means))

    def per_point(self, means: Tensor, spread: Tensor | None = None) -> Tensor:
        return self.range.per_point(means)[:, None]


class GaussianHead(Head):
    """Mean and standard deviation of the target, each from the pooled vector (Nix & Weigend 1994).

    A sigmoid stretched over the scale for the mean and a softplus in units of the scale for the deviation. No gradient
    of the deviation reaches the layers below (Stirn et al. 2023): together with `faithful_nll` the mean is as good as
    that of a `RegressionHead`. On the sample the plain likelihood reached a Spearman of 0.57 where the squared error
    reached 0.79.
    """

    OUTPUT = "minimum + (maximum - minimum) * sigmoid; deviation (maximum - minimum) * softplus"

    def __init__(self, features: int, dimensions: Sequence[Dimension], standardised: bool = False) -> None:
        super().__init__(features, len(dimensions) * 2, standardised)
        self.range = ScaleRange(dimensions)

    def predict(self, features: Tensor) -> Prediction:
        mean = self.linear(features).unflatten(-1, (-1, 2))[..., 0]
        spread = self.linear(features.detach()).unflatten(-1, (-1, 2))[..., 1]
        # In units of the scale, so that the start and the least deviation mean the same on every scale
        deviation = self.range.span * (_LEAST_DEVIATION + softplus(spread))
        return Prediction(self.range.minimum + self.range.span * torch.sigmoid(mean), deviation)

    @torch.no_grad()
    def start_at(self, means: Tensor, spread: Tensor | None = None) -> None:
        mean = self.range.logits(means)
        # The inverse of `softplus`: the deviation starts at about a sixth of the scale
        spread = torch.full_like(mean, math.log(math.expm1(_INITIAL_DEVIATION - _LEAST_DEVIATION)))
        self.linear.bias.copy_(torch.stack([mean, spread], dim=-1).flatten())

    def per_point(self, means: Tensor, spread: Tensor | None = None) -> Tensor:
        rise = self.range.per_point(means)
        # The deviation stays the same for all pairs
        return torch.stack([rise, torch.zeros_like(rise)], -1)


class HistogramHead(Head):
    """A softmax over the steps of each scale, as raters would spread; the score is the mean of that distribution."""

    OUTPUT = "mean of softmax over the steps of the scale"

    def __init__(self, features: int, dimensions: Sequence[Dimension], standardised: bool = False) -> None:
        steps = ScaleSteps("histogram", dimensions)
        super().__init__(features, len(dimensions) * len(steps), standardised)
        self.steps = steps

    def predict(self, features: Tensor) -> Prediction:
        logits = self.linear(features).unflatten(-1, self.steps.values.shape)
        return self.steps.predict(torch.log_softmax(logits.masked_fill(~self.steps.exists, _LOWEST), dim=-1))

    @torch.no_grad()
    def start_at(self, means: Tensor, spread: Tensor | None = None) -> None:
        self.linear.bias.copy_(self.steps.bell(means, spread).flatten())

    def per_point(self, means: Tensor, spread: Tensor | None = None) -> Tensor:
        # The bell moves
        return (self.steps.values - means[:, None]) / self.steps.width(spread)[:, None].square()


class CornHead(Head):
    """Conditional ordinal regression (CORN, Shi, Cao & Raschka 2021): at each threshold, the probability that a rating
    is above it, given that it reached the step before.

    The logits are independent of each other, and any values of them give a distribution over the steps.
    """

    OUTPUT = "mean over the steps of the scale, from logits of a rating above each step among those that reached it"

    def __init__(self, features: int, dimensions: Sequence[Dimension], standardised: bool = False) -> None:
        steps = ScaleSteps("corn", dimensions)
        super().__init__(features, len(dimensions) * (len(steps) - 1), standardised)
        self.steps = steps

    def predict(self, features: Tensor) -> Prediction:
        thresholds = self.linear(features).unflatten(-1, (-1, len(self.steps) - 1))
        # nothing is above the last step that exists
        further = torch.where(self.steps.exists[:, 1:], thresholds, -_CERTAIN)
        # A rating is at a step if it is above all before it, and not above this one
        reached = pad(running_sum(logsigmoid(further)), (1, 0))
        stays = pad(logsigmoid(-further), (0, 1))
        return self.steps.predict(reached + stays, thresholds)

    @torch.no_grad()
    def start_at(self, means: Tensor, spread: Tensor | None = None) -> None:
        probabilities = self.steps.bell(means, spread).masked_fill(~self.steps.exists, -torch.inf).softmax(-1)
        reached = running_sum(probabilities.flip(-1)).flip(-1)
        # Off 0 and 1, where a logit is infinite
        further = (reached[:, 1:] / reached[:, :-1].clamp(min=1e-12)).clamp(1e-3, 1 - 1e-3)
        self.linear.bias.copy_(torch.logit(further).flatten())

    def per_point(self, means: Tensor, spread: Tensor | None = None) -> Tensor:
        # All thresholds become easier to pass by the same amount
        return (2 / self.steps.width(spread)[:, None]).expand(-1, len(self.steps) - 1)


_HEADS: Mapping[HeadName, type[RegressionHead | GaussianHead | CornHead | HistogramHead]] = {
    "regression": RegressionHead,
    "gaussian": GaussianHead,
    "corn": CornHead,
    "histogram": HistogramHead,
}


def running_sum(values: Tensor) -> Tensor:
    """`values.cumsum(-1)` over the steps of a scale: on CUDA, older torch has no `cumsum` in deterministic mode."""
    return torch.stack(list(accumulate(values.unbind(-1))), -1)


def build_head(name: HeadName, features: int, dimensions: Sequence[Dimension], standardised: bool = False) -> Head:
    """A fresh head. It begins with a layer norm unless every feature is `standardised` over the training split.

    Raises:
        UserError: If it does not fit the scales.
    """
    for dimension in dimensions:
        if max(abs(dimension.minimum), abs(dimension.maximum)) > _FURTHEST or (
            dimension.step is not None and dimension.steps > _MOST_STEPS
        ):
            raise UserError(
                f"dimension {dimension.name}: scale {dimension.scale}; expected ends within {_FURTHEST:g} of 0 and at "
                f"most {_MOST_STEPS:,} steps"
            )
    return _HEADS[name](features, dimensions, standardised)
