"""Rows of a manifest as they stand in the file, and from where they can be read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..data_modules.errors import DataError, place

ACCEPTED = ("pair_id", "context_audio", "response_audio", "situation")
"""Columns that are read; others are passed over."""


class Start(NamedTuple):
    """Where a row begins.

    Attributes:
        position: Of the row, from 0.
        offset: Bytes before it; 0 in a Parquet file.
        line: Its line, from 1; None where the format has no lines.
    """

    position: int
    offset: int
    line: int | None


class Record(NamedTuple):
    """A row.

    Attributes:
        start: Where it begins.
        end: Bytes before the next one; 0 in a Parquet file.
        cells: Those of `ACCEPTED` that are there and hold something.
    """

    start: Start
    end: int
    cells: Mapping[str, Any]


class Digest(Protocol):
    """As those of `hashlib`."""

    def update(self, data: bytes, /) -> None:
        """Hash some more."""
        ...


class Table(Protocol):
    """A file that is read row by row, never held in memory.

    Attributes:
        path: The file.
        embeds: Whether clips stand in it.
    """

    path: Path
    embeds: bool

    def records(self, start: Start | None = None, digest: Digest | None = None) -> Iterator[Record]:
        """Rows from one on.

        Args:
            start: Of the first row that is wanted; None = of the table.
            digest: Is told all bytes that are read; only of text, and only from the beginning.

        Raises:
            DataError: If the file cannot be read as what its suffix says, or lacks the column `response_audio`.
        """
        ...


def cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is read of a row."""
    return {name: row[name] for name in ACCEPTED if row.get(name) not in (None, "")}


def where(path: Path, start: Start, column: str | None = None) -> str:
    """Where a cell stands, for the head of a message."""
    return place(path, start.position + 1, column, start.line)


def no_responses(path: Path, columns: tuple[str, ...]) -> DataError:
    """The error for a table without the one column that must be there."""
    found = ", ".join(columns) or "none"
    return DataError(f"{path}: no column 'response_audio'; it has {found}; accepted: {', '.join(ACCEPTED)}")
