"""What the head reads of a pair: the pooled state of the language model, and how the clips themselves sound.

A language model keeps of the audio what it needs to answer; the layers of the audio encoder hold the rest of the
delivery. Their statistics over time go to the head with the pooled state, mixed by one learned weight for each layer
as in SUPERB (Yang et al., 2021). Measures of the signal itself go to the head, too, where they are asked for. Padding
never counts, whatever its side. Where a long clip is cut, a pair is read in several rows, one for each combination of
windows of its clips.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from .backbones.inputs import Inputs
from .settings import BuiltHeadInput, PoolingName

_NEVER = 1e30
_FURTHEST = 5.0  # standard deviations: larger values are clipped, since such a clip is unlike all of training


class Pooling(nn.Module):
    """From the states of tokens to one vector for each row."""

    reads_response_only = False

    def forward(self, hidden: Tensor, attention_mask: Tensor, response_mask: Tensor) -> Tensor:
        """Pool `(batch, tokens, hidden)` to `(batch, hidden)`; states at padding may be NaN."""
        raise NotImplementedError


class LastToken(Pooling):
    """The hidden state of the last real token, found through the mask and not by position or padding id."""

    def forward(self, hidden: Tensor, attention_mask: Tensor, response_mask: Tensor) -> Tensor:
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        # The largest position that is real, whichever side the padding is on
        last = (attention_mask * (positions + 1)).argmax(-1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]


class ResponseMean(Pooling):
    """The mean over the audio tokens of the response."""

    reads_response_only = True

    def forward(self, hidden: Tensor, attention_mask: Tensor, response_mask: Tensor) -> Tensor:
        # where() and not multiplication: states at padding may be NaN
        audio = torch.where(response_mask[..., None], hidden, torch.zeros((), dtype=hidden.dtype, device=hidden.device))
        return audio.sum(1) / response_mask.sum(1, keepdim=True)


class Attention(Pooling):
    """A mean over all real tokens with learned weights: softmax of a linear score."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        # softmax cancels a bias: its gradient would be rounding, which AdamW turns into steps
        self.score = nn.Linear(hidden_size, 1, bias=False)
        nn.init.zeros_(self.score.weight)  # starts as the plain mean

    def forward(self, hidden: Tensor, attention_mask: Tensor, response_mask: Tensor) -> Tensor:
        real = attention_mask.bool()
        hidden = torch.where(real[..., None], hidden, torch.zeros((), dtype=hidden.dtype, device=hidden.device))
        weights = self.score(hidden)[..., 0].masked_fill(~real, -torch.inf).softmax(-1)
        return (weights[..., None] * hidden).sum(1)


def build_pooling(name: PoolingName, hidden_size: int) -> Pooling:
    """The pooling of that name, for states of this size."""
    match name:
        case "last_token":
            return LastToken()
        case "response_mean":
            return ResponseMean()
        case "attention":
            return Attention(hidden_size)


