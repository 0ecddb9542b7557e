"""Norms and rotary positions of language models in fewer passes over memory.

The official norms start eight kernels on a GPU that read and write float32; here it is one. The official functions turn
queries and keys in five operations each, which read and write whole tensors: a half turn, two products and their sum.
Here there is one product, to which the other is added in place. In float32 values are equal to rounding; in half
precision they are rounded once less.
"""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_NORMS = re.compile(
    r"(Qwen2|Qwen2_5Omni|Qwen3|Qwen3OmniMoe(Thinker)?(Text)?|Llama|Gemma3n|Gemma4(Unified)?|NemotronH(_Omni_)?)RMSNorm"
)
"""Names of the official classes that `FusedNorm` may stand for."""
_OFFICIAL = "apply_rotary_pos_emb"
"""Name of the official functions, which the attention of each family calls."""


def fuse(network: nn.Module) -> None:
    """Put `FusedNorm` in the place of a network's norms, and let its attention layers turn queries and keys by
    `turned`, but for modules that accelerate moves between devices. What is official stays as it is."""
    for name, module in list(network.named_modules()):
        official: Any = type(module).forward
        # accelerate's hook moves the module that it was put on, and would not know this one
        if _NORMS.fullmatch(type(module).__name__) and not hasattr(module, "_hf_hook"):
            network.set_submodule(name, FusedNorm(module))
        # it has replaced the `forward` of a module that has such a hook
        elif inspect.isfunction(official) and _OFFICIAL in official.__code__.co_names and "forward" not in vars(module):
            module.forward = MethodType(_with_turned(official), module)


class FusedNorm(nn.Module):
    """A root mean square norm by `rms_norm`: in float32 values are equal; in half precision they are rounded once, not
    twice."""

    weight: Tensor | None
    eps: float

    def __init__(self, official: Any) -> None:
        super().__init__()
        # with its weight, and whatever else was noted there (`deferred`)
        vars(self).update(vars(official))
        self.register_parameter("weight", getattr(official, "weight", None))
        of_gemma = not hasattr(official, "variance_epsilon")
        self.eps = official.eps if of_gemma else official.variance_epsilon
        self.keeps_dtype = of_gemma or type(official).__name__.startswith("NemotronH")

    def forward(self, states: Tensor) -> Tensor:
        """Norm over the last axis."""
        weight, size = self.weight, states.shape[-1:]
        # The kernel takes one dtype; a trained weight is float32 beside states in half precision
        if weight is None or weight.dtype == states.dtype:
            return nn.functional.rms_norm(states, size, weight, self.eps)
        made = weight * nn.functional.rms_norm(states, size, None, self.eps)  # a weight that is trained, in float32
        return made.to(states.dtype) if self.keeps_dtype else made


@lru_cache
def _with_turned(forward: FunctionType) -> FunctionType:
    """The same function, in which the name of the official one means ours."""
    own = {
        ("q", "k", "cos", "sin", "unsqueeze_dim"): _both_turned,
        ("x", "cos", "sin", "unsqueeze_dim"): turned,  # in Gemma
    }
    official = forward.__globals__[_OFFICIAL]
    # Unless its signature is another one: then the family turns in a way of its own
    names = {**forward.__globals__, _OFFICIAL: own.get(tuple(inspect.signature(official).parameters), official)}
    return FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)


def _both_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    return turned(q, cos, sin, unsqueeze_dim), turned(k, cos, sin, unsqueeze_dim)


def turned(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
    """Queries or keys, turned by their positions.

    Args:
        x: Queries or keys `(batch, heads, tokens, size)`.
        cos: Of the angles `(batch, tokens, size)`.
        sin: Of the angles.
        unsqueeze_dim: The axis of heads.
    """
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    # Backward in few passes, too: autograd would go through the slices one by one
    if x.requires_grad and torch.is_grad_enabled():
        return _Turned.apply(x, cos, sin)  # pyright: ignore[reportReturnType]
    return _turn(x, cos, sin, -1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    half = x.shape[-1] // 2
    made = x * cos
    first, second = (sin[..., :half], sin[..., half:])[::-sign]  # backward, a half has the sine of the other
    made[..., :half].addcmul_(x[..., half:], first, value=sign)
    made[..., half:].addcmul_(x[..., :half], second, value=-sign)
    return made


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return _turn(x, cos, sin, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cos, sin = ctx.saved_tensors
        return _turn(gradient, cos, sin, 1).to(ctx.dtype), None, None
