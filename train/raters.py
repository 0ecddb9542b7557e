"""What single raters do differently, kept out of the judge."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


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
