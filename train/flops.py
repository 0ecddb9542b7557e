"""Useful matrix FLOPs of a step, and how many a machine does in a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

_SECONDS = 0.3  # together with what is left of a product when the time is over, well below a second
_LARGEST = 8192
_aten = torch.ops.aten


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP per second of square matrix products `(n, n) @ (n, n)` on this device now, in less than a second.

    n is doubled from 256 as long as the time allows, up to 8192; the fastest counts. This is what a step could reach if
    it were nothing but large products, with the threads and the float32 precision (TF32 or not) that torch is set to.
    It is a figure of the machine as it is used, not of its data sheet: where other processes compute, it is lower.
    """
    started, best, size, last = time.perf_counter(), 0.0, 256, 0.0
    draws = torch.Generator(device)  # its own: what training draws must not depend on how fast this is
    while size <= _LARGEST and time.perf_counter() - started + 16 * last < _SECONDS:
        left, right = (torch.randn(size, size, device=device, generator=draws).to(dtype) for _ in range(2))
        for repeat in range(3):  # the first one may choose a kernel
            synchronize(device)
            begun = time.perf_counter()
            torch.mm(left, right)
            synchronize(device)
            last = time.perf_counter() - begun
            if repeat or last > 0.1:
                best = max(best, 2 * size**3 / last)
            if last > 0.1:
                break
        size *= 2
    return best


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked of it; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class UsefulFlops:
    """Counts the products of matrices and the convolutions of one forward pass and of the backward pass that it asks
    for, by torch's counter.

    As model FLOP utilisation wants it (Chowdhery et al., 2022), what is computed again does not count, neither layers
    under gradient checkpointing nor the scores that flash attention makes anew. So the backward pass is not watched:
    each product of the forward pass asks for as many as it has operands that need a gradient, which for frozen weights
    is one. (Watching it would also change the last bit of gradients: under a dispatch mode torch takes other formulas.)
    A causal mask halves nothing, as in torch's counter. Kernels that torch does not know (the package `flash-attn`)
    count nothing.
    """

    def __init__(self) -> None:
        self._counter = FlopCounterMode(display=False)
        known = {**self._counter.flop_registry, **dict.fromkeys(_ATTENTION, _attention)}
        self._counter.flop_registry = {
            op: _with_backward(formula, _OPERANDS.get(op, slice(3))) for op, formula in known.items()
        }

    def start(self) -> None:
        """Before the forward pass."""
        self._counter.__enter__()

    def stop(self) -> int:
        """After the forward pass: how many it and its backward pass have."""
        self._counter.__exit__(None, None, None)
        return self._counter.get_total_flops()


_ATTENTION = (
    _aten._scaled_dot_product_flash_attention_for_cpu,  # which torch's counter has forgotten
    _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_efficient_attention,
    _aten._scaled_dot_product_cudnn_attention,
)
_OPERANDS = {_aten.mm: slice(2), _aten.bmm: slice(2), _aten.addmm: slice(1, 3), _aten.baddbmm: slice(1, 3)}
_OPERANDS |= {_aten.convolution: slice(2), _aten._convolution: slice(2)}


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Scores and weighted sum; also where several query heads share a key head, which torch's own formula refuses."""
    return 2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _with_backward(formula: Callable[..., int], operands: slice) -> Callable[..., int]:
    """A product of two operands has one for the gradient of each; attention, which is two products of three, four."""

    def counted(*args: Any, **kwargs: Any) -> int:
        need = [operand.requires_grad for operand in args[operands] if isinstance(operand, Tensor)]
        back = sum(need) if len(need) < 3 else 2 * any(need)
        return formula(*args, **kwargs) * (1 + back)

    return counted
