"""This process among those that a launcher started, as the environment says it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from .errors import UserError

_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_PORT",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID",
)  # fmt: skip


class Launch(NamedTuple):
    """This process among those that torchrun, accelerate or `srun` started."""

    rank: int = 0  # from 0
    world: int = 1  # how many there are
    local_rank: int = 0  # among those on this machine


ALONE = Launch()


def find_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """What the environment says.

    The variables of a SLURM step are read, not those of a job, which a batch script has too that starts one process.

    Raises:
        UserError: If a variable is no number, or the rank is none of so many processes.
    """
    for rank, world, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        count = _number(environment, world, 1)
        if count > 1:
            launch = Launch(_number(environment, rank, 0), count, _number(environment, local, 0))
            if launch.rank >= count:
                raise UserError(f"{rank}={launch.rank} in the environment; expected less than {world}, {count}")
            return launch
    return ALONE


def check_ranks() -> None:
    """Refuse what torch and Lightning would stumble over as soon as they are loaded.

    Raises:
        UserError: If a variable of torchrun or SLURM is no number.
    """
    for name in _VARIABLES:
        _number(os.environ, name, 0)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UserError(
            f"{name}={text}: not a number; expected it as torchrun or srun sets it, or not at all (unset {name})"
        )
    return int(text)
