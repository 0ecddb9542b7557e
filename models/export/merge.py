"""Adapters become part of the weights that they were put on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from ..judge import DTYPES, EmpathyJudge


@torch.no_grad()
def merge_adapter(judge: EmpathyJudge) -> None:
    """Put what was trained of a backbone into its weights, in place: the judge has no adapter afterwards.

    Sums are taken in float32, one layer after the other, and rounded once to the type of the backbone. Weights in 4
    bits become what they stand for: that is what the adapter was trained on. A joiner stays what it is: no checkpoint
    has one.

    Args:
        judge: In evaluation mode, on the CPU, without members.
    """
    dtype = DTYPES[judge.settings.dtype]
    in_float32 = {part for module in judge.network.modules() for part in _float32_parts(module)}
    for name, weight in judge.trained_in_full().items():
        if not name.startswith("joiner.") and in_float32.isdisjoint(name.split(".")):
            weight.data = weight.data.to(dtype)
    for name, module in list(judge.network.named_modules()):
        if isinstance(module, LoraLayer):
            judge.network.set_submodule(name, _merged(module, dtype))
    for name, module in list(judge.network.named_modules()):
        if _in_4_bits(module):
            judge.network.set_submodule(name, _linear(module, _values(module).to(dtype)))
    # it knows of no adapter any more, and trains nothing but pooling and head, and a joiner where there is one
    judge.adapter = (None,)
    judge.settings = replace(judge.settings, quantization="none", lora=replace(judge.settings.lora, parts=[], full=[]))


def _float32_parts(module: nn.Module) -> Iterable[str]:
    """What of a model is loaded in float32 whatever its dtype is, such as convolutions over a waveform."""
    return getattr(module, "_keep_in_fp32_modules_strict", None) or ()


def _merged(layer: Any, dtype: torch.dtype) -> nn.Module:
    """The layer under an adapter, with the adapter in its weights."""
    base = layer.get_base_layer()
    (name,) = layer.active_adapters
    up, down = layer.lora_B[name].weight.float(), layer.lora_A[name].weight.float()
    weight = _values(base) + layer.scaling[name] * (up @ down)
    if name in layer.lora_magnitude_vector:  # DoRA: each row has a length of its own (Liu et al., 2024)
        lengths = layer.lora_magnitude_vector[name].weight.float()
        weight = weight * (lengths / torch.linalg.norm(weight, dim=1))[:, None]
    return _linear(base, weight.to(dtype))


def _values(linear: Any) -> torch.Tensor:
    """Weight of a linear layer `(out, in)`, float32, also where it is kept in 4 bits."""
    if not _in_4_bits(linear):
        return linear.weight.data.float()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(linear.weight.data, linear.weight.quant_state).float()


def _in_4_bits(module: nn.Module) -> bool:
    return getattr(getattr(module, "weight", None), "quant_state", None) is not None


def _linear(base: Any, weight: torch.Tensor) -> nn.Module:
    """The layer with another weight; a plain one in place of one in 4 bits."""
    if not _in_4_bits(base):
        base.weight.data = weight
        return base
    plain = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = base.bias
    return plain
