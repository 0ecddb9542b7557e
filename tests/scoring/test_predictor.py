"""How many items are computed at once, and on which device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.scoring.predictor import AutoBatch, batches_for, choose_device, lost_device


def run(batches: AutoBatch, items: list[int], fails=lambda batch: None) -> tuple[list[int | None], list[list[int]]]:
    """What was computed of items, each as long as its value, and the batches."""
    made, seen = [None] * len(items), []
    for batch in batches.split(items):
        with batch:
            seen.append(items[batch.rows])
            if (error := fails(items[batch.rows])) is not None:
                raise error
            made[batch.rows] = [2 * item for item in items[batch.rows]]
    return made, seen


def test_batches_become_smaller_where_memory_runs_out_and_stay_so():
    def fails(batch):
        return MemoryError() if sum(batch) > 20 else None

    batches, items = AutoBatch(size=4), [9, 9, 8, 8, 8, 7, 7, 7, 6]
    made, seen = run(batches, items, fails)
    assert made == [2 * item for item in items]
    assert seen[:2] == [[9, 9, 8, 8], [9, 9]]
    assert all(len(batch) == 2 for batch in seen[1:-1])
    assert run(batches, [9, 9, 8], fails) == ([18, 18, 16], [[9, 9], [8]])  # it remembers
    assert run(AutoBatch(4), [30, 28], fails)[0] == [None, None]
    assert run(AutoBatch(4), [], fails) == ([], [])


def test_short_items_do_not_wait_for_a_long_one():
    assert run(AutoBatch(4), [100, 41, 40, 40, 35, 10, 9])[1] == [[100], [41, 40, 40, 35], [10, 9]]


def test_padding_that_costs_nothing_makes_no_further_batch():
    items = [100, 41, 40, 40, 35, 10, 9]
    assert run(AutoBatch(4, free=119), items)[1] == [[100, 41, 40], [40, 35, 10, 9]]
    assert run(AutoBatch(4, free=118), items)[1] == [[100, 41], [40, 40, 35, 10], [9]]
    # lengths of which a second of audio has two
    on_gpu, on_cpu = (batches_for(SimpleNamespace(device=torch.device(name)), 4, 2) for name in ("cuda:1", "cpu"))  # pyright: ignore[reportArgumentType]
    assert run(on_gpu, items)[1] == [[100, 41, 40], [40, 35, 10, 9]]
    assert run(on_cpu, items)[1] == run(AutoBatch(4), items)[1]


def test_items_that_are_not_padded_make_full_batches_of_as_much_as_fits_into_memory():
    batches, items = AutoBatch(4), [100, 41, 40, 40, 35, 10, 9]

    def batches_of(fails=lambda batch: None):
        made = []
        for batch in batches.split(items, padded=False):
            with batch:
                made.append(items[batch.rows])
                if fails(made[-1]):
                    raise MemoryError
        return made

    assert batches_of() == [[100, 41, 40, 40], [35, 10, 9]]
    assert batches_of(lambda batch: sum(batch) > 150) == [[100, 41, 40, 40], [100], [41, 40], [40, 35, 10, 9]]


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
    made, seen = run(AutoBatch(8), [1] * 8, lambda batch: error if len(batch) > 2 else None)
    assert made == [2] * 8
    assert list(map(len, seen)) == [8, 4, 2, 2, 2, 2]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("another"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: device-side assert triggered"),
        accelerator_error(700),  # an illegal address
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_other_errors_are_no_matter_of_memory(error):
    with pytest.raises(type(error)) as raised:
        run(AutoBatch(4), [1, 1], lambda batch: error)
    assert raised.value is error
    assert lost_device(error) == isinstance(error, torch.AcceleratorError)


def test_a_device_without_memory_is_not_lost():
    assert not lost_device(accelerator_error(2))


@pytest.mark.parametrize("name", ["meta", "cpu:99x", "tpu", ""])
def test_a_device_that_holds_no_values_is_refused(name):
    if not name:
        assert choose_device(name).type in ("cpu", "cuda")
        return
    with pytest.raises(UserError, match=f"device '{name}': expected auto, cpu, or cuda where a GPU is usable"):
        choose_device(name)


@pytest.mark.parametrize(
    ("variables", "device"),
    [({}, "cuda"), ({"RANK": "13", "WORLD_SIZE": "16", "LOCAL_RANK": "5"}, "cuda:5"),
     ({"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1"}, "cuda:1"),
     ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "9"}, "cuda:1")],
)  # fmt: skip
def test_processes_of_a_launcher_do_not_all_take_the_first_gpu(variables, device, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)  # there is no GPU to try
    assert choose_device(None) == torch.device(device)
    assert choose_device("cuda:0") == torch.device("cuda:0")
