"""WavLM (Chen et al., 2022): HuBERT with noise and second speakers in training, and gated relative positions.

Exact: every layer's states equal `hidden_states` of `WavLMModel` on each clip alone (transformers 5: the last ones are
those before the layer norm behind all layers, where there is one). The hub has its checkpoints as pickles only; see
`common/loading.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, WavLMModel

from .common.base import Checkpoint, Part
from .common.loading import load_feature_extractor
from .common.pair_encoder import PairEncoder, load_tower
from .common.wave_ears import FRONT_END, WaveEars, embedded

PART = Part(
    "encoder",
    ("q_proj", "k_proj", "v_proj", "out_proj", "intermediate_dense", "output_dense"),
    layers="encoder.encoder.layers",
)


def load(checkpoint: Checkpoint) -> PairEncoder:
    """Load encoder and feature extractor from the hub or a folder; heads of recognizers are left behind.

    Raises:
        UserError: If the checkpoint lacks weights of the encoder or has weights that belong to none, or if another
            attention kernel than eager or sdpa is asked for: both stand for the one below.
    """
    config = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    config.add_adapter = False  # it stands behind the states that are read
    kernel = "eager" if checkpoint.attention == "sdpa" else checkpoint.attention
    tower = load_tower(WavLMModel, replace(checkpoint, attention=kernel), config, float32_parts=[FRONT_END])
    for layer in tower.encoder.layers:
        attention: Any = layer.attention
        attention.torch_multi_head_self_attention = partial(attend, attention)
    extractor = load_feature_extractor(checkpoint)
    ears = WaveEars(tower, extractor, lambda features, real: layer_states(tower, features, real))
    layers = config.num_hidden_layers + 1
    return PairEncoder(tower, checkpoint, extractor=extractor, ears=ears, layers=layers, part=PART)


def layer_states(tower: Any, features: Tensor, real: Tensor | None) -> list[Tensor]:
    """What the first layer reads and what each layer makes of it, each `(rows, frames, size)`."""
    projected, _ = tower.feature_projection(features)
    states, bias = [embedded(tower, projected, real)], None
    for layer in tower.encoder.layers:
        hidden, bias = layer(states[-1], attention_mask=real, position_bias=bias)
        states.append(hidden)
    return states


def attend(attention: Any, hidden: Tensor, real: Tensor | None, bias: Tensor) -> tuple[Tensor, None]:
    """Self-attention through the layer's four linear modules.

    The official one hands their weights to a function and never calls them, so that LoRA on them would do nothing
    (transformers#48773).

    Args:
        attention: A `WavLMAttention`.
        hidden: `(rows, frames, size)`.
        real: True where a frame belongs to a clip `(rows, frames)`; None = everywhere.
        bias: Of the scores `(rows * heads, frames, frames)`.

    Returns:
        `(rows, frames, size)`, and no attention weights.
    """

    def heads(states: Tensor) -> Tensor:
        return states.unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)

    query, key, value = (heads(linear(hidden)) for linear in (attention.q_proj, attention.k_proj, attention.v_proj))
    bias = bias.unflatten(0, (len(hidden), attention.num_heads)).to(query)
    if real is not None:
        bias = bias.masked_fill(~real[:, None, None], float("-inf"))
    mixed = scaled_dot_product_attention(query, key, value, bias)
    return attention.out_proj(mixed.transpose(1, 2).flatten(2)), None
