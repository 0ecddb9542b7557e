"""Importers: one file per kind of source, found by its name. Each reads; `intake.assemble` stores and writes."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ..errors import UserError

if TYPE_CHECKING:
    from ..intake.assemble import Imported


class Importer(Protocol):
    """What a file of this folder offers. Its docstring is the help of ``empathy-judge import NAME``."""

    __doc__: str
    EXAMPLE: str
    """Arguments after ``empathy-judge import`` that would work, for the help text."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Options of this source beside those that all sources have."""
        ...

    def read(self, path: Path, options: argparse.Namespace) -> Imported:
        """Reads the source; clips are looked up, not decoded.

        Raises:
            DataError: If the source has not the layout that it should have; file, row and column are named.
        """
        ...


def names() -> list[str]:
    """The sources that can be imported, with dashes: ``hugging-face``."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Importer:
    """The importer of a source.

    Raises:
        UserError: If there is none of this name.
    """
    if name not in names():
        raise UserError(f"import {name!r}: accepted: {', '.join(names())}")
    return cast(Importer, importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))
