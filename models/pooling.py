"""From hidden states to one vector per pair. Padding never counts, whatever its side."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

PoolingName = Literal["last_token", "response_mean", "attention"]


class LastToken(nn.Module):
    """The hidden state of the last real token, found through the mask and not by position or padding id."""

    def forward(self, hidden: Tensor, attention_mask: Tensor, response_mask: Tensor) -> Tensor:
        """Pool `(batch, tokens, hidden)` to `(batch, hidden)`."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        last = (attention_mask * (positions + 1)).argmax(-1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]


class ResponseMean(nn.Module):
    """The mean over the audio tokens of the response."""

    def forward(self, hidden: Tensor, attention_mask: Tensor, response_mask: Tensor) -> Tensor:
        """Pool `(batch, tokens, hidden)` to `(batch, hidden)`."""
        # where() and not multiplication: states at padding may be NaN
        kept = torch.where(response_mask[..., None], hidden, torch.zeros((), dtype=hidden.dtype, device=hidden.device))
        return kept.sum(1) / response_mask.sum(1, keepdim=True)


class Attention(nn.Module):
    """A mean over all real tokens with learned weights: softmax of a linear score."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.score.weight)  # starts as the plain mean
        nn.init.zeros_(self.score.bias)

    def forward(self, hidden: Tensor, attention_mask: Tensor, response_mask: Tensor) -> Tensor:
        """Pool `(batch, tokens, hidden)` to `(batch, hidden)`."""
        real = attention_mask.bool()
        hidden = torch.where(real[..., None], hidden, torch.zeros((), dtype=hidden.dtype, device=hidden.device))
        weights = self.score(hidden)[..., 0].masked_fill(~real, -torch.inf).softmax(-1)
        return (weights[..., None] * hidden).sum(1)


def build_pooling(name: PoolingName, hidden_size: int) -> nn.Module:
    """The pooling of that name."""
    if name == "attention":
        return Attention(hidden_size)
    return {"last_token": LastToken, "response_mean": ResponseMean}[name]()
