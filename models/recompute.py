"""Gradient checkpointing: layers are computed again in the backward pass instead of kept in memory."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


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
