"""Granite Speech Plus: Granite Speech whose projector sees layers of the encoder beside its last one."""

from __future__ import annotations

from transformers import GraniteSpeechPlusForConditionalGeneration

from .common.audio_language_model import AudioLanguageModel
from .common.base import Checkpoint
from .granite_speech import load_as


def load(checkpoint: Checkpoint) -> AudioLanguageModel:
    """Load weights and processor from the hub or a folder; the LM head is left behind.

    Raises:
        UserError: If the checkpoint or its adapter lacks weights of the model or has weights that belong to none.
    """
    return load_as(GraniteSpeechPlusForConditionalGeneration, checkpoint)
