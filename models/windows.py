"""The windows in which clips are read. A clip is one window, unless it is longer than the backbone hears and may be
cut; a pair is then read once for each combination of the windows of its clips."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..audio.decode import AudioSource
from ..data_modules.schema import Pair
from .backbones.inputs import Clips


class WindowFacts(NamedTuple):
    """What the host knows of a window of a clip: its number of audio tokens, how many of these are not padding, its
    weight in the clip, and what the head reads of the signal (`EncodedWindow.functionals`)."""

    tokens: int
    real: int
    weight: float
    functionals: Tensor | None


class EncodedWindow(NamedTuple):
    """An encoded window of a clip."""

    states: Tensor  # audio states `(states, audio size)`
    real_tokens: int  # how many of its audio tokens are no padding
    weight: float = 1.0  # among the windows of the clip (`voiced_shares`)
    layers: Tensor | None = None  # see `Inputs.layers` `(layers, 2, layer size)`; None where no head reads it
    functionals: Tensor | None = None  # see `Inputs.functionals` `(measures,)`; None where no head reads it

    def to(self, device: torch.device) -> EncodedWindow:
        """The same on another device; `functionals` are on the CPU."""
        layers = None if self.layers is None else self.layers.to(device)
        return self._replace(states=self.states.to(device), layers=layers)


ClipInputs = tuple[list[list[WindowFacts]], Clips]
"""What is known of the windows of each clip, and what the audio tower reads of them."""
EncodedClip = list[EncodedWindow]
"""The windows of a clip, mostly one."""
MOST_WINDOWS = 100
"""Most windows in which a pair is read: those of its response times those of each context turn."""


def rows_of_windows(
    pairs: Sequence[Pair], sources: Sequence[Sequence[AudioSource]], clips: Mapping[AudioSource, Sequence[WindowFacts]]
) -> tuple[list[tuple[int, ...]], list[Pair], Tensor]:
    """What pairs are read in where some clips have several windows: a row for each combination of the windows of a
    pair's clips.

    Returns:
        For each row the numbers of its windows, and its pair; and the weight of each row in each pair `(pairs, rows)`.
    """
    number = itertools.count()
    numbers = {source: [next(number) for _ in windows] for source, windows in clips.items()}
    windows = list(itertools.chain(*clips.values()))
    # Each window of the response with each of the context, since any part may be what is answered
    combinations = [list(itertools.product(*(numbers[source] for source in row))) for row in sources]
    asked = [pair for pair, choices in zip(pairs, combinations, strict=True) for _ in choices]
    # a row weighs the product of its windows; those of a pair sum to 1
    weights = [[math.prod(windows[n].weight for n in row) for row in choices] for choices in combinations]
    return list(itertools.chain(*combinations)), asked, torch.block_diag(*(torch.tensor([own]) for own in weights))
