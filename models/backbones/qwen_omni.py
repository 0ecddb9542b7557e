"""Qwen2.5-Omni and Qwen3-Omni (Xu et al., 2025): only the thinker of each, from a whole checkpoint or saved by itself.
Without images the three rows of their positions are equal.

Qwen2.5-Omni: Whisper-like tower, linear projector, Qwen2.5. Exact: hidden states equal those of the official classes
with the official processor on each pair. The tower attends within blocks of 2 s, of which each is a row here, so that
clips share a batch without attending to each other; the official processor pads every clip to 300 s, ours to the
longest.

Qwen3-Omni: AuT tower, projector of two layers, Qwen3 as a mixture of experts. Exact: hidden states equal those of the
official feature extractor and encoder on each clip alone, and of the official language model on each pair. Clips of an
official batch change each other: the longest ends in its mirror image, the others in zeros, which also decides how
their frames are rounded; and the convolutions see the padding of clips under a second. Neither processor nor tower
limits the length of a clip; only the positions of the language model do. LoRA reaches the attention alone: experts are
stacked weights and not linear layers, and stay frozen. For the same reason NF4 does not quantize them, which are nearly
all of the language model.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, Qwen2_5OmniThinkerConfig, Qwen3OmniMoeThinkerConfig
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoder,
    Qwen2_5OmniPreTrainedModel,
    Qwen2_5OmniThinkerTextModel,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoePreTrainedModel,
    Qwen3OmniMoeThinkerTextModel,
)

from .attention import RowAttention, in_one_row
from .audio_language_model import LANGUAGE_MODEL, AudioLanguageModel
from .base import BackbonePart, Checkpoint, Layout
from .inputs import Clips
from .layers import LayerStatistics, on_device, padding_mask, record_layers, without_padding
from .loading import SpeechProcessor
from .qwen2_audio import WHISPER_TOWER, WhisperTowerModel, after_convolutions

_CHUNKS_AT_ONCE = 500
"""Chunks that the convolutions of an AuT tower read at a time: `conv_chunksize` on the hub."""
# transformers 5.17 stacks the experts of the hub's files for the whole model alone, not for its language model
if get_checkpoint_conversion_mapping("qwen3_omni_moe_text") is None:
    register_checkpoint_conversion_mapping("qwen3_omni_moe_text", get_checkpoint_conversion_mapping("qwen2_moe") or [])


class Thinker(AudioLanguageModel):
    """What both have in common: how a thinker is found in a checkpoint."""

    # for keys as on the hub and as the modules are called since transformers 5 (`model.audio_tower`)
    key_mapping = {
        r"^(?:thinker\.)?(?:model\.)?audio_tower\.": "audio_tower.",
        r"^(?:thinker\.)?(?:model\.)?visual\.": "visual.",
        r"^(?:thinker\.)?model\.(?:language_model\.)?": "language_model.",
    }
    ignored_keys = r"^(?:thinker\.lm_head|lm_head|visual|talker|token2wav|code2wav|audio_tower\.audio_bos_eos_token)\."
    processor_of = SpeechProcessor

    @classmethod
    def config_of(cls, checkpoint: Checkpoint) -> Any:
        """Configuration of the thinker: the checkpoint's own, or a part of that of the whole model."""
        config: Any = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
        if config.model_type.endswith("_thinker"):
            return config
        thinker = config.thinker_config
        # A judge was exported in this form
        if (stored := getattr(config, "quantization_config", None)) is not None:
            thinker.quantization_config = stored
        return thinker


class Qwen2_5Thinker(Qwen2_5OmniPreTrainedModel):
    """The parts of a thinker that audio and text need."""

    def __init__(self, config: Qwen2_5OmniThinkerConfig) -> None:
        super().__init__(config)  # pyright: ignore[reportArgumentType] the annotation names the whole model's
        self.audio_tower = Qwen2_5OmniAudioEncoder._from_config(config.audio_config)
        self.language_model = Qwen2_5OmniThinkerTextModel._from_config(config.text_config)
        self.post_init()


