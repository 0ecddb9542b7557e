"""How many items are computed at once."""

from __future__ import annotations

import pytest
import torch
from empathy_judge.models.auto_batch import AutoBatch


def test_batches_become_smaller_where_memory_runs_out_and_stay_so():
    batches, seen = AutoBatch(size=4), []

    def compute(batch):
        seen.append(tuple(batch))
        if sum(batch) > 20:
            raise MemoryError
        return [2 * item for item in batch]

    items = [9, 9, 8, 8, 8, 7, 7, 7, 6]
    assert batches.run(items, items, compute, lambda item: -1) == [2 * item for item in items]
    assert seen[:2] == [(9, 9, 8, 8), (9, 9)]
    assert all(len(batch) == 2 for batch in seen[1:-1])
    seen.clear()
    assert batches.run([9, 9, 8], [9, 9, 8], compute, lambda item: -1) == [18, 18, 16]
    assert seen == [(9, 9), (8,)]  # it remembers
    assert AutoBatch(4).run([30, 28], [30, 28], compute, lambda item: -1) == [-1, -1]
    assert AutoBatch(4).run([], [], compute, lambda item: -1) == []


def test_short_items_do_not_wait_for_a_long_one():
    seen = []

    def compute(batch):
        seen.append(list(batch))
        return batch

    lengths = [100, 41, 40, 40, 35, 10, 9]
    assert AutoBatch(4).run(lengths, lengths, compute, lambda item: -1) == lengths
    assert seen == [[100], [41, 40, 40, 35], [10, 9]]


def accelerator_error(code: int) -> RuntimeError:
    error = torch.AcceleratorError("CUDA error")
    error.error_code = code  # set by torch where it raises it
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.43 GiB total capacity)"),
        RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        accelerator_error(2),
    ],
    ids=lambda error: f"{type(error).__name__}: {error}"[:50],
)
def test_every_way_to_say_that_memory_ran_out_makes_batches_smaller(error):
    seen = []

    def compute(batch):
        seen.append(len(batch))
        if len(batch) > 2:
            raise error
        return batch

    assert AutoBatch(8).run([1] * 8, [1] * 8, compute, lambda item: -1) == [1] * 8
    assert seen == [8, 4, 2, 2, 2, 2]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("another"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: device-side assert triggered"),
        accelerator_error(700),  # an illegal address
    ],
    ids=str,
)
def test_other_errors_are_no_matter_of_memory(error):
    def fail(batch):
        raise error

    with pytest.raises(RuntimeError) as raised:
        AutoBatch(4).run([1, 1], [1, 1], fail, lambda item: -1)
    assert raised.value is error
