"""Whisper (Radford et al., 2023): the encoder alone; the decoder is neither read nor allocated.

Exact: every layer's states equal `hidden_states` of `WhisperEncoder` on each clip alone, the last ones behind its final
layer norm. As the official encoder does, ours hears every clip padded with silence to the whole window (30 s) and
attends to that silence; only the states of the clip itself are kept. A short clip costs as much as a long one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import AutoConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from .common.base import Checkpoint, Clips, Part
from .common.loading import load_feature_extractor
from .common.pair_encoder import PairEncoder, load_tower, pack

PART = Part("encoder", ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), layers="encoder.layers")
_DECODER = r"^(model\.)?decoder\.|^proj_out\."


def load(checkpoint: Checkpoint) -> PairEncoder:
    """Load encoder and feature extractor from the hub or a folder.

    Raises:
        UserError: If the checkpoint lacks weights of the encoder or has weights that belong to none.
    """
    config = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    tower = load_tower(
        WhisperEncoder,
        checkpoint,
        config,
        left_behind=_DECODER,
        key_mapping={r"^(model\.)?encoder\.": ""},
    )
    extractor = load_feature_extractor(checkpoint)
    ears = WhisperEars(tower, extractor)
    layers = config.encoder_layers + 1
    return PairEncoder(tower, checkpoint, extractor=extractor, ears=ears, layers=layers, part=PART)


class WhisperEars:
    """Implements `Ears`."""

    tokens_per_state = 1

    def __init__(self, tower: WhisperEncoder, extractor: Any) -> None:
        """Wrap an encoder and a `WhisperFeatureExtractor`."""
        self._tower, self._extractor = tower, extractor
        self.sampling_rate: int = extractor.sampling_rate
        self.max_seconds = float(extractor.chunk_length)
        self.audio_size: int = (tower.config.encoder_layers + 1) * tower.config.d_model

    def audio_tokens(self, samples: int) -> int:
        """States of a clip of so many samples; those of the silence behind it do not count."""
        return -(-samples // (2 * self._extractor.hop_length))  # the second convolution has stride 2

    def prepare(self, clips: Sequence[np.ndarray]) -> Clips:
        """Log-mel spectrograms of the whole window `(rows, bins, frames)`; as lengths, the real states of each."""
        made = self._extractor(list(clips), sampling_rate=self.sampling_rate, return_tensors="pt")
        return Clips(made["input_features"], [self.audio_tokens(len(clip)) for clip in clips])

    def encode(self, clips: Clips) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        features = clips.features.to(self._tower.dtype)
        return pack(self._tower(features, output_hidden_states=True).hidden_states, clips.lengths)
