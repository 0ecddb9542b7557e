"""Parquet, read from row group to row group."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..data_modules.embedded import has_bytes, parquet_tables
from ..data_modules.errors import DataError
from ..data_modules.tables import check_header
from .records import ACCEPTED, Digest, Record, Start, cells, no_responses


class ParquetTable:
    """A `Table` in a Parquet file. Who reads on behind what was read last goes on there, without opening it again."""

    def __init__(self, path: Path) -> None:
        """Read the footer of a file.

        Raises:
            DataError: If it has none, or no column `response_audio`.
        """
        self.path = path
        with _readable(path), pq.ParquetFile(path) as file:
            names: list[str] = file.schema_arrow.names
            check_header(names, path)
            self.rows: int = file.metadata.num_rows
            kinds = {name: file.schema_arrow.field(name).type for name in ACCEPTED if name in names}
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        if "response_audio" not in names:
            raise no_responses(path, tuple(names))
        self.columns = tuple(kinds)
        self.embeds = any(has_bytes(kind) for kind in kinds.values())
        self._groups = list(accumulate(sizes, initial=0))
        self._rest: Iterator[tuple[int, dict[str, Any]]] = iter(())
        self._next = self.rows

    def records(self, start: Start | None = None, digest: Digest | None = None) -> Iterator[Record]:
        """See `Table`; one reader at a time."""
        first = 0 if start is None else start.position
        group = self._groups[bisect_right(self._groups, first) - 1]
        if not group <= self._next <= first:
            self._rest, self._next = self._rows(first, self.columns), group
        with _readable(self.path):
            for position, row in self._rest:
                self._next = position + 1
                if position >= first:
                    yield Record(Start(position, 0, None), 0, cells(row))

    def ids(self) -> Iterator[Any]:
        """The column `pair_id` alone; nothing if there is none."""
        if "pair_id" in self.columns:
            with _readable(self.path):
                for _, row in self._rows(0, ("pair_id",)):
                    yield row["pair_id"]

    def _rows(self, first: int, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        for start, part in parquet_tables(self.path, first, columns):
            part.validate(full=True)  # offsets that point outside would end the process
            yield from enumerate(part.to_pylist(), start)


class _readable:
    """Turns what pyarrow raises into one line; a class, so that generators may use it across a yield."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, pa.ArrowException | OSError | ValueError):  # ValueError: text that is not UTF-8
            raise DataError(f"{self._path}: not readable as Parquet ({error})") from None
