"""What a judge costs, by formula: memory of its weights, floating-point operations, and what share of the rate of a GPU
these were measured to reach.

A multiplication and an addition count as two. Counted are products of matrices and convolutions; attention itself is a
few per cent of them, and is left out, as are padding and what is computed again in a backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from .backbones.base import Backbone
from .backbones.inputs import Clips
from .backbones.loading import NF4_BLOCK
from .lora import count_parameters, part_of, weights_of

GIB = 2**30
CUDA_CONTEXT = int(0.7 * GIB)
"""Memory of the CUDA runtime and its libraries, without tensors: an assumption, it differs between drivers."""
_BYTES = {
    # half a byte, a byte of scale for 64 values, 4 bytes of the scales' scale for 256 scales (Dettmers et al., 2023)
    "nf4": 0.5 + 1 / 64 + 4 / (64 * 256),
    "int8": 1.0,
}
"""Of a weight of the language model's matrices that is stored in this form."""
RATE = 770e12
"""Operations a second that products of large bfloat16 matrices reached on an H200 (`benchmarks/results/gpu.md`)."""
TRAINING, SCORING = 0.36, 0.13
"""Shares of this rate that training and scoring with the 7B shapes of Qwen2-Audio reached there: 0.29 to 0.42, and 0.13
to 0.14."""


def of_the_rate(share: float) -> str:
    """Where a predicted rate is from."""
    return (
        f"{share:.0%} of {RATE / 1e12:.0f} TFLOP/s, which an H200 reached with the 7B shapes of Qwen2-Audio "
        "(docs/reference/speed.md). empathy-judge doctor --bench says the rate of another card"
    )


def weight_bytes(backbone: Backbone, own: Mapping[str, nn.Module], quantization: str = "none") -> float:
    """Bytes of all weights of a judge, its `own` modules included, built without quantisation but held with it: the
    matrices of the language model take fewer bytes, and adapters keep their precision."""
    size = float(sum(count.bytes for count in count_parameters(backbone, own).values()))
    # Of 4 bits rows are whole blocks, or keep their precision; 8 bits take rows of any length
    block = NF4_BLOCK if quantization == "nf4" else 1
    for name, module in backbone.network.named_modules() if quantization != "none" else ():
        if not isinstance(module, nn.Linear) or module.in_features % block or "lora_" in name:
            continue
        if part_of(backbone, name) == "language_model":
            size -= module.weight.nbytes - module.weight.numel() * _BYTES[quantization]
    return size


class Work(NamedTuple):
    """Operations of a pass and of its backward pass."""

    forward: float
    backward: float


def of_a_token(backbone: Backbone) -> Work:
    """Operations of the language model for each token, or of the fusion of an encoder that has none.

    A matrix of `N` weights takes `2 N`, and as many for the gradient of its input, and once more where it is trained
    (Kaplan et al., 2020). Of the experts of a mixture those count to which a token is sent.
    """
    return _of_part(backbone, "language_model" if "language_model" in backbone.parts else "fusion")


def of_a_clip(backbone: Backbone, seconds: float) -> Work:
    """Operations of the audio tower and the projector for a clip of so many seconds, which is not computed: the weights
    of the backbone may be on the meta device."""
    if not backbone.has_tower:
        return Work(0.0, 0.0)
    clips = backbone.prepare_clips([np.zeros(round(seconds * backbone.sampling_rate), np.float32)])
    empty = Clips(torch.empty(clips.features.shape, dtype=clips.features.dtype, device="meta"), clips.lengths)
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counted:
        backbone.encode_audio(empty)
    forward = float(counted.get_total_flops())
    sizes = [(weight.numel(), weight.requires_grad) for _, weight in weights_of(backbone, "audio_tower")]
    trained = sum(size for size, own in sizes if own) / sum(size for size, _ in sizes)
    return Work(forward, forward * (1 + trained) if trained else 0.0)


def _of_part(backbone: Backbone, part: str) -> Work:
    sizes = {True: 0.0, False: 0.0}  # trained or not
    for name, module in backbone.network.named_modules():
        if part_of(backbone, name) == part:
            for weight, size in _matrices(backbone, module):
                sizes[weight.requires_grad] += size
    forward = 2 * sum(sizes.values())
    return Work(forward, forward + 2 * sizes[True] if sizes[True] else 0.0)


def _matrices(backbone: Backbone, module: nn.Module) -> Iterator[tuple[Tensor, float]]:
    """Matrices of a module itself, and how many of their weights a token passes."""
    if isinstance(module, nn.Linear):
        yield module.weight, module.in_features * module.out_features  # a quantised weight holds fewer numbers
    elif isinstance(module, nn.Conv1d):
        yield module.weight, module.weight.numel()
    else:
        for weight in module.parameters(recurse=False):
            if weight.dim() == 3:  # all experts of a layer
                config: Any = getattr(backbone, "language_model").config  # noqa: B009
                yield weight, weight.numel() * config.num_experts_per_tok / len(weight)
