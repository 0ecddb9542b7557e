"""What a backbone reads: clips, tokens, and batches of them that move between devices as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Self

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. The host does not wait where that is safe: on the GPU of a Mac the copy may begin after
    the memory that it reads has been given to another tensor."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def begin_to_host(tensor: Tensor) -> Tensor:
    """The tensor of a CUDA device in main memory, once an event after this call has happened."""
    return tensor.to("cpu", non_blocking=True)


@dataclass(frozen=True)
class Movable:
    """A dataclass of tensors, and of others of this kind, that moves as a whole."""

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        return self._each(lambda value: to_device(value, device))

    def pin_memory(self) -> Self:
        """The same in memory that a GPU can read while it computes; a data loader calls it. What is on a GPU stays."""
        return self._each(lambda value: value.pin_memory() if value.device.type == "cpu" else value)

    def _each(self, function: Callable[[Tensor], Tensor]) -> Self:
        changed = {}
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            if isinstance(value, Movable):
                changed[attribute.name] = value._each(function)
            elif isinstance(value, Tensor):
                changed[attribute.name] = function(value)
        return replace(self, **changed)


@dataclass(frozen=True)
class Clips(Movable):
    """What an audio tower reads of several clips, padded to the longest."""

    # one row for each clip, or for each window where the family itself cuts a long clip into windows (those of one clip
    # then follow each other): spectrograms `(rows, bins, frames)` or `(rows, frames, bins)` or samples `(rows,
    # samples)`, as the family has it
    features: Tensor
    lengths: Sequence[int]  # real frames (or samples) of each row: numbers of the host, which slices by them
    rows: Sequence[int] | None = None  # rows of each clip; None = one row for each clip
    as_samples: bool = False  # True where `features` are samples, of which the tower makes the spectrograms it reads

    def by_clip(self, of_rows: Sequence[int]) -> list[list[int]]:
        """Values of rows, those of each clip together."""
        waiting = iter(of_rows)
        return [list(islice(waiting, rows)) for rows in self.rows or [1] * len(of_rows)]


@dataclass(frozen=True)
class Pieces(Movable):
    """Where the pieces of packed pairs lie if they stand in one row without padding: first the beginning of each tree,
    then what follows it in each of its pairs. The kernel that reads this takes int32, each from 0."""

    ends: Tensor  # of all pieces `(pieces + 1,)`
    beginnings: Tensor  # ends of the beginnings `(trees + 1,)`
    rests: Tensor  # ends of what follows each beginning, counted from the first that follows `(trees + 1,)`
    longest: tuple[int, int, int]  # tokens of the longest piece, beginning, and all that follows one
    start: int  # where the first that follows is


@dataclass(frozen=True)
class Packed(Movable):
    """The tokens of a batch in rows that hold several pairs each. What pairs begin with, such as a context that they
    share, is there once, and each of them goes on from it (`packing`)."""

    input_ids: Tensor  # `(rows, width)`
    attention_mask: Tensor  # `(rows, width)`, 1 for real tokens
    positions: Tensor  # `(rows, width)`, each as it is in its pair
    tree: Tensor  # `(rows, width)`: tokens with the same number belong to pairs with the same beginning
    # `(rows, width)`: the pair that a token belongs to; -1 = the beginning, which is all theirs; -2 = padding
    branch: Tensor
    audio_index: Tensor  # as in `Inputs`
    audio_positions: Tensor  # as in `Inputs`
    where: Tensor  # where each token of the batch is in the flattened rows `(batch, tokens)`; anywhere for padding
    pieces: Pieces | None = None  # where all stand in one row, for attention without a mask


@dataclass(frozen=True)
class Inputs(Movable):
    """What the judge reads for a batch of pairs. Every distinct clip is held once, however many pairs share it."""

    input_ids: Tensor  # `(batch, tokens)`; each audio token stands for one audio state after the projector
    attention_mask: Tensor  # `(batch, tokens)`, 1 for real tokens and 0 for padding, on either side
    response_mask: Tensor  # `(batch, tokens)`, True at the non-padding audio tokens of the response
    # for each audio token of `input_ids` in reading order, its row after the projector `(audio tokens,)`
    audio_index: Tensor
    audio_positions: Tensor  # where these tokens are in the flattened `input_ids` `(audio tokens,)`
    clips: Clips | None = None  # the clips to encode; None where `audio_states` holds them encoded
    # what `Backbone.encode_audio` made of the clips, one after the other `(states, audio size)`
    audio_states: Tensor | None = None
    # what `LayerStatistics` says of the same clips `(clips, layers, 2, layer size)`, for a head that reads it
    layers: Tensor | None = None
    # measures of the same clips `(clips, measures)`, NaN where one is undefined, for such a head
    functionals: Tensor | None = None
    # row in these two of the response and of the last context turn, -1 = no context `(batch, 2)`
    clip_rows: Tensor | None = None
    # where long clips are cut into windows, a pair has several rows, and this is the weight of each row in each pair
    # `(pairs, batch)`; None = one row for each pair
    window_weights: Tensor | None = None
    # what layer `first` of the language model reads `(batch, tokens, hidden)`, in place of clips and token ids; None =
    # the model is computed from its beginning
    hidden: Tensor | None = None
    first: int = 0  # see `hidden`
    # True where padding is known to follow the real tokens of every row, so that a causal model needs no mask for it.
    # False is always right.
    padding_last: bool = False
    packed: Packed | None = None  # the same tokens with less to compute; None = there is no such way
