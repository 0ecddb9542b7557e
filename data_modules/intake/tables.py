"""Reads a CSV, TSV, JSONL or Parquet table without guessing types: ``001`` in a CSV file stays ``001``.

Audio in a Parquet file stays there (`embedded`); all else is held in memory.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError, Locate, place, shown
from ..storage import path_version
from .embedded import EmbeddingTable, Tables, has_bytes

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_PARQUET_BUFFER = 2**20
_EMBEDDING_ROWS, _TEXT_ROWS = 4, 2**16


@dataclass(frozen=True)
class SourceTable:
    """A table as somebody else wrote it.

    Attributes:
        path: The file.
        columns: Column names in the order of the file.
        rows: Column name -> value. A CSV value is text; an empty one, like JSON's ``null``, is None.
        lines: Line of the file where each row starts, counted from 1; None where the format has no lines.
    """

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    lines: list[int] | None

    def place(self, position: int, column: str) -> str:
        """Where a cell stands, for the head of a message; `position` counts from 0."""
        return place(self.path, position + 1, column, self.lines[position] if self.lines else None)

    def locate(self, columns: Mapping[str, str]) -> Locate:
        """`place` by our column names, given ours -> theirs."""
        return lambda position, column: self.place(position, columns.get(column, column))


def read_table(path: str | Path) -> SourceTable:
    """Reads a table by its suffix, in upper or lower case.

    Raises:
        DataError: If the file is missing, has another suffix, is not UTF-8, not what its suffix says, or has
            no rows.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: suffix {shown(path.suffix)}; accepted: {', '.join(SUFFIXES)}")
    if suffix == ".parquet":
        table = _read_parquet(path)
    elif suffix == ".jsonl":
        table = _read_jsonl(path, _read_text(path))
    else:
        table = _read_csv(path, _read_text(path), "\t" if suffix == ".tsv" else ",")
    if not table.rows:
        raise DataError(f"{path}: the table holds no rows")
    return table


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec strips a byte-order mark of 3 bytes before it counts.
        start = error.start + len(data) - len(error.object)
        line = data.count(b"\n", 0, start) + 1
        raise DataError(
            f"{place(path, line=line)}: byte 0x{data[start]:02x} at offset {start} is not UTF-8; "
            "accepted: text saved as UTF-8"
        ) from None


def _read_csv(path: Path, text: str, delimiter: str) -> SourceTable:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    known: dict[str, str] = {}  # a million ratings hold few different texts: each is kept once
    end = 0
    try:
        for values in reader:
            line, end = end + 1, reader.line_num
            if not values:
                continue
            if not header:
                header = values
                check_header(header, path)
                continue
            if len(values) != len(header):
                where = place(path, len(rows) + 1, line=line)
                raise DataError(f"{where}: {len(values)} values; accepted: {len(header)}, one per column")
            texts = (known.setdefault(value, value) or None for value in values)
            rows.append(dict(zip(header, texts, strict=True)))
            lines.append(line)
    except csv.Error as error:
        raise DataError(f"{place(path, line=end + 1)}: not readable as CSV ({error})") from None
    return SourceTable(path, tuple(header), rows, lines)


def check_header(header: list[str], path: Path) -> None:
    """Every name stands once.

    Raises:
        DataError: If not.
    """
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise DataError(f"{path}: column {shown(twice[0])} stands twice in the header; accepted: each name once")


def _read_jsonl(path: Path, text: str) -> SourceTable:
    columns: dict[str, None] = {}
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, values in enumerate(text.split("\n"), start=1):
        if not values.strip():
            continue
        where = place(path, len(rows) + 1, line=line)
        try:
            row = json.loads(values, object_pairs_hook=unique_object)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not readable as JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: value {shown(row)}; accepted: one JSON object per line")
        columns.update(dict.fromkeys(row))
        rows.append(row)
        lines.append(line)
    return SourceTable(path, tuple(columns), rows, lines)


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, which by itself would keep only the last of two values under one name."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return values


def _read_parquet(path: Path) -> SourceTable:
    """Bytes stay in the file: an `EmbeddedClip` stands in place of each."""
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            check_header(columns, path)
        table = EmbeddingTable(f"{path} {path_version(path)}", lambda row: parquet_tables(path, row))
        return SourceTable(path, tuple(columns), list(table.rows()), None)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name or a text that is not UTF-8
        raise DataError(f"{path}: not readable as Parquet ({error})") from None


def parquet_tables(path: Path, row: int, columns: Sequence[str] | None = None) -> Tables:
    """The table in a Parquet file from the row group of a row on.

    Args:
        path: The file.
        row: Position of the row, from 0.
        columns: Only these; None = all.

    Raises:
        pa.ArrowException: If the file is damaged; or an OSError or ValueError.
    """
    # pq.read_table would also read columns out of folder names; without these two whole row groups would be in memory.
    with pq.ParquetFile(path, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as file:
        start = group = 0
        while group < file.num_row_groups and start + file.metadata.row_group(group).num_rows <= row:
            start += file.metadata.row_group(group).num_rows
            group += 1
        groups = list(range(group, file.num_row_groups))
        schema = file.schema_arrow
        names = schema.names if columns is None else columns
        size = _EMBEDDING_ROWS if any(has_bytes(schema.field(name).type) for name in names) else _TEXT_ROWS
        for batch in file.iter_batches(size, row_groups=groups, columns=columns, use_threads=False):
            yield start, pa.Table.from_batches([batch])
            start += batch.num_rows


def full_mapping(
    given: Mapping[str, str], ours: Sequence[str], table: SourceTable, required: Sequence[str]
) -> dict[str, str]:
    """Our name -> theirs for every column that the table has; a name that is not mapped stands for itself.

    Args:
        given: Our column name -> theirs, where they differ.
        ours: The names that can be mapped.
        table: The table.
        required: Those that must be there.

    Raises:
        DataError: If a column is missing or a name to map is unknown.
    """
    has = f"it has {', '.join(map(shown, table.columns))}"
    for our, their in given.items():
        if our not in ours:
            raise DataError(f"column mapping {our}={their}: accepted to the left of '=': {', '.join(ours)}")
        if their not in table.columns:
            raise DataError(f"{table.path}: no column {shown(their)} (mapped to {our}); {has}")
    mapping = {our: given.get(our, our) for our in ours if given.get(our, our) in table.columns}
    for our in required:
        if our not in mapping:
            raise DataError(f"{table.path}: no column {our!r}; {has}; accepted: a mapping {our}=COLUMN")
    return mapping


def plain_text(value: Any) -> Any:
    """A whole number (an id in JSON or Parquet) as text, NaN and empty text as None, else itself."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() < 64 else value
    if value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    return value
