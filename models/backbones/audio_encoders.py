"""Audio encoders without a language model: wav2vec 2.0, HuBERT, WavLM, w2v-BERT 2.0 and Whisper's encoder.

Exact: every layer's states equal `hidden_states` of the official class on each clip alone (transformers 5: of
encoders over the waveform, the last ones are those before the layer norm behind all layers, where there is one; of
Whisper, those behind its final layer norm). The hub has most checkpoints of HuBERT and WavLM
as pickles only; see `loading.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import HubertModel, Wav2Vec2BertModel, Wav2Vec2Model, WavLMModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from .base import Checkpoint, Clips
from .layers import LayerStatistics, padding_mask
from .pair_encoder import PairEncoder, pack

_CONVOLUTIONS = "feature_extractor"
"""Over the waveform: in float32 whatever the precision of the rest is, weights and samples."""


class WaveEncoder(PairEncoder):
    """Convolutions over the waveform, then a transformer.

    Where the convolutions have a group norm (`feat_extract_norm: group`), it normalises over time, so that padding
    would change every frame: they run clip by clip. The transformer runs on the batch, with its padding masked.
    """

    linears = ("q_proj", "k_proj", "v_proj", "out_proj", "intermediate_dense", "output_dense")
    float32_parts = (_CONVOLUTIONS,)

    def run(self, features: Tensor, real: Tensor | None) -> list[Tensor]:
        """States of all layers, each `(rows, frames, size)`, of convolved clips `(rows, frames, channels)`; `real` is
        True where a frame belongs to a clip `(rows, frames)`, None = everywhere.
        """
        raise NotImplementedError

    def audio_tokens(self, samples: int) -> int:
        """See `Backbone`: frames."""
        config = self.tower.config
        for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Samples, normalised clip by clip where the checkpoint wants it `(rows, samples)`."""
        rows = [
            self.extractor(clip, sampling_rate=self.sampling_rate, return_tensors="pt")["input_values"][0]
            for clip in clips
        ]
        return Clips(nn.utils.rnn.pad_sequence(rows, batch_first=True), [len(row) for row in rows])

    def encode_audio(self, clips: Clips, heard: LayerStatistics | None = None) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        device, tower = clips.features.device.type, self.tower
        # a tower that is trained is called under autocast, which would round the samples; "meta" has none
        with (
            torch.autocast(device, enabled=False)
            if torch.amp.autocast_mode.is_autocast_available(device)
            else nullcontext()
        ):
            features = self._convolved(clips)
        features = features.to(tower.feature_projection.projection.weight.dtype)
        lengths = [self.audio_tokens(length) for length in clips.lengths]
        return pack(self.run(features, padding_mask(lengths, features.shape[1], features.device)), lengths, heard)

    def _convolved(self, clips: Clips) -> Tensor:
        """What the convolutions make of samples, float32 `(rows, frames, channels)`."""
        convolve, samples = self.tower.get_submodule(_CONVOLUTIONS), clips.features.float()
        if self.tower.config.feat_extract_norm != "group":
            return convolve(samples).transpose(1, 2)
        rows = [convolve(row[None, :length])[0].T for row, length in zip(samples, clips.lengths, strict=True)]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Wav2Vec2(WaveEncoder):
    """wav2vec 2.0 (Baevski et al., 2020), XLS-R and other checkpoints of this type."""

    model_class = Wav2Vec2Model
    # of models with a head: the quantizer of pre-training, recognizers and classifiers, what shortens their input
    ignored_keys = (
        r"^(?:quantizer|project_q|project_hid|lm_head|projector|classifier)\.|masked_spec_embed$"
        r"|^(?:wav2vec2\.)?adapter\."
    )

    def run(self, features: Tensor, real: Tensor | None) -> list[Tensor]:
        return _layer_states(self.tower, self.tower.feature_projection(features)[0], real)


class Hubert(WaveEncoder):
    """HuBERT (Hsu et al., 2021), trained to predict clusters of sound."""

    model_class = HubertModel

    def run(self, features: Tensor, real: Tensor | None) -> list[Tensor]:
        return _layer_states(self.tower, self.tower.feature_projection(features), real)


class WavLM(WaveEncoder):
    """WavLM (Chen et al., 2022): HuBERT with noise and second speakers in training, and gated relative positions."""

    model_class = WavLMModel

    @classmethod
    def kernels(cls, attention: str) -> dict[str, str]:
        """Eager and sdpa both mean `_attend`; others are refused by the official class."""
        return {"": "eager" if attention == "sdpa" else attention}

    @classmethod
    def network_of(cls, model: Any, checkpoint: Checkpoint) -> Any:
        """The encoder with attention that adapters can reach."""
        for layer in model.encoder.layers:
            layer.attention.torch_multi_head_self_attention = partial(_attend, layer.attention)
        return model

    def run(self, features: Tensor, real: Tensor | None) -> list[Tensor]:
        projected, _ = self.tower.feature_projection(features)
        states, bias = [_embedded(self.tower, projected, real)], None
        for layer in self.tower.encoder.layers:
            hidden, bias = layer(states[-1], attention_mask=real, position_bias=bias)
            states.append(hidden)
        return states


