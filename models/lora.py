"""Selects what is trained in a backbone: LoRA (Hu et al., 2022) on named parts, full fine-tuning of others, nothing
else. Also tells which part a weight belongs to, and counts weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import has_offloaded_params
from rich.table import Table
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.quiet import quiet_import
from .backbones.base import Backbone
from .backbones.deferred import check_held, finish, seen_as_float32
from .low_rank import adapted_linear, autocasts
from .settings import LoraSettings, PartName

with quiet_import():  # PEFT is imported here alone: it imports bitsandbytes, which warns of a kernel that is not used
    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.tuners.lora import Linear, LoraLayer
    from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict  # noqa: F401 - weight_files takes them

FUSION: PartName = "fusion"
"""This part has no pre-trained weights: where a backbone has it, it is fully trained."""
OTHER = "other"
"""Weights of the network that belong to no part."""


def adapt(backbone: Backbone, settings: LoraSettings) -> PeftModel | None:
    """Put LoRA on the parts that the settings name, in place, and unfreeze those that are fully fine-tuned.

    Returns:
        PEFT's handle for saving and loading; None when no part gets LoRA.

    Raises:
        UserError: If there is no such part, it has no linear layer of the expected names, or it is named twice.
    """
    for name in [*settings.parts, *settings.full_parts]:
        if name not in backbone.parts:
            raise UserError(
                f"train {name!r}: backbone {backbone.name} has no such part; expected {', '.join(backbone.parts)}"
            )
    # An adapter of a trained weight would add nothing that the weight cannot learn, and would be merged into a moving
    # one
    if overlap := set(settings.parts) & {*settings.full_parts, FUSION}:
        raise UserError(f"LoRA on {min(overlap)}: its weights are trained themselves; expected either of the two")
    handle = _add_lora(backbone, settings) if settings.parts else None
    dtype = torch.float32 if settings.trained_dtype == "float32" else None
    for name in trained_in_full(backbone, settings):
        part = backbone.network.get_submodule(backbone.parts[name].path)
        check_held(part, f"{name}: it was trained in full, and a part of it")
        finish(part)
        for _, weight in weights_of(backbone, name):
            if not weight.is_floating_point():
                raise UserError(f"full fine-tuning of {name}: its weights are in 4 bits; use LoRA, or no quantization")
            # By default to float32: a small step of AdamW vanishes in bfloat16, whose next number is further away
            weight.data = weight.data.to(dtype)
            weight.requires_grad_(True)
    return handle


def trained_in_full(backbone: Backbone, settings: LoraSettings) -> list[PartName]:
    """Parts whose weights are all trained: those that the settings name, and cross-attention fusion."""
    # Fusion starts at random: frozen, it would pass on noise
    return [name for name in backbone.parts if name in settings.full_parts or name == FUSION]


def _add_lora(backbone: Backbone, settings: LoraSettings) -> PeftModel:
    # One anchored pattern: a bare list such as ["q_proj"] would reach the audio tower too (ms-swift#1747)
    parts = [_pattern(backbone, name, settings.layers) for name in settings.parts]
    pattern, expected = "|".join(f"(?:{own})" for own, _ in parts), {layer for _, layers in parts for layer in layers}
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # pyright: ignore[reportArgumentType] PEFT takes fractions too
        lora_dropout=settings.dropout,
        use_rslora=settings.method == "rslora",
        use_dora=settings.method == "dora",
        target_modules=pattern,
    )
    in_float32 = settings.trained_dtype == "float32"
    if settings.method != "dora":
        # Documented as experimental (PEFT's guide on custom models)
        config._register_custom_module({nn.Linear: _adapted})  # pyright: ignore[reportArgumentType] what makes a layer
    with seen_as_float32(backbone.network):
        handle = get_peft_model(backbone.network, config, autocast_adapter_dtype=in_float32)  # pyright: ignore[reportArgumentType]
    for module in backbone.network.modules():
        # PEFT leaves it without memory, as accelerate does a layer that is in main memory while it does not compute
        if isinstance(module, LoraLayer) and has_offloaded_params(base := module.get_base_layer()):
            if settings.method == "dora":  # it takes norms of weights that are not there
                check_held(base, "a judge with DoRA, of which a part")
            hook: Any = base._hf_hook
            for adapter in (module.lora_A, module.lora_B):
                adapter.to_empty(device=hook.execution_device)
    # DoRA takes norms of rows in the precision of the states
    if in_float32 and settings.method != "dora":
        for module in backbone.network.modules():
            if isinstance(module, LoraLayer) and not isinstance(module, AdaptedLinear):
                module.cast_input_dtype_enabled = False
                for adapter in module.lora_A.values():
                    adapter.register_forward_pre_hook(_cast_input)
    # For model types that it knows as mixture of experts, PEFT 0.21 turns the pattern into bare names
    adapted = {layer for layer, module in backbone.network.named_modules() if isinstance(module, LoraLayer)}
    if wrong := sorted(adapted.symmetric_difference(expected)):
        state = "got LoRA unasked" if wrong[0] in adapted else "got no LoRA"
        raise RuntimeError(f"{wrong[0]} {state}: PEFT did not keep to {pattern}")
    return handle


class AdaptedLinear(Linear):
    """A linear layer with an adapter of PEFT, computed by `adapted_linear` where the layer is as it was loaded."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """See PEFT, which does what is left: several adapters, and modules with hooks, which must be called: those of
        accelerate (weights in main memory) and DeepSpeed (weights that are gathered when they are used)."""
        base: Any = self.base_layer
        # Whatever differs from one plain adapter is left to PEFT: this path has to be right for the plain case alone
        if args or kwargs or self.disable_adapters:
            return self._by_peft(x, *args, **kwargs)
        names = self.active_adapters
        if len(names) != 1 or names[0] not in self.lora_A:
            return self._by_peft(x)
        (name,) = names
        down: Any = self.lora_A[name]
        up: Any = self.lora_B[name]
        if (
            any(own._forward_pre_hooks or own._forward_hooks or hasattr(own, "_hf_hook") for own in (base, down, up))
            or base.weight.requires_grad
            or name in self.lora_variant
            or self.lora_bias[name]
        ):
            return self._by_peft(x)
        dropout: Any = self.lora_dropout[name]
        # PEFT puts an identity where dropout is 0
        share = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
        return adapted_linear(x, base.weight, base.bias, down.weight, up.weight, self.scaling[name], share)

    def merge(self, *args: Any, **kwargs: Any) -> None:
        """See PEFT. What is left to compute is the layer itself."""
        super().merge(*args, **kwargs)
        if self.merged:
            self.forward = self.get_base_layer().forward

    def unmerge(self) -> None:
        """See PEFT."""
        vars(self).pop("forward", None)
        super().unmerge()

    def _by_peft(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # PEFT 0.21 casts states to the dtype of the adapter, and autocast back: two passes over memory for nothing
        self.cast_input_dtype_enabled = not autocasts(x)
        return super().forward(x, *args, **kwargs)


def _adapted(layer: nn.Module, *args: Any, **kwargs: Any) -> AdaptedLinear | None:
    """The layer with an adapter; None = PEFT makes it: with weights in 8 or 4 bits, or an adapter already."""
    plain = type(layer) is nn.Linear and type(layer.weight.data) is Tensor
    return AdaptedLinear(layer, *args, **kwargs) if plain else None


def _cast_input(adapter: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """A hook before the first matrix of an adapter that PEFT computes: as autocast would, or in the adapter's dtype."""
    states = given[0]
    return (states if autocasts(states) else states.to(adapter.get_parameter("weight").dtype),)


