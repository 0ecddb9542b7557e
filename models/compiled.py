"""`torch.compile`, layer by layer."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
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
