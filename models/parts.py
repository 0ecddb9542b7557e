"""Which part of a backbone a weight belongs to, and what of each part is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.table import Table
from torch import nn

from ..data_modules.errors import UserError
from .backbones.common.base import Backbone, PartName

OTHER = "other"
"""Weights of the network that belong to no part."""


@dataclass(frozen=True)
class Count:
    """Weights of a part.

    Attributes:
        parameters: All of them, adapters included; of weights in 4 bits as many as they stand for.
        trainable: Those that training changes.
        lora_layers: Linear layers with an adapter.
        bytes: What the weights take in memory.
        trainable_bytes: What the trainable ones take.
    """

    parameters: int
    trainable: int
    lora_layers: int
    bytes: int
    trainable_bytes: int


def part_of(backbone: Backbone, name: str) -> PartName | None:
    """The part that a weight or module of the network belongs to: the innermost whose path its name begins with."""
    innermost: PartName | None = None
    for key, part in backbone.parts.items():
        inside = name == part.path or name.startswith(f"{part.path}.")
        if inside and (innermost is None or len(part.path) > len(backbone.parts[innermost].path)):
            innermost = key
    return innermost


def weights_of(backbone: Backbone, part: PartName) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and weights of a part, without those of parts inside it."""
    for name, weight in backbone.network.named_parameters():
        if part_of(backbone, name) == part:
            yield name, weight


def count_parameters(backbone: Backbone, extra: Mapping[str, nn.Module]) -> dict[str, Count]:
    """Count what there is and what is trained, by part.

    Args:
        backbone: With its adapters on it.
        extra: Other modules by name, such as the head.
    """
    groups: dict[str, list[tuple[str, nn.Parameter]]] = {name: [] for name in backbone.parts}
    for name, weight in backbone.network.named_parameters():
        groups.setdefault(part_of(backbone, name) or OTHER, []).append((name, weight))
    groups |= {name: list(module.named_parameters()) for name, module in extra.items()}
    counts = {}
    for group, weights in groups.items():
        trained = [weight for _, weight in weights if weight.requires_grad]
        counts[group] = Count(
            parameters=sum(elements(weight) for _, weight in weights),
            trainable=sum(elements(weight) for weight in trained),
            lora_layers=len({name.split(".lora_A.")[0] for name, _ in weights if ".lora_A." in name}),
            bytes=sum(weight.nbytes for _, weight in weights),
            trainable_bytes=sum(weight.nbytes for weight in trained),
        )
    return counts


def elements(weight: nn.Parameter) -> int:
    """Values that a weight stands for: two in each byte of a weight that bitsandbytes keeps in 4 bits."""
    state = getattr(weight, "quant_state", None)
    return weight.numel() if state is None else state.shape.numel()


def parameter_table(counts: Mapping[str, Count]) -> Table:
    """Parameters and trainable parameters per part, to be printed before training."""
    table = Table("part", "parameters", "trainable", "LoRA layers", title="What is trained")
    for name, count in counts.items():
        table.add_row(name, f"{count.parameters:,}", f"{count.trainable:,}", str(count.lora_layers))
    totals = (
        sum(getattr(count, field) for count in counts.values()) for field in ("parameters", "trainable", "lora_layers")
    )
    table.add_row("all", *(f"{total:,}" for total in totals), style="bold")
    return table


def check_trainable(counts: Mapping[str, Count], expected: Mapping[str, int]) -> None:
    """Compare the trainable parameters of each part with what a configuration says.

    Args:
        counts: What is there.
        expected: Trainable parameters by part; a part that is not named may have any number.

    Raises:
        UserError: Naming the first part that differs.
    """
    for name, number in expected.items():
        if name not in counts:
            raise UserError(f"model.expected_trainable: no part {name!r}; accepted: {', '.join(counts)}")
        if counts[name].trainable != number:
            raise UserError(
                f"model.expected_trainable: {name} has {counts[name].trainable} trainable parameters, expected {number}"
            )
