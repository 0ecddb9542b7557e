"""A backbone without a language model: one audio encoder hears every clip, a joiner brings a pair's clips together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ....data_modules.errors import UserError
from ....data_modules.schema import Pair
from .audio_language_model import Ears
from .base import Checkpoint, Clips, Inputs, Layout, Part, PartName
from .joiner import OTHER, PADDING, RESPONSE, USER, WIDTH, Joiner
from .loading import load_model
from .padding import without_padding

Tower = TypeVar("Tower", bound=PreTrainedModel)

MAX_SECONDS = 30.0
"""Longest clip (seconds) of the encoders that set no limit themselves: about twice what they were trained on (HuBERT:
250,000 samples, 15.6 s), as memory grows with its square. `long_clips: window` hears longer clips in windows."""

_LEFT_BEHIND = (
    r"^(lm_head|projector|classifier|tdnn|objective)\.|^layer_weights$|^feature_extractor\.(weight|bias)$"
    r"|^(\w+\.)?(adapter\.|intermediate_ffn\.|masked_spec_embed$)"
)


class PairEncoder:
    """Implements `Backbone`; see there for its attributes.

    An audio state holds all layers of the tower, so that the states of a frozen tower can be kept while the joiner
    learns how much of each layer it wants. A token id says what a token is part of (`joiner.USER` and so on): every
    token is an audio token, and there is no text.
    """

    tokens_per_state = 1
    hidden_size = WIDTH
    layout = Layout({"encoder.": ""})  # no checkpoint of an encoder has a joiner
    reads_text = False

    def __init__(
        self,
        tower: PreTrainedModel,
        checkpoint: Checkpoint,
        *,
        extractor: Any,
        ears: Ears,
        layers: int,
        part: Part,
    ) -> None:
        """Put a tower and a new joiner together.

        Args:
            tower: Holds the pre-trained weights.
            checkpoint: Where they come from.
            extractor: What `save_processor` writes.
            ears: From samples to audio states: the states of all layers side by side.
            layers: How many these are.
            part: The tower's linear layers. Inside the network the tower is called `encoder`.
        """
        joiner = Joiner(layers, ears.audio_size // layers)
        self._joiner = joiner.to(tower.device)
        self.network = nn.ModuleDict({"encoder": tower, "joiner": self._joiner})
        self.name, self.revision = checkpoint.name, checkpoint.revision
        self.parts: dict[PartName, Part] = {"audio_tower": part, "joiner": Part("joiner", ())}
        self.sampling_rate, self.max_seconds = ears.sampling_rate, ears.max_seconds
        self.audio_size = ears.audio_size
        self._ears, self._extractor = ears, extractor

    def audio_tokens(self, samples: int) -> int:
        """Audio tokens of a clip of so many samples."""
        return self._ears.audio_tokens(samples)

    def heard_tokens(self, samples: int) -> int:
        """All of these: states of silence behind a clip are not kept."""
        return self._ears.audio_tokens(samples)

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """What the audio tower reads of mono clips `(samples,)`."""
        return self._ears.prepare(clips)

    def prepare_text(
        self, pairs: Sequence[Pair], audio_tokens: Sequence[Sequence[int]], padding_side: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention mask and mask of audio tokens, each `(batch, tokens)`; see `Backbone`."""
        rows = []
        for pair, counts in zip(pairs, audio_tokens, strict=True):
            segments = [USER if turn.role == "user" else OTHER for turn in pair.context] + [RESPONSE]
            rows.append(torch.tensor(segments).repeat_interleave(torch.tensor(counts)))
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING, padding_side=padding_side)
        is_audio = ids != PADDING
        return ids, is_audio.long(), is_audio

    def encode_audio(self, clips: Clips) -> Tensor:
        """Audio states of all clips one after the other, all layers side by side `(states, layers * size)`."""
        return self._ears.encode(clips)

    def hidden_states(self, inputs: Inputs) -> Tensor:
        """Last hidden states `(batch, tokens, hidden)`; see `Backbone`. At context tokens what the joiner projected."""
        states = inputs.audio_states
        if states is None:
            assert inputs.clips is not None
            states = self.encode_audio(inputs.clips)
        projected = self._joiner.project(states)
        nothing = projected.new_zeros(inputs.input_ids.numel(), WIDTH)
        audio = nothing.index_copy(0, inputs.audio_places, projected[inputs.audio_index])
        return self._joiner(audio.view(*inputs.input_ids.shape, WIDTH), inputs.input_ids)

    def save_processor(self, folder: str) -> None:
        """Write the feature extractor."""
        self._extractor.save_pretrained(folder)


def load_tower(
    model_class: type[Tower],
    checkpoint: Checkpoint,
    config: PreTrainedConfig,
    *,
    left_behind: str = _LEFT_BEHIND,
    key_mapping: dict[str, str] | None = None,
    float32_parts: Sequence[str] = (),
) -> Tower:
    """Load an encoder; by default, heads of recognizers and classifiers that sit on top of it are left behind.

    Args:
        model_class: The encoder without a head.
        checkpoint: What to load and how.
        config: Of the encoder.
        left_behind: See `load_model`.
        key_mapping: See `load_model`.
        float32_parts: See `load_model`.

    Raises:
        UserError: As `load_model`; also if 4 bits are asked for.
    """
    if checkpoint.quantization != "none":
        raise UserError(
            f"backbone {checkpoint.name!r}: quantization {checkpoint.quantization} is for language models, and this "
            "is an encoder alone; accepted: none"
        )
    config.mask_time_prob = config.mask_feature_prob = 0.0  # else there is a weight that only masked training reads
    return load_model(
        model_class,
        checkpoint,
        config=config,
        left_behind=left_behind,
        key_mapping=key_mapping,
        float32_parts=float32_parts,
    )


def pack(layers: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """States of several layers, each `(rows, frames, size)`, side by side without padding `(states, layers * size)`.

    Args:
        layers: What each layer made.
        lengths: Frames of each row that belong to a clip.
    """
    return torch.cat([without_padding(layer, lengths) for layer in layers], -1)
