"""Towers that hear samples: convolutions over the waveform, then a transformer, as in wav2vec 2.0 and its kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask

from .base import Clips
from .padding import real_places
from .pair_encoder import MAX_SECONDS, pack

FRONT_END = "feature_extractor"
"""The convolutions over the waveform: in float32 whatever the precision of the rest is, weights and samples."""


class WaveEars:
    """Implements `Ears`: the states of all layers, equal to those of each clip alone.

    Where the convolutions have a group norm (`feat_extract_norm: group`), it normalises over time, so that padding
    would change every frame: they run clip by clip. The transformer runs on the batch, with its padding masked.
    """

    tokens_per_state = 1
    max_seconds = MAX_SECONDS

    def __init__(self, tower: Any, extractor: Any, run: Callable[[Tensor, Tensor | None], list[Tensor]]) -> None:
        """Wrap a tower.

        Args:
            tower: With `feature_extractor`, and a configuration that tells its kernels and strides.
            extractor: A `Wav2Vec2FeatureExtractor`.
            run: From what the convolutions make of clips `(rows, frames, channels)` and the mask of real frames
                `(rows, frames)`, None = no padding, to the states of all layers, each `(rows, frames, size)`.
        """
        self._tower, self._extractor, self._run = tower, extractor, run
        self.sampling_rate: int = extractor.sampling_rate
        self.audio_size: int = (tower.config.num_hidden_layers + 1) * tower.config.hidden_size

    def audio_tokens(self, samples: int) -> int:
        """Frames of a clip of so many samples."""
        config = self._tower.config
        for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples

    def prepare(self, clips: Sequence[np.ndarray]) -> Clips:
        """Samples, normalised clip by clip where the checkpoint wants it `(rows, samples)`."""
        rows = [
            self._extractor(clip, sampling_rate=self.sampling_rate, return_tensors="pt")["input_values"][0]
            for clip in clips
        ]
        return Clips(nn.utils.rnn.pad_sequence(rows, batch_first=True), [len(row) for row in rows])

    def encode(self, clips: Clips) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        device = clips.features.device.type
        # a tower that is trained is called under autocast, which would round the samples; "meta" has none
        with (
            torch.autocast(device, enabled=False)
            if torch.amp.autocast_mode.is_autocast_available(device)
            else nullcontext()
        ):
            features = self._convolved(clips)
        features = features.to(self._tower.feature_projection.projection.weight.dtype)
        lengths = [self.audio_tokens(length) for length in clips.lengths]
        return pack(self._run(features, real_places(lengths, features.shape[1], features.device)), lengths)

    def _convolved(self, clips: Clips) -> Tensor:
        """What the convolutions make of samples, float32 `(rows, frames, channels)`."""
        convolve, samples = self._tower.get_submodule(FRONT_END), clips.features.float()
        if self._tower.config.feat_extract_norm != "group":
            return convolve(samples).transpose(1, 2)
        rows = [convolve(row[None, :length])[0].T for row, length in zip(samples, clips.lengths, strict=True)]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def embedded(tower: Any, hidden: Tensor, real: Tensor | None) -> Tensor:
    """What the first layer reads: projected features `(rows, frames, size)` and their position by convolution.

    Args:
        tower: With a transformer in `encoder`.
        hidden: Projected features.
        real: True where a frame belongs to a clip `(rows, frames)`; None = everywhere.
    """
    if real is not None:
        hidden = hidden.masked_fill(~real[..., None], 0.0)  # as the zeros that the convolution pads with
    hidden = hidden + tower.encoder.pos_conv_embed(hidden)
    # with "stable" layer norm each layer has its own in front; the last one behind all layers is not in these states
    return hidden if tower.config.do_stable_layer_norm else tower.encoder.layer_norm(hidden)


def layer_states(tower: Any, hidden: Tensor, real: Tensor | None) -> list[Tensor]:
    """What the first layer reads and what each layer makes of it, each `(rows, frames, size)`; see `embedded`."""
    states = [embedded(tower, hidden, real)]
    mask = create_bidirectional_mask(config=tower.config, inputs_embeds=states[0], attention_mask=real)
    for layer in tower.encoder.layers:
        states.append(layer(states[-1], attention_mask=mask))
    return states
