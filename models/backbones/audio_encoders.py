"""Audio encoders without a language model: wav2vec 2.0, HuBERT, WavLM, w2v-BERT 2.0 and Whisper's encoder, and
cross-attention fusion of the clips of a pair.

Exact: every layer's states equal `hidden_states` of the official class on each clip alone (transformers 5: of
encoders over the waveform, the last ones are those before the layer norm behind all layers, where there is one; of
Whisper, those behind its final layer norm). The hub has most checkpoints of HuBERT and WavLM
as pickles only; see `loading.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import AutoConfig, HubertModel, Wav2Vec2BertModel, Wav2Vec2Model, WavLMModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.wavlm.modeling_wavlm import WavLMAttention
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from ...core.errors import UserError
from ...data_modules.schema import Pair
from .base import Backbone, BackbonePart, Checkpoint, Layout, Question
from .inputs import Clips, Inputs
from .layers import LayerStatistics, over_time, padding_mask, without_padding
from .loading import check_extractor, load_feature_extractor

PADDING, USER, OTHER, RESPONSE = range(4)
"""What a token belongs to: nothing, a context turn of the user, a context turn of anybody else, the response."""

_FUSION = "fusion"
"""Name of the fusion in the network and in settings."""

WIDTH = 256
_HEADS = 4
MAX_SECONDS = 30.0
"""Longest clip (seconds) of the encoders that set no limit themselves: about twice what they were trained on (HuBERT:
250,000 samples, 15.6 s), as memory grows with its square. `long_clips: window` splits longer clips."""

_IGNORED_KEYS = (
    r"^(lm_head|projector|classifier|tdnn|objective)\.|^layer_weights$|^feature_extractor\.(weight|bias)$"
    r"|^(\w+\.)?(adapter\.|intermediate_ffn\.|masked_spec_embed$)"
)

_CONVOLUTIONS = "feature_extractor"
"""Convolutions over the waveform: weights and samples are float32 whatever the precision of the rest is."""


class PairEncoder(Backbone):
    """Runs the encoder on each clip, and lets the response attend to its context.

    An audio state holds all layers of the encoder, so that the states of a frozen encoder can be cached while the
    fusion learns the weight of each layer. A token id says what a token belongs to (`USER` and so on): every token is
    an audio token, and there is no text.
    """

    hidden_size = WIDTH
    layout = Layout({"encoder.": ""})  # no checkpoint of an encoder has fusion weights
    reads_text = False
    untrained_states = True
    max_seconds = MAX_SECONDS
    padding_id = PADDING
    extractor_class: ClassVar[str]  # name of the official feature extractor
    linears: ClassVar[tuple[str, ...]]
    """Names of the encoder's linear layers."""
    layers_path = "encoder.encoder.layers"
    ignored_keys = _IGNORED_KEYS
    processor_of = staticmethod(load_feature_extractor)

    @classmethod
    def config_of(cls, checkpoint: Checkpoint) -> Any:
        """Configuration of the encoder without the modules on top of it.

        Raises:
            UserError: If 4 bits are asked for, or positions go through a batch norm.
        """
        name = checkpoint.name
        if checkpoint.quantization != "none":
            raise UserError(
                f"backbone {name!r}: quantization {checkpoint.quantization} is for language models, and this is an "
                "encoder alone; expected none"
            )
        config: Any = AutoConfig.from_pretrained(name, revision=checkpoint.revision)
        if getattr(config, "conv_pos_batch_norm", False):
            raise UserError(f"backbone {name!r}: conv_pos_batch_norm lets padding in; expected false")
        # Otherwise there is a weight that only masked training reads
        config.mask_time_prob = config.mask_feature_prob = 0.0
        # These stand behind the states that are read
        for follows in ("add_adapter", "use_intermediate_ffn_before_adapter"):
            if hasattr(config, follows):
                setattr(config, follows, False)
        return config

    def __init__(self, network: Any, processor: Any, checkpoint: Checkpoint) -> None:
        """Combine an encoder and new fusion weights; raises as `check_extractor`."""
        self.name = checkpoint.name
        check_extractor(self.name, processor, self.extractor_class)
        self.extractor, self.sampling_rate = processor, processor.sampling_rate
        self.network = nn.ModuleDict({"encoder": network})
        # One more than there are layers: the input of the first one is a state, too
        layers, width = len(self.layers) + 1, network.config.hidden_size
        self.audio_size, self.layer_sizes = layers * width, (layers, width)
        self.network[_FUSION] = CrossAttentionFusion(layers, width).to(network.device)
        self.parts = {
            "audio_tower": BackbonePart("encoder", self.linears, self.layers_path),
            _FUSION: BackbonePart(_FUSION, ()),
        }

    @property
    def tower(self) -> Any:
        """The audio encoder."""
        return self.network["encoder"]  # pyright: ignore[reportIndexIssue]

    def question(self, pair: Pair) -> Question:
        segments = np.array([USER if turn.role == "user" else OTHER for turn in pair.context] + [RESPONSE])
        return Question(segments, segments != PADDING)

    def hidden_states(self, inputs: Inputs, read: Tensor | None = None) -> Tensor:
        """See `Backbone`; at context tokens the projected audio states."""
        states = inputs.audio_states
        if states is None:
            assert inputs.clips is not None
            states = self.encode_audio(inputs.clips)
        fusion: Any = self.network[_FUSION]  # pyright: ignore[reportIndexIssue]
        projected = fusion.project(states)
        # Each pair takes its clips' states to its own tokens; a clip of several pairs was projected once
        zeros = projected.new_zeros(inputs.input_ids.numel(), WIDTH)
        audio = zeros.index_copy(0, inputs.audio_positions, projected[inputs.audio_index])
        return fusion(audio.view(*inputs.input_ids.shape, WIDTH), inputs.input_ids)

    def save_processor(self, folder: str) -> None:
        self.extractor.save_pretrained(folder)


