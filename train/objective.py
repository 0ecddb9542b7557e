"""The training objective, a weighted sum of losses on human labels; and the embedding of raters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.errors import UserError
from ..data_modules.schema import Dimension
from ..data_modules.training_items import directions
from ..models.backbones.inputs import Movable
from ..models.heads import Prediction, ScaleRange
from ..models.losses import (
    bradley_terry,
    ccc,
    centring,
    corn,
    faithful_nll,
    histogram_cross_entropy,
    mse,
    soft_spearman,
)
from ..models.settings import OF_LEVELS, HeadName
from .settings import LossSettings, LossWeights

_OF_COMPARISONS = ("bradley_terry", "centring")
_CENTRING = 0.01
"""Weight of `centring` where there is `bradley_terry`."""
OWN_LOSS: Mapping[HeadName, str] = {
    "regression": "mse", "gaussian": "gaussian_nll", "corn": "ordinal", "histogram": "histogram",
}  # fmt: skip
# Losses that not every head can be trained with
_HEADS: Mapping[str, tuple[HeadName, ...]] = {
    "gaussian_nll": ("gaussian",),
    "ordinal": ("corn",),
    "histogram": OF_LEVELS,
}
_OF_COUNTS = ("ordinal", "histogram")


@dataclass(frozen=True)
class Labels(Movable):
    """Human labels of the rows of a batch. A row is a pair; those of comparisons have no ratings of their own."""

    targets: Tensor  # rating points `(rows, dimensions)`; NaN = not rated
    weights: Tensor  # how much each target counts `(rows, dimensions)`, 0 = not rated
    counts: Tensor | None  # how many raters gave each step `(rows, dimensions, steps)`; None where a scale has no steps
    raters: Tensor  # who gave the rating `(rows,)`; -1 = it is of several raters
    chosen: Tensor  # row of the better pair of each comparison `(comparisons,)`
    rejected: Tensor  # row of the other
    strengths: Tensor  # `(comparisons, dimensions)`; 0 = tie, NaN = not compared


class Objective(nn.Module):
    """The sum of losses of one configuration, for one head and its scales."""

    def __init__(
        self, weights: LossWeights, settings: LossSettings, head: HeadName, dimensions: Sequence[Dimension]
    ) -> None:
        """Check that the losses fit head and scales.

        Raises:
            UserError: If a weight is negative, or a loss cannot train this head or needs steps that a scale has not.
        """
        super().__init__()
        values = {f.name: float(getattr(weights, f.name)) for f in fields(weights)}
        for name, value in values.items():
            if not 0 <= value < float("inf"):
                raise UserError(f"objective.losses.{name} {value:g}; expected 0 or more")
        # A recipe need not name a loss on ratings: each head has one that it was made for
        if not any(value for name, value in values.items() if name not in _OF_COMPARISONS):
            values[OWN_LOSS[head]] = 1.0
        self.weights = {name: value for name, value in values.items() if value}
        # Comparisons alone leave the level of the scores open
        if "bradley_terry" in self.weights:
            self.weights["centring"] = _CENTRING
        for name in self.weights:
            heads = _HEADS.get(name, (head,))
            if head not in heads:
                raise UserError(f"objective.losses.{name} with judge.head {head}; expected head {' or '.join(heads)}")
        self.needs_counts = any(name in _OF_COUNTS for name in self.weights)
        for dimension in dimensions:
            if self.needs_counts and dimension.step is None:
                loss = next(name for name in self.weights if name in _OF_COUNTS)
                raise UserError(
                    f"objective.losses.{loss}: dimension {dimension.name} goes from {dimension.scale}; expected a "
                    "scale with steps, such as 1:5:1, or other losses"
                )
        self.settings = settings
        self._range = ScaleRange(dimensions)
        self._better = nn.Buffer(directions(dimensions), persistent=False)
        # Scales of fewer steps are padded to the longest one; the mask leaves out what they do not have
        widths = [1 if d.step is None else d.steps for d in dimensions]
        self._exists = nn.Buffer(torch.arange(max(widths)) < torch.tensor(widths)[:, None], persistent=False)

    def used(self, rated: bool, compared: bool) -> dict[str, float]:
        """Weights of the losses for which the data has labels: ratings, comparisons or both."""
        return {
            name: weight for name, weight in self.weights.items() if (compared if name in _OF_COMPARISONS else rated)
        }

    def terms(self, prediction: Prediction, labels: Labels) -> dict[str, Tensor]:
        """Each loss by its name, times its weight, of the predictions and labels of all rows; the sum is what is
        minimised.
        """
        losses = dict(self._rated(prediction, labels))
        if len(labels.chosen):
            losses |= self._compared(prediction, labels)
        return {name: weight * losses[name]() for name, weight in self.weights.items() if name in losses}

    def _rated(self, prediction: Prediction, labels: Labels) -> Iterator[tuple[str, Callable[[], Tensor]]]:
        """Losses on ratings, each computed when it is called."""
        # From 0 to 1 on every scale, so that a weight of a loss means the same for 1 to 5 and for 0 to 100
        score, target = map(self._range.normalise, (prediction.score, labels.targets))
        mask = labels.weights
        # Partial, since the recipe names few of these and `soft_spearman` costs the square of the batch
        yield "mse", partial(mse, score, target, mask)
        yield "ccc", partial(ccc, score, target, mask)
        yield "soft_spearman", partial(soft_spearman, score, target, mask, self.settings.temperature)
        if (deviation := prediction.deviation) is not None:
            # In the unit of the normalised score, as the loss expects it
            variance = (deviation / self._range.span).square()
            yield "gaussian_nll", partial(faithful_nll, score, variance, target, mask)
        if (counts := labels.counts) is None:
            return
        if (logits := prediction.thresholds) is not None:
            yield "ordinal", partial(corn, logits, counts, mask, self._exists)
        if (log_probabilities := prediction.log_probabilities) is not None:
            yield "histogram", partial(histogram_cross_entropy, log_probabilities, counts, mask)

    def _compared(self, prediction: Prediction, labels: Labels) -> dict[str, Callable[[], Tensor]]:
        """Losses on comparisons. A preference says which is better, whichever end of the scale that is."""
        score = self._range.normalise(prediction.score)
        better = 0.5 + self._better * (score - 0.5)
        first, second, mask = better[labels.chosen], better[labels.rejected], ~labels.strengths.isnan()
        # A loss masks by multiplication, and NaN times 0 is NaN, in the gradient too
        strengths = labels.strengths.nan_to_num()
        temperature = self.settings.preference_temperature
        return {
            "bradley_terry": partial(bradley_terry, first, second, strengths, mask, temperature),
            "centring": partial(centring, first, second, mask),
        }


class RaterEmbedding(nn.Module):
    """Scales and shifts the pooled vector of a pair for one rater.

    Where a rater sees only some pairs, a mean over raters mixes how good a pair is with who happened to rate it.
    Trained on single ratings, this module takes up severity and taste: each rater scales and shifts the pooled vector
    (as FiLM does; Perez et al., 2018) before the head. What is learned of a rater is measured from the mean rater, each
    rater counted as often as they rated. So the mean rater is exactly zero, and the judge without this module predicts
    for the mean rater: a trained judge needs nothing of it. (Before the head, the mean over ratings of what the raters
    hear is what the mean rater hears; behind a head that is not linear only about so.)

    The idea of learning raters beside the mean is that of MBNet (Leng et al., 2021) and LDNet (Huang et al., 2022).
    LDNet's mean listener is one more listener, trained on mean scores; here it is the zero of all others.
    """

    def __init__(self, counts: Tensor, hidden_size: int, size: int = 8) -> None:
        """Until trained, every rater hears as the mean rater does; `size` numbers are learned of each. `counts` is the
        number of ratings of each `(raters,)`; a rater without any weighs nothing in the mean.
        """
        super().__init__()
        # float64 for the division: shares of many raters must add up to one, or the mean rater would be off zero
        self.share = nn.Buffer(counts.double().div(counts.sum()).float(), persistent=False)
        self.embedding = nn.Parameter(torch.randn(len(counts), size) * 0.1)
        self.scale = nn.Linear(size, hidden_size, bias=False)
        self.shift = nn.Linear(size, hidden_size, bias=False)
        # no change at the start; the maps get a gradient at once, the embedding as soon as they have left zero
        nn.init.zeros_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, pooled: Tensor, rater: Tensor) -> Tensor:
        """The pooled vectors, float32 `(batch, hidden)`, as each pair's rater hears them; NaN stays NaN. A rater is a
        position in `counts`, int64 `(batch,)`; -1 is the mean rater, for whom `pooled` stays as it is.

        Raises:
            IndexError: If a position is beyond the raters (on a CPU; on a GPU the kernel fails).
        """
        # What a rater adds is small beside the pooled vector, and half precision would round it away
        with torch.autocast(pooled.device.type, enabled=False):
            # -1 is no row of the table: row 0 is read in its place, and replaced by zeros below
            centred = functional.embedding(rater.clamp(min=0), self.embedding) - self.share @ self.embedding
            centred = torch.where((rater >= 0)[:, None], centred, 0)
            return pooled * (1 + self.scale(centred)) + self.shift(centred)
