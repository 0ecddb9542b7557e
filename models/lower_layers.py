"""A language model in two halves: layers below the first with LoRA, which never change, and those from it on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..data_modules.errors import UserError
from .backbones.common.base import Backbone, Inputs
from .backbones.common.halves import layers_at, left_out
from .lora import LoraSettings


def first_adapted_layer(backbone: Backbone, settings: LoraSettings) -> int:
    """Number of the first layer of the language model with LoRA.

    Raises:
        UserError: Saying why what enters that layer changes in training, or is not worth keeping.
    """
    part = backbone.parts.get("language_model")
    if part is None or part.layers is None:
        raise UserError(f"cache: layers: backbone {backbone.name} has no layers to keep; accepted: audio, none")
    changing = {*settings.parts, *settings.full} - {"language_model"}
    if changing or "language_model" in settings.full:
        which = min(changing or {"language_model"})
        raise UserError(f"cache: layers with {which} that is trained: what enters the layers changes; accepted: audio")
    count = len(layers_of(backbone))
    first = 0 if settings.layers is None else range(count)[slice(*settings.layers)].start
    if "language_model" not in settings.parts:
        first = count - 1  # the head alone is trained; the last layer is computed each time
    if first == 0:
        raise UserError(
            "cache: layers with LoRA from the first layer on: there is nothing below; accepted: lora_layers such as "
            f"[-{max(1, count // 4)}, {count}], or cache: audio"
        )
    return first


def entering(backbone: Backbone, inputs: Inputs, first: int) -> Tensor:
    """Hidden states `(batch, tokens, hidden)` that enter layer `first`; the layers from there on are not computed."""
    found: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        found.append(args[0])

    layers = layers_of(backbone)
    hook = layers[first].register_forward_pre_hook(keep)
    try:
        with left_out(layers[first:]):
            backbone.hidden_states(inputs)
    finally:
        hook.remove()
    return found[0]


def check_halves(backbone: Backbone, inputs: Inputs, first: int) -> None:
    """That the two halves make what the whole makes, on a batch.

    Raises:
        UserError: If they do not: this family's layers hand on more than hidden states.
    """
    whole = backbone.hidden_states(inputs)
    refusal = UserError(
        f"cache: layers: backbone {backbone.name} cannot be entered at layer {first}: its layers hand on more than one "
        "state for each token; accepted: audio, none"
    )
    try:
        hidden = entering(backbone, inputs, first)
        if hidden.shape != whole.shape:
            raise refusal
        halves = backbone.hidden_states(replace(inputs, clips=None, audio_states=None, hidden=hidden, first=first))
    except (TypeError, IndexError, RuntimeError):
        raise refusal from None
    real = inputs.attention_mask.bool()
    apart = (whole - halves)[real].float().abs().max()
    if not apart <= 1e-3 * whole[real].float().abs().max():
        raise refusal


def layers_of(backbone: Backbone) -> list[nn.Module]:
    """The layers of a language model."""
    path = backbone.parts["language_model"].layers
    assert path is not None
    return layers_at(backbone.network, path)