class Qwen2_5Omni(Thinker, WhisperTowerModel):
    """Spectrograms as Qwen2-Audio makes them, through a tower that attends in blocks; its `forward` is not called."""

    model_class = Qwen2_5Thinker
    layout = Layout({"": "", "projector.": "audio_tower.proj."})
    parts = {"language_model": LANGUAGE_MODEL, "projector": BackbonePart("projector", ()), "audio_tower": WHISPER_TOWER}

    @classmethod
    def network_of(cls, model: Any) -> Any:
        """With the projector beside the tower."""
        tower = model.audio_tower
        model.projector, tower.proj = tower.proj, nn.Identity()
        del tower.audio_bos_eos_token  # no forward pass reads it
        for layer in tower.layers:
            layer.self_attn = RowAttention(layer.self_attn)
        return model

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        tower = self.tower
        # The tower attends within blocks, and its convolutions do not see beyond them either
        rows = zip(self.spectrograms(clips).transpose(1, 2), clips.lengths, strict=True)
        blocks = [block for row, length in rows for block in row[:length].split(2 * tower.n_window)]
        widths = [len(block) for block in blocks]
        states = pad_sequence(blocks, batch_first=True).transpose(1, 2).to(tower.conv1.weight.dtype)
        states = gelu(tower.conv1(states))
        if (real := padding_mask(widths, states.shape[2], states.device)) is not None:
            states = states * real[:, None]  # the second convolution must see zeros there
        states = gelu(tower.conv2(states)).transpose(1, 2)
        states = states + tower.positional_embedding.positional_embedding[: states.shape[1]].to(states)
        # The layers: blocks without padding stand one after the other in one row
        counts = [after_convolutions(width) for width in widths]
        states, row = in_one_row(without_padding(states, counts), counts)
        blocks_of = [-(-length // (2 * tower.n_window)) for length in clips.lengths]
        with record_layers(layer_statistics, tower.layers, replace(clips, rows=blocks_of), counts):
            for layer in tower.layers:
                states = layer(states, row)[0]
        states = states.flatten(0, 1)
        # two states side by side make one, across the blocks of a clip; an odd one at its end is left out
        bounds = list(itertools.accumulate(map(after_convolutions, clips.lengths), initial=0))
        firsts = [first for start, end in itertools.pairwise(bounds) for first in range(start, end - 1, 2)]
        first = on_device(firsts, states.device)
        return tower.ln_post((states[first] + states[first + 1]) / 2)


class Qwen3Thinker(Qwen3OmniMoePreTrainedModel):
    """The parts of a thinker that audio and text need."""

    def __init__(self, config: Qwen3OmniMoeThinkerConfig) -> None:
        super().__init__(config)  # pyright: ignore[reportArgumentType] the annotation names the whole model's
        self.audio_tower = Qwen3OmniMoeAudioEncoder._from_config(config.audio_config)
        self.language_model = Qwen3OmniMoeThinkerTextModel._from_config(config.text_config)
        self.post_init()


AUT_TOWER = BackbonePart(
    "audio_tower", ("conv_out", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), layers="audio_tower.layers"
)
"""The part of such a tower that can be adapted."""


class AutTowerModel(AudioLanguageModel):
    """Chunks of 1 s through the convolutions, attention within windows of 8 s (on the hub); the `forward` of the tower
    is not called, and its attention is `RowAttention`."""

    tower_width = "d_model"

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        self._chunk: int = 2 * self.tower.n_window
        # a clip may take half of the positions of the language model, so that context and response both fit
        chunks = self.language_model.config.max_position_embeddings // 2 // _thrice_halved(self._chunk)
        self.max_seconds = float(chunks * self._chunk * self.extractor.hop_length // self.sampling_rate)

    def audio_tokens(self, samples: int) -> int:
        whole, rest = divmod(samples // self.extractor.hop_length, self._chunk)
        return whole * _thrice_halved(self._chunk) + _thrice_halved(rest)

    def spectrogram(self, clip: np.ndarray) -> Tensor:
        # One clip at a time, as clips of one batch change each other (see above)
        options = {"padding": True, "truncation": False, "return_tensors": "pt"}
        return self.extractor(clip, sampling_rate=self.sampling_rate, **options)["input_features"][0].T

    def chunk_width(self, frames: int) -> int:
        """Frames of each chunk of a clip with so many, padding of the last one included; beyond, nothing exists."""
        raise NotImplementedError

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        tower, chunk = self.tower, self._chunk
        # The convolutions, chunk by chunk and some chunks at a time: their states are the largest of all
        rows = zip(clips.features, clips.lengths, strict=True)
        pieces = [piece for row, length in rows for piece in row[:length].split(chunk)]
        widths = [width for length in clips.lengths for width in [self.chunk_width(length)] * -(-length // chunk)]
        padded, size = pad_sequence(pieces, batch_first=True).transpose(1, 2), _CHUNKS_AT_ONCE
        padded = nn.functional.pad(padded, (0, max(widths) - padded.shape[2]))
        parts = zip(padded.split(size), on_device(widths, padded.device).split(size), strict=True)
        states = torch.cat([self._convolve(part, width) for part, width in parts])
        states = states + tower.positional_embedding.positional_embedding[: states.shape[1]].to(states)
        states = without_padding(states, [_thrice_halved(len(piece)) for piece in pieces])
        # The layers, on all windows of all clips in one row
        window = _thrice_halved(chunk) * (tower.n_window_infer // chunk)
        counts = [self.audio_tokens(length * self.extractor.hop_length) for length in clips.lengths]
        # attention does not reach beyond a window
        sizes = [min(window, count - start) for count in counts for start in range(0, count, window)]
        states, row = in_one_row(states, sizes)
        windows = replace(clips, rows=[-(-count // window) for count in counts])
        with record_layers(layer_statistics, tower.layers, windows, sizes):
            for layer in tower.layers:
                states = layer(states, row)[0]
        return tower.ln_post(states.flatten(0, 1))

    def _convolve(self, chunks: Tensor, widths: Tensor) -> Tensor:
        """From chunks `(chunks, bins, frames)` with `widths` real frames each to `(chunks, positions, audio size)`."""
        tower = self.tower
        states = chunks[:, None].to(tower.conv2d1.weight.dtype)
        for convolution in (tower.conv2d1, tower.conv2d2, tower.conv2d3):
            states, widths = gelu(convolution(states)), _halved(widths)
            # The next convolution must see zeros behind the end of a chunk
            inside = torch.arange(states.shape[-1], device=states.device) < widths.to(states.device)[:, None]
            states = states * inside[:, None, None]
        return tower.conv_out(states.permute(0, 3, 1, 2).flatten(2))


class Qwen3OmniMoe(Thinker, AutTowerModel):
    """The attention alone can be adapted: experts are no linear layers."""

    model_class = Qwen3Thinker
    layout = Layout({"": "", "projector.": "audio_tower."})
    parts = {
        "language_model": BackbonePart(
            "language_model", ("q_proj", "k_proj", "v_proj", "o_proj"), layers="language_model.layers"
        ),
        "projector": BackbonePart("projector", ("proj1", "proj2")),
        "audio_tower": AUT_TOWER,
    }

    @classmethod
    def network_of(cls, model: Any) -> Any:
        """With the projector beside the tower."""
        # for a mixture of experts that it knows, PEFT 0.21 turns a pattern into bare names, which the tower has too
        model.config.model_type = "thinker"
        tower = model.audio_tower
        model.projector = nn.Sequential(OrderedDict(proj1=tower.proj1, act=tower.act, proj2=tower.proj2))
        del tower.proj1, tower.act, tower.proj2
        for layer in tower.layers:
            layer.self_attn = RowAttention(layer.self_attn)
        return model

    def chunk_width(self, frames: int) -> int:
        """See `AutTowerModel`: the last chunk is padded to the length of the first."""
        return min(frames, self._chunk)


def _halved(frames):
    """Number of positions after a convolution of stride 2."""
    return (frames + 1) // 2


def _thrice_halved(frames):
    """Number of audio states for this number of frames of one chunk."""
    return _halved(_halved(_halved(frames)))
