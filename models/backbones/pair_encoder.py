"""A backbone without a language model: an audio encoder, and cross-attention fusion of the clips of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from ...data_modules.errors import UserError
from ...data_modules.schema import Pair
from .base import Backbone, Checkpoint, Inputs, Layout, Part
from .layers import LayerStatistics, over_time, without_padding
from .loading import load_feature_extractor

PADDING, USER, OTHER, RESPONSE = range(4)
"""What a token is part of: nothing, a context turn of the user, a context turn of anybody else, the response."""

FUSION = "joiner"
"""Where the fusion is in the network. Judges that exist have stored its weights under this name."""

WIDTH = 256
_HEADS = 4
MAX_SECONDS = 30.0
"""Longest clip (seconds) of the encoders that set no limit themselves: about twice what they were trained on (HuBERT:
250,000 samples, 15.6 s), as memory grows with its square. `long_clips: window` splits longer clips."""

_IGNORED_KEYS = (
    r"^(lm_head|projector|classifier|tdnn|objective)\.|^layer_weights$|^feature_extractor\.(weight|bias)$"
    r"|^(\w+\.)?(adapter\.|intermediate_ffn\.|masked_spec_embed$)"
)


class PairEncoder(Backbone):
    """Runs the encoder on each clip, and lets the response attend to its context.

    An audio state holds all layers of the encoder, so that the states of a frozen encoder can be cached while the
    fusion learns how much of each layer it wants. A token id says what a token is part of (`USER` and so on): every
    token is an audio token, and there is no text.
    """

    hidden_size = WIDTH
    layout = Layout({"encoder.": ""})  # no checkpoint of an encoder has fusion weights
    reads_text = False
    max_seconds = MAX_SECONDS
    linears: ClassVar[tuple[str, ...]]
    """Names of the encoder's linear layers."""
    layers_path = "encoder.encoder.layers"
    ignored_keys = _IGNORED_KEYS
    processor_of = staticmethod(load_feature_extractor)

    @classmethod
    def config_of(cls, checkpoint: Checkpoint) -> Any:
        """The encoder without what is put on top of it.

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
        config.mask_time_prob = config.mask_feature_prob = 0.0  # else there is a weight that only masked training reads
        for follows in ("add_adapter", "use_intermediate_ffn_before_adapter"):  # the states that are read
            if hasattr(config, follows):
                setattr(config, follows, False)
        return config

    def __init__(self, network: Any, processor: Any, checkpoint: Checkpoint) -> None:
        """Put an encoder and new fusion weights together."""
        self.name, self.revision = checkpoint.name, checkpoint.revision
        self.extractor, self.sampling_rate = processor, processor.sampling_rate
        self.network = nn.ModuleDict({"encoder": network})
        layers, width = len(self.layers) + 1, network.config.hidden_size
        self.audio_size, self.layer_sizes = layers * width, (layers, width)
        self.network[FUSION] = CrossAttentionFusion(layers, width).to(network.device)
        self.parts = {"audio_tower": Part("encoder", self.linears, self.layers_path), "fusion": Part(FUSION, ())}

    @property
    def tower(self) -> Any:
        """The audio encoder."""
        return self.network["encoder"]  # pyright: ignore[reportIndexIssue]

    def prepare_text(
        self, pairs: Sequence[Pair], audio_tokens: Sequence[Sequence[int]], padding_side: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = []
        for pair, counts in zip(pairs, audio_tokens, strict=True):
            segments = [USER if turn.role == "user" else OTHER for turn in pair.context] + [RESPONSE]
            rows.append(torch.tensor(segments).repeat_interleave(torch.tensor(counts)))
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING, padding_side=padding_side)
        is_audio = ids != PADDING
        return ids, is_audio.long(), is_audio

    def hidden_states(self, inputs: Inputs) -> Tensor:
        """See `Backbone`; at context tokens what the fusion projected."""
        states = inputs.audio_states
        if states is None:
            assert inputs.clips is not None
            states = self.encode_audio(inputs.clips)
        fusion: Any = self.network[FUSION]  # pyright: ignore[reportIndexIssue]
        projected = fusion.project(states)
        zeros = projected.new_zeros(inputs.input_ids.numel(), WIDTH)
        audio = zeros.index_copy(0, inputs.audio_positions, projected[inputs.audio_index])
        return fusion(audio.view(*inputs.input_ids.shape, WIDTH), inputs.input_ids)

    def save_processor(self, folder: str) -> None:
        self.extractor.save_pretrained(folder)


class CrossAttentionFusion(nn.Module):
    """A weighted sum of a tower's layers, and one block in which the response attends to its context.

    The weighted sum is the recipe of SUPERB (Yang et al., 2021): a softmax over one learned weight for each layer,
    equal at first. There are no positions in here, only those that the tower has put into its states: the context
    turns of one speaker may be given in any order.
    """

    def __init__(self, layers: int, size: int) -> None:
        """Draw all weights from torch's global seed, for so many layers (the input embedding included) of one width."""
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
            audio: What `project` made `(batch, tokens, width)`; at padding it may be anything finite.
            segments: What each token is part of `(batch, tokens)`.

        Returns:
            `(batch, tokens, width)`: at the response with attention to its context; at context tokens what they were.
            Padding on either side changes nothing.
        """
        tokens = audio + self.segments(segments)
        # the learned token stands in for a context that is not there, and keeps the softmax from being over nothing
        keys = torch.cat([self.no_context.to(tokens).expand(len(tokens), 1, -1), tokens], 1)
        masked = nn.functional.pad((segments != USER) & (segments != OTHER), (1, 0), value=False)
        attended, _ = self.attention(tokens, keys, keys, key_padding_mask=masked, need_weights=False)
        fused = tokens + attended
        fused = self.output_norm(fused + self.feed_forward(fused))
        return torch.where((segments == RESPONSE)[..., None], fused, tokens.to(fused))


def pack(layers: Sequence[Tensor], lengths: Sequence[int], heard: LayerStatistics | None) -> Tensor:
    """States of several layers, each `(rows, frames, size)`, side by side without padding `(states, layers * size)`; so
    many frames of each row belong to a clip. `heard` takes their statistics.
    """
    if heard is not None:
        heard.add(torch.stack([over_time(layer, lengths) for layer in layers], 1), [[length] for length in lengths])
    return torch.cat([without_padding(layer, lengths) for layer in layers], -1)
