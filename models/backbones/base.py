"""What the judge asks of a backbone. A family is one file beside this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from ...data_modules.schema import Pair


@dataclass(frozen=True)
class Part:
    """A part of a backbone that LoRA can be put on.

    Attributes:
        path: Path of its module inside the network.
        linears: Last names of its linear layers.
    """

    path: str
    linears: tuple[str, ...]


@dataclass(frozen=True)
class Clips:
    """Spectrograms of several clips, padded to the longest.

    Attributes:
        features: `(clips, bins, frames)`.
        lengths: Real frames of each clip `(clips,)`.
    """

    features: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Inputs:
    """What the judge reads for a batch of pairs. Every distinct clip is held once, however many pairs share it.

    Attributes:
        input_ids: `(batch, tokens)`; each audio token stands for one audio state.
        attention_mask: `(batch, tokens)`, 1 for real tokens and 0 for padding, on either side.
        response_mask: `(batch, tokens)`, True where an audio state of the response stands.
        audio_index: For each audio token of `input_ids` in reading order, the row of its audio state `(audio tokens,)`.
        clips: The clips to encode; None where `audio_states` holds them encoded.
        audio_states: What `Backbone.encode_audio` made of the clips, one after the other `(states, audio size)`.
    """

    input_ids: Tensor
    attention_mask: Tensor
    response_mask: Tensor
    audio_index: Tensor
    clips: Clips | None = None
    audio_states: Tensor | None = None

    def to(self, device: torch.device) -> Inputs:
        """The same inputs on another device."""
        moved = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Clips):
                moved[field.name] = Clips(value.features.to(device), value.lengths.to(device))
            elif value is not None:
                moved[field.name] = value.to(device)
        return replace(self, **moved)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No log lines and progress bars of `transformers` while weights are loaded."""
    verbosity, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.logging.enable_progress_bar()


class Backbone(Protocol):
    """An audio language model without its LM head.

    Attributes:
        network: The module that holds every weight; LoRA is put on it in place.
        name: Hub id or folder it was loaded from.
        revision: Commit of the hub repository, or None for a folder.
        sampling_rate: Hz at which it hears.
        max_seconds: Longest clip that it hears whole.
        audio_size: Width of the states that leave the audio tower.
        hidden_size: Width of the language model.
        parts: `language_model`, `projector` and `audio_tower`.
    """

    network: nn.Module
    name: str
    revision: str | None
    sampling_rate: int
    max_seconds: float
    audio_size: int
    hidden_size: int
    parts: Mapping[str, Part]

    def audio_tokens(self, samples: int) -> int:
        """Audio states of a clip of so many samples."""
        ...

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms of mono clips `(samples,)` at `sampling_rate`."""
        ...

    def prepare_text(
        self, pairs: Sequence[Pair], audio_tokens: Sequence[Sequence[int]], padding_side: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention mask and mask of audio tokens, each `(batch, tokens)`.

        Args:
            pairs: What is asked about; the audio itself is not read here.
            audio_tokens: For each pair the audio states of its context turns and, last, of its response.
            padding_side: "left" or "right".
        """
        ...

    def encode_audio(self, clips: Clips) -> Tensor:
        """Audio states of all clips one after the other, without padding `(states, audio size)`."""
        ...

    def hidden_states(self, inputs: Inputs) -> Tensor:
        """Last hidden states `(batch, tokens, hidden)`; those at padding mean nothing."""
        ...

    def save_processor(self, folder: str) -> None:
        """Write tokenizer and feature extractor."""
        ...
