"""Tables that are imported or scored, read in parts; bytes in them stay where they are until they are needed, and are
never held as a whole."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..core.errors import AudioError
from ..core.parquet import open_parquet
from ..core.processes import available_cores
from .storage import array_values

Steps = tuple[str | int, ...]
"""Column, then name or index in each structure or list around bytes."""
Tables = Iterator[tuple[int, pa.Table]]
"""Consecutive parts of a table, small ones where there is audio, each with the position of its first row."""
_EMBEDDING_ROWS, _TEXT_ROWS = 4, 1 << 16  # read at a time, with clips and without
_TABLES_READ = 4  # at a time: importers take one file after the other
_WINDOW_BYTES = 64 * 2**20
_WINDOW_ROWS = 16 + 4 * available_cores()  # threads ask for rows a little out of order


def parquet_tables(path: Path, row: int, columns: Sequence[str] | None = None, *, whole: bool = False) -> Tables:
    """The table in a Parquet file, or columns of it, from the row group of a row (from 0) on; texts are dictionaries.

    Raises:
        pa.ArrowException: If the file is damaged; or an OSError or ValueError.
    """
    # pq.read_table would also read columns out of folder names
    with open_parquet(path, whole=whole) as file:
        start = group = 0
        while group < file.num_row_groups and start + file.metadata.row_group(group).num_rows <= row:
            start += file.metadata.row_group(group).num_rows
            group += 1
        schema = file.schema_arrow
        fields = schema if columns is None else [schema.field(name) for name in columns]
        size = _EMBEDDING_ROWS if any(has_bytes(field.type) for field in fields) else _TEXT_ROWS
        # A part never spans two row groups: pyarrow cannot join dictionaries inside lists.
        for number in range(group, file.num_row_groups):
            for batch in file.iter_batches(size, row_groups=[number], columns=columns, use_threads=False):
                yield start, pa.Table.from_batches([batch])
                start += batch.num_rows


def has_bytes(kind: pa.DataType) -> bool:
    """Whether values of a type are bytes, or lists or structures around bytes."""
    types = pa.types
    if types.is_dictionary(kind):
        return has_bytes(kind.value_type)
    if types.is_nested(kind):
        return any(has_bytes(kind.field(index).type) for index in range(kind.num_fields))
    is_bytes = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in is_bytes)


def python_rows(part: pa.Table) -> list[dict[str, Any]]:
    """Column -> value for each row, as `array_values` has it; equal texts of a column are one object.

    Raises:
        pa.ArrowException: If offsets point outside, which would end the process, or a text is not UTF-8.
    """
    part.validate(full=True)
    columns = [[value for chunk in column.chunks for value in array_values(chunk)] for column in part.columns]
    return [dict(zip(part.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """A table with bytes in it. It is read from front to back, again and again."""

    version: str  # names the table and changes when its content does
    # position of a row -> parts of the table; the first begins at that row or before it. May raise whatever its
    # library does
    read_from: Callable[[int], Tables] = field(repr=False)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, with an `EmbeddedClip` in place of bytes, however deep in lists and structures.

        A structure ``{"bytes", "path"}`` that has bytes is the clip itself.
        """
        # There are few different steps and texts among millions of cells: each is held once.
        distinct: dict[Any, Any] = {}
        for start, part in self.read_from(0):
            embedding = [column.name for column in part.schema if has_bytes(column.type)]
            for position, row in enumerate(python_rows(part), start):
                for name in embedding:
                    row[name] = self._without_bytes(row[name], position, (name,), distinct)
                yield {name: distinct.setdefault(v, v) if isinstance(v, str) else v for name, v in row.items()}

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
    """Bytes in a cell of a table: the position of their row, from 0, and the steps to them in the row."""

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
    """The part of a table that was read last. For a row before it, reading begins anew."""

    def __init__(self, table: EmbeddingTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._rest: Tables = iter(())
        self._kept: deque[tuple[int, pa.Table]] = deque()
        self._next = 0
        self._bytes = 0

    def cell(self, row: int, column: str) -> pa.Scalar[Any]:
        with self._lock:
            # Parquet is read forwards: for an earlier row reading begins anew at its row group
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
            start, part = next(entry for entry in reversed(self._kept) if entry[0] <= row)
            return part.column(column)[row - start]

    def _advance(self) -> None:
        start, part = next(self._rest, (0, None))
        if part is None:
            raise IndexError("no such row any more")
        part.validate(full=True)
        self._kept.append((start, part))
        self._next = start + part.num_rows
        self._bytes += part.nbytes
        # Threads ask a little out of order: what was read last stays, as far as the memory allows
        while self._bytes > _WINDOW_BYTES and len(self._kept) > 1 and self._next - self._kept[1][0] >= _WINDOW_ROWS:
            self._bytes -= self._kept.popleft()[1].nbytes


@lru_cache(_TABLES_READ)
def _window(table: EmbeddingTable) -> _Window:
    return _Window(table)
