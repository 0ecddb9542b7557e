"""Granite Speech (Saon et al., 2025): conformer with attention in blocks of 4 s, windowed Q-Former, Granite.

The official encoder has no mask for padding, so that of two clips of one text the shorter hears the silence that fills
it up. Exact is therefore: official encoder and projector on each clip alone, official language model on the whole.
An audio state is what the Q-Former makes three tokens of: a window of 15 encoder frames (0.3 s), the last one of a clip
filled up with zeros.

Granite Speech 3 has a LoRA of its own, which the official code switches on where there is audio. It is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GraniteSpeechForConditionalGeneration

from .common.audio_language_model import LANGUAGE_MODEL, WHOLE, AudioLanguageModel, decoder
from .common.base import Checkpoint, Clips, Layout, Part, PartName
from .common.chat import Chat
from .common.loading import load_model, load_processor
from .common.own_adapter import merge_own_adapter
from .common.prompt import Message, as_text

SYSTEM = (
    "Knowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n"
    "You are Granite, developed by IBM. You are a helpful AI assistant"
)
"""As the authors' example has it. Without it the chat template writes today's date, and scores change overnight."""
PARTS: Mapping[PartName, Part] = {
    "language_model": LANGUAGE_MODEL,
    "projector": Part("projector", ("query", "key", "value", "dense", "linear")),
    "audio_tower": Part(
        "encoder",
        ("input_linear", "to_q", "to_kv", "to_out", "up_proj", "down_proj", "out", "out_mid"),
        layers="encoder.layers",
    ),
}


def load(checkpoint: Checkpoint) -> AudioLanguageModel:
    """Load weights and processor from the hub or a folder; the LM head is left behind.

    Raises:
        UserError: If the checkpoint or its adapter lacks weights of the model or has weights that belong to none.
    """
    return load_as(GraniteSpeechForConditionalGeneration, checkpoint)


def load_as(model_class: Any, checkpoint: Checkpoint) -> AudioLanguageModel:
    """`load` for a class of this build."""
    model = load_model(model_class, checkpoint, unquantized=["encoder", "projector"], own_adapter=True)
    if checkpoint.weights:
        merge_own_adapter(model, checkpoint, required=model.config.has_lora_adapter)
    network, processor = model.model, load_processor(checkpoint)
    chat = Chat(processor, processor.audio_token, render=render(processor))
    ears = GraniteSpeechEars(network, processor.audio_processor)

    def embed(ids: Tensor) -> Tensor:
        # the audio token may lie outside the vocabulary; its embedding is replaced anyway
        return network.get_input_embeddings()(ids.masked_fill(ids == chat.audio_token_id, 0))

    def project(states: Tensor) -> Tensor:
        return network.projector(states.unflatten(-1, (ears.window, -1))).flatten(0, 1)

    return AudioLanguageModel(
        network,
        checkpoint,
        processor=processor,
        parts=PARTS,
        ears=ears,
        chat=chat,
        embed=embed,
        project=project,
        read=decoder(network.language_model),
        hidden_size=network.language_model.config.hidden_size,
        layout=Layout(WHOLE.names, {"has_lora_adapter": False}),
    )


def render(processor: Any) -> Callable[[Sequence[Message]], str]:
    """A chat with one audio token for each clip; the template takes texts alone."""

    def text(chat: Sequence[Message]) -> str:
        turns = [{"role": message["role"], "content": as_text(message, processor.audio_token)} for message in chat]
        if turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": SYSTEM})
        return processor.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    return text


class GraniteSpeechEars:
    """Implements `Ears`: every clip goes through the encoder at its own length, those of equal length together."""

    def __init__(self, network: Any, extractor: Any) -> None:
        """Wrap the official model and its feature extractor."""
        config = network.config
        self._tower, self._extractor = network.encoder, extractor
        self._hop: int = extractor.melspec_kwargs["hop_length"]
        self.window: int = config.window_size
        self.tokens_per_state: int = config.window_size // config.downsample_rate
        self.sampling_rate: int = extractor.sampling_rate
        self.audio_size: int = self.window * config.projector_config.encoder_hidden_size
        # No file sets a limit. The language model must have room for context and response, each this long.
        frames = config.text_config.max_position_embeddings / 2 * config.downsample_rate
        self.max_seconds: float = frames * 2 * self._hop / self.sampling_rate

    def audio_tokens(self, samples: int) -> int:
        """Audio tokens of a clip of so many samples."""
        frames = (samples // self._hop + 1) // 2  # a frame of the encoder is two of the spectrogram
        return -(-frames // self.window) * self.tokens_per_state

    def prepare(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(clips, frames, bins)`, each made of its clip alone; zeros fill up the shorter ones."""
        made = [self._extractor([clip])["input_features"][0] for clip in clips]
        return Clips(nn.utils.rnn.pad_sequence(made, batch_first=True), [len(features) for features in made])

    def encode(self, clips: Clips) -> Tensor:
        """Audio states of all clips one after the other `(states, audio size)`."""
        features = clips.features.to(dtype=self._tower.input_linear.weight.dtype)
        states: list[Tensor] = [features] * len(features)
        for length in sorted(set(clips.lengths)):
            rows = [row for row, own in enumerate(clips.lengths) if own == length]
            frames = self._tower(torch.stack([features[row, :length] for row in rows])).last_hidden_state
            windows = nn.functional.pad(frames, (0, 0, 0, -length % self.window)).unflatten(1, (-1, self.window))
            for row, made in zip(rows, windows.flatten(2), strict=True):
                states[row] = made
        return torch.cat(states)
