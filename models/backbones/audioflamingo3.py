"""Audio Flamingo 3 (Goel et al., 2025): Whisper-like tower over windows of 30 s, projector of two layers, Qwen2.

Its official processor takes one clip for each text, and the chat template on the hub shows one `<sound>` however many
clips a message has, in front of its text. The message is therefore given as a text that holds `<sound>` where each clip
goes; the template passes it on. A clip's tokens are those the official processor makes of it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import AudioFlamingo3ForConditionalGeneration

from .common.audio_language_model import LANGUAGE_MODEL, AudioLanguageModel, decoder
from .common.base import Checkpoint, Part, PartName
from .common.chat import Chat
from .common.loading import load_model, load_processor
from .common.prompt import Message, as_text
from .common.whisper_tower import WHISPER_TOWER, MaskedWhisperEars

PARTS: Mapping[PartName, Part] = {
    "language_model": LANGUAGE_MODEL,
    "projector": Part("multi_modal_projector", ("linear_1", "linear_2")),
    "audio_tower": WHISPER_TOWER,
}


def load(checkpoint: Checkpoint) -> AudioLanguageModel:
    """Load weights and processor from the hub or a folder; the LM head is left behind.

    Raises:
        UserError: If the checkpoint lacks weights of the model or has weights that belong to none.
    """
    network = load_model(
        AudioFlamingo3ForConditionalGeneration, checkpoint, unquantized=["audio_tower", "multi_modal_projector"]
    ).model
    processor = load_processor(checkpoint)
    extractor = processor.feature_extractor
    # the official processor cuts away what is behind its last window
    ears = MaskedWhisperEars(network.audio_tower, extractor, int(processor.max_audio_len // extractor.chunk_length))
    return AudioLanguageModel(
        network,
        checkpoint,
        processor=processor,
        parts=PARTS,
        ears=ears,
        chat=Chat(processor, processor.audio_token, render=render(processor)),
        embed=network.get_input_embeddings(),
        project=network.multi_modal_projector,
        read=decoder(network.language_model),
        hidden_size=network.language_model.config.hidden_size,
    )


def render(processor: Any) -> Callable[[Sequence[Message]], str]:
    """A chat with one audio token for each clip, where the clip is."""

    def text(chat: Sequence[Message]) -> str:
        turns = [{"role": message["role"], "content": as_text(message, processor.audio_token)} for message in chat]
        return processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    return text
