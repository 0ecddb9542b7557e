"""Layers that do something else for a while: a model is entered in the middle, or left there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def layers_at(network: nn.Module, path: str) -> list[nn.Module]:
    """The layers of a network that stand in a list."""
    layers = network.get_submodule(path)
    assert isinstance(layers, nn.ModuleList)
    return list(layers)


@contextmanager
def entered(layers: Sequence[nn.Module], hidden: Tensor) -> Iterator[None]:
    """Within, these layers hand on `hidden` `(batch, tokens, hidden)`, whatever they are given."""
    with _instead(layers, lambda *_, **__: hidden):
        yield


@contextmanager
def left_out(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Within, these layers hand on the hidden states that they are given."""
    with _instead(layers, lambda hidden, *_, **__: hidden):
        yield


@contextmanager
def _instead(layers: Sequence[nn.Module], forward: Any) -> Iterator[None]:
    """The modules stay where they are, so that hooks on them (FSDP) still run."""
    own = [layer.__dict__.get("forward") for layer in layers]  # set where layers are computed again (`recompute`)
    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer, before in zip(layers, own, strict=True):
            if before is None:
                del layer.forward
            else:
                layer.forward = before
