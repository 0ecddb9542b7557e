"""Importers: one file per source, found by its name, and what they share; corpora that were published in `corpora`.

A source reads its files through `tables` and `clips`, collects rows with `collector` where it has no table
of pairs, and returns an `assemble.Imported`; `assemble` decodes, stores and writes.
"""

from __future__ import annotations

import argparse
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

from ...core.errors import UserError, shown

if TYPE_CHECKING:
    from .assemble import Imported

CORPORA = ("echomind", "empathy-eval", "sdiareward", "speech-drame", "speechjudge", "trace", "vstyle")
SOURCES = tuple(sorted((*CORPORA, "hugging-face", "label-studio", "table")))
REPEATABLE = {"action": "append", "nargs": None}
"""Metadata of an option that is given again for each value."""


def named_folder(text: str) -> str:
    """A folder that is there."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{shown(text)}: expected a folder")
    return text


@dataclass(frozen=True)
class NoOptions:
    """A source that has no options of its own."""


@dataclass(frozen=True, kw_only=True)
class AudioRoot:
    """The option for audio that lies elsewhere.

    Attributes:
        audio_root (DIR): another folder in which audio may lie: paths count from there, too, and symbolic links into it
            and in it are followed
    """

    audio_root: Annotated[str, named_folder] | None = None


class Importer(Protocol):
    """What the file of a source offers. Its docstring is the help of ``empathy-judge import NAME``."""

    __doc__: str
    EXAMPLE: str
    """Arguments after ``empathy-judge import`` that would work, for the help text."""

    Options: type[Any]
    """A dataclass of the options that only this source has, as those of commands are (`commands.options`)."""

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
