"""What joins context and response where there is no language model: trained from nothing, with the judge."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PADDING, USER, OTHER, RESPONSE = range(4)
"""What a token is part of: nothing, a context turn of the user, a context turn of anybody else, the response."""

WIDTH = 256
_HEADS = 4


class Joiner(nn.Module):
    """A weighted sum of a tower's layers, and one block in which the response attends to its context.

    The weighted sum is the recipe of SUPERB (Yang et al., 2021): a softmax over one learned weight for each layer,
    equal at first. There are no positions in here, only those that the tower has put into its states: the context
    turns of one speaker may be given in any order.
    """

    def __init__(self, layers: int, size: int) -> None:
        """Draw all weights from torch's global seed.

        Args:
            layers: Layers of the tower, its input embedding included.
            size: Width of each.
        """
        super().__init__()
        self.layer_weights = nn.Parameter(torch.zeros(layers))
        self.input_norm = nn.LayerNorm(size)
        self.input = nn.Linear(size, WIDTH)
        self.segments = nn.Embedding(4, WIDTH, padding_idx=PADDING)
        self.no_context = nn.Parameter(torch.empty(WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, _HEADS, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.output_norm = nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.segments.weight[1:].normal_(std=0.02)
            self.no_context.normal_(std=0.02)

    def project(self, states: Tensor) -> Tensor:
        """From all layers of each state `(states, layers * size)` to one vector `(states, width)`."""
        layers = states.unflatten(-1, (len(self.layer_weights), -1))
        # in the tower's precision: a copy in float32 of every layer would be the largest tensor of all
        summed = self.layer_weights.softmax(-1).to(layers) @ layers
        return self.input(self.input_norm(summed.to(self.input_norm.weight)))

    def forward(self, audio: Tensor, segments: Tensor) -> Tensor:
        """Join the clips of each pair.

        Args:
            audio: What `project` made `(batch, tokens, width)`; at padding it may be anything finite.
            segments: What each token is part of `(batch, tokens)`.

        Returns:
            `(batch, tokens, width)`: at the response what it became with its context in view; at context tokens what
            they were. Padding on either side changes nothing.
        """
        tokens = audio + self.segments(segments)
        # the learned token stands in for a context that is not there, and keeps the softmax from being over nothing
        keys = torch.cat([self.no_context.to(tokens).expand(len(tokens), 1, -1), tokens], 1)
        unseen = nn.functional.pad((segments != USER) & (segments != OTHER), (1, 0), value=False)
        attended, _ = self.attention(tokens, keys, keys, key_padding_mask=unseen, need_weights=False)
        joined = tokens + attended
        joined = self.output_norm(joined + self.feed_forward(joined))
        return torch.where((segments == RESPONSE)[..., None], joined, tokens.to(joined))
