"""Where weights are sharded every forward pass is a collective: all processes must do equally many."""

from __future__ import annotations

import torch
from torch import distributed as dist


def missing_batches(own: int, device: torch.device) -> int:
    """How many batches fewer than the busiest process this one had.

    Args:
        own: Batches of this process.
        device: One that the process group can reach.
    """
    if not dist.is_available() or not dist.is_initialized():
        return 0
    most = torch.tensor(own, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most) - own
