"""Floating-point operations of a piece of work, and how many a machine makes in a second."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from empathy_judge.models.backbones.base import Inputs
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.lora import part_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


class Counter:
    """Counts from when it is made until `stop`: matrix products, convolutions and attention, forward and backward."""

    def __init__(self) -> None:
        """Begin."""
        aten = torch.ops.aten
        # torch 2.11 counts the attention kernels of GPUs alone
        of_cpu = {
            aten._scaled_dot_product_flash_attention_for_cpu: _attention,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        }
        self._mode = FlopCounterMode(display=False, custom_mapping=of_cpu)
        self._mode.__enter__()

    def stop(self) -> int:
        """End; returns the operations (a multiplication and an addition are two)."""
        self._mode.__exit__(None, None, None)
        return self._mode.get_total_flops()


class Work(NamedTuple):
    """Floating-point operations that a judge needs for a batch, by formula.

    Attributes:
        tower: Forward pass of the audio tower and the projector.
        forward: Forward pass of the language model.
        backward: Its backward pass, with LoRA in all of its layers and the rest frozen.
    """

    tower: float
    forward: float
    backward: float


def work_of(judge: EmpathyJudge, inputs: Inputs) -> Work:
    """Operations for a batch, from the shapes of matrices and the lengths of pairs: padding needs none.

    A matrix takes `2 m n` for each token, forward and once more for the gradient of its input where it is frozen, twice
    more where it is trained (Kaplan et al., 2020); attention `4 T^2 d` in each layer and twice as much backward, a
    causal mask halving nothing (Chowdhery et al., 2022). What is computed again is not counted.
    """
    sizes: Tally[str | None] = Tally()
    for name, module in judge.network.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            part = "trained" if "lora_" in name else part_of(judge.backbone, name)
            sizes[part] += module.weight.numel()
    network: Any = judge.backbone.network
    config, tower = network.language_model.config, network.audio_tower
    width, layers = tower.conv1.out_channels, len(tower.layers)
    tokens = inputs.attention_mask.sum(1).double()
    work = 0.0
    if inputs.clips is not None:
        frames = torch.tensor(inputs.clips.lengths, dtype=torch.float64)
        places = frames / 2  # after the second convolution
        blocks = getattr(tower, "n_window", None)  # Omni's attention stays within blocks
        reach = places if blocks is None else places.clamp(max=blocks)
        first = tower.conv1.weight.numel()
        work = 2 * (first * frames + (sizes["audio_tower"] - first) * places).sum().item()
        work += 4 * layers * width * (places * reach).sum().item()
        work += 2 * sizes["projector"] * len(inputs.audio_index)
    heads = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    attention = 4 * config.num_hidden_layers * heads * tokens.square().sum().item()
    frozen, trained = (2 * sizes[kind] * tokens.sum().item() for kind in ("language_model", "trained"))
    return Work(work, frozen + trained + attention, frozen + 2 * trained + 2 * attention)


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object
) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


def matrix_rate(
    device: torch.device,
    dtype: torch.dtype,
    size: int = 2048,
    tries: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Operations per second of the product of two square matrices, the fastest of several.

    Args:
        device: Where.
        dtype: Of the matrices.
        size: Rows and columns.
        tries: How often it is measured.
        clock: `time.process_time` gives operations per second of CPU time.
    """
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    _seconds(lambda: left @ right, device, clock)
    return 2 * size**3 / min(_seconds(lambda: left @ right, device, clock) for _ in range(tries))


def _seconds(run: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start
