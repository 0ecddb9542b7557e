"""Training a judge. The package can be called: `empathy_judge.train("nano", data="data", run="runs/first")` is
`run.train`."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from ..data_modules.errors import UserError

_OF_PROCESSES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_PORT",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID",
)  # fmt: skip


def check_ranks() -> None:
    """Refuse what torch and Lightning would stumble over as soon as they are loaded.

    Raises:
        UserError: If a variable of torchrun or Slurm is no number.
    """
    for name in _OF_PROCESSES:
        value = os.environ.get(name)
        if value is not None and not (value.isascii() and value.isdecimal()):
            raise UserError(
                f"{name}={value}: not a number; expected it as torchrun or srun sets it, or not at all (unset {name})"
            )


class _Package(ModuleType):
    """A name that is both a package and a public function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """See `run.train`."""
        check_ranks()
        from .run import train

        return train(*arguments, **options)


sys.modules[__name__].__class__ = _Package
