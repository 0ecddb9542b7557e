"""Training a judge. The package can be called: `empathy_judge.train(["--config", "nano.yaml"])` is `run.train`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A name that is both a package and a public function."""

    def __call__(self, arguments: Sequence[str] | Mapping[str, Any]) -> Path | None:
        """See `run.train`."""
        from .run import train

        return train(arguments)


sys.modules[__name__].__class__ = _Package
