"""A backbone of three parts: an audio tower, a projector and a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ....data_modules.schema import Pair
from .attention import padding_last
from .base import Checkpoint, Clips, Inputs, Layout, Part, PartName
from .chat import Chat
from .halves import entered, layers_at

LANGUAGE_MODEL = Part(
    "language_model",
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    layers="language_model.layers",
)
"""Most families' language model: a decoder with gated feed-forward layers."""


class Ears(Protocol):
    """How a family hears: from samples to audio states.

    Attributes:
        sampling_rate: Hz.
        max_seconds: Longest clip that it hears whole (seconds).
        audio_size: Width of an audio state.
        tokens_per_state: Audio tokens that the projector makes of one state.
    """

    sampling_rate: int
    max_seconds: float
    audio_size: int
    tokens_per_state: int

    def audio_tokens(self, samples: int) -> int:
        """Audio tokens of a clip of so many samples."""
        ...

    def prepare(self, clips: Sequence[np.ndarray]) -> Clips:
        """What the audio tower reads of mono clips `(samples,)`."""
        ...

    def encode(self, clips: Clips) -> Tensor:
        """Audio states of all clips one after the other, without padding `(states, audio size)`."""
        ...


WHOLE = Layout({"": "model."})
"""Of a network that is the model inside a generation class."""

Read = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`(token ids, embeddings, attention mask, positions)` to last hidden states `(batch, tokens, hidden)`."""


class AudioLanguageModel:
    """Implements `Backbone`; see there for its attributes.

    Attributes:
        chat: From chats to token ids.
    """

    reads_text = True

    def __init__(
        self,
        network: nn.Module,
        checkpoint: Checkpoint,
        *,
        processor: Any,
        parts: Mapping[PartName, Part],
        ears: Ears,
        chat: Chat,
        embed: Callable[[Tensor], Tensor],
        project: Callable[[Tensor], Tensor],
        read: Read,
        hidden_size: int,
        heard: Callable[[int], int] | None = None,
        layout: Layout = WHOLE,
    ) -> None:
        """Put the pieces of a family together.

        Args:
            network: Holds every weight.
            checkpoint: Where it comes from.
            processor: What `save_processor` writes.
            parts: What can be trained.
            ears: From samples to audio states.
            chat: From chats to token ids.
            embed: From token ids `(batch, tokens)` to embeddings `(batch, tokens, hidden)`.
            project: From audio states `(states, audio size)` to embeddings `(states * tokens_per_state, hidden)`.
            read: The language model without its head. Of these three, none may hold on to a linear layer itself: LoRA
                replaces it inside its parent.
            hidden_size: Width of the language model.
            heard: See `heard_tokens`; by default all audio tokens carry the clip.
            layout: How a checkpoint stores the weights of this network.
        """
        self.network = network
        self.name, self.revision = checkpoint.name, checkpoint.revision
        self.parts, self.layout = parts, layout
        self.ears = ears
        self.sampling_rate, self.max_seconds = ears.sampling_rate, ears.max_seconds
        self.audio_size, self.tokens_per_state = ears.audio_size, ears.tokens_per_state
        self.hidden_size = hidden_size
        self.chat, self._processor = chat, processor
        self._embed, self._project, self._read = embed, project, read
        self._heard = heard or ears.audio_tokens

    def audio_tokens(self, samples: int) -> int:
        """Audio tokens of a clip of so many samples."""
        return self.ears.audio_tokens(samples)

    def heard_tokens(self, samples: int) -> int:
        """How many of these, from the first, carry the clip."""
        return self._heard(samples)

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """What the audio tower reads of mono clips `(samples,)`."""
        return self.ears.prepare(clips)

    def prepare_text(
        self, pairs: Sequence[Pair], audio_tokens: Sequence[Sequence[int]], padding_side: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention mask and mask of audio tokens, each `(batch, tokens)`; see `Backbone`."""
        return self.chat.prepare(pairs, audio_tokens, padding_side)

    def encode_audio(self, clips: Clips) -> Tensor:
        """Audio states of all clips one after the other `(states, audio size)`."""
        return self.ears.encode(clips)

    def hidden_states(self, inputs: Inputs) -> Tensor:
        """Last hidden states `(batch, tokens, hidden)`; see `Backbone`."""
        positions = (inputs.attention_mask.cumsum(-1) - 1).clamp(min=0)
        if inputs.hidden is not None:
            path = self.parts["language_model"].layers
            assert path is not None
            layers = layers_at(self.network, path)[: inputs.first]
            with entered(layers, inputs.hidden), padding_last(inputs.padding_last):
                return self._read(inputs.input_ids, inputs.hidden, inputs.attention_mask, positions)
        states = inputs.audio_states
        if states is None and inputs.clips is not None:
            states = self.encode_audio(inputs.clips)
        embeddings = self._embed(inputs.input_ids)
        if states is not None:  # a chat may be without audio, as is what continues one
            audio = self._project(states.to(embeddings.device, self._projector_dtype()))[inputs.audio_index]
            flat = embeddings.flatten(0, 1).index_copy(0, inputs.audio_places, audio.to(embeddings))
            embeddings = flat.view_as(embeddings)
        with padding_last(inputs.padding_last):
            return self._read(inputs.input_ids, embeddings, inputs.attention_mask, positions)

    def _projector_dtype(self) -> torch.dtype:
        """Where the projector is trained in full, it is float32 beside a language model in bfloat16."""
        return next(self.network.get_submodule(self.parts["projector"].path).parameters()).dtype

    def save_processor(self, folder: str) -> None:
        """Write tokenizer and feature extractor."""
        self._processor.save_pretrained(folder)


def decoder(language_model: nn.Module) -> Read:
    """`Read` for a decoder that takes one position for each token."""

    def read(ids: Tensor, embeddings: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        return language_model(
            inputs_embeds=embeddings, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state

    return read
