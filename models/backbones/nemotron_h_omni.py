"""Nemotron 3 Nano Omni (NVIDIA, 2026): Parakeet's tower, a projector of two layers, Nemotron-H: layers of Mamba-2, of
attention and of a mixture of experts.

Exact: hidden states equal those of the official feature extractor and encoder on each clip alone, and of the official
language model on each pair. The official tower has a frame behind the last one, which it masks. Where that begins a
state of its own, at every clip of a multiple of 80 ms, the state is the mean over all positions of the batch, padding
included; alone, over those of its clip. It has an audio token, and is not pooled.

Mamba carries a state from token to token, whatever a mask says: pairs never share a row. Padding in front adds nothing
to it, since its first linear layer has no bias.

LoRA reaches the attention, what Mamba reads, and the expert that all tokens share: the other experts are stacked
weights, and a fused kernel of Mamba reads the weights of `out_proj` past an adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import NemotronH_Omni_Reasoning_V3_Config, NemotronHModel, ParakeetEncoder
from transformers.masking_utils import create_causal_mask
from transformers.models.nemotron_h_omni.modeling_nemotron_h_omni import (
    NemotronH_Omni_Reasoning_V3MultiModalProjector,
    NemotronH_Omni_Reasoning_V3PreTrainedModel,
)

from ...core.errors import UserError
from .audio_language_model import AudioLanguageModel, Message, as_text
from .base import BackbonePart, Checkpoint, Layout
from .inputs import Clips
from .layers import LayerStatistics, on_device, record_layers, without_padding
from .loading import SpeechProcessor


class Listener(NemotronH_Omni_Reasoning_V3PreTrainedModel):
    """The parts that audio and text need, without LM head."""

    def __init__(self, config: NemotronH_Omni_Reasoning_V3_Config) -> None:
        super().__init__(config)
        audio: Any = config.audio_config
        text: Any = config.text_config
        if audio is None or text.use_bias:
            what = "has no audio tower" if audio is None else "has a bias in Mamba, by which padding would be read"
            raise UserError(f"backbone {config.name_or_path!r}: {what}; expected Nemotron 3 Nano Omni")
        self.language_model = NemotronHModel._from_config(text)
        self.audio_tower = ParakeetEncoder._from_config(audio)
        self.embed_audio = NemotronH_Omni_Reasoning_V3MultiModalProjector(
            audio.hidden_size, audio.projection_hidden_size, text.hidden_size, audio.projection_bias
        )
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """See `PreTrainedModel`; torchao asks for it."""
        return self.language_model.get_input_embeddings()


class NemotronHOmni(AudioLanguageModel):
    """Spectrograms of each clip alone, through the official tower with an attention that keeps clips apart."""

    model_class = Listener
    own_audio_token = "<so_embedding>"
    layout = Layout({"": ""})
    final_norm = "language_model.norm_f"
    key_mapping = {
        r"^language_model\.(?:backbone|model)\.": "language_model.",
        r"^sound_encoder\.encoder\.": "audio_tower.",
        r"^sound_projection\.norm\.": "embed_audio.layer_norm.",
        r"^sound_projection\.linear(\d)\.": r"embed_audio.linear_\1.",
    }
    ignored_keys = (
        r"^(?:language_model\.lm_head|mlp1|multi_modal_projector|vision_model|vision_final_layernorm)\.|(?:^|\.)mtp\.|"
        r"\.feature_extractor\."
    )
    parts = {
        "language_model": BackbonePart(
            "language_model",
            ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "up_proj", "down_proj"),
            layers="language_model.layers",
        ),
        "projector": BackbonePart("embed_audio", ("linear_1", "linear_2")),
        "audio_tower": BackbonePart(
            "audio_tower",
            ("linear", "linear1", "linear2", "q_proj", "k_proj", "v_proj", "o_proj", "relative_k_proj"),
            layers="audio_tower.layers",
        ),
    }

    @staticmethod
    def processor_of(checkpoint: Checkpoint) -> Any:
        """Tokenizer and feature extractor."""
        return SpeechProcessor(checkpoint, NemotronHOmni.own_audio_token)

    @classmethod
    def kernels(cls, attention: str) -> dict[str, str]:
        """Attention kernels; that of the tower, which adds positions to its mask, is always the same."""
        return {"": attention, "text_config": attention, "audio_config": "sdpa"}

    @classmethod
    def network_of(cls, model: Any) -> Any:
        """With an attention that keeps clips apart."""
        for layer in model.audio_tower.layers:
            layer.self_attn = RelativeAttention(layer.self_attn)
        return model

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        config: Any = self.tower.config
        self._step: int = config.subsampling_factor * self.extractor.hop_length  # samples of a state
        # no code sets a limit: the positions that the tower states, and half of those of the language model
        most = min(config.max_position_embeddings, self.language_model.config.max_position_embeddings // 2)
        self.max_seconds = most * self._step / self.sampling_rate

    def render(self, chat: Sequence[Message]) -> str:
        """See `AudioLanguageModel`: a text with one audio token for each clip, which the official processor takes."""
        turns = [{"role": message["role"], "content": as_text(message, self.audio_token)} for message in chat]
        return self.processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    @property
    def audio_span(self) -> str:
        return f"<so_start>{self.audio_token}<so_end>"

    def audio_tokens(self, samples: int) -> int:
        """See `Backbone`: of all frames, and the one behind them."""
        return samples // self._step + 1

    def real_audio_tokens(self, samples: int) -> int:
        """See `Backbone`: without a state of the frame behind the last one alone."""
        return -(-(samples // self.extractor.hop_length) * self.extractor.hop_length // self._step)

    def spectrogram(self, clip: np.ndarray) -> Tensor:
        """See `AudioLanguageModel`; its last frame is masked."""
        return self.extractor(clip, sampling_rate=self.sampling_rate, return_tensors="pt")["input_features"][0]

    def read(self, ids: Tensor, embeddings: Tensor, mask: Tensor, positions: Tensor, **further: Any) -> Tensor:
        """See `AudioLanguageModel`; the official class would ask for the values of the mask."""
        config = self.language_model.config
        causal = create_causal_mask(config, embeddings, mask, past_key_values=None, position_ids=positions)
        masks: Any = {"full_attention": causal, "linear_attention": mask}
        return super().read(ids, embeddings, masks, positions, **further)

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        tower, factor = self.tower, self.tower.config.subsampling_factor
        features = clips.features.to(tower.subsampling.linear.weight.dtype)
        # The extractor masks the frame behind the clip
        heard = [length - 1 for length in clips.lengths]
        counts, real = ([-(-length // factor) for length in lengths] for lengths in (clips.lengths, heard))
        states = tower.subsampling(features, _first(heard, features.shape[1], features.device)) * tower.input_scale
        inside, kept = (_first(numbers, states.shape[1], states.device)[:, None, None] for numbers in (counts, real))
        # one row: the distance of two positions is the same in all clips
        layout = _Layout(tower.encode_positions(states[:1]), inside)
        with record_layers(layer_statistics, tower.layers, clips, real):
            for layer in tower.layers:
                # the convolution of a layer reads zeros where the mask says so
                states = layer(states, attention_mask=kept, position_embeddings=layout)
        return without_padding(states, counts)


class _Layout(NamedTuple):
    """What the attention of a layer is given in place of positions."""

    distances: Tensor  # embeddings of all distances of two positions `(1, 2 * positions - 1, size)`
    inside: Tensor  # True at the positions of a clip, those that are masked included `(clips, 1, 1, positions)`


class RelativeAttention(nn.Module):
    """The attention of Parakeet's tower with the linear layers of the official one. A position that is masked attends
    to all those of its clip alike, as it does officially where the clip is alone."""

    def __init__(self, official: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = official.q_proj, official.k_proj, official.v_proj
        self.o_proj, self.relative_k_proj = official.o_proj, official.relative_k_proj
        self.bias_u, self.bias_v = official.bias_u, official.bias_v
        self.head_dim, self.scaling = official.head_dim, official.scaling

    def forward(
        self, hidden_states: Tensor, position_embeddings: _Layout, attention_mask: Tensor, **_: Any
    ) -> tuple[Tensor, None]:
        """Attend; `attention_mask` is True where a position is not masked `(clips, 1, 1, positions)`."""

        def heads(states: Tensor) -> Tensor:
            return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        query = heads(self.q_proj(hidden_states))
        distances = heads(self.relative_k_proj(position_embeddings.distances))
        bias = (query + self.bias_v[:, None]) @ distances.transpose(-1, -2) * self.scaling
        # row by row one distance further (Dai et al., 2019, appendix B)
        positions = bias.shape[2]
        bias = nn.functional.pad(bias, (1, 0)).flatten(2)[..., positions:].unflatten(-1, (positions, -1))
        bias = bias[..., :positions].masked_fill(~attention_mask, -torch.inf)
        # Officially a masked position has one score everywhere: its state is a mean over its clip
        attends = attention_mask.transpose(-1, -2)
        alike = torch.zeros_like(bias[:, :1, :1]).masked_fill(~position_embeddings.inside, -torch.inf)
        mixed = nn.functional.scaled_dot_product_attention(
            (query + self.bias_u[:, None]) * attends,
            heads(self.k_proj(hidden_states)),
            heads(self.v_proj(hidden_states)),
            torch.where(attends, bias, alike),
            scale=self.scaling,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), None


def _first(numbers: Sequence[int], width: int, device: torch.device) -> Tensor:
    """True at the first of the positions of each row, so many of each `(rows, width)`."""
    return torch.arange(width, device=device) < on_device(numbers, device)[:, None]
