"""Granite Speech (Saon et al., 2025): conformer with attention in blocks of 4 s, windowed Q-Former, Granite.

The official encoder has no mask for padding, so that of two clips of one text the shorter is changed by the silence
that pads it. The reference is therefore the official encoder and projector on each clip alone, and the official
language model on the whole. An audio state is a window of 15 encoder frames (0.3 s), of which the Q-Former makes three
tokens; the last window of a clip is padded with zeros.

Granite Speech 3 has a LoRA of its own, which the official code switches on where there is audio. Here it is merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GraniteSpeechForConditionalGeneration, GraniteSpeechPlusForConditionalGeneration

from .audio_language_model import LANGUAGE_MODEL, AudioLanguageModel, Message, as_text
from .base import BackbonePart, Checkpoint, Layout
from .inputs import Clips
from .layers import LayerStatistics, watching
from .loading import merge_own_adapter

SYSTEM = (
    "Knowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n"
    "You are Granite, developed by IBM. You are a helpful AI assistant"
)
"""From the authors' example. Without it the chat template writes today's date, and scores change overnight."""


class GraniteSpeech(AudioLanguageModel):
    """Every clip goes through the encoder at its own length, those of equal length together."""

    model_class = GraniteSpeechForConditionalGeneration
    own_adapter = True
    layout = Layout({"": "model."}, {"has_lora_adapter": False})
    tower_width = "hidden_dim"
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": BackbonePart("projector", ("query", "key", "value", "dense", "linear")),
        "audio_tower": BackbonePart(
            "encoder",
            ("input_linear", "to_q", "to_kv", "to_out", "up_proj", "down_proj", "out", "out_mid"),
            layers="encoder.layers",
        ),
    }

    @classmethod
    def network_of(cls, model: Any, checkpoint: Checkpoint) -> nn.Module:
        """The model with its own adapter merged into its weights."""
        if checkpoint.weights:
            merge_own_adapter(model, checkpoint, required=model.config.has_lora_adapter)
        return model.model

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        config: Any = network.config
        self._hop: int = self.extractor.melspec_kwargs["hop_length"]
        self._window: int = config.window_size
        self.tokens_per_state: int = config.window_size // config.downsample_rate
        self.audio_size: int = self._window * config.projector_config.encoder_hidden_size
        # No file sets a limit. The language model must have room for context and response, each this long.
        frames = config.text_config.max_position_embeddings / 2 * config.downsample_rate
        self.max_seconds: float = frames * 2 * self._hop / self.sampling_rate

    def render(self, chat: Sequence[Message]) -> str:
        """See `AudioLanguageModel`; the template takes texts alone."""
        turns = [{"role": message["role"], "content": as_text(message, self.audio_token)} for message in chat]
        if turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": SYSTEM})
        return self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    def embed(self, ids: Tensor) -> Tensor:
        """See `AudioLanguageModel`; the audio token may be outside the vocabulary."""
        return super().embed(ids.masked_fill(ids == self.audio_token_id, 0))

    def project(self, states: Tensor) -> Tensor:
        return super().project(states.unflatten(-1, (self._window, -1))).flatten(0, 1)

    def audio_tokens(self, samples: int) -> int:
        frames = (samples // self._hop + 1) // 2  # a frame of the encoder is two of the spectrogram
        return -(-frames // self._window) * self.tokens_per_state

    def spectrogram(self, clip: np.ndarray) -> Tensor:
        return self.extractor([clip])["input_features"][0]

    def encode_audio(self, clips: Clips, heard: LayerStatistics | None = None) -> Tensor:
        tower, window = self.tower, self._window
        features = clips.features.to(dtype=tower.input_linear.weight.dtype)
        states: list[Tensor] = [features] * len(features)
        for length in sorted(set(clips.lengths)):
            rows = [row for row, row_length in enumerate(clips.lengths) if row_length == length]
            lengths = [[length]] * len(rows)
            with watching(heard, tower.layers, lengths, rows):
                frames = tower(torch.stack([features[row, :length] for row in rows])).last_hidden_state
            windows = nn.functional.pad(frames, (0, 0, 0, -length % window)).unflatten(1, (-1, window))
            for row, clip_states in zip(rows, windows.flatten(2), strict=True):
                states[row] = clip_states
        return torch.cat(states)


class GraniteSpeechPlus(GraniteSpeech):
    """Granite Speech whose projector sees layers of the encoder beside its last one."""

    model_class = GraniteSpeechPlusForConditionalGeneration
