"""How many items are computed at once, and what is made ahead."""

from __future__ import annotations

import math
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from empathy_judge.scoring.batches import READ_AHEAD, AutoBatch, Workers, batch_tokens, batches_for, lost_device
from threadpoolctl import ThreadpoolController


def run(
    batches: AutoBatch, items: list[int], fails=lambda batch: None, workers=None, padded=True
) -> tuple[list[int | None], list[list[int]]]:
    """What was computed of items, each as long as its value, and the batches."""
    made, seen = [None] * len(items), []
    for batch in batches.split(items, lambda rows: items[rows], workers, padded):
        with batch:
            taken = batch.take()
            seen.append(taken)
            if (error := fails(taken)) is not None:
                raise error
            made[batch.rows] = [2 * item for item in taken]
    return made, seen


@pytest.fixture(params=[False, True], ids=["serial", "ahead"])
def workers(request):
    with Workers() if request.param else nullcontext() as workers:
        yield workers


def test_batches_become_smaller_where_memory_runs_out_and_stay_so(workers):
    def fails(batch):
        return MemoryError() if sum(batch) > 20 else None

    batches, items = AutoBatch(size=4), [9, 9, 8, 8, 8, 7, 7, 7, 6]
    made, seen = run(batches, items, fails, workers)
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
    on_gpu, on_cpu = (batches_for(judge_on(name), 4, 2) for name in ("cuda:1", "cpu"))
    assert run(on_gpu, items)[1] == [[100, 41, 40], [40, 35, 10, 9]]
    assert run(on_cpu, items)[1] == run(AutoBatch(4), items)[1]


def test_items_that_are_not_padded_make_full_batches_of_as_much_as_fits_into_memory():
    batches, items = AutoBatch(4), [100, 41, 40, 40, 35, 10, 9]
    assert run(batches, items, padded=False)[1] == [[100, 41, 40, 40], [35, 10, 9]]
    seen = run(batches, items, lambda batch: MemoryError() if sum(batch) > 150 else None, padded=False)[1]
    assert seen == [[100, 41, 40, 40], [100], [41, 40], [40, 35, 10, 9]]


def judge_on(name: str) -> Any:
    """As much of a judge as batches look at: 25 audio tokens for a second of audio at 100 Hz, in bfloat16."""
    network = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    network.config = SimpleNamespace(intermediate_size=100)
    backbone = SimpleNamespace(
        sampling_rate=100, audio_tokens=lambda samples: samples // 4, hidden_size=64, parts=["language_model"],
        language_model=network,
    )  # fmt: skip
    return SimpleNamespace(device=torch.device(name), backbone=backbone, network=network)


def test_a_pass_has_as_many_tokens_as_fit():
    items = [100, 90, 40, 30, 20]
    assert run(AutoBatch(9, math.inf, most=200), items)[1] == [[100, 90], [40, 30, 20]]
    assert run(AutoBatch(9, most=200), items, padded=False)[1] == [[100, 90], [40, 30, 20]]
    # samples, of which four make a token
    assert run(batches_for(judge_on("cuda"), 9, 100, most_tokens=50), items)[1] == [[100, 90], [40, 30, 20]]
    assert run(AutoBatch(9, most=200), [300, 250])[1] == [[300], [250]]  # more would be alone, too


@pytest.mark.parametrize(("free", "tokens"), [(2**40, 16_384), (2**24, 2**23 / 2_680), (1_000, 1)])
def test_tokens_of_a_pass_follow_from_the_memory_that_is_free(free, tokens, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free - 300, 2**41))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)  # by this process
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    # a token takes 2 (6 * 64 + 3 * 100) + 4 (2 * 64 + 2 * 100) = 2,680 bytes
    assert batch_tokens(judge_on("cuda:0")) == tokens
    assert batch_tokens(judge_on("cpu")) == math.inf


@pytest.mark.parametrize("padded", [True, False])
def test_what_is_made_ahead_makes_the_same_batches(padded):
    items = sorted(np.random.default_rng(0).integers(1, 50, 200).tolist(), reverse=True)

    def fails(batch):
        return MemoryError() if sum(batch) > 150 else None

    with Workers() as workers:
        ahead = run(AutoBatch(8), items, fails, workers, padded)
    assert ahead == run(AutoBatch(8), items, fails, padded=padded)
    assert ahead[0] == [2 * item for item in items]


def test_inputs_of_the_next_two_passes_are_made_while_one_is_computed():
    made = [threading.Event() for _ in range(5)]

    def make(rows):
        made[rows.start].set()
        return rows.start

    with Workers() as workers:
        for batch in AutoBatch(1).split([1] * 5, make, workers):
            number = batch.take()
            assert all(event.wait(20) for event in made[number : number + 3])
            assert not any(event.is_set() for event in made[number + 3 :])


def test_an_error_waits_for_what_is_being_made_and_takes_it_along():
    """Otherwise it would go on in a thread while the next call begins."""
    ended = []

    def make(rows):
        time.sleep(0.05 * (rows.start > 0))
        ended.append(rows.start)
        if rows.start == 1:
            raise ValueError("of a later batch")
        return rows.start

    def compute(workers):
        for batch in AutoBatch(1).split([1] * 5, make, workers):
            with batch:
                batch.take()
                raise RuntimeError("of this batch")

    with Workers() as workers:
        with pytest.raises(RuntimeError, match="of this batch"):
            compute(workers)
        assert sorted(ended) == [0, 1, 2]


class Blob:
    nbytes = READ_AHEAD // 2


def test_what_is_read_ahead_is_bounded():
    with Workers() as workers:
        begun = workers.read(range(20), lambda number: Blob())
        found = [workers.take(begun, number) for number in range(20)]
        assert found[0] is not None
        # each thread may just have looked
        assert 3 <= sum(one is not None for one in found[:12]) <= 20
        assert not begun  # each is taken once
        assert workers.take(workers.read([1], lambda number: Blob()), 1) is not None  # there is room again
        failing = workers.read([1], lambda number: [][number])
        with pytest.raises(IndexError):
            workers.take(failing, 1)


def test_threads_of_the_host_do_not_multiply():
    """Each thread that computes with torch would otherwise start as many as there are cores, or as torch was told."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        with Workers() as workers:
            assert workers._readers.submit(torch.get_num_threads).result() == 1
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_to_start_threads_takes_no_time(monkeypatch):
    """A service does it for each batch; `threadpool_limits` would look through all libraries for each thread."""
    with Workers() as workers:
        workers.take(workers.read([0], lambda number: Blob()), 0)
    monkeypatch.setattr(ThreadpoolController, "__init__", lambda own: pytest.fail("libraries are looked for again"))
    with Workers() as workers:
        assert workers.take(workers.read([0], lambda number: Blob()), 0) is not None


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
