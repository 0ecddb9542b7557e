"""Gemma 4 (Google, 2026) of the sizes with an audio tower (E2B, E4B): conformer tower, projector, language model with
embeddings of each token in every layer.

The tower masks padding before each convolution and in its attention, which looks back alone: a clip's states are the
same in every batch, here as in the official classes. The vision tower is neither made nor read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, Gemma4ForConditionalGeneration
from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModel

from ...data_modules.errors import UserError
from .common.audio_language_model import LANGUAGE_MODEL, AudioLanguageModel, Read
from .common.base import Checkpoint, Clips, Part, PartName
from .common.chat import Chat
from .common.loading import load_model
from .common.padding import on_device, without_padding
from .common.speech_processor import SpeechProcessor

PARTS: Mapping[PartName, Part] = {
    "language_model": LANGUAGE_MODEL,
    "projector": Part("embed_audio", ("embedding_projection",)),
    # `linear` is what the tower's wrappers clip the inputs and outputs of: the clipping stays
    "audio_tower": Part("audio_tower", ("linear", "relative_k_proj"), layers="audio_tower.layers"),
}
LEFT_BEHIND = r"^(lm_head|model\.vision_tower|model\.embed_vision)\."
LONGEST = 480_000
"""Samples behind which the official feature extractor cuts."""

TOWER_KERNEL = "sdpa" if Gemma4AudioModel._supports_sdpa else "eager"
"""The tower has an attention of its own, which reads the mask of this kernel: up to transformers 5.19 True is what it
hears, since then zero."""


class ConformerEars:
    """Implements `Ears`: the official tower, which masks padding itself."""

    tokens_per_state = 1

    def __init__(self, tower: Any, extractor: Any) -> None:
        """Wrap a `Gemma4AudioModel` and a `Gemma4AudioFeatureExtractor`."""
        self._tower, self._extractor = tower, extractor
        self.sampling_rate: int = extractor.sampling_rate
        self.max_seconds = LONGEST / self.sampling_rate
        self.audio_size: int = tower.config.output_proj_dims

    def audio_tokens(self, samples: int) -> int:
        """Audio tokens of a clip of so many samples: one for four frames that lie wholly in the clip."""
        length, hop = self._extractor.frame_length, self._extractor.hop_length
        frames = (samples + length // 2 - (length + 1)) // hop + 1  # half a frame of silence is put before the clip
        return -(-frames // 4)

    def prepare(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(clips, frames, bins)`."""
        made = self._extractor(list(clips), return_tensors="pt")
        return Clips(made["input_features"], made["input_features_mask"].sum(-1).tolist())

    def encode(self, clips: Clips) -> Tensor:
        """Audio states of all clips one after the other `(states, audio size)`."""
        features = clips.features.to(self._tower.output_proj.weight.dtype)
        frames = on_device(clips.lengths, features.device)[:, None]
        heard = self._tower(features, torch.arange(features.shape[1], device=features.device) < frames)
        return without_padding(heard.last_hidden_state, [-(-length // 4) for length in clips.lengths])


def load(checkpoint: Checkpoint) -> AudioLanguageModel:
    """Load weights, tokenizer and feature extractor from the hub or a folder; LM head and vision are left behind.

    Raises:
        UserError: If the model has no audio tower, or the checkpoint lacks weights of it or has weights that belong to
            none.
    """
    config: Any = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    if config.audio_config is None:
        raise UserError(f"backbone {checkpoint.name!r}: has no audio tower; accepted: Gemma 4 E2B and E4B")
    config.vision_config = None
    network: Any = load_model(
        Gemma4ForConditionalGeneration,
        checkpoint,
        config=config,
        left_behind=LEFT_BEHIND,
        unquantized=["audio_tower", "embed_audio"],
        attention={"": checkpoint.attention, "text_config": checkpoint.attention, "audio_config": TOWER_KERNEL},
    ).model
    processor = SpeechProcessor(checkpoint)
    tokens = processor.tokenizer
    return AudioLanguageModel(
        network,
        checkpoint,
        processor=processor,
        parts=PARTS,
        ears=ConformerEars(network.audio_tower, processor.feature_extractor),
        chat=Chat(
            processor,
            tokens.audio_token,
            span=lambda count: f"{tokens.boa_token}{tokens.audio_token * count}{tokens.eoa_token}",
        ),
        embed=network.get_input_embeddings(),
        project=network.embed_audio,
        read=reader(network),
        hidden_size=config.text_config.hidden_size,
    )


def reader(network: Any) -> Read:
    """The language model; in the embeddings of each layer, audio tokens count as padding."""
    text, audio_token_id = network.language_model, network.config.audio_token_id

    def read(ids: Tensor, embeddings: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        per_layer = None
        if text.config.hidden_size_per_layer_input:
            text_ids = ids.masked_fill(ids == audio_token_id, text.config.pad_token_id)
            per_layer = text.get_per_layer_inputs(text_ids, None)  # transformers 5.17 has no default for embeddings
        return text(
            inputs_embeds=embeddings,
            per_layer_inputs=per_layer,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state

    return read
