"""Audio inside tables (Parquet files, Hugging Face datasets): read again when it is needed, never held as a whole."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from .errors import AudioError
from .parquet import Tables, has_bytes, python_rows

Steps = tuple[str | int, ...]
"""Column, then name or index in each structure or list around bytes."""

_TABLES_READ = 4  # at a time: importers take one file after the other
_KEPT_BYTES = 64 * 2**20
_KEPT_ROWS = 16 + 4 * (os.cpu_count() or 1)  # threads ask for rows a little out of order


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """A table with bytes in it. It is read from front to back, again and again.

    Attributes:
        version: Names the table and changes when its content does.
        read_from: Position of a row -> parts of the table; the first begins at that row or before it. May
            raise whatever its library does.
    """

    version: str
    read_from: Callable[[int], Tables] = field(repr=False)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, with an `EmbeddedClip` in place of bytes, however deep in lists and structures.

        A structure ``{"bytes", "path"}`` that has bytes is the clip itself.
        """
        known: dict[Any, Any] = {}  # few steps and few texts are different: each is held once
        for start, part in self.read_from(0):
            embedding = [column.name for column in part.schema if has_bytes(column.type)]
            for position, row in enumerate(python_rows(part), start):
                for name in embedding:
                    row[name] = self._without_bytes(row[name], position, (name,), known)
                yield {name: known.setdefault(v, v) if isinstance(v, str) else v for name, v in row.items()}

    def _without_bytes(self, value: Any, row: int, steps: Steps, known: dict[Any, Any]) -> Any:
        if isinstance(value, bytes) and value:
            return EmbeddedClip(self, row, known.setdefault(steps, steps))
        if isinstance(value, dict):
            parts = {name: self._without_bytes(part, row, (*steps, name), known) for name, part in value.items()}
            clip = parts.get("bytes") if set(parts) == {"bytes", "path"} else None
            return clip if isinstance(clip, EmbeddedClip) else parts
        if isinstance(value, list):
            return [self._without_bytes(part, row, (*steps, index), known) for index, part in enumerate(value)]
        return value


@dataclass(frozen=True, slots=True)
class EmbeddedClip:
    """Bytes in a cell.

    Attributes:
        table: Where they are.
        row: Position of the row, from 0.
        steps: Where in the row.
    """

    table: EmbeddingTable
    row: int
    steps: Steps

    def __repr__(self) -> str:
        return "bytes in a table"

    def read(self) -> bytes:
        """The encoded bytes.

        Raises:
            AudioError: If they cannot be read or are gone.
        """
        column, *steps = self.steps
        try:
            value = _window(self.table).cell(self.row, str(column)).as_py()
            for step in steps:
                value = value[step]
        except Exception as error:  # libraries of datasets have no common base for what damaged files make them raise
            raise AudioError(f"cannot be read again ({error})") from None
        if not isinstance(value, bytes):
            raise AudioError("no bytes any more; was the table changed?")
        return value


class _Window:
    """The part of a table that was read last. Who asks for a row before it makes it begin anew."""

    def __init__(self, table: EmbeddingTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._rest: Tables = iter(())
        self._kept: deque[tuple[int, pa.Table]] = deque()
        self._next = 0
        self._bytes = 0

    def cell(self, row: int, column: str) -> pa.Scalar[Any]:
        with self._lock:
            if not self._kept or row < self._kept[0][0]:
                self._rest, self._next = self._table.read_from(row), 0
                self._kept.clear()
                self._bytes = 0
            try:
                while row >= self._next:
                    self._advance()
            except Exception:
                self._kept.clear()
                raise
            start, part = next(kept for kept in reversed(self._kept) if kept[0] <= row)
            return part.column(column)[row - start]

    def _advance(self) -> None:
        start, part = next(self._rest, (0, None))
        if part is None:
            raise IndexError("no such row any more")
        part.validate(full=True)
        self._kept.append((start, part))
        self._next = start + part.num_rows
        self._bytes += part.nbytes
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1 and self._next - self._kept[1][0] >= _KEPT_ROWS:
            self._bytes -= self._kept.popleft()[1].nbytes


@lru_cache(_TABLES_READ)
def _window(table: EmbeddingTable) -> _Window:
    return _Window(table)
