"""Windows of clips: where the audio tokens of each are, and what each weighs in a pair."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data_modules.prosody import voiced_seconds


def window_weights(windows: Sequence[np.ndarray], rate: int) -> list[float]:
    """Weights of the windows of a clip, in sum 1: how much of its voice each has; a clip without a voice, by duration.

    Args:
        windows: Mono samples, one piece after the other.
        rate: Hz.
    """
    if len(windows) == 1:
        return [1.0]
    measured = np.array(voiced_seconds(windows, rate))
    if not measured.any():
        measured = np.array([len(window) for window in windows])
    return (measured / measured.sum()).tolist()


class Span(NamedTuple):
    """Rows of the audio tokens of a window among all, how many of them are no padding, its weight in its clip, and
    which window it is."""

    tokens: range
    real: int
    weight: float
    number: int


def spans_of(
    tokens: Sequence[Sequence[int]], real: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]
) -> Iterator[list[Span]]:
    """For each clip the spans of its windows."""
    start, number = 0, itertools.count()
    for windows in zip(tokens, real, weights, strict=True):
        spans = []
        for count, real_count, weight in zip(*windows, strict=True):
            spans.append(Span(range(start, start + count), real_count, weight, next(number)))
            start += count
        yield spans


def row_weights(combinations: Sequence[Sequence[Sequence[Span]]]) -> Tensor:
    """Weight of each row in its pair `(pairs, rows)`: the product of the weights of its windows, in sum 1."""
    weights = ([math.prod(span.weight for span in row) for row in rows] for rows in combinations)
    return torch.block_diag(*(torch.tensor([own]) for own in weights))


def clips_of(rows: Sequence[Sequence[Span]]) -> Tensor:
    """Windows of the response and of the last context turn, -1 = no context `(rows, 2)`."""
    return torch.tensor([[row[-1].number, row[-2].number if len(row) > 1 else -1] for row in rows])


def stacked(values: Sequence[Tensor | None]) -> Tensor | None:
    """The tensors that are known, one below the other; None if none is."""
    known = [value for value in values if value is not None]
    return torch.stack(known) if known else None


def response_mask_of(is_audio: Tensor, responses: Sequence[Span]) -> Tensor:
    """True at the non-padding audio tokens of each row's last clip `(batch, tokens)`."""
    rank_from_end = is_audio.flip(-1).cumsum(-1).flip(-1)
    count = torch.tensor([len(span.tokens) for span in responses])[:, None]
    padding = torch.tensor([len(span.tokens) - span.real for span in responses])[:, None]
    return is_audio & (rank_from_end <= count) & (rank_from_end > padding)
