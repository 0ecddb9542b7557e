"""Gemma 3n (Google, 2025) and Gemma 4 (Google, 2026) of the sizes with an audio tower (E2B, E4B): conformer tower,
projector, language model with embeddings of each token in every layer. The vision tower, for which Gemma 3n needs the
package timm, is neither built nor read.

The official processor of Gemma 3n gives each clip as many audio tokens as 30 s make (188), and the official model pads
those of a shorter clip with the embedding of one token; the language model reads them. So does this file. In an
official batch, frames of padding count as real, so that a clip's states depend on the longest clip of its batch. Here
every clip has the states that the official encoder gives it alone.

The tower of Gemma 4 masks padding before each convolution and in its attention, which only looks back: a clip's states
are the same in every batch, here and in the official classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel, Gemma3nConfig, Gemma4ForConditionalGeneration
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nMultimodalEmbedder, Gemma3nPreTrainedModel
from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModel

from ...core.errors import UserError
from .audio_language_model import LANGUAGE_MODEL, AudioLanguageModel
from .base import BackbonePart, Checkpoint, Layout
from .inputs import Clips
from .layers import LayerStatistics, on_device, record_layers, without_padding
from .loading import SpeechProcessor

IGNORED_KEYS = r"^(lm_head|model\.vision_tower|model\.embed_vision)\."
LONGEST = 480_000
"""Number of samples after which the official feature extractor cuts a clip."""
TOWER_KERNEL = "sdpa" if Gemma4AudioModel._supports_sdpa else "eager"
"""The tower has an attention of its own, which reads the mask of this kernel: up to transformers 5.19 it attends where
the mask is True, since then where it is zero."""


class Gemma3nForAudio(Gemma3nPreTrainedModel):
    """`Gemma3nModel` without its vision tower; its `forward` is not called."""

    def __init__(self, config: Gemma3nConfig) -> None:
        super().__init__(config)
        self.language_model = AutoModel.from_config(config.text_config)
        self.audio_tower = AutoModel.from_config(config.audio_config)
        self.embed_audio = Gemma3nMultimodalEmbedder(config.audio_config, config.text_config)  # pyright: ignore[reportArgumentType]
        self.post_init()


class Gemma3n(AudioLanguageModel):
    """The official encoder on each clip's real length; states of zeros up to a fixed number."""

    network: Gemma3nForAudio
    entered_at_layers = False  # each of its layers has four states of a token
    model_class = Gemma3nForAudio
    ignored_keys = IGNORED_KEYS
    processor_of = SpeechProcessor
    layout = Layout({"": ""})
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": BackbonePart("embed_audio", ("embedding_projection",)),
        "audio_tower": BackbonePart(
            "audio_tower",
            ("q_proj", "k_proj", "v_proj", "post", "ffw_layer_1", "ffw_layer_2", "linear_start", "linear_end"),
            layers="audio_tower.conformer",
        ),
    }

    @classmethod
    def unquantized(cls) -> list[str]:
        """All parts but the language model, and its AltUp."""
        return [*super().unquantized(), "altup", "altup_projections", "altup_unembed_projections"]

    @classmethod
    def network_of(cls, model: Any) -> Any:
        """The model as it is."""
        return model

    def __init__(self, network: Any, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        config = self.tower.config
        self._states: int = network.config.audio_soft_tokens_per_image  # of every clip, padding included
        frames = self._states * config.conf_reduction_factor
        for time_stride, _ in config.sscp_conv_stride_size:
            frames *= time_stride
        # As many frames as the fixed number of states takes in
        self.max_seconds = min(LONGEST, frames * self.extractor.hop_length) / self.sampling_rate
        self._frames_per_state = frames // self._states

    @property
    def audio_span(self) -> str:
        return f"\n\n{self.tokenizer.boa_token}{self.audio_token}{self.tokenizer.eoa_token}\n\n"

    def embed(self, ids: Tensor) -> Tensor:
        """See `AudioLanguageModel`; the last tokens of the vocabulary have their embeddings in the projector."""
        embeddings, projector = super().embed(ids), self.network.embed_audio
        # As the official model: ids below the offset are not in this table, and keep the text's embeddings
        hard = projector(input_ids=ids.clamp(min=projector.vocab_offset)).to(embeddings)
        return torch.where((ids >= projector.vocab_offset)[..., None], hard, embeddings)

    def project(self, states: Tensor) -> Tensor:
        """See `AudioLanguageModel`; a state of zeros is padding behind a short clip."""
        # The official model pads short clips with the embedding of the last token of the vocabulary
        last_token = torch.full((1, 1), self.language_model.vocab_size - 1, device=states.device)
        padding_embedding = self.network.embed_audio(input_ids=last_token)[0]
        projected = self.network.embed_audio(inputs_embeds=states)
        return torch.where(states.any(-1, keepdim=True).to(projected.device), projected, padding_embedding)

    def read(self, ids: Tensor, embeddings: Tensor, mask: Tensor, positions: Tensor, **further: Any) -> Tensor:
        size = self.language_model.config.vocab_size_per_layer_input
        # transformers 5.21 does it itself: hard tokens have no embeddings of each layer
        per_layer = self.language_model.get_per_layer_inputs(ids.masked_fill(ids >= size, 0))
        return super().read(ids, embeddings, mask, positions, per_layer_inputs=per_layer, **further)

    def audio_tokens(self, samples: int) -> int:
        """See `Backbone`: the same for all clips."""
        return self._states

    def real_audio_tokens(self, samples: int) -> int:
        # Each frame takes one sample more than its length
        frames = (samples - self.extractor.frame_length - 1) // self.extractor.hop_length + 1
        return -(-frames // self._frames_per_state)

    def spectrogram(self, clip: np.ndarray) -> Tensor:
        """See `AudioLanguageModel`; of several clips at once, padding would become frames of its own."""
        return torch.from_numpy(self.extractor([clip])["input_features"][0])

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        """Audio states of all clips one after the other `(clips * states, audio size)`."""
        tower = self.tower
        features = clips.features.to(tower.subsample_conv_projection.input_proj_linear.weight.dtype)
        # one by one: the first convolution's output at padding is not zero, and the second one would read it
        rows = [
            tower.subsample_conv_projection(row[None, :frames])[0]
            for row, frames in zip(features, clips.lengths, strict=True)
        ]
        states = pad_sequence(rows, batch_first=True)
        lengths = [len(row) for row in rows]
        padding = torch.arange(states.shape[1], device=states.device) >= on_device(lengths, states.device)[:, None]
        with record_layers(layer_statistics, tower.conformer, clips, lengths):
            for block in tower.conformer:
                states = block(states, padding)
        step = tower.config.conf_reduction_factor
        # Only every so many positions are states; zeros say that one is padding, see `project`
        states = states[:, ::step].masked_fill(padding[:, ::step, None], 0)
        return nn.functional.pad(states, (0, 0, 0, self._states - states.shape[1])).flatten(0, 1)


class Gemma4(AudioLanguageModel):
    """The official tower, which masks padding itself."""

    entered_at_layers = False  # its last layers read keys and values of layers below
    model_class = Gemma4ForConditionalGeneration
    ignored_keys = IGNORED_KEYS
    processor_of = SpeechProcessor
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": BackbonePart("embed_audio", ("embedding_projection",)),
        # the tower's wrappers clip the inputs and outputs of their `linear`: the clipping stays
        "audio_tower": BackbonePart("audio_tower", ("linear", "relative_k_proj"), layers="audio_tower.layers"),
    }

    @classmethod
    def config_of(cls, checkpoint: Checkpoint) -> Any:
        """See `without_vision`."""
        return without_vision(checkpoint, "Gemma 4 E2B or E4B")

    @classmethod
    def kernels(cls, attention: str) -> dict[str, str]:
        """Attention kernels; that of the tower is always the same."""
        return {"": attention, "text_config": attention, "audio_config": TOWER_KERNEL}

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        self.max_seconds = LONGEST / self.sampling_rate
        self.audio_size: int = self.tower.config.output_proj_dims

    @property
    def audio_span(self) -> str:
        return f"{self.tokenizer.boa_token}{self.audio_token}{self.tokenizer.eoa_token}"

    def read(self, ids: Tensor, embeddings: Tensor, mask: Tensor, positions: Tensor, **further: Any) -> Tensor:
        """See `AudioLanguageModel`; in the embeddings of each layer, audio tokens count as padding."""
        text, per_layer = self.language_model, None
        if text.config.hidden_size_per_layer_input:
            audio_token_id: int = self.network.config.audio_token_id  # pyright: ignore
            text_ids = ids.masked_fill(ids == audio_token_id, text.config.pad_token_id)
            # transformers 5.17 has no default for the embeddings
            per_layer = text.get_per_layer_inputs(text_ids, None)
        return super().read(ids, embeddings, mask, positions, per_layer_inputs=per_layer, **further)

    def audio_tokens(self, samples: int) -> int:
        """See `Backbone`: one for four frames that are wholly in the clip."""
        length, hop = self.extractor.frame_length, self.extractor.hop_length
        # Half a frame of silence is put before the clip
        frames = (samples + length // 2 - (length + 1)) // hop + 1
        return -(-frames // 4)

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(clips, frames, bins)`."""
        extracted = self.extractor(list(clips), return_tensors="pt")
        return Clips(extracted["input_features"], extracted["input_features_mask"].sum(-1).tolist())

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        features = clips.features.to(self.tower.output_proj.weight.dtype)
        frames = on_device(clips.lengths, features.device)[:, None]
        lengths = [-(-length // 4) for length in clips.lengths]
        with record_layers(layer_statistics, self.tower.layers, clips, lengths):
            output = self.tower(features, torch.arange(features.shape[1], device=features.device) < frames)
        return without_padding(output.last_hidden_state, lengths)


def without_vision(checkpoint: Checkpoint, expected: str) -> Any:
    """Configuration without vision.

    Raises:
        UserError: If the model has nothing that hears.
    """
    config: Any = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    if config.audio_config is None:
        raise UserError(f"backbone {checkpoint.name!r}: has no audio tower; expected {expected}")
    config.vision_config = None
    return config
