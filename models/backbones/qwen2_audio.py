"""Qwen2-Audio (Chu et al., 2024): Whisper-like tower, linear projector, Qwen language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Qwen2AudioForConditionalGeneration, Qwen2AudioModel

from .common.audio_language_model import LANGUAGE_MODEL, AudioLanguageModel, decoder
from .common.base import Checkpoint, Part, PartName
from .common.chat import Chat
from .common.loading import load_model, load_processor
from .common.whisper_tower import WHISPER_TOWER, MaskedWhisperEars

PARTS: Mapping[PartName, Part] = {
    "language_model": LANGUAGE_MODEL,
    "projector": Part("multi_modal_projector", ("linear",)),
    "audio_tower": WHISPER_TOWER,
}


def load(checkpoint: Checkpoint) -> AudioLanguageModel:
    """Load weights and processor from the hub or a folder; the LM head is left behind.

    Raises:
        UserError: If the checkpoint lacks weights of the model or has weights that belong to none.
    """
    model = load_model(
        Qwen2AudioForConditionalGeneration, checkpoint, unquantized=["audio_tower", "multi_modal_projector"]
    )
    return wrap(model.model, load_processor(checkpoint), checkpoint)


def wrap(network: Qwen2AudioModel, processor: Any, checkpoint: Checkpoint) -> AudioLanguageModel:
    """The backbone around a model that is in memory."""
    return AudioLanguageModel(
        network,
        checkpoint,
        processor=processor,
        parts=PARTS,
        ears=MaskedWhisperEars(network.audio_tower, processor.feature_extractor),
        chat=Chat(processor, processor.audio_token),
        embed=network.get_input_embeddings(),
        project=network.multi_modal_projector,
        read=decoder(network.language_model),
        hidden_size=network.language_model.config.hidden_size,
    )