class Wav2Vec2Bert(PairEncoder):
    """w2v-BERT 2.0 (Seamless Communication, 2023): a Conformer over log-mel features, two frames of 10 ms per state.

    Where a clip has an odd number of frames, the official feature extractor pads the last state with a frame of zeros
    and masks it: it is no state here either. The tower masks padding in attention, and its convolutions look back only.
    """

    model_class = Wav2Vec2BertModel
    linears = ("linear_q", "linear_k", "linear_v", "linear_out", "intermediate_dense", "output_dense")
    _WINDOW, _HOP = 400, 160  # samples of a frame and between two, which `SeamlessM4TFeatureExtractor` fixes

    def audio_tokens(self, samples: int) -> int:
        return ((samples - self._WINDOW) // self._HOP + 1) // self.extractor.stride

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Log-mel features, normalised clip by clip `(rows, states, bins * stride)`."""
        made = self.extractor(list(clips), sampling_rate=self.sampling_rate, return_tensors="pt")
        return Clips(made["input_features"], made["attention_mask"].sum(-1).tolist())

    def encode_audio(self, clips: Clips, heard: LayerStatistics | None = None) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        features = clips.features.to(self.tower.dtype)
        real = padding_mask(clips.lengths, features.shape[1], features.device)
        states = self.tower(features, attention_mask=real, output_hidden_states=True).hidden_states
        return pack(states, clips.lengths, heard)


class Whisper(PairEncoder):
    """Whisper (Radford et al., 2023): the encoder alone; the decoder is neither read nor allocated.

    As the official encoder does, ours pads every clip with silence to the whole window (30 s) and attends to that
    silence; only the states of the clip itself are kept. A short clip costs as much as a long one.
    """

    linears = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
    layers_path = "encoder.layers"
    final_norm = "encoder.layer_norm"
    model_class = WhisperEncoder
    ignored_keys = r"^(model\.)?decoder\.|^proj_out\."
    key_mapping = {r"^(model\.)?encoder\.": ""}

    def __init__(self, network: Any, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        self.max_seconds = float(processor.chunk_length)

    def audio_tokens(self, samples: int) -> int:
        """See `Backbone`; states of the silence behind a clip do not count."""
        return -(-samples // (2 * self.extractor.hop_length))  # the second convolution has stride 2

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Log-mel spectrograms of the whole window `(rows, bins, frames)`; as lengths, the real states of each."""
        made = self.extractor(list(clips), sampling_rate=self.sampling_rate, return_tensors="pt")
        return Clips(made["input_features"], [self.audio_tokens(len(clip)) for clip in clips])

    def encode_audio(self, clips: Clips, heard: LayerStatistics | None = None) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        features = clips.features.to(self.tower.dtype)
        return pack(self.tower(features, output_hidden_states=True).hidden_states, clips.lengths, heard)


def _embedded(tower: Any, hidden: Tensor, real: Tensor | None) -> Tensor:
    """What the first layer reads: projected features `(rows, frames, size)` and their position by convolution."""
    if real is not None:
        hidden = hidden.masked_fill(~real[..., None], 0.0)  # as the zeros that the convolution pads with
    hidden = hidden + tower.encoder.pos_conv_embed(hidden)
    # with "stable" layer norm each layer has its own in front; the last one behind all layers is not in these states
    return hidden if tower.config.do_stable_layer_norm else tower.encoder.layer_norm(hidden)


def _layer_states(tower: Any, hidden: Tensor, real: Tensor | None) -> list[Tensor]:
    """What the first layer reads and what each layer makes of it, each `(rows, frames, size)`; see `_embedded`."""
    states = [_embedded(tower, hidden, real)]
    mask = create_bidirectional_mask(config=tower.config, inputs_embeds=states[0], attention_mask=real)
    for layer in tower.encoder.layers:
        states.append(layer(states[-1], attention_mask=mask))
    return states


def _attend(attention: Any, hidden: Tensor, real: Tensor | None, bias: Tensor) -> tuple[Tensor, None]:
    """Self-attention through the layer's four linear modules.

    The official one hands their weights to a function and never calls them, so that LoRA on them would do nothing
    (transformers#48773). `bias` is that of the scores `(rows * heads, frames, frames)`; no attention weights come back.
    """

    def heads(states: Tensor) -> Tensor:
        return states.unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)

    query, key, value = (heads(linear(hidden)) for linear in (attention.q_proj, attention.k_proj, attention.v_proj))
    bias = bias.unflatten(0, (len(hidden), attention.num_heads)).to(query)
    if real is not None:
        bias = bias.masked_fill(~real[:, None, None], float("-inf"))
    mixed = scaled_dot_product_attention(query, key, value, bias)
    return attention.out_proj(mixed.transpose(1, 2).flatten(2)), None
