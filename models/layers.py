"""Gradient checkpointing and `torch.compile`, layer by layer."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


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