class HeadInput(nn.Module):
    """From the pooled state and the clips of pairs to the features `(pairs, size)` that the head reads.

    Where nothing of the clips is read, the features are the unchanged pooled state. Otherwise that state goes through a
    layer norm, and what is read of the clips is standardised by the training split (`standardise`). Unknown values,
    such as all those of a missing context, are 0: the mean. The pooled state is not standardised: pairs hardly differ
    in it before training, so that its values would soon be far outside that scale.
    """

    def __init__(self, settings: BuiltHeadInput, hidden_size: int, layer_sizes: tuple[int, int]) -> None:
        """`layer_sizes` = number and width of the layers of the audio encoder, whose weights are equal at first."""
        super().__init__()
        self.settings, self.of_clips = settings, settings.of_clips
        layers, width = layer_sizes
        audio = 3 * 2 * width if settings.audio == "all_layers" else 0
        signal = np.zeros(0, np.int64)
        if settings.functionals:
            from ..audio.functionals import DELIVERY, FUNCTIONALS  # with tables that most judges do without

            signal = np.tile(np.where(np.arange(len(DELIVERY)) < len(FUNCTIONALS), 2, 3), 3)
        # where each feature is from, before landmarks `(features,)`: 0 = language model, 1 = audio encoder, 2 = pitch,
        # level, timing and voice of the signal (`FUNCTIONALS`), 3 = the spectrum of its short frames
        self.blocks = np.concatenate([np.repeat([0, 1], [hidden_size, audio]), signal])
        # scale features of the clips, however many, so that together they move a score as much as the pooled state: at
        # full size the steps of AdamW, equal for each weight, were noise (demo, validation: 0.87 in place of 0.90)
        self._share = math.sqrt(hidden_size / max(1, audio + len(signal)))
        # features of a pair
        self.size = settings.landmarks + hidden_size * settings.beside_landmarks or len(self.blocks)
        if settings.audio != "none":
            self.layer_weights = nn.Parameter(torch.zeros(layers))
            self._add_scale("layers", (3, layers, 2, width))
        if settings.functionals:
            self._add_scale("functionals", (3, len(signal) // 3))
        if settings.landmarks:
            self.landmarks = nn.Buffer(torch.zeros(settings.landmarks, len(self.blocks)))
            self.block_scale = nn.Buffer(torch.ones(len(self.blocks)))

    def _add_scale(self, name: str, shape: tuple[int, ...]) -> None:
        # buffers: strategies shard parameters, and nothing trains these
        self.register_buffer(f"{name}_mean", torch.zeros(shape))
        self.register_buffer(f"{name}_scale", torch.ones(shape))

    def forward(self, pooled: Tensor, inputs: Inputs) -> Tensor:
        """Features `(pairs, size)`, float32, from the pooled states `(rows, hidden)` and the inputs of the same rows. A
        pair that is read in windows gets the weighted mean of its rows."""
        features = self.standardised(pooled, *self.raw(inputs)) if self.of_clips else pooled
        # After the features of each row and before the kernel: distances are those of whole pairs, as in the fit
        if inputs.window_weights is not None:
            features = inputs.window_weights @ features
        if not self.settings.landmarks:
            return features
        own = features * self.block_scale
        # The exact distance: computed by a matrix product, it would depend on the batch
        with torch.no_grad():
            distances = torch.cdist(own, self.landmarks, compute_mode="donot_use_mm_for_euclid_dist")
        # lends the kernel its gradient and adds exactly 0; on a GPU the gradient of `cdist` takes rows x landmarks x
        # features numbers
        nearness = 2 * own @ self.landmarks.T - own.square().sum(-1, keepdim=True)
        kernel = torch.exp(-distances.square()) * (1 + (nearness - nearness.detach()))
        return torch.cat([kernel, features[:, : pooled.shape[-1]]], -1) if self.settings.beside_landmarks else kernel

    def raw(self, inputs: Inputs) -> tuple[Tensor | None, Tensor | None]:
        """What is known of the clips of each row, before it is standardised; NaN where it is not known.

        Returns:
            Values of the encoder's layers `(rows, 3, layers, 2, width)` and of the signal `(rows, 3, measures)`, each
            for the response, the last context turn, and response minus context; None where they are not read.
        """
        layers = inputs.layers if self.settings.audio != "none" else None
        functionals = inputs.functionals if self.settings.functionals else None
        return _of_pairs(layers, inputs.clip_rows), _of_pairs(functionals, inputs.clip_rows)

    def standardised(self, pooled: Tensor, layers: Tensor | None, functionals: Tensor | None) -> Tensor:
        """Features of all blocks `(rows, features)` from the pooled states `(rows, hidden)` and from `raw`, before they
        are compared with landmarks."""
        # The states of backbones differ in size: the norm puts them beside values that are standardised
        features = [layer_norm(pooled, pooled.shape[-1:])]
        if layers is not None:
            # Weights of a mean: however they move, the mix keeps the scale that was standardised
            weights = self.layer_weights.softmax(0)[:, None, None]
            features.append(self._share * (weights * self._standardised("layers", layers)).sum(2).flatten(1))
        if functionals is not None:
            features.append(self._share * self._standardised("functionals", functionals).flatten(1))
        return torch.cat(features, -1)

    def _standardised(self, name: str, values: Tensor) -> Tensor:
        scaled = (values - self.get_buffer(f"{name}_mean")) / self.get_buffer(f"{name}_scale")
        # 0 is the mean of the training split, so that what is not known moves the score neither way
        return torch.where(scaled.isnan(), 0, scaled).clamp(-_FURTHEST, _FURTHEST)

    @torch.no_grad()
    def standardise(self, layers: Tensor | None, functionals: Tensor | None) -> None:
        """Take mean and standard deviation of these rows (of `raw`, two or more, on the CPU: some GPUs have no float64)
        as the scale of what is read of the clips."""
        for name, values in (("layers", layers), ("functionals", functionals)):
            if values is not None:
                # Each feature over the clips that have it: a pair without context says nothing of contexts
                known = ~values.isnan()
                count = known.sum(0).clamp(min=1)
                mean = torch.where(known, values, 0).double().sum(0) / count
                variance = torch.where(known, (values - mean).square(), 0).sum(0) / count
                self.get_buffer(f"{name}_mean").copy_(mean.float())
                # what never varied in training says nothing, and must not dominate where it varies later
                varies = variance > 1e-10 * mean.square() + 1e-12
                self.get_buffer(f"{name}_scale").copy_(torch.where(varies, variance.sqrt(), _NEVER).float())


def _of_pairs(clips: Tensor | None, clip_rows: Tensor | None) -> Tensor | None:
    """Values of the response, of the last context turn (NaN without one), and their difference `(rows, 3, ...)`."""
    if clips is None:
        return None
    assert clip_rows is not None, "inputs were built by a judge that reads nothing of the clips"
    clips = clips.float()
    # -1, no context, would read the last clip: row 0 is read and replaced by NaN below
    response, context = clips[clip_rows[:, 0]], clips[clip_rows[:, 1].clamp(min=0)]
    absent = (clip_rows[:, 1] < 0).view(-1, *[1] * (clips.ndim - 1))
    context = torch.where(absent, torch.nan, context)
    return torch.stack([response, context, response - context], 1)
