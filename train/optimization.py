"""AdamW and its learning rates."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR


def wants_fused(precision: Precision) -> bool:
    """Whether one kernel shall update all weights: everywhere but where gradients are scaled (float16).

    A fused optimizer takes scaled gradients and divides them itself, so that they could not be clipped before. On a
    CPU it is fused as well, so that what a test runs is what a GPU runs.
    """
    return getattr(precision, "scaler", None) is None


def adamw(
    trained: Mapping[str, Tensor], fresh: Collection[str], rate: float, fresh_rate: float, decay: float, fused: bool
) -> AdamW:
    """AdamW without weight decay on biases and norms.

    Weights are given by name; `fresh` names those without pre-trained values, which may move faster (`fresh_rate`).
    Rates are the highest of a schedule, `fused` as `wants_fused` says.
    """
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, weight in trained.items():
        key = (fresh_rate if name in fresh else rate, decay if weight.ndim > 1 else 0.0)
        groups.setdefault(key, []).append(weight)
    return AdamW(
        [{"params": weights, "lr": rate, "weight_decay": decay} for (rate, decay), weights in groups.items()],
        fused=fused,
    )


def cosine_schedule(optimizer: Optimizer, steps: int, warmup: float) -> LambdaLR:
    """Learning rates that rise over a share `warmup` of all steps and fall to zero along a cosine."""
    rise = max(1, round(warmup * steps))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))

    return LambdaLR(optimizer, factor)
