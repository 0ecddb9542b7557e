"""Audio Flamingo 3 (Goel et al., 2025): Whisper-like tower over windows of 30 s, projector of two layers, Qwen2.

Its official processor takes one clip for each text, and the chat template on the hub shows one `<sound>` however many
clips a message has, in front of its text. The message is therefore given as a text that holds `<sound>` where each clip
goes; the template passes it on. A clip's tokens are those the official processor makes of it alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AudioFlamingo3ForConditionalGeneration

from .audio_language_model import LANGUAGE_MODEL
from .base import Checkpoint, Part
from .loading import load_model, load_processor
from .prompt import Message, as_text
from .whisper_tower import WHISPER_TOWER, WhisperTowerModel


class AudioFlamingo3(WhisperTowerModel):
    """Exact for each clip alone."""

    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": Part("multi_modal_projector", ("linear_1", "linear_2")),
        "audio_tower": WHISPER_TOWER,
    }

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> AudioFlamingo3:
        """See `Backbone`."""
        unquantized = ["audio_tower", "multi_modal_projector"]
        model = load_model(AudioFlamingo3ForConditionalGeneration, checkpoint, unquantized=unquantized)
        processor = load_processor(checkpoint)
        # the official processor cuts away what is behind its last window
        windows = int(processor.max_audio_len // processor.feature_extractor.chunk_length)
        return cls(model.model, processor, checkpoint, windows)

    def render(self, chat: Sequence[Message]) -> str:
        """See `AudioLanguageModel`: one audio token for each clip, where the clip is."""
        turns = [{"role": message["role"], "content": as_text(message, self.audio_token)} for message in chat]
        return self.processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
