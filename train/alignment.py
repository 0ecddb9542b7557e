"""Campaigns that use one scale differently, brought onto the scale of a reference campaign."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data_modules.datamodule import PairDataModule
from ..data_modules.errors import UserError

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
            raise UserError(f"campaigns {', '.join(campaigns)}: one is named twice; accepted: distinct names")
        if reference not in campaigns:
            raise UserError(f"reference campaign {reference!r} does not exist; accepted: {', '.join(campaigns)}")
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
                f"model.losses.{name} with data.campaign_column {data.campaign_column}; accepted: losses of the score "
                "(mse, huber, ccc and those on ranks)"
            )
    assert data.reference_campaign is not None
    return ScaleAlignment(data.campaigns, len(data.dimensions), data.reference_campaign)
