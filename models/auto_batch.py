"""Automatic batch size: batches become smaller where memory runs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

_PADDED = 1.25
"""Places of a batch for each that is used: beyond it, shorter items make a batch of their own."""
_CUDA_OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation`, which `torch.AcceleratorError` carries."""
_STATUSES = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Of libraries that allocate on their own, and of torch before it had that class (2.8)."""
Item = TypeVar("Item")
Made = TypeVar("Made")


class AutoBatch:
    """Batches of consecutive items with little padding. Where one runs out of memory, all later ones are smaller."""

    def __init__(self, size: int) -> None:
        """Nothing is known yet.

        Args:
            size: Most items in a batch.
        """
        self._size = size
        self._most = math.inf  # places of a batch: its items times the longest of them

    def run(
        self,
        items: Sequence[Item],
        lengths: Sequence[int],
        compute: Callable[[Sequence[Item]], Sequence[Made]],
        too_large: Callable[[Item], Made],
    ) -> list[Made]:
        """One result for each item, in order.

        Args:
            items: In the order in which they make batches; the longest first, so that memory runs out early.
            lengths: How much of a batch each takes, in any unit.
            compute: Results of a batch.
            too_large: The result of an item that does not fit even alone.
        """
        made: list[Made] = []
        while len(made) < len(items):
            count = self._fitting(lengths[len(made) :])
            batch = items[len(made) : len(made) + count]
            results = _tried(compute, batch)
            if results is not None:
                made += results
                continue
            clear_device_cache(garbage_collection=True)
            if count == 1:
                made.append(too_large(batch[0]))
            else:
                self._most = count * max(lengths[len(made) : len(made) + count]) / 2
        return made

    def _fitting(self, lengths: Sequence[int]) -> int:
        count, longest, used = 1, lengths[0], lengths[0]
        while count < min(self._size, len(lengths)):
            longest, used = max(longest, lengths[count]), used + lengths[count]
            if (count + 1) * longest > min(self._most, _PADDED * used):
                break
            count += 1
        return count


def _tried(compute: Callable[[Sequence[Item]], Sequence[Made]], batch: Sequence[Item]) -> Sequence[Made] | None:
    """None where memory ran out; by then nothing holds on to what had been made."""
    try:
        return compute(batch)
    except (RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
    return None


def _out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may do."""
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or getattr(error, "error_code", None) == _CUDA_OUT_OF_MEMORY
        or should_reduce_batch_size(error)
        or any(status in str(error) for status in _STATUSES)
    )
