"""The judge: backbone, pooling, head. Builds its inputs from pairs and turns them into scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor, nn

from ..data_modules.audio import AudioSource, decode
from ..data_modules.schema import Dimension, Pair
from .backbones import load_backbone
from .backbones.common.base import Attention, Backbone, Checkpoint, Clips, Inputs, Quantization
from .heads import Head, HeadName, build_head
from .lora import LoraSettings, add_lora
from .pooling import PoolingName, build_pooling

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class JudgeSettings:
    """What a judge is built from, apart from its dimensions.

    Attributes:
        backbone: "nano", a hub id or a folder in the hub's layout.
        revision: Commit, tag or branch on the hub.
        dtype: Of the frozen backbone weights; adapter and head are float32.
        attention: Attention kernel.
        quantization: nf4 keeps the linear layers of the language model in 4 bits (QLoRA).
        pooling: How hidden states become one vector per pair.
        padding_side: Side of the padding in a batch; scores do not depend on it.
        lora: Where adapters go.
        head: How the pooled vector becomes a score.
    """

    backbone: str = "nano"
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: Attention = "sdpa"
    quantization: Quantization = "none"
    pooling: PoolingName = "response_mean"
    padding_side: Literal["left", "right"] = "right"
    lora: LoraSettings = field(default_factory=LoraSettings)
    head: HeadName = "regression"


class EmpathyJudge(nn.Module):
    """Scores pairs of context and response audio on each dimension's rating scale."""

    def __init__(self, settings: JudgeSettings, dimensions: Sequence[Dimension]) -> None:
        """Load the backbone, freeze it, and add adapters (fresh) and head (fresh, from torch's seed).

        Raises:
            UserError: If the backbone cannot be loaded, a LoRA part does not exist or the head does not fit the scales.
        """
        super().__init__()
        self.settings = settings
        self.dimensions = tuple(dimensions)
        self.backbone: Backbone = load_backbone(
            Checkpoint(
                settings.backbone,
                settings.revision,
                DTYPES[settings.dtype],
                settings.attention,
                settings.quantization,
            )
        )
        self.network = self.backbone.network  # registers its weights with this module
        self.adapter: tuple[PeftModel | None] = (add_lora(self.backbone, settings.lora),)  # a tuple hides it from torch
        self.pooling = build_pooling(settings.pooling, self.backbone.hidden_size)
        self.head: Head = build_head(settings.head, self.backbone.hidden_size, dimensions)

    @property
    def device(self) -> torch.device:
        """Where the head is."""
        return self.head.linear.weight.device

    def forward(self, inputs: Inputs) -> Tensor:
        """Scores in rating points `(batch, dimensions)`, float32."""
        return self.head(self.pooled(inputs))

    def pooled(self, inputs: Inputs) -> Tensor:
        """What the head reads `(batch, hidden)`, float32."""
        hidden = self.backbone.hidden_states(inputs)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.pooling(hidden.float(), inputs.attention_mask, inputs.response_mask)

    def build_inputs(self, pairs: Sequence[Pair], audio: Mapping[AudioSource, Tensor] | None = None) -> Inputs:
        """Decode the clips of these pairs and build what `forward` reads, on the CPU.

        Args:
            pairs: One or more.
            audio: Audio states of each clip, from `encode_clips`. With it no clip is decoded.

        Raises:
            AudioError: If a clip cannot be read or is longer than the backbone hears.
        """
        sources = [[*(turn.audio for turn in pair.context), pair.response] for pair in pairs]
        distinct = list(dict.fromkeys(source for row in sources for source in row))
        if audio is None:
            decoded = [self.decode(source) for source in distinct]
            lengths = [self.backbone.audio_tokens(len(samples)) for samples in decoded]
            clips, states = self.backbone.prepare_clips(decoded), None
        else:
            lengths = [len(audio[source]) * self.backbone.tokens_per_state for source in distinct]
            clips, states = None, torch.cat([audio[source] for source in distinct])
        counts = dict(zip(distinct, lengths, strict=True))
        starts = dict(zip(distinct, np.cumsum([0, *lengths[:-1]]).tolist(), strict=True))
        rows = [torch.arange(starts[source], starts[source] + counts[source]) for row in sources for source in row]
        per_pair = [[counts[source] for source in row] for row in sources]
        ids, mask, is_audio = self.backbone.prepare_text(pairs, per_pair, self.settings.padding_side)
        return Inputs(
            input_ids=ids,
            attention_mask=mask,
            response_mask=_last_of_each_row(is_audio, [row[-1] for row in per_pair]),
            audio_index=torch.cat(rows),
            clips=clips,
            audio_states=states,
        )

    @torch.no_grad()
    def encode_clips(self, samples: Sequence[np.ndarray]) -> list[Tensor]:
        """Audio states of each decoded clip `(states, audio size)`, on the CPU: what the audio tower makes of
        it now."""
        prepared = self.backbone.prepare_clips(samples)
        on_device = Clips(prepared.features.to(self.device), prepared.lengths.to(self.device))
        packed = self.backbone.encode_audio(on_device).cpu()
        tokens = [self.backbone.audio_tokens(len(clip)) for clip in samples]
        return list(packed.split([count // self.backbone.tokens_per_state for count in tokens]))

    def trainable(self) -> dict[str, Tensor]:
        """Names and values of the weights that training changes: adapters, pooling, head."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def decode(self, source: AudioSource, name: str | None = None) -> np.ndarray:
        """Samples `(samples,)` at the backbone's rate.

        Raises:
            AudioError: If the clip cannot be read or is longer than the backbone hears.
        """
        return decode(source, self.backbone.sampling_rate, self.backbone.max_seconds, name)


def _last_of_each_row(mask: Tensor, counts: Sequence[int]) -> Tensor:
    """Keep the last `counts[i]` True entries of row i of `(batch, tokens)`."""
    rank_from_end = mask.flip(-1).cumsum(-1).flip(-1)
    return mask & (rank_from_end <= torch.tensor(counts)[:, None])
