"""The trained weights that all heads share."""

from __future__ import annotations

from torch import nn


def norm_and_linear(hidden_size: int, outputs: int) -> tuple[nn.LayerNorm, nn.Linear]:
    """Fresh layer norm and linear layer, the latter with small weights: a head begins near what its bias says."""
    norm, linear = nn.LayerNorm(hidden_size), nn.Linear(hidden_size, outputs)
    nn.init.normal_(linear.weight, std=0.02)
    nn.init.zeros_(linear.bias)
    return norm, linear
