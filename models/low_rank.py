"""A frozen linear layer and its LoRA adapter as one operation of autograd.

PEFT computes `W x + s B A x` in seven operations, five of which read and write whole activations. Here the update is
added in place by the product that makes it, and the backward pass scales matrices of the adapter's rank alone. Values
and gradients are those of PEFT: bit for bit the values in float32, the rest to rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


def autocasts(states: Tensor) -> bool:
    """Whether autocast chooses the dtype in which a linear layer computes with these states."""
    # a dry run computes on "meta", which has no autocast; asking torch which devices have it breaks a compiled layer
    return not states.is_meta and torch.is_autocast_enabled(states.device.type)


def adapted_linear(
    states: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scale: float, dropout: float
) -> Tensor:
    """A linear layer plus the update of its adapter.

    Args:
        states: What the layer reads `(..., in)`.
        weight: Frozen `(out, in)`.
        bias: Frozen `(out,)`, or None.
        down: A, of the adapter `(rank, in)`, of any dtype: it computes in that of the states.
        up: B, of the adapter `(out, rank)`.
        scale: Of the update.
        dropout: Share of the adapter's inputs that are 0.

    Returns:
        `(..., out)`.
    """
    return _AdaptedLinear.apply(states, weight, bias, down, up, scale, dropout)  # pyright: ignore[reportReturnType]


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] arguments are those of `adapted_linear`
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scale: float,
        dropout: float,
    ) -> Tensor:
        dtype = torch.get_autocast_dtype(states.device.type) if autocasts(states) else states.dtype
        # Autocast does not reach into a function of autograd: the dtype that it would choose is chosen here
        weight, down, up = weight.to(dtype), down.to(dtype), up.to(dtype)
        rows = states.flatten(0, -2).to(dtype)
        # by this operation also on a CPU, which draws as `nn.Dropout` does
        read, kept = torch.native_dropout(rows, dropout, True) if dropout else (rows, None)
        # First down to the rank: B A would be a matrix as large as the weight
        small = torch.mm(read, down.t())
        made = linear(rows, weight, None if bias is None else bias.to(dtype))
        if dtype == torch.float32:  # in which a score is to be the same as ever
            made.add_(torch.mm(small, up.t()).mul_(scale))
        else:
            # In place: a layer's time in half precision is that of reading and writing its activations
            made.addmm_(small, up.t(), alpha=scale)
        ctx.save_for_backward(read, kept, small, weight, down, up)
        ctx.scale, ctx.dropout = scale, dropout
        return made.view(*states.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        read, kept, small, weight, down, up = ctx.saved_tensors
        made, of_states, of_down, of_up = gradient.flatten(0, -2), None, None, None
        scaled = partial(torch.addmm, made.new_empty(1), beta=0, alpha=ctx.scale)  # a product times the scale
        # The scale goes into this narrow product, and not into gradients of full width
        of_small = scaled(made, up)
        # The frozen weight needs no gradient: it would be the largest product of the pass
        if ctx.needs_input_grad[3]:
            of_down = torch.mm(of_small.t(), read)
        if ctx.needs_input_grad[4]:
            of_up = scaled(made.t(), small)
        if ctx.needs_input_grad[0]:
            of_states = torch.mm(made, weight)
            if kept is None:
                of_states.addmm_(of_small, down)
            else:
                of_states.addcmul_(torch.mm(of_small, down), kept, value=1 / (1 - ctx.dropout))
            of_states = of_states.view(*gradient.shape[:-1], weight.shape[1])
        return of_states, None, None, of_down, of_up, None, None
