"""Gemma 4 (Google, 2026) of the sizes with an audio tower (E2B, E4B): conformer tower, projector, language model with
embeddings of each token in every layer.

The tower masks padding before each convolution and in its attention, which looks back alone: a clip's states are the
same in every batch, here as in the official classes. The vision tower is neither made nor read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, Gemma4ForConditionalGeneration
from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModel

from ...data_modules.errors import UserError
from .audio_language_model import LANGUAGE_MODEL, AudioLanguageModel
from .base import Checkpoint, Clips, Part
from .layers import LayerStatistics, watching
from .loading import SpeechProcessor, load_model
from .padding import on_device, without_padding

IGNORED_KEYS = r"^(lm_head|model\.vision_tower|model\.embed_vision)\."
LONGEST = 480_000
"""Samples behind which the official feature extractor cuts."""

TOWER_KERNEL = "sdpa" if Gemma4AudioModel._supports_sdpa else "eager"
"""The tower has an attention of its own, which reads the mask of this kernel: up to transformers 5.19 True is what it
attends to, since then zero."""


class Gemma4(AudioLanguageModel):
    """The official tower, which masks padding itself."""

    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": Part("embed_audio", ("embedding_projection",)),
        # `linear` is what the tower's wrappers clip the inputs and outputs of: the clipping stays
        "audio_tower": Part("audio_tower", ("linear", "relative_k_proj"), layers="audio_tower.layers"),
    }

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Gemma4:
        """See `Backbone`.

        Raises:
            UserError: Also if the model has no audio tower.
        """
        config: Any = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
        if config.audio_config is None:
            raise UserError(f"backbone {checkpoint.name!r}: has no audio tower; expected Gemma 4 E2B or E4B")
        config.vision_config = None
        model = load_model(
            Gemma4ForConditionalGeneration,
            checkpoint,
            config=config,
            ignored_keys=IGNORED_KEYS,
            unquantized=cls.unquantized(),
            attention={"": checkpoint.attention, "text_config": checkpoint.attention, "audio_config": TOWER_KERNEL},
        )
        return cls(model.model, SpeechProcessor(checkpoint), checkpoint)

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        self.max_seconds = LONGEST / self.sampling_rate
        self.audio_size: int = self.tower.config.output_proj_dims
        self.layer_sizes = len(self.tower.layers) + 1, self.tower.config.hidden_size

    def audio_span(self, count: int) -> str:
        """See `AudioLanguageModel`."""
        return f"{self.tokenizer.boa_token}{self.audio_token * count}{self.tokenizer.eoa_token}"

    def read(self, ids: Tensor, embeddings: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """See `AudioLanguageModel`; in the embeddings of each layer, audio tokens count as padding."""
        text, per_layer = self.language_model, None
        if text.config.hidden_size_per_layer_input:
            audio_token_id: int = self.network.config.audio_token_id  # pyright: ignore
            text_ids = ids.masked_fill(ids == audio_token_id, text.config.pad_token_id)
            per_layer = text.get_per_layer_inputs(text_ids, None)  # transformers 5.17 has no default for embeddings
        return text(
            inputs_embeds=embeddings,
            per_layer_inputs=per_layer,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state

    def audio_tokens(self, samples: int) -> int:
        """See `Backbone`: one for four frames that are wholly in the clip."""
        length, hop = self.extractor.frame_length, self.extractor.hop_length
        frames = (samples + length // 2 - (length + 1)) // hop + 1  # half a frame of silence is put before the clip
        return -(-frames // 4)

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(clips, frames, bins)`."""
        made = self.extractor(list(clips), return_tensors="pt")
        return Clips(made["input_features"], made["input_features_mask"].sum(-1).tolist())

    def encode_audio(self, clips: Clips, heard: LayerStatistics | None = None) -> Tensor:
        """See `Backbone`."""
        features = clips.features.to(self.tower.output_proj.weight.dtype)
        frames = on_device(clips.lengths, features.device)[:, None]
        lengths = [-(-length // 4) for length in clips.lengths]
        with watching(heard, self.tower.layers, clips.by_clip(lengths)):
            found = self.tower(features, torch.arange(features.shape[1], device=features.device) < frames)
        return without_padding(found.last_hidden_state, lengths)
