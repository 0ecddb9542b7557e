"""Scores as CSV, TSV, JSONL or Parquet: pieces that many processes write, and the whole that is made of them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ..data_modules.errors import UserError, shown
from .columns import Column, Value

Rows = Iterable[Sequence[Value]]
_GROUP_ROWS = 2**16
_ARROW = {"number": pa.float64(), "flag": pa.bool_(), "text": pa.string()}


class Format(Protocol):
    """How scores are written."""

    def piece(self, columns: Sequence[Column], rows: Rows) -> bytes:
        """Some rows."""
        ...

    def join(self, columns: Sequence[Column], pieces: Iterable[BinaryIO], file: BinaryIO) -> None:
        """Write the whole, given all pieces in order; each is closed by whoever opened it."""
        ...


class Separated:
    """CSV or TSV; None is empty, flags are `true` and `false`, numbers have six decimals."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter

    def header(self, columns: Sequence[Column]) -> str:
        """The first line."""
        return self._text([[column.name for column in columns]])

    def lines(self, rows: Rows) -> str:
        """Lines of rows."""
        return self._text([_cell(value) for value in row] for row in rows)

    def _text(self, rows: Iterable[list[str]]) -> str:
        buffer = io.StringIO(newline="")
        csv.writer(buffer, delimiter=self._delimiter).writerows(rows)
        return buffer.getvalue()

    def piece(self, columns: Sequence[Column], rows: Rows) -> bytes:
        """See `Format`."""
        return self.lines(rows).encode()

    def join(self, columns: Sequence[Column], pieces: Iterable[BinaryIO], file: BinaryIO) -> None:
        """See `Format`."""
        file.write(self.header(columns).encode())
        _copy(pieces, file)


class JsonLines:
    """An object per row; None is null."""

    def piece(self, columns: Sequence[Column], rows: Rows) -> bytes:
        """See `Format`."""
        names = [column.name for column in columns]
        lines = (json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, allow_nan=False) for row in rows)
        return "".join(f"{line}\n" for line in lines).encode()

    def join(self, columns: Sequence[Column], pieces: Iterable[BinaryIO], file: BinaryIO) -> None:
        """See `Format`."""
        _copy(pieces, file)


class Parquet:
    """Numbers as float64, flags as booleans, text as strings; None is null."""

    def piece(self, columns: Sequence[Column], rows: Rows) -> bytes:
        """See `Format`."""
        values = list(zip(*rows, strict=True)) or [()] * len(columns)
        schema = _schema(columns)
        arrays = [pa.array(column, kind) for column, kind in zip(values, schema.types, strict=True)]
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), buffer)
        return buffer.getvalue()

    def join(self, columns: Sequence[Column], pieces: Iterable[BinaryIO], file: BinaryIO) -> None:
        """See `Format`; row groups are larger than pieces."""
        with pq.ParquetWriter(file, _schema(columns)) as writer:
            waiting: list[pa.Table] = []
            for piece in pieces:
                waiting.append(pq.read_table(io.BytesIO(piece.read())))
                if sum(table.num_rows for table in waiting) >= _GROUP_ROWS:
                    writer.write_table(pa.concat_tables(waiting).combine_chunks())
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting).combine_chunks())


CSV = Separated(",")
_FORMATS: dict[str, Format] = {".csv": CSV, ".tsv": Separated("\t"), ".jsonl": JsonLines(), ".parquet": Parquet()}


def format_of(out: Path) -> Format:
    """The format of a file, by its suffix.

    Raises:
        UserError: If the suffix is another.
    """
    found = _FORMATS.get(out.suffix.lower())
    if found is None:
        raise UserError(f"{out}: suffix {shown(out.suffix)}; accepted: {', '.join(_FORMATS)}")
    return found


def _schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([(column.name, _ARROW[column.kind]) for column in columns])


def _copy(pieces: Iterable[BinaryIO], file: BinaryIO) -> None:
    for piece in pieces:
        shutil.copyfileobj(piece, file)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6f}" if isinstance(value, float) else str(value)
