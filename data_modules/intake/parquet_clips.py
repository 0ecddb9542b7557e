"""Clips that a Parquet file holds, read when they are needed: a data set of many shards need not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import AudioError, DataError
from .tables import SourceTable

# What pyarrow raises on damaged files; ValueError: a name or a text that is not UTF-8
_DAMAGE = (pa.ArrowException, OSError, ValueError)
_COLUMNS_IN_MEMORY = 4  # of one row group each: rows are read in order, and a row has two or three clips


@dataclass(frozen=True)
class ParquetClip:
    """The ``bytes`` of one cell that is ``{"bytes", "path"}``, as Hugging Face datasets store audio.

    Attributes:
        file: The Parquet file.
        group: Row group, from 0.
        row: Row in the row group, from 0.
        column: The column.
    """

    file: Path
    group: int
    row: int
    column: str

    @property
    def name(self) -> str:
        """What messages call the clip."""
        return f"{self.file.name}, row group {self.group}, row {self.row}, {self.column}"

    def read(self) -> bytes:
        """The encoded bytes.

        Raises:
            AudioError: If the cell has none or the file is damaged.
        """
        try:
            data = _group_bytes(self.file, self.group, self.column)[self.row].as_py()
        except (*_DAMAGE, IndexError, KeyError) as error:
            raise AudioError(f"{self.name}: cannot be read ({error})") from None
        if not data:
            raise AudioError("no bytes; accepted: an audio file inside the Parquet file")
        return data


def read_without_audio(path: Path, audio_columns: Sequence[str]) -> SourceTable:
    """A Parquet table whose audio stays in the file.

    Args:
        path: The file.
        audio_columns: Where there are bytes in such a column (``{"bytes", "path"}``), each value is a `ParquetClip`;
            where there are none, what the file has.

    Raises:
        DataError: If it is no Parquet file, is damaged or has no rows.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            if len(set(schema.names)) < len(schema.names):
                raise DataError(f"{path}: a column stands twice; accepted: each name once")
            inside = [name for name in audio_columns if name in schema.names and _has_bytes(schema.field(name).type)]
            others = file.read(columns=[name for name in schema.names if name not in inside])
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        others.validate(full=True)
    except _DAMAGE as error:
        raise DataError(f"{path}: not readable as Parquet ({error})") from None
    if others.num_rows != sum(sizes):
        raise DataError(f"{path}: not readable as Parquet (row groups of {sum(sizes)} rows hold {others.num_rows})")
    if not others.num_rows:
        raise DataError(f"{path}: the table holds no rows")
    places = [(group, row) for group, size in enumerate(sizes) for row in range(size)]
    rows: list[dict[str, Any]] = others.to_pylist() if others.num_columns else [{} for _ in places]
    for values, (group, row) in zip(rows, places, strict=True):
        values.update({name: ParquetClip(path, group, row, name) for name in inside})
    return SourceTable(path, tuple(schema.names), rows, None)


def _has_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


@lru_cache(_COLUMNS_IN_MEMORY)
def _group_bytes(path: Path, group: int, column: str) -> pa.ChunkedArray:
    """The bytes of one row group's clips."""
    with pq.ParquetFile(path) as file:
        table = file.read_row_group(group, columns=[f"{column}.bytes"])
    table.validate(full=True)
    return table.column(column).combine_chunks().field("bytes")
