"""Training a judge. The package can be called: `empathy_judge.train("nano", data="data", run="runs/first")` is
`run.train`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ..core.processes import check_ranks


class _Package(ModuleType):
    """A name that is both a package and a public function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """See `run.train`."""
        check_ranks()
        from .run import train

        return train(*arguments, **options)


sys.modules[__name__].__class__ = _Package
