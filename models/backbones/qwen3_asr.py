"""Qwen3-ASR (Shi et al., 2026): the AuT tower of Qwen3-Omni, a projector of two layers, Qwen3 with 1.7 or 0.6 billion
parameters.

Exact: hidden states equal those of the official feature extractor and encoder on each clip alone, and of the official
language model on each pair. In a batch, the official processor gives a clip that is no multiple of a hop one frame
more, and may give it one token more. Clips under half a second are padded to that with silence, which has tokens.

The chat template on the hub keeps the clips of a user's message and drops its text: the question is written out below,
with the text where it is, as Qwen3-Omni has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import Qwen3ASRForConditionalGeneration

from .attention import RowAttention
from .audio_language_model import LANGUAGE_MODEL, Message, as_text
from .base import BackbonePart
from .qwen_omni import AUT_TOWER, AutTowerModel


class Qwen3ASR(AutTowerModel):
    """Every chunk through the convolutions has its full width, with zeros behind the end of a clip."""

    model_class = Qwen3ASRForConditionalGeneration
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": BackbonePart("multi_modal_projector", ("linear_1", "linear_2")),
        "audio_tower": AUT_TOWER,
    }

    @classmethod
    def network_of(cls, model: Any) -> Any:
        """With an attention that reads rows."""
        for layer in model.model.audio_tower.layers:
            layer.self_attn = RowAttention(layer.self_attn)
        return model.model

    def render(self, chat: Sequence[Message]) -> str:
        """See `AudioLanguageModel`."""
        (message,) = chat
        processor = self.processor
        clip = processor.audio_bos_token + self.audio_token + processor.audio_eos_token
        turns = ("system", ""), (message["role"], as_text(message, clip))
        text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
        return f"{text}<|im_start|>assistant\n"

    def audio_tokens(self, samples: int) -> int:
        return super().audio_tokens(max(samples, self.extractor.min_length))

    def real_audio_tokens(self, samples: int) -> int:
        """See `Backbone`: without the silence that pads a short clip."""
        return super().audio_tokens(samples)

    def spectrogram(self, clip: np.ndarray) -> Tensor:
        options = {"padding": True, "truncation": False, "n_window": 0, "return_tensors": "pt"}
        return self.extractor(clip, sampling_rate=self.sampling_rate, **options)["input_features"][0].T

    def chunk_width(self, frames: int) -> int:
        """See `AutTowerModel`."""
        return self._chunk
