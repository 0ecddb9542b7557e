"""The batch of all devices, for losses that compare items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional

from ..models.heads import Prediction
from .objective import Supervision


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
    predicted, told = _tensors(prediction), _tensors(said)
    whole = _of_all_ranks([*predicted.values(), *told.values()])
    return (
        replace(prediction, **dict(zip(predicted, whole, strict=False))),
        replace(said, **dict(zip(told, whole[len(predicted) :], strict=True))),
    )


def _tensors(rows: Prediction | Supervision) -> dict[str, Tensor]:
    values = {f.name: getattr(rows, f.name) for f in fields(rows)}
    return {name: value for name, value in values.items() if value is not None}


def _of_all_ranks(own: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor with the rows of all ranks, by one collective: their bytes side by side, in words of 8."""
    flat = [value.detach().contiguous().flatten().view(torch.uint8) for value in own]
    sizes = [-(-len(value) // 8) * 8 for value in flat]
    packed = torch.cat([functional.pad(value, (0, size - len(value))) for value, size in zip(flat, sizes, strict=True)])
    received = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
    dist.all_gather(received, packed)
    parts = [
        [
            words[: len(bits)].view(value.dtype).view(value.shape)
            for words, bits, value in zip(buffer.split(sizes), flat, own, strict=True)
        ]
        for buffer in received
    ]
    parts[dist.get_rank()] = list(own)  # with their gradient
    return [torch.cat(values) for values in zip(*parts, strict=True)]
