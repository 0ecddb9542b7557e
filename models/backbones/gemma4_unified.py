"""Gemma 4 12B (Google, 2026), which has no audio tower: frames of 40 ms, as they were sampled, go through a norm and a
linear layer, which is the projector here, into the language model.

Exact: hidden states equal those of the official classes with the official processor on each pair. What reads samples is
float32 whatever the rest is, also under autocast: bfloat16 would add noise 55 dB below the signal to every clip.

Nothing is computed of a clip alone: there are no layers for a head to read, no states for a cache to keep and no tower
to adapt. In layers of full attention the keys are the values, and LoRA on `k_proj` moves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Gemma4UnifiedForConditionalGeneration

from .audio_language_model import LANGUAGE_MODEL, AudioLanguageModel
from .base import BackbonePart, Checkpoint
from .gemma import IGNORED_KEYS, LONGEST, without_vision
from .inputs import Clips
from .layers import LayerStatistics, without_padding
from .loading import SpeechProcessor


class Gemma4Unified(AudioLanguageModel):
    """Its audio states are its samples."""

    model_class = Gemma4UnifiedForConditionalGeneration
    ignored_keys = IGNORED_KEYS
    processor_of = SpeechProcessor
    float32_parts = ("model.embed_audio",)
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": BackbonePart("embed_audio", ("embedding_projection",)),
    }

    @classmethod
    def config_of(cls, checkpoint: Checkpoint) -> Any:
        """See `without_vision`."""
        return without_vision(checkpoint, "Gemma 4 12B")

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        self.max_seconds = LONGEST / self.sampling_rate
        self.audio_size: int = self.extractor.audio_samples_per_token

    @property
    def audio_span(self) -> str:
        return f"{self.tokenizer.boa_token}{self.audio_token}{self.tokenizer.eoa_token}"

    def audio_tokens(self, samples: int) -> int:
        return -(-samples // self.audio_size)

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Frames of samples `(clips, frames, samples)`."""
        extracted = self.extractor(list(clips), return_tensors="pt")
        return Clips(extracted["input_features"], extracted["input_features_mask"].sum(-1).tolist())

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        return without_padding(clips.features, clips.lengths)

    def project(self, states: Tensor) -> Tensor:
        if states.is_meta:  # which has no autocast
            return super().project(states)
        with torch.autocast(states.device.type, enabled=False):
            return super().project(states)
