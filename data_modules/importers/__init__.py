"""Importers: one file per source, found by its name, and what they share; corpora that were published in `corpora`.

A source reads its files through `tables` and `clips`, collects rows with `collector` where it has no table
of pairs, and returns an `assemble.Imported`; `assemble` decodes, stores and writes.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..errors import UserError

if TYPE_CHECKING:
    from .assemble import Imported

CORPORA = ("echomind", "empathy-eval", "sdiareward", "speech-drame", "speechjudge", "trace", "vstyle")
SOURCES = tuple(sorted((*CORPORA, "hugging-face", "label-studio", "table")))


class Importer(Protocol):
    """What the file of a source offers. Its docstring is the help of ``empathy-judge import NAME``."""

    __doc__: str
    EXAMPLE: str
    """Arguments after ``empathy-judge import`` that would work, for the help text."""

    Options: type[Any]
    """A dataclass: its options beside those that all sources have, as those of commands are (`commands.options`)."""

    def read(self, path: Path, options: Any) -> Imported:
        """Reads the source; clips are looked up, not decoded.

        Raises:
            DataError: If the source has not the layout that it should have; file, row and column are named.
        """
        ...


def load(name: str) -> Importer:
    """The importer of a source.

    Raises:
        UserError: If there is none of this name.
    """
    if name not in SOURCES:
        raise UserError(f"import {name!r}: expected one of {', '.join(SOURCES)}")
    folder = f"{__name__}.corpora" if name in CORPORA else __name__
    return cast(Importer, importlib.import_module(f"{folder}.{name.replace('-', '_')}"))
