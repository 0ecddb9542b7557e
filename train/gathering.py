"""The batch of all devices, for losses that compare items."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from ..models.heads.prediction import Prediction
from .objective import Supervision

Rows = TypeVar("Rows", Prediction, Supervision)


def gather(prediction: Prediction, said: Supervision) -> tuple[Prediction, Supervision]:
    """Rows of all ranks in the order of ranks; only the rows of this rank carry a gradient.

    Where ranks average their gradients (DDP, FSDP, ZeRO), the loss over the gathered rows times the number of ranks has
    the gradient that one process would have on the whole batch. Every rank has equally many rows and comparisons, which
    `MixedSampler` sees to.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return prediction, said
    rank, rows = dist.get_rank(), len(said.targets)
    said = replace(said, chosen=said.chosen + rank * rows, rejected=said.rejected + rank * rows)
    return _gathered(prediction), _gathered(said)


def _gathered(rows: Rows) -> Rows:
    values = {f.name: getattr(rows, f.name) for f in fields(rows)}
    return replace(rows, **{name: _of_all_ranks(value) for name, value in values.items() if value is not None})


def _of_all_ranks(own: Tensor) -> Tensor:
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.detach().contiguous())
    parts[dist.get_rank()] = own
    return torch.cat(parts)
