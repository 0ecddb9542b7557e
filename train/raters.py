"""What single raters and annotation campaigns do differently, kept out of the judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data_modules.datamodule import PairDataModule
from ..data_modules.errors import UserError


class RaterEmbedding(nn.Module):
    """Turns the vector of a pair into that vector as one rater hears it.

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
        """Hears as the mean rater does for every rater, until trained.

        Args:
            counts: Number of ratings of each rater `(raters,)`; a rater without any weighs nothing in the mean.
            hidden_size: Of the pooled vector.
            size: Numbers per rater.

        Raises:
            ValueError: If there are no ratings, or a negative number of them.
        """
        super().__init__()
        if not (counts >= 0).all() or not counts.sum() > 0:
            raise ValueError(f"counts of raters {counts.tolist()}; expected none negative, at least one rating")
        self.share = nn.Buffer(counts.double().div(counts.sum()).float(), persistent=False)
        self.embedding = nn.Parameter(torch.randn(len(counts), size) * 0.1)
        self.scale = nn.Linear(size, hidden_size, bias=False)
        self.shift = nn.Linear(size, hidden_size, bias=False)
        # no change at the start; the maps get a gradient at once, the embedding as soon as they have left zero
        nn.init.zeros_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, pooled: Tensor, rater: Tensor) -> Tensor:
        """The pooled vectors as each pair's rater hears them.

        Args:
            pooled: Float32 `(batch, hidden)`; NaN stays NaN.
            rater: Position in `counts`, int64 `(batch,)`; -1 is the mean rater, for whom `pooled` stays as it is.

        Returns:
            `(batch, hidden)`.

        Raises:
            IndexError: If a position is beyond the raters (on a CPU; on a GPU the kernel fails).
        """
        with torch.autocast(pooled.device.type, enabled=False):
            centred = functional.embedding(rater.clamp(min=0), self.embedding) - self.share @ self.embedding
            centred = torch.where((rater >= 0)[:, None], centred, 0)
            return pooled * (1 + self.scale(centred)) + self.shift(centred)


MARGIN = 1e-4
"""Closer to an end of the scale than this, the curve goes on straight to that end: its slope there can be infinite."""


class ScaleAlignment(nn.Module):
    """What a campaign would have answered, from the score that the reference campaign would have given.

    A rating of 4 of 5 means one thing to trained listeners and another to a crowd, although the numbers look alike.
    The judge predicts on the scale of the reference campaign; for a pair of another campaign, a monotone curve per
    dimension takes that prediction to the ratings it is compared with: `sigmoid(exp(a) * logit(u) + b)`. Each curve
    starts as the identity, which is also where weight decay pulls it; where a campaign rates no pair in a dimension,
    its curve gets no gradient from the loss. The reference has no curve: its pairs alone hold the judge's scale in
    place, so that they must not be rare in training. For training only: a trained judge needs nothing of it.

    The idea of alignment functions towards a reference dataset is that of AlignNet (Pieper and Voran, 2024), which has
    a network for them; two numbers per dimension are enough to shift and stretch, and cannot turn an order around.
    """

    def __init__(self, campaigns: Sequence[str], dimensions: int, reference: str) -> None:
        """Identity for every campaign.

        Args:
            campaigns: Their names; a pair is of one of them.
            dimensions: How many dimensions a score has.
            reference: The campaign whose scale is that of the judge.

        Raises:
            UserError: If the reference is not one of the campaigns, or a campaign is named twice.
        """
        super().__init__()
        if len(set(campaigns)) < len(campaigns):
            raise UserError(f"campaigns {', '.join(campaigns)}: one is named twice; expected distinct names")
        if reference not in campaigns:
            raise UserError(f"reference campaign {reference!r} does not exist; expected {', '.join(campaigns)}")
        self.reference = list(campaigns).index(reference)
        self.log_slope = nn.Parameter(torch.zeros(len(campaigns), dimensions))
        self.offset = nn.Parameter(torch.zeros(len(campaigns), dimensions))

    def forward(self, score: Tensor, campaign: Tensor) -> Tensor:
        """Scores as each pair's campaign would give them.

        Args:
            score: On the reference's scale, as a share of its span: 0 is its low end, 1 its high end. Float32
                `(batch, dimensions)`; NaN stays NaN.
            campaign: Position of each pair's campaign in `campaigns`, int64 `(batch,)`.

        Returns:
            The same shape and units. For the reference exactly `score`; 0 and 1 are kept by every campaign.

        Raises:
            IndexError: If a position is outside `campaigns` (on a CPU; on a GPU the kernel fails).
        """
        with torch.autocast(score.device.type, enabled=False):
            slope = functional.embedding(campaign, self.log_slope).exp()
            inner = score.clamp(MARGIN, 1 - MARGIN)
            curve = torch.sigmoid(slope * torch.logit(inner) + functional.embedding(campaign, self.offset))
            curve = torch.where(score < MARGIN, curve * (score / MARGIN), curve)
            curve = torch.where(score > 1 - MARGIN, 1 - (1 - curve) * ((1 - score) / MARGIN), curve)
            return torch.where((campaign == self.reference)[:, None], score, curve)


def alignment_of(data: PairDataModule, losses: Iterable[str]) -> ScaleAlignment:
    """Curves for the campaigns of the data, for losses that compare scores with ratings.

    Raises:
        UserError: If a loss compares a distribution, which no curve can move.
    """
    for name in losses:
        if name in ("gaussian_nll", "ordinal", "histogram", "squared_emd"):
            raise UserError(
                f"model.losses.{name} with data.campaign_column {data.campaign_column}; expected losses of the score "
                "(mse, huber, ccc and those on ranks)"
            )
    assert data.reference_campaign is not None
    return ScaleAlignment(data.campaigns, len(data.dimensions), data.reference_campaign)
