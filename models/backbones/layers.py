"""What is done to the layers of a network from outside: statistics over time of what they make, for a head that reads
them; layers that are skipped; gradient checkpointing and `torch.compile`, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from .padding import on_device

_LEAST_VARIANCE = 1e-8


class LayerStatistics:
    """Mean and standard deviation over time of what each layer of an audio encoder makes of clips, its input included.

    Each clip is summed up alone and in float32: padding and the other clips of a batch never enter.
    """

    def __init__(self) -> None:
        self._found: dict[int, Tensor] = {}

    @property
    def clips(self) -> Tensor:
        """Of all clips `(clips, layers, 2, layer size)`, float32."""
        return torch.stack([self._found[clip] for clip in sorted(self._found)])

    @contextmanager
    def watch(
        self, layers: Sequence[nn.Module], lengths: Sequence[Sequence[int]], clips: Sequence[int] | None = None
    ) -> Iterator[None]:
        """Within, one pass through these layers is summed up.

        Args:
            layers: Each makes states `(rows, positions, size)`, or a tuple that begins with them.
            lengths: For each clip the real positions of each of its rows.
            clips: Which clips these are; None = those that follow the ones before.
        """
        made: list[Tensor] = []  # of each layer (rows, 2, size)
        rows = [length for clip in lengths for length in clip]

        def keep(states: Any) -> None:
            made.append(over_time(states if isinstance(states, Tensor) else states[0], rows))

        hooks = [layers[0].register_forward_pre_hook(lambda _, given: keep(given))]
        hooks += [layer.register_forward_hook(lambda *call: keep(call[2])) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self.add(torch.stack(made, 1), lengths, clips)

    def add(self, rows: Tensor, lengths: Sequence[Sequence[int]], clips: Sequence[int] | None = None) -> None:
        """Further clips, from the statistics of their rows `(rows, layers, 2, size)`; the others as in `watch`."""
        numbers = clips or range(len(self._found), len(self._found) + len(lengths))
        of_clips = rows.split([len(clip) for clip in lengths])
        for number, own, counts in zip(numbers, of_clips, lengths, strict=True):
            self._found[number] = own[0] if len(counts) == 1 else _together(own, counts)


def over_time(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    """Mean and standard deviation of the first `lengths` positions of rows `(rows, positions, ..., size)`:
    `(rows, ..., 2, size)`, float32."""
    found = []
    for row, length in enumerate(lengths):
        # a copy: Granite's encoder adds to what a layer has made, in place
        variance, mean = torch.var_mean(rows[row, :length].to(torch.float32, copy=True), 0, correction=0)
        # a root has no gradient at 0, where a clip is one position long
        found.append(torch.stack([mean, (variance + _LEAST_VARIANCE).sqrt()], -2))
    return torch.stack(found)


def _together(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Of the rows of one clip `(rows, layers, 2, size)` with so many positions: `(layers, 2, size)`."""
    shares = on_device(counts, rows.device)[:, None, None] / sum(counts)
    means, deviations = rows.unbind(2)
    mean = (shares * means).sum(0)
    return torch.stack([mean, (shares * (deviations.square() + (means - mean).square())).sum(0).sqrt()], 1)


def watching(
    heard: LayerStatistics | None,
    layers: Sequence[nn.Module],
    lengths: Sequence[Sequence[int]],
    clips: Sequence[int] | None = None,
) -> AbstractContextManager[None]:
    """`LayerStatistics.watch`, if there is anybody who wants it."""
    return nullcontext() if heard is None else heard.watch(layers, lengths, clips)


@contextmanager
def enter_behind(layers: Sequence[nn.Module], hidden: Tensor) -> Iterator[None]:
    """Within, these layers pass on `hidden` `(batch, tokens, hidden)`, whatever they are given."""
    with _replaced(layers, lambda *_, **__: hidden):
        yield


@contextmanager
def skip(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Within, these layers pass on the hidden states that they are given."""
    with _replaced(layers, lambda hidden, *_, **__: hidden):
        yield


@contextmanager
def _replaced(layers: Sequence[nn.Module], forward: Any) -> Iterator[None]:
    """The modules stay where they are, so that hooks on them (FSDP) still run."""
    own = [layer.__dict__.get("forward") for layer in layers]  # set by gradient checkpointing and compilation
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


def compile_layers(network: nn.Module, leave: list[nn.Module], backend: str = "inductor") -> int:
    """Compile every transformer layer of a network in place; layers of one kind share what is compiled.

    Lengths differ between batches, so that shapes are dynamic from the start; otherwise each new length would compile
    anew. What is around the layers (masks, positions, scattering of audio) hardly takes time.

    Args:
        network: Of a backbone.
        leave: Layers that are not compiled.
        backend: Of `torch.compile`.

    Returns:
        How many layers were.
    """
    layers = [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]
    layers = [layer for layer in layers if all(layer is not other for other in leave)]
    for layer in layers:
        forward = layer.forward
        if isinstance(forward, partial):  # of `recompute_activations`: dynamo gives up a checkpoint around a layer
            inner = torch.compile(forward.args[0], dynamic=True, backend=backend)
            layer.forward = partial(forward.func, inner, **forward.keywords)
        else:
            layer.forward = torch.compile(forward, dynamic=True, backend=backend)
    return len(layers)


def recompute_activations(network: nn.Module) -> int:
    """Let every transformer layer of a network forget what it computed until the backward pass needs it.

    Non-reentrant: the reentrant kind gives LoRA no gradient below a frozen embedding and breaks under DDP (peft#313).
    Not through `gradient_checkpointing_enable`, which works in training mode alone: a frozen backbone is in evaluation
    mode.

    Returns:
        How many layers there are.
    """
    layers = [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return len(layers)
