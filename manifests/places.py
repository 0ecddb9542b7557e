"""Where this process stands among those that score together, and which devices are its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..data_modules.errors import UserError

SPREAD = "auto"


@dataclass(frozen=True)
class Place:
    """A process among others on any number of machines, which share nothing but a folder.

    Attributes:
        rank: From 0.
        world: How many there are.
        local_rank: Among those on this machine.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """What torchrun, accelerate or `srun` say.

    The variables of a SLURM step are read, not those of a job, which a batch script has too that starts one process.
    """
    for rank, world, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        if int(environment.get(world, "1")) > 1:
            return Place(int(environment.get(rank, "0")), int(environment[world]), int(environment.get(local, "0")))
    return Place()


def worker_devices(place: Place, device: str | None, workers: int | None) -> list[str | None]:
    """The device of each worker that this process starts.

    Args:
        place: Of this process. One of several has one worker, on the GPU of its local rank.
        device: As the user has it; None = GPUs if there are some.
        workers: As the user has it; None = one for each GPU, or one.

    Raises:
        UserError: If the workers would be in each other's way.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}; accepted: at least 1")
    if device not in (None, "cpu", "cuda"):
        if place.world > 1 or (workers or 1) > 1:
            raise UserError(
                f"--device {device} for several workers, each of which has a device of its own; accepted: no --device, "
                "cuda, or cpu"
            )
        return [device]
    gpus = 0 if device == "cpu" else _gpus()
    if not gpus:
        return [device] * (workers or 1)
    if place.world > 1:
        return [f"cuda:{(place.local_rank + worker) % gpus}" for worker in range(workers or 1)]
    return [f"cuda:{worker % gpus}" for worker in range(workers or gpus)]


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
