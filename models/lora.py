"""LoRA (Hu et al., 2022) on named parts of a backbone, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from peft import LoraConfig, PeftModel, get_peft_model
from rich.table import Table
from torch import nn

from ..data_modules.errors import UserError
from .backbones.common.base import Backbone, Part

PartName = Literal["language_model", "projector", "audio_tower"]


@dataclass(frozen=True)
class LoraSettings:
    """Where LoRA goes and how large it is.

    Attributes:
        parts: Parts whose linear layers get an adapter. Empty = train the head alone.
        rank: Rank of the update.
        alpha: The update is scaled by alpha / rank.
        dropout: Dropout on the adapter's input while training.
    """

    parts: list[PartName] = field(default_factory=lambda: ["language_model"])
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0


def add_lora(backbone: Backbone, settings: LoraSettings) -> PeftModel | None:
    """Put LoRA on the parts that the settings name, in place.

    Returns:
        PEFT's handle for saving and loading, or None when no part is named.

    Raises:
        UserError: If a named part has no linear layer of the expected names.
    """
    if not settings.parts:
        return None
    for name in settings.parts:
        if name not in backbone.parts:
            raise UserError(f"LoRA on {name!r}: accepted: {', '.join(backbone.parts)}")
        if not _targets(backbone.network, backbone.parts[name]):
            raise UserError(f"LoRA on {name}: backbone {backbone.name} has no such linear layers")
    # One anchored pattern: a bare list such as ["q_proj"] would reach the audio tower too (ms-swift#1747)
    pattern = "|".join(f"(?:{part_pattern(backbone.parts[name])})" for name in settings.parts)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # pyright: ignore[reportArgumentType] PEFT takes fractions too
        lora_dropout=settings.dropout,
        target_modules=pattern,
    )
    return get_peft_model(backbone.network, config)  # pyright: ignore[reportArgumentType]


def part_pattern(part: Part) -> str:
    """Regular expression that matches the full names of a part's linear layers inside the network."""
    linears = "|".join(part.linears)
    return rf"{re.escape(part.path)}\.(?:.*\.)?(?:{linears})"


def parameter_table(backbone: Backbone, extra: dict[str, nn.Module]) -> Table:
    """Parameters and trainable parameters per part, to be printed before training.

    Args:
        backbone: With LoRA on it.
        extra: Other modules by name, such as the head.
    """
    table = Table("part", "parameters", "trainable", "LoRA layers", title="What is trained")
    modules = {name: backbone.network.get_submodule(part.path) for name, part in backbone.parts.items()}
    total = [0, 0, 0]
    for name, module in {**modules, **extra}.items():
        every = sum(weight.numel() for weight in module.parameters())
        trainable = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
        layers = len([key for key, _ in module.named_modules() if key.endswith("lora_A")])
        total = [total[0] + every, total[1] + trainable, total[2] + layers]
        table.add_row(name, f"{every:,}", f"{trainable:,}", str(layers))
    table.add_row("all", *(f"{value:,}" for value in total), style="bold")
    return table


def _targets(network: nn.Module, part: Part) -> Sequence[str]:
    pattern = part_pattern(part)
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and re.fullmatch(pattern, name)
    ]