def cast_adapters(backbone: Backbone, dtype: torch.dtype) -> None:
    """Let adapters have this dtype, of a judge that only scores from now on. It is that of the states that they read,
    so that nothing is converted for each batch; DoRA keeps the precision of its norms."""
    for module in backbone.network.modules():
        if isinstance(module, LoraLayer) and not module.lora_variant:
            module.lora_A.to(dtype)
            module.lora_B.to(dtype)


def _pattern(backbone: Backbone, name: PartName, layers: tuple[int, int] | None) -> tuple[str, list[str]]:
    """Regular expression that matches the full names of a part's linear layers inside the network and nothing else, and
    these names."""
    part, pattern = backbone.parts[name], ""
    linears = "|".join(part.linears)
    if name == "language_model" and layers is not None:
        path = part.layers or part.path
        count = len(backbone.network.get_submodule(path))  # pyright: ignore[reportArgumentType] a list of layers
        chosen = range(count)[slice(*layers)]
        if not chosen:
            raise UserError(f"lora.layers {list(layers)}: the language model of {backbone.name} has {count} layers")
        # Numbers one by one, since `layers.1` without an end would also match `layers.10`
        pattern = rf"{re.escape(path)}\.(?:{'|'.join(map(str, chosen))})\.(?:.*\.)?(?:{linears})"
    else:
        pattern = re.escape(part.path) + (rf"\.(?:.*\.)?(?:{linears})" if linears else "")
    modules = backbone.network.named_modules()
    matched = [layer for layer, own in modules if isinstance(own, nn.Linear) and re.fullmatch(pattern, layer)]
    if not matched:
        raise UserError(f"LoRA on {name}: backbone {backbone.name} has no such linear layers")
    # A tower may lie inside the path of another part: a pattern that reaches into it would train it unasked
    if foreign := [layer for layer in matched if part_of(backbone, layer) != name]:
        raise RuntimeError(f"{pattern} of {name} matches {foreign[0]}, which belongs to another part")
    return pattern, matched


