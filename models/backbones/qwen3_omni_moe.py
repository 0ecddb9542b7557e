"""Qwen3-Omni (Xu et al., 2025), its thinker alone: AuT tower, projector of two layers, Qwen3 as a mixture of experts.

Exact: hidden states equal those of the official feature extractor and encoder on each clip alone, and of the official
language model on each pair. Clips of an official batch change each other: the longest ends in its mirror image, the
others in zeros, which also decides how their frames are rounded; and the convolutions see the padding of clips under a
second. Neither processor nor tower limits a clip; what does are the positions of the language model. Without images the
three rows of these are equal.

LoRA reaches the attention: experts are no linear layers but stacked weights, and stay frozen. For the same reason NF4
leaves them whole, which is nearly all of the language model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3OmniMoeThinkerConfig
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoePreTrainedModel,
    Qwen3OmniMoeThinkerTextModel,
)

from .audio_language_model import AudioLanguageModel
from .base import Checkpoint, Clips, Layout, Part
from .layers import LayerStatistics, attend_in_rows, on_device, padding_mask, watching, without_padding
from .loading import SpeechProcessor
from .qwen2_5_omni import load_thinker

# transformers 5.17 stacks the experts of the hub's files for the whole model alone, not for its language model
if get_checkpoint_conversion_mapping("qwen3_omni_moe_text") is None:
    register_checkpoint_conversion_mapping("qwen3_omni_moe_text", get_checkpoint_conversion_mapping("qwen2_moe") or [])


class Thinker(Qwen3OmniMoePreTrainedModel):
    """The parts of a thinker that audio and text need."""

    def __init__(self, config: Qwen3OmniMoeThinkerConfig) -> None:
        super().__init__(config)  # pyright: ignore[reportArgumentType] the annotation names the whole model's
        self.audio_tower = Qwen3OmniMoeAudioEncoder._from_config(config.audio_config)
        self.language_model = Qwen3OmniMoeThinkerTextModel._from_config(config.text_config)
        self.post_init()


class Qwen3OmniMoe(AudioLanguageModel):
    """Chunks of 1 s through the convolutions, attention within windows of 8 s (on the hub); the `forward` of the tower
    is not called."""

    layout = Layout({"": "", "projector.": "audio_tower."})
    parts = {
        "language_model": Part(
            "language_model", ("q_proj", "k_proj", "v_proj", "o_proj"), layers="language_model.layers"
        ),
        "projector": Part("projector", ("proj1", "proj2")),
        "audio_tower": Part(
            "audio_tower",
            ("conv_out", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
            layers="audio_tower.layers",
        ),
    }

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Qwen3OmniMoe:
        """See `Backbone`; the thinker of a whole Omni checkpoint, or one that was saved alone."""
        network: Any = load_thinker(Thinker, checkpoint)
        # of a type that it knows as mixture of experts, PEFT 0.21 makes names of a pattern; the tower has them too
        network.config.model_type = "thinker"
        tower = network.audio_tower
        network.projector = nn.Sequential(OrderedDict(proj1=tower.proj1, act=tower.act, proj2=tower.proj2))
        del tower.proj1, tower.act, tower.proj2
        for layer in tower.layers:
            attend_in_rows(layer.self_attn)
        return cls(network, SpeechProcessor(checkpoint), checkpoint)

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        self._chunk: int = 2 * self.tower.n_window
        # a clip may take half of the positions of the language model, so that context and response both fit
        chunks = self.language_model.config.max_position_embeddings // 2 // _thrice_halved(self._chunk)
        self.max_seconds = float(chunks * self._chunk * self.extractor.hop_length // self.sampling_rate)
        self.audio_size: int = self.tower.config.d_model
        self.layer_sizes = len(self.tower.layers) + 1, self.audio_size

    def audio_tokens(self, samples: int) -> int:
        whole, rest = divmod(samples // self.extractor.hop_length, self._chunk)
        return whole * _thrice_halved(self._chunk) + _thrice_halved(rest)

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(clips, bins, frames)` of each clip alone, then padded to the longest."""
        made = [
            self.extractor(clip, sampling_rate=self.sampling_rate, padding=True, truncation=False, return_tensors="pt")[
                "input_features"
            ][0]
            for clip in clips
        ]
        padded = pad_sequence([spectrogram.T for spectrogram in made], batch_first=True).transpose(1, 2)
        return Clips(padded, [spectrogram.shape[1] for spectrogram in made])

    def encode_audio(self, clips: Clips, heard: LayerStatistics | None = None) -> Tensor:
        tower, chunk, device = self.tower, self._chunk, clips.features.device
        pieces = [
            piece
            for spectrogram, length in zip(clips.features, clips.lengths, strict=True)
            for piece in spectrogram[:, :length].T.split(chunk)
        ]
        # the last chunk of a clip is padded to the length of its first; what is behind that does not exist
        widths = [min(length, chunk) for length in clips.lengths for _ in range(-(-length // chunk))]
        padded = pad_sequence(pieces, batch_first=True).transpose(1, 2)
        states = torch.cat(
            [
                self._convolve(part, width)
                for part, width in zip(
                    padded.split(tower.conv_chunksize),
                    on_device(widths, device).split(tower.conv_chunksize),
                    strict=True,
                )
            ]
        )
        states = states + tower.positional_embedding.positional_embedding[: states.shape[1]].to(states)
        states = without_padding(states, [_thrice_halved(len(piece)) for piece in pieces])
        window = _thrice_halved(chunk) * (tower.n_window_infer // chunk)
        counts = [self.audio_tokens(length * self.extractor.hop_length) for length in clips.lengths]
        # each window is a row from here on: attention does not reach beyond it
        sizes = [min(window, count - start) for count in counts for start in range(0, count, window)]
        states = pad_sequence(list(states.split(sizes)), batch_first=True)
        real = padding_mask(sizes, states.shape[1], device)
        windows = replace(clips, rows=[-(-count // window) for count in counts])
        with watching(heard, tower.layers, windows.by_clip(sizes)):
            for layer in tower.layers:
                states = layer(states, None if real is None else real[:, None, None])[0]
        return tower.ln_post(without_padding(states, sizes))

    def _convolve(self, chunks: Tensor, widths: Tensor) -> Tensor:
        """From chunks `(chunks, bins, frames)` that are so many frames wide to `(chunks, positions, audio size)`."""
        tower = self.tower
        states = chunks[:, None].to(tower.conv2d1.weight.dtype)
        for convolution in (tower.conv2d1, tower.conv2d2, tower.conv2d3):
            states, widths = gelu(convolution(states)), _halved(widths)
            inside = torch.arange(states.shape[-1], device=states.device) < widths[:, None]
            states = states * inside[:, None, None]
        return tower.conv_out(states.permute(0, 3, 1, 2).flatten(2))


def _halved(frames):
    """Positions behind a convolution of stride 2."""
    return (frames + 1) // 2


def _thrice_halved(frames):
    """Audio states of so many frames of one chunk."""
    return _halved(_halved(_halved(frames)))
