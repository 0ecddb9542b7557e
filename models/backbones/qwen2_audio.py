"""Qwen2-Audio (Chu et al., 2024): Whisper-like tower, linear projector, Qwen language model."""

from __future__ import annotations

from transformers import Qwen2AudioForConditionalGeneration

from .audio_language_model import LANGUAGE_MODEL
from .base import Checkpoint, Part
from .loading import load_model, load_processor
from .whisper_tower import WHISPER_TOWER, WhisperTowerModel


class Qwen2Audio(WhisperTowerModel):
    """Exact: hidden states equal those of the official classes."""

    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": Part("multi_modal_projector", ("linear",)),
        "audio_tower": WHISPER_TOWER,
    }

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Qwen2Audio:
        """See `Backbone`."""
        unquantized = ["audio_tower", "multi_modal_projector"]
        model = load_model(Qwen2AudioForConditionalGeneration, checkpoint, unquantized=unquantized)
        return cls(model.model, load_processor(checkpoint), checkpoint)
