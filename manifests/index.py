"""A manifest as a whole: every row is read once, to find its pieces and what would make a mess of its scores."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data_modules.errors import DataError, shown
from .parquet_table import ParquetTable
from .records import Record, Start, Table, where
from .rows import checked_id, row_id
from .text_tables import DELIMITERS, TextTable

_STEP = 64
"""Rows; a multiple of what the scorer puts in order together."""
_MOST_STEPS, _PIECES = 16, 128
SUFFIXES = (*DELIMITERS, ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows that are scored together.

    Attributes:
        number: From 0.
        rows: How many.
        start: Of the first.
    """

    number: int
    rows: int
    start: Start


@dataclass(frozen=True)
class Index:
    """What one reading of a manifest says.

    Attributes:
        rows: How many.
        sha256: Of the file; of a Parquet file of its footer, which holds places, sizes and extremes of all columns.
        chunks: Their number and places follow from the content alone: 64 to 1,024 rows each.
    """

    rows: int
    sha256: str
    chunks: tuple[Chunk, ...]


def open_table(path: Path) -> Table:
    """A manifest by its suffix.

    Raises:
        DataError: If it is missing, has another suffix or cannot be read.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: suffix {shown(path.suffix)}; accepted: {', '.join(SUFFIXES)}")
    return ParquetTable(path) if suffix == ".parquet" else TextTable(path)


def index(table: Table) -> Index:
    """Read a manifest through, holding 8 bytes per row.

    Raises:
        DataError: If it cannot be read, has no rows, or two rows have one id.
    """
    ids = _Ids(table)
    if isinstance(table, ParquetTable):
        ids.add_column(table)
        rows, sha256 = table.rows, file_hash(table.path)
        starts = [Start(position, 0, None) for position in range(0, rows, _STEP)]
    else:
        digest, starts, rows = hashlib.sha256(), [], 0
        for record in table.records(digest=digest):
            if rows % _STEP == 0:
                starts.append(record.start)
            ids.add(record)
            rows += 1
        sha256 = digest.hexdigest()
    if not rows:
        raise DataError(f"{table.path}: the table holds no rows")
    ids.check(starts)
    return Index(rows, sha256, _chunks(rows, starts))


def file_hash(path: Path) -> str:
    """What `Index.sha256` says, without reading rows."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if path.suffix.lower() == ".parquet":
            size = path.stat().st_size
            file.seek(max(0, size - 8))
            length = int.from_bytes(file.read(4), "little")
            file.seek(max(0, size - 8 - length))
            digest.update(f"{size}\n".encode())
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def read_chunk(table: Table, chunk: Chunk) -> Iterator[Record]:
    """The rows of a chunk."""
    records = table.records(chunk.start)
    for _ in range(chunk.rows):
        record = next(records, None)
        if record is None:
            raise DataError(f"{table.path}: row {chunk.start.position + chunk.rows} is gone; was the file changed?")
        yield record


def _chunks(rows: int, starts: list[Start]) -> tuple[Chunk, ...]:
    """Small ones where there are few rows, so that several workers have something to do."""
    steps = min(max(-(-rows // (_STEP * _PIECES)), 1), _MOST_STEPS)
    size = steps * _STEP
    return tuple(Chunk(number, min(size, rows - start.position), start) for number, start in enumerate(starts[::steps]))


class _Ids:
    """Looks for ids that stand there twice. Hashes alone are held; equal ones are compared in the file."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._hashes = array("q")
        self._given = False

    def add(self, record: Record) -> None:
        self._given = self._given or "pair_id" in record.cells
        self._hashes.append(hash(row_id(record, self._table.path)))

    def add_column(self, table: ParquetTable) -> None:
        for position, value in enumerate(table.ids()):
            self._given = True
            if value is None or value == "":
                self._hashes.append(hash(str(position + 1)))
            else:
                self._hashes.append(hash(checked_id(value, where(table.path, Start(position, 0, None), "pair_id"))))

    def check(self, starts: list[Start]) -> None:
        if not self._given:
            return
        hashes = np.frombuffer(self._hashes, dtype=np.int64)
        ordered = np.sort(hashes)
        twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if not len(twice):
            return
        seen: dict[str, Start] = {}
        for position in np.flatnonzero(np.isin(hashes, twice)):
            record = self._record(int(position), starts)
            pair_id = row_id(record, self._table.path)
            if pair_id in seen:
                first = where(self._table.path, seen[pair_id])
                second = where(self._table.path, record.start, "pair_id")
                raise DataError(f"{second}: {shown(pair_id)} stands there twice, also in {first}; accepted: unique ids")
            seen[pair_id] = record.start

    def _record(self, position: int, starts: list[Start]) -> Record:
        for record in self._table.records(starts[position // _STEP]):
            if record.start.position == position:
                return record
        raise DataError(f"{self._table.path}: row {position + 1} is gone; was the file changed?")
