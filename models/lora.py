"""What of a backbone is trained: LoRA (Hu et al., 2022) on named parts, other parts in full, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from ..data_modules.errors import UserError
from .backbones.common.base import Backbone, PartName
from .backbones.common.deferred import finish, seen_as_float32
from .parts import part_of, weights_of

LoraMethod = Literal["lora", "rslora", "dora"]
TrainedDtype = Literal["float32", "backbone"]
JOINER: PartName = "joiner"
"""Has no pre-trained weights: where there is one, it is trained in full."""


@dataclass(frozen=True)
class LoraSettings:
    """Where LoRA goes, how large it is, and what is trained beside it.

    Attributes:
        parts: Parts whose linear layers get an adapter. Empty = train the head alone.
        rank: Rank of the update.
        alpha: The update is scaled by alpha / rank, in rsLoRA by alpha / sqrt(rank).
        dropout: Dropout on the adapter's input while training.
        method: "lora", "rslora" (Kalajdzievski, 2023) or "dora" (Liu et al., 2024).
        layers: Layers of the language model that get an adapter, from the first up to but without the second, counted
            from 0; negative numbers count from the end. None = all.
        full: Parts whose weights are all trained themselves.
        dtype: Of what is trained in the backbone. "backbone" = as the frozen weights: less memory, coarser steps; no
            strategy needs it.
    """

    parts: list[PartName] = field(default_factory=lambda: ["language_model"])
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    method: LoraMethod = "lora"
    layers: tuple[int, int] | None = None
    full: list[PartName] = field(default_factory=list)
    dtype: TrainedDtype = "float32"


def adapt(backbone: Backbone, settings: LoraSettings) -> PeftModel | None:
    """Put LoRA on the parts that the settings name, in place, and free those that are trained in full.

    Returns:
        PEFT's handle for saving and loading, or None when no part gets LoRA.

    Raises:
        UserError: If there is no such part, it has no linear layer of the expected names, or it is named twice.
    """
    for name in [*settings.parts, *settings.full]:
        if name not in backbone.parts:
            raise UserError(f"train {name!r}: backbone {backbone.name} has no such part; accepted: {_names(backbone)}")
    if both := set(settings.parts) & {*settings.full, JOINER}:
        raise UserError(f"LoRA on {min(both)}: its weights are trained themselves; accepted: either of the two")
    handle = _add_lora(backbone, settings) if settings.parts else None
    dtype = torch.float32 if settings.dtype == "float32" else None
    for name in trained_in_full(backbone, settings):
        finish(backbone.network.get_submodule(backbone.parts[name].path))
        for _, weight in weights_of(backbone, name):
            if not weight.is_floating_point():
                raise UserError(f"train {name} in full: its weights are in 4 bits; accepted: LoRA, or no quantization")
            weight.data = weight.data.to(dtype)
            weight.requires_grad_(True)
    return handle


def trained_in_full(backbone: Backbone, settings: LoraSettings) -> list[PartName]:
    """Parts whose weights are all trained: those that the settings name, and a joiner."""
    return [name for name in backbone.parts if name in settings.full or name == JOINER]


def _add_lora(backbone: Backbone, settings: LoraSettings) -> PeftModel:
    # One anchored pattern: a bare list such as ["q_proj"] would reach the audio tower too (ms-swift#1747)
    pattern = "|".join(f"(?:{_pattern(backbone, name, settings.layers)})" for name in settings.parts)
    expected = _linears(backbone, pattern)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # pyright: ignore[reportArgumentType] PEFT takes fractions too
        lora_dropout=settings.dropout,
        use_rslora=settings.method == "rslora",
        use_dora=settings.method == "dora",
        target_modules=pattern,
    )
    in_float32 = settings.dtype == "float32"
    with seen_as_float32(backbone.network):
        handle = get_peft_model(backbone.network, config, autocast_adapter_dtype=in_float32)  # pyright: ignore[reportArgumentType]
    if in_float32 and settings.method != "dora":  # which takes lengths of rows in the precision of the states
        for module in backbone.network.modules():
            if isinstance(module, LoraLayer):
                module._cast_input_dtype = _as_autocast_would  # pyright: ignore[reportAttributeAccessIssue] its overloads
    # Of a model type that it knows as mixture of experts, PEFT 0.21 makes bare names of the pattern
    adapted = {layer for layer, module in backbone.network.named_modules() if isinstance(module, LoraLayer)}
    if wrong := sorted(adapted.symmetric_difference(expected)):
        state = "got LoRA unasked" if wrong[0] in adapted else "got no LoRA"
        raise RuntimeError(f"{wrong[0]} {state}: PEFT did not keep to {pattern}")
    return handle


def _as_autocast_would(states: Tensor, dtype: torch.dtype) -> Tensor:
    """What an adapter in float32 reads of states `(batch, tokens, size)` of a backbone in bfloat16.

    PEFT casts them to float32 first. Under autocast the product casts them back, to the same values: two passes over
    memory for each of seven layers of a block, and copies that are kept for the backward pass. Without autocast, as in
    scoring, the adapter computes in float32.
    """
    # a dry run computes on "meta", which knows no autocast; to ask torch which devices do breaks a compiled layer
    cast = not states.is_meta and torch.is_autocast_enabled(states.device.type)
    return states if cast else states.to(dtype)


def _linears(backbone: Backbone, pattern: str) -> list[str]:
    """Full names of the linear layers that a regular expression matches."""
    return [
        layer
        for layer, module in backbone.network.named_modules()
        if isinstance(module, nn.Linear) and re.fullmatch(pattern, layer)
    ]


def _pattern(backbone: Backbone, name: PartName, layers: tuple[int, int] | None) -> str:
    """Regular expression that matches the full names of a part's linear layers inside the network and nothing else.

    Raises:
        UserError: If it matches none.
    """
    part, pattern = backbone.parts[name], ""
    linears = "|".join(part.linears)
    if name == "language_model" and layers is not None:
        path = part.layers or part.path
        count = len(backbone.network.get_submodule(path))  # pyright: ignore[reportArgumentType] a list of layers
        chosen = range(count)[slice(*layers)]
        if not chosen:
            raise UserError(f"lora_layers {list(layers)}: the language model of {backbone.name} has {count} layers")
        pattern = rf"{re.escape(path)}\.(?:{'|'.join(map(str, chosen))})\.(?:.*\.)?(?:{linears})"
    else:
        pattern = re.escape(part.path) + (rf"\.(?:.*\.)?(?:{linears})" if linears else "")
    matched = _linears(backbone, pattern)
    if not matched:
        raise UserError(f"LoRA on {name}: backbone {backbone.name} has no such linear layers")
    if foreign := [layer for layer in matched if part_of(backbone, layer) != name]:
        raise RuntimeError(f"{pattern} of {name} matches {foreign[0]}, which belongs to another part")
    return pattern


def _names(backbone: Backbone) -> str:
    return ", ".join(backbone.parts)