@dataclass(frozen=True)
class Count:
    """Weights of a part: all parameters, adapters included (of weights in 4 bits as many as they stand for), those that
    training changes, linear layers with an adapter, and what all and the trainable ones take in memory."""

    parameters: int
    trainable: int
    lora_layers: int
    bytes: int
    trainable_bytes: int


def part_of(backbone: Backbone, name: str) -> PartName | None:
    """The part that a weight or module of the network belongs to: the innermost whose path its name begins with."""
    parts = backbone.parts.items()
    inside: list[PartName] = [key for key, part in parts if f"{name}.".startswith(f"{part.path}.")]
    # The innermost, since paths nest: an audio tower may stand inside the model that holds the language model
    return max(inside, key=lambda key: len(backbone.parts[key].path), default=None)


def weights_of(backbone: Backbone, part: PartName) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and weights of a part, without those of parts inside it."""
    for name, weight in backbone.network.named_parameters():
        if part_of(backbone, name) == part:
            yield name, weight


def count_parameters(backbone: Backbone, extra: Mapping[str, nn.Module]) -> dict[str, Count]:
    """Parameters of each part of a backbone with its adapters, and of `extra` modules such as the head."""
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
    """Number of values of a weight: two for each byte of a weight that bitsandbytes keeps in 4 bits."""
    state = getattr(weight, "quant_state", None)
    return weight.numel() if state is None else state.shape.numel()


def parameter_table(counts: Mapping[str, Count], closed_form: bool = False) -> Table:
    """Parameters and trainable parameters per part, to be printed before training; with `closed_form`, of a probe, of
    which nothing is trained."""
    title = "What is trained: nothing, the head is fitted in closed form" if closed_form else "What is trained"
    table = Table("part", "parameters", "trainable", "LoRA layers", title=title)
    rows = {
        name: (own.parameters, 0 if closed_form else own.trainable, own.lora_layers) for name, own in counts.items()
    }
    for name, numbers in rows.items():
        table.add_row(name, *(f"{number:,}" for number in numbers))
    table.add_row("all", *(f"{sum(numbers):,}" for numbers in zip(*rows.values(), strict=True)), style="bold")
    return table


def check_trainable(counts: Mapping[str, Count], expected: Mapping[str, int]) -> None:
    """Raise a `UserError` if the trainable parameters of a part that a configuration names are others."""
    for name, number in expected.items():
        if name not in counts:
            raise UserError(f"expected_trainable: no part {name!r}; expected {', '.join(counts)}")
        if counts[name].trainable != number:
            raise UserError(
                f"expected_trainable: {name} has {counts[name].trainable} trainable parameters, expected {number}"
            )
