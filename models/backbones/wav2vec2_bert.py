"""w2v-BERT 2.0 (Seamless Communication, 2023): a Conformer over log-mel features, two frames of 10 ms in each state.

Exact: every layer's states equal `hidden_states` of `Wav2Vec2BertModel` on each clip alone. Where a clip has an odd
number of frames, the official feature extractor pads the last state with a frame of zeros and masks it: it is no state
here either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import AutoConfig, Wav2Vec2BertModel

from .common.base import Checkpoint, Clips, Part
from .common.loading import load_feature_extractor
from .common.padding import real_places
from .common.pair_encoder import MAX_SECONDS, PairEncoder, load_tower, pack

PART = Part(
    "encoder",
    ("linear_q", "linear_k", "linear_v", "linear_out", "intermediate_dense", "output_dense"),
    layers="encoder.encoder.layers",
)
_WINDOW, _HOP = 400, 160
"""Samples of a frame and from one to the next, which `SeamlessM4TFeatureExtractor` fixes."""


def load(checkpoint: Checkpoint) -> PairEncoder:
    """Load encoder and feature extractor from the hub or a folder; heads of recognizers are left behind.

    Raises:
        UserError: If the checkpoint lacks weights of the encoder or has weights that belong to none.
    """
    config = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    config.add_adapter = config.use_intermediate_ffn_before_adapter = False  # both stand behind all layers
    tower, extractor = load_tower(Wav2Vec2BertModel, checkpoint, config), load_feature_extractor(checkpoint)
    ears = ConformerEars(tower, extractor)
    layers = config.num_hidden_layers + 1
    return PairEncoder(tower, checkpoint, extractor=extractor, ears=ears, layers=layers, part=PART)


class ConformerEars:
    """Implements `Ears`. The tower masks padding in attention, and its convolutions look back only."""

    tokens_per_state = 1
    max_seconds = MAX_SECONDS

    def __init__(self, tower: Any, extractor: Any) -> None:
        """Wrap a `Wav2Vec2BertModel` and a `SeamlessM4TFeatureExtractor`."""
        self._tower, self._extractor = tower, extractor
        self.sampling_rate: int = extractor.sampling_rate
        self.audio_size: int = (tower.config.num_hidden_layers + 1) * tower.config.hidden_size

    def audio_tokens(self, samples: int) -> int:
        """States of a clip of so many samples."""
        return ((samples - _WINDOW) // _HOP + 1) // self._extractor.stride

    def prepare(self, clips: Sequence[np.ndarray]) -> Clips:
        """Log-mel features, normalised clip by clip `(rows, states, bins * stride)`."""
        made = self._extractor(list(clips), sampling_rate=self.sampling_rate, return_tensors="pt")
        return Clips(made["input_features"], made["attention_mask"].sum(-1).tolist())

    def encode(self, clips: Clips) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        features = clips.features.to(self._tower.dtype)
        real = real_places(clips.lengths, features.shape[1], features.device)
        states = self._tower(features, attention_mask=real, output_hidden_states=True).hidden_states
        return pack(states, clips.lengths)
