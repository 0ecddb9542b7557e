"""Clips that stay where they are until they are decoded: in a dataset (inside a Parquet file, or in a file behind an
address), or in a table that is imported. They are read when they are needed and never held as a whole."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import AudioError, DataError, os_reason, place
from .folders import DataPath
from .parallel import available_cores
from .parquet import PARQUET_DAMAGE, Tables, has_bytes, open_parquet, python_rows

Steps = tuple[str | int, ...]
"""Column, then name or index in each structure or list around bytes."""

RESPONSE, CONTEXT = "response_audio", "context_audio"
_OPEN_FILES = 32
_KEPT_BYTES = 128 * 2**20
"""Per process, of encoded audio. Row groups hold at most 4 MiB per column (`pairs_file`), so that the 16 that a
shuffled epoch reads from at a time (`sampling.WINDOW_BLOCKS`) fit."""
_TABLES_READ = 4  # at a time: importers take one file after the other
_WINDOW_BYTES = 64 * 2**20
_WINDOW_ROWS = 16 + 4 * available_cores()  # threads ask for rows a little out of order


@dataclass(frozen=True)
class StoredFile:
    """A file of a dataset, shared by the clips in it."""

    path: DataPath  # of the Parquet file, or of a file of audio
    version: str  # `folders.path_version` when the dataset was loaded
    # first row of each row group (from 0) of a Parquet file
    starts: tuple[int, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class StoredClip:
    """Where a clip lies and the hash of its content; see `read`. Small, and fit for other processes, forked or spawned.

    Two of the same content are equal, wherever they lie."""

    sha256: str  # of the encoded bytes, in hexadecimal digits
    file: StoredFile  # where it lies
    row_group: int | None = None  # of the Parquet file; None = the whole file is the clip
    row: int = 0  # in the row group, from 0
    turn: int | None = None  # turn of the context, from 0; None = the response

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredClip) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    @property
    def name(self) -> str:
        """The name of the clip in messages."""
        if self.row_group is None:
            return str(self.file.path)
        row = self.file.starts[self.row_group] + self.row + 1
        return place(self.file.path, row, RESPONSE if self.turn is None else CONTEXT)

    def read(self) -> bytes:
        """The encoded bytes as they are now, without a check of their hash.

        Raises:
            AudioError: If the file cannot be read or has no bytes there.
        """
        try:
            data = self.file.path.read_bytes() if self.row_group is None else _columns.clip(self, self.row_group)
        except FileNotFoundError:
            raise AudioError(f"{self.name}: no such file", "no such file") from None
        except PermissionError as error:
            raise AudioError(f"{self.name}: cannot be read ({os_reason(error)})", "cannot be read") from None
        except DataError as error:
            raise AudioError(str(error), "cannot be read") from None
        except (*PARQUET_DAMAGE, IndexError, TypeError, KeyError) as error:
            reason = f" ({error})" if isinstance(error, pa.ArrowException) else ""
            message = f"{self.name}: not readable as Parquet{reason}; was the file changed?"
            raise AudioError(message, "cannot be read") from None
        if data is None:
            raise AudioError(f"{self.name}: neither a path nor bytes; expected either a path or bytes")
        return data

    def read_checked(self) -> bytes:
        """The encoded bytes that were imported: a clip stands for its hash wherever scores are kept.

        Raises:
            AudioError: If they cannot be read or have another hash.
        """
        data = self.read()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise AudioError(f"{self.name}: the content is not what was imported", "not what was imported")
        return data


class _Columns:
    """The columns of audio that were read last. Safe for threads, not for forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: OrderedDict[tuple[StoredFile, int, str], pa.ChunkedArray] = OrderedDict()
        self._bytes = 0

    def clip(self, clip: StoredClip, row_group: int) -> bytes | None:
        with self._lock:
            column = self._column(clip.file, row_group, RESPONSE if clip.turn is None else CONTEXT)
        cell = column[clip.row] if clip.turn is None else column[clip.row].values[clip.turn]
        return cell["bytes"].as_py() if cell.is_valid else None

    def _column(self, file: StoredFile, row_group: int, name: str) -> pa.ChunkedArray:
        key = (file, row_group, name)
        if key not in self._arrays:
            opened = _open(file)
            table = opened.read_row_group(row_group, columns=[bytes_leaf(opened, name)], use_threads=False)
            self._arrays[key] = table.column(name)
            self._bytes += table.nbytes
            while self._bytes > _KEPT_BYTES and len(self._arrays) > 1:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes
        self._arrays.move_to_end(key)
        return self._arrays[key]


@lru_cache(_OPEN_FILES)
def _open(file: StoredFile) -> pq.ParquetFile:
    return open_parquet(file.path, dictionaries=False)


def bytes_leaf(file: pq.ParquetFile, column: str) -> str:
    """Path of the bytes of `RESPONSE` or `CONTEXT` as the file calls it: the middle part differs between writers.

    Raises:
        pa.ArrowInvalid: If there is none.
    """
    for index in range(len(file.schema)):
        path: str = file.schema.column(index).path
        if path.startswith(f"{column}.") and path.endswith(".bytes"):
            return path
    raise pa.ArrowInvalid(f"no column {column} with bytes")


_columns = _Columns()


def _forget() -> None:
    """A child process opens files of its own: a lock may be held, and processes that share a file share its offset."""
    global _columns
    _columns = _Columns()
    _open.cache_clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)


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
        distinct: dict[Any, Any] = {}  # few steps and few texts are different: each is held once
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
        while self._bytes > _WINDOW_BYTES and len(self._kept) > 1 and self._next - self._kept[1][0] >= _WINDOW_ROWS:
            self._bytes -= self._kept.popleft()[1].nbytes


@lru_cache(_TABLES_READ)
def _window(table: EmbeddingTable) -> _Window:
    return _Window(table)
