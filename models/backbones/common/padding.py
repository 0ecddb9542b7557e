"""Clips that share a batch, and the padding between them.

How long each clip is, the host knows before anything is computed. Whatever follows from it is worked out there: a GPU
that is asked for a length or for the places of a mask must first finish all that it was given to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Integers that the host knows, on a device; the host does not wait for the copy."""
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)


def real_places(lengths: Sequence[int], width: int, device: torch.device) -> Tensor | None:
    """True where a row has no padding `(rows, width)`; None if no row has any."""
    if all(length == width for length in lengths):
        return None
    return torch.arange(width, device=device) < on_device(lengths, device)[:, None]


def without_padding(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    """What is real of rows `(rows, width, size)`, one after the other `(sum of lengths, size)`."""
    if all(length == rows.shape[1] for length in lengths):
        return rows.flatten(0, 1)
    return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])