class CrossAttentionFusion(nn.Module):
    """A weighted sum of a tower's layers, and one block in which the response attends to its context.

    The weighted sum is that of SUPERB (Yang et al., 2021): a softmax over one learned weight for each layer, equal at
    first. The block adds no positions to those that the tower has put into its states: the context turns of one speaker
    may be given in any order.
    """

    def __init__(self, layers: int, size: int) -> None:
        """Draw all weights from torch's global seed. `layers` includes the input embedding; all have one width."""
        super().__init__()
        self.layer_weights = nn.Parameter(torch.zeros(layers))
        self.input_norm = nn.LayerNorm(size)
        self.input = nn.Linear(size, WIDTH)
        self.segments = nn.Embedding(4, WIDTH, padding_idx=PADDING)
        self.no_context = nn.Parameter(torch.empty(WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, _HEADS, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.output_norm = nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.segments.weight[1:].normal_(std=0.02)
            self.no_context.normal_(std=0.02)

    def project(self, states: Tensor) -> Tensor:
        """From all layers of each state `(states, layers * size)` to one vector `(states, width)`."""
        layers = states.unflatten(-1, (len(self.layer_weights), -1))
        # in the tower's precision: a copy in float32 of every layer would be the largest tensor of all
        summed = self.layer_weights.softmax(-1).to(layers) @ layers
        return self.input(self.input_norm(summed.to(self.input_norm.weight)))

    def forward(self, audio: Tensor, segments: Tensor) -> Tensor:
        """Fuse the clips of each pair.

        Args:
            audio: Output of `project` `(batch, tokens, width)`; at padding it may be anything finite.
            segments: What each token belongs to `(batch, tokens)`.

        Returns:
            `(batch, tokens, width)`: response tokens after attention to their context, and unchanged context tokens.
            Padding on either side has no effect.
        """
        tokens = audio + self.segments(segments)
        # the learned token replaces a missing context, so that the softmax is never over nothing
        keys = torch.cat([self.no_context.to(tokens).expand(len(tokens), 1, -1), tokens], 1)
        masked = nn.functional.pad((segments != USER) & (segments != OTHER), (1, 0), value=False)
        attended, _ = self.attention(tokens, keys, keys, key_padding_mask=masked, need_weights=False)
        fused = tokens + attended
        fused = self.output_norm(fused + self.feed_forward(fused))
        return torch.where((segments == RESPONSE)[..., None], fused, tokens.to(fused))


class WaveEncoder(PairEncoder):
    """Convolutions over the waveform, then a transformer.

    Where the convolutions have a group norm (`feat_extract_norm: group`), it normalises over time, so that padding
    would change every frame: they run clip by clip. The transformer runs on the batch, with its padding masked.
    """

    extractor_class = "Wav2Vec2FeatureExtractor"
    linears = ("q_proj", "k_proj", "v_proj", "out_proj", "intermediate_dense", "output_dense")
    float32_parts = (_CONVOLUTIONS,)

    def run(self, features: Tensor, real: Tensor | None) -> list[Tensor]:
        """States of all layers, each `(rows, frames, size)`, of convolved clips `(rows, frames, channels)`; `real` is
        True where a frame belongs to a clip `(rows, frames)`, None = everywhere."""
        # Not through `forward` of the encoder, whose assignment by a mask of booleans is no operation of known shape
        states = [self.embedded(features, real)]
        mask = create_bidirectional_mask(config=self.tower.config, inputs_embeds=states[0], attention_mask=real)
        for layer in self.tower.encoder.layers:
            states.append(layer(states[-1], attention_mask=mask))
        return states

    def embedded(self, features: Tensor, real: Tensor | None) -> Tensor:
        """Input of the first layer: projected features `(rows, frames, size)` plus their convolutional positions."""
        projected = self.tower.feature_projection(features)
        # Only the projection of HuBERT returns one tensor
        hidden = projected if isinstance(projected, Tensor) else projected[0]
        if real is not None:
            hidden = hidden.masked_fill(~real[..., None], 0.0)  # like the zeros with which the convolution pads
        encoder = self.tower.encoder
        hidden = hidden + encoder.pos_conv_embed(hidden)
        # with "stable" layer norm each layer has its own in front; the one behind all layers is not in these states
        return hidden if self.tower.config.do_stable_layer_norm else encoder.layer_norm(hidden)

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

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        device, tower = clips.features.device.type, self.tower
        # a tower that is trained is called under autocast, which would round the samples; "meta" has no autocast
        with (
            torch.autocast(device, enabled=False)
            if torch.amp.autocast_mode.is_autocast_available(device)
            else nullcontext()
        ):
            features = self._convolved(clips)
        features = features.to(tower.feature_projection.projection.weight.dtype)
        lengths = [self.audio_tokens(length) for length in clips.lengths]
        real = padding_mask(lengths, features.shape[1], features.device)
        return _pack(self.run(features, real), lengths, layer_statistics)

    def _convolved(self, clips: Clips) -> Tensor:
        """Output of the convolutions over the samples, float32 `(rows, frames, channels)`."""
        convolve, samples = self.tower.get_submodule(_CONVOLUTIONS), clips.features.float()
        if self.tower.config.feat_extract_norm != "group":
            return convolve(samples).transpose(1, 2)
        # A group norm over time would see padding: each clip by itself
        rows = [convolve(row[None, :length])[0].T for row, length in zip(samples, clips.lengths, strict=True)]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Wav2Vec2(WaveEncoder):
    """wav2vec 2.0 (Baevski et al., 2020), XLS-R and other checkpoints of this type."""

    model_class = Wav2Vec2Model
    # keys of models with a head: the quantizer of pre-training, recognizers and classifiers, what shortens their input
    ignored_keys = (
        r"^(?:quantizer|project_q|project_hid|lm_head|projector|classifier)\.|masked_spec_embed$"
        r"|^(?:wav2vec2\.)?adapter\."
    )


class Hubert(WaveEncoder):
    """HuBERT (Hsu et al., 2021), trained to predict clusters of sound."""

    model_class = HubertModel


class AdaptableAttention(WavLMAttention):
    """The official one passes the weights of its linear layers to a function and never calls the layers, so that LoRA
    on them would have no effect (transformers#48773)."""

    def __init__(self, official: WavLMAttention) -> None:
        nn.Module.__init__(self)  # that of the official class would draw weights
        vars(self).update(vars(official))

    def torch_multi_head_self_attention(  # pyright: ignore[reportIncompatibleMethodOverride] no weights are returned
        self, hidden_states: Tensor, attention_mask: Tensor | None, gated_position_bias: Tensor
    ) -> tuple[Tensor, None]:
        """Self-attention; `gated_position_bias` is added to the scores `(rows * heads, frames, frames)`."""

        def heads(linear: nn.Module) -> Tensor:
            return linear(hidden_states).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

        query, key, value = heads(self.q_proj), heads(self.k_proj), heads(self.v_proj)
        bias = gated_position_bias.unflatten(0, (len(hidden_states), self.num_heads)).to(query)
        if attention_mask is not None:
            # A bias of 0 would leave the padding in the softmax
            bias = bias.masked_fill(~attention_mask[:, None, None], float("-inf"))
        mixed = scaled_dot_product_attention(query, key, value, bias)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


class WavLM(WaveEncoder):
    """WavLM (Chen et al., 2022): HuBERT with noise and second speakers in training, and gated relative positions."""

    model_class = WavLMModel

    @classmethod
    def kernels(cls, attention: str) -> dict[str, str]:
        """Eager and sdpa both mean `AdaptableAttention`; others are refused by the official class."""
        return {"": "eager" if attention == "sdpa" else attention}

    @classmethod
    def network_of(cls, model: Any) -> Any:
        """The encoder with attention that adapters can reach."""
        for layer in model.encoder.layers:
            layer.attention = AdaptableAttention(layer.attention)
        return model

    def run(self, features: Tensor, real: Tensor | None) -> list[Tensor]:
        states, bias = [self.embedded(features, real)], None
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
    extractor_class = "SeamlessM4TFeatureExtractor"
    linears = ("linear_q", "linear_k", "linear_v", "linear_out", "intermediate_dense", "output_dense")
    _WINDOW, _HOP = 400, 160  # samples of a frame and between two, which `SeamlessM4TFeatureExtractor` fixes

    def audio_tokens(self, samples: int) -> int:
        return ((samples - self._WINDOW) // self._HOP + 1) // self.extractor.stride

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Log-mel features, normalised clip by clip `(rows, states, bins * stride)`."""
        extracted = self.extractor(list(clips), sampling_rate=self.sampling_rate, return_tensors="pt")
        return Clips(extracted["input_features"], extracted["attention_mask"].sum(-1).tolist())

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        features = clips.features.to(self.tower.dtype)
        real = padding_mask(clips.lengths, features.shape[1], features.device)
        states = self.tower(features, attention_mask=real, output_hidden_states=True).hidden_states
        return _pack(states, clips.lengths, layer_statistics)


class Whisper(PairEncoder):
    """Whisper (Radford et al., 2023): the encoder alone; the decoder is neither read nor allocated.

    As the official encoder does, ours pads every clip with silence to the whole window (30 s) and attends to that
    silence; only the states of the clip itself are kept. A short clip costs as much as a long one, unless
    `judge.window_seconds` cuts the window, as if the table of positions ended there. The cut depends on the clip alone,
    and clips of one window run together.
    """

    fixed_window = True
    extractor_class = "WhisperFeatureExtractor"
    linears = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
    layers_path = "encoder.layers"
    final_norm = "encoder.layer_norm"
    model_class = WhisperEncoder
    ignored_keys = r"^(model\.)?decoder\.|^proj_out\."
    key_mapping = {r"^(model\.)?encoder\.": ""}

    def __init__(self, network: Any, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        config = network.config
        window = 2 * config.max_source_positions * processor.hop_length / processor.sampling_rate
        values = {"feature_size": config.num_mel_bins, "chunk_length": window}
        check_extractor(self.name, processor, self.extractor_class, values)
        self.max_seconds = float(processor.chunk_length)
        self._silence = checkpoint.window_seconds

    def audio_tokens(self, samples: int) -> int:
        """See `Backbone`; states of the silence behind a clip do not count."""
        return -(-samples // (2 * self.extractor.hop_length))  # the second convolution has stride 2

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Log-mel spectrograms of the window `(rows, bins, frames)`, zeros behind a shorter one; as lengths, the real
        states of each."""
        lengths = [self.audio_tokens(len(clip)) for clip in clips]
        features: list[Tensor] = [torch.empty(0)] * len(clips)
        for window, rows in self._by_window(lengths).items():
            samples = 2 * window * self.extractor.hop_length
            extracted = self.extractor(
                [clips[row] for row in rows], sampling_rate=self.sampling_rate, return_tensors="pt", max_length=samples
            )
            for row, of_clip in zip(rows, extracted["input_features"], strict=True):
                features[row] = of_clip.T
        return Clips(nn.utils.rnn.pad_sequence(features, batch_first=True).transpose(1, 2).contiguous(), lengths)

    def _by_window(self, lengths: Sequence[int]) -> dict[int, list[int]]:
        """States of each window -> the rows that are read in it, of clips of so many states."""
        most, rows = self.tower.config.max_source_positions, dict[int, list[int]]()
        second = self.sampling_rate // (2 * self.extractor.hop_length)
        for row, length in enumerate(lengths):
            # Whole seconds, so that clips of nearly one length share a window and run together
            cut = most if self._silence is None else second * math.ceil(length / second + self._silence)
            rows.setdefault(min(most, cut), []).append(row)
        return rows

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        """States of all layers side by side `(states, layers * size)`."""
        features, lengths = clips.features.to(self.tower.dtype), clips.lengths
        if self._silence is None:
            states = self.tower(features, output_hidden_states=True).hidden_states
            return _pack(states, lengths, layer_statistics)
        of_rows: list[list[Tensor]] = [[]] * len(lengths)  # states of all layers of each row, without padding
        for window, rows in self._by_window(lengths).items():
            layers = self._run(features[rows, :, : 2 * window])
            for number, row in enumerate(rows):
                of_rows[row] = [layer[number, : lengths[row]] for layer in layers]
        padded = [nn.utils.rnn.pad_sequence(list(layer), batch_first=True) for layer in zip(*of_rows, strict=True)]
        return _pack(padded, lengths, layer_statistics)

    def _run(self, features: Tensor) -> list[Tensor]:
        """States of all layers, each `(rows, frames / 2, size)`, of spectrograms of any length `(rows, bins, frames)`;
        `forward` of the official class takes those of its whole window alone."""
        tower = self.tower
        embedded = gelu(tower.conv2(gelu(tower.conv1(features)))).transpose(1, 2)
        # Called as the official class does: spread over GPUs, the table may lie on another
        states = [embedded + tower.embed_positions(torch.arange(embedded.shape[1], device=embedded.device))]
        for layer in tower.layers:
            states.append(layer(states[-1], None))
        # The official class normalises the last state alone
        states[-1] = tower.layer_norm(states[-1])
        return states


def _pack(layers: Sequence[Tensor], lengths: Sequence[int], layer_statistics: LayerStatistics | None) -> Tensor:
    """States of several layers, each `(rows, frames, size)`, side by side without padding `(states, layers * size)`;
    the first `lengths` frames of the rows belong to clips. `layer_statistics` collects their statistics.
    """
    # The layers of an encoder that is spread lie on several GPUs
    states = [without_padding(layer.to(layers[0].device), lengths) for layer in layers]
    if layer_statistics is not None:
        layer_statistics.take(over_time(layer, lengths) for layer in states)
    return torch.cat(states, -1)
