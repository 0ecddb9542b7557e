"""Floating-point operations of a piece of work, and how many a machine makes in a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


class Counter:
    """Counts from when it is made until `stop`: matrix products, convolutions and attention, forward and backward."""

    def __init__(self) -> None:
        """Begin."""
        aten = torch.ops.aten
        # torch 2.11 counts the attention kernels of GPUs alone
        of_cpu = {
            aten._scaled_dot_product_flash_attention_for_cpu: _attention,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        }
        self._mode = FlopCounterMode(display=False, custom_mapping=of_cpu)
        self._mode.__enter__()

    def stop(self) -> int:
        """End; returns the operations (a multiplication and an addition are two)."""
        self._mode.__exit__(None, None, None)
        return self._mode.get_total_flops()


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object
) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


def matrix_rate(
    device: torch.device,
    dtype: torch.dtype,
    size: int = 2048,
    tries: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Operations per second of the product of two square matrices, the fastest of several.

    Args:
        device: Where.
        dtype: Of the matrices.
        size: Rows and columns.
        tries: How often it is measured.
        clock: `time.process_time` gives operations per second of CPU time.
    """
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    _seconds(lambda: left @ right, device, clock)
    return 2 * size**3 / min(_seconds(lambda: left @ right, device, clock) for _ in range(tries))


def _seconds(run: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start
