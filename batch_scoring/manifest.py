"""A manifest as a stream of rows, and the pair that each row asks for.

A manifest is CSV, TSV, JSONL or Parquet. It may have ten million rows or hold the clips themselves, so it is never held
in memory: `data_modules.tables.read_table` is for tables that are.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..data_modules.audio import AudioSource
from ..data_modules.embedded import has_bytes
from ..data_modules.errors import DataError, OutsideError, place, shown
from ..data_modules.folders import resolve_inside
from ..data_modules.ratings import is_name
from ..data_modules.schema import Pair, Turn
from ..data_modules.tables import check_header, is_text, parquet_tables, plain_text, unique_object

COLUMNS = ("pair_id", "context_audio", "response_audio", "situation")
"""Columns that are read; others are ignored."""
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Of tables that are read and written row by row; a JSON list is not."""
_LONGEST_LINE = 2**24  # bytes: a file without line breaks must not fill the memory
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NAMES_SHOWN = 20
_PATHS_KEPT = 4096  # one context is often answered several times
_CLIP_FIELDS = {"bytes", "path", "sha256"}  # as in Hugging Face datasets, and in ours


class Record(NamedTuple):
    """A row as it stands in the file.

    Attributes:
        position: Of the row, from 0.
        line: Where it begins, from 1; None in Parquet.
        cells: Those of `COLUMNS` that hold something.
    """

    position: int
    line: int | None
    cells: Mapping[str, Any]


class Manifest:
    """A file of pairs. `read` goes on where the last call stopped, so it has one reader at a time.

    Attributes:
        path: The file.
        embeds: Whether clips stand in it.
    """

    def __init__(self, path: Path) -> None:
        """Open a file by its suffix.

        Raises:
            DataError: If it is missing, has another suffix, or is Parquet that cannot be read.
        """
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        self.path, self._suffix, self.embeds = path, path.suffix.lower(), False
        if self._suffix not in SUFFIXES:
            raise DataError(f"{path}: suffix {shown(path.suffix)}; expected {', '.join(SUFFIXES)}")
        self._groups = [0]  # first rows of row groups, at which reading can begin
        self._columns: list[str] = []
        if self._suffix == ".parquet":
            self._read_footer()
        self._rest: Iterator[Record] = iter(())
        self._next = -1

    def read(self, first: int, count: int) -> Iterator[Record]:
        """Some rows.

        Args:
            first: Position of the first.
            count: How many.

        Raises:
            DataError: If the file cannot be read, or has no such rows.
        """
        nearest = self._groups[bisect_right(self._groups, first) - 1]
        if not nearest <= self._next <= first:
            self._rest, self._next = self._records(first), first
        for record in self._rest:
            self._next = record.position + 1
            if record.position >= first:
                yield record
            if self._next == first + count:
                return
        raise DataError(f"{self.path}: row {first + count} is gone; was the file changed?")

    def check(self) -> int:
        """Read all rows once, holding 8 bytes for each; returns how many there are.

        Raises:
            DataError: If the file cannot be read as what its suffix says, has no rows or no column `response_audio`, or
                two rows have one id.
        """
        hashes = array("q", (hash(row_id(record, self.path)) for record in self._records(0, ids_only=True)))
        if not hashes:
            raise DataError(f"{self.path}: the table holds no rows")
        ordered = np.sort(np.frombuffer(hashes, dtype=np.int64))
        twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        seen: dict[str, Record] = {}
        for record in self._records(0, ids_only=True) if twice else ():  # equal hashes may be of two ids
            pair_id = row_id(record, self.path)
            if pair_id in seen:
                here, first = where(self.path, record, "pair_id"), where(self.path, seen[pair_id])
                raise DataError(f"{here}: {shown(pair_id)} stands there twice, also in {first}; expected unique ids")
            if hash(pair_id) in twice:
                seen[pair_id] = record
        return len(hashes)

    def sha256(self) -> str:
        """Hash of the content; of Parquet of its footer, which holds the places, sizes and extremes of all columns."""
        with open(self.path, "rb") as file:
            if self._suffix != ".parquet":
                return hashlib.file_digest(file, "sha256").hexdigest()
            size = file.seek(-8, os.SEEK_END) + 8
            file.seek(max(0, size - 8 - int.from_bytes(file.read(4), "little")))
            return hashlib.sha256(f"{size}\n".encode() + file.read()).hexdigest()

    def _records(self, first: int, ids_only: bool = False) -> Iterator[Record]:
        """Rows from one on; the file is opened anew. Lines that are left out are counted, about 1 us each."""
        try:
            if self._suffix == ".jsonl":
                yield from self._read_json(first)
            elif self._suffix != ".parquet":
                yield from self._read_separated(first)
            elif not ids_only:
                yield from self._read_parquet(first, self._columns)
            elif "pair_id" in self._columns:
                yield from self._read_parquet(first, ["pair_id"])
            else:
                yield from (Record(position, None, {}) for position in range(self._groups[-1]))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def _lines(self) -> Iterator[str]:
        with open(self.path, "rb") as file:
            line = 0
            while data := file.readline(_LONGEST_LINE + 1):
                line += 1
                if len(data) > _LONGEST_LINE:
                    longest = f"expected lines of at most {_LONGEST_LINE >> 20} MiB"
                    raise DataError(f"{place(self.path, line=line)}: a longer line; {longest}")
                try:
                    text = (data.removeprefix(_BYTE_ORDER_MARK) if line == 1 else data).decode()
                except UnicodeDecodeError as error:
                    wrong = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
                    raise DataError(f"{place(self.path, line=line)}: {wrong}; expected text saved as UTF-8") from None
                yield text

    def _read_separated(self, first: int) -> Iterator[Record]:
        reader = csv.reader(self._lines(), delimiter="\t" if self._suffix == ".tsv" else ",", strict=True)
        header: list[str] = []
        position = end = 0
        try:
            for values in reader:
                line, end = end + 1, reader.line_num
                if not values:
                    continue
                if not header:
                    header = values
                    self._check_header(header)
                    continue
                if position >= first:
                    record = Record(position, line, {})
                    if len(values) != len(header):
                        expected = f"expected {len(header)}, one per column"
                        raise DataError(f"{where(self.path, record)}: {len(values)} values; {expected}")
                    yield record._replace(cells=_cells(dict(zip(header, values, strict=True))))
                position += 1
        except csv.Error as error:
            raise DataError(f"{place(self.path, line=reader.line_num)}: not readable as CSV ({error})") from None

    def _read_json(self, first: int) -> Iterator[Record]:
        names: dict[str, None] = {}
        position, found = 0, first > 0
        for line, text in enumerate(self._lines(), start=1):
            if not text.strip():
                continue
            if position >= first:
                record = Record(position, line, {})
                try:
                    row = json.loads(text, object_pairs_hook=unique_object)
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{where(self.path, record)}: not readable as JSON ({error})") from None
                if not isinstance(row, dict):
                    expected = "expected one JSON object per line"
                    raise DataError(f"{where(self.path, record)}: value {shown(row)}; {expected}")
                found = found or "response_audio" in row
                if not found and len(names) < _NAMES_SHOWN:
                    names.update(dict.fromkeys(row))
                yield record._replace(cells=_cells(row))
            position += 1
        if position and not found:
            raise self._no_responses(list(names))

    def _read_footer(self) -> None:
        try:
            with pq.ParquetFile(self.path) as file:
                schema = file.schema_arrow
                groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                names = schema.names
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._unreadable(error) from None
        self._check_header(names)
        self._columns = [name for name in COLUMNS if name in names]
        self._groups = list(accumulate(groups, initial=0))
        self.embeds = any(has_bytes(schema.field(name).type) for name in self._columns)

    def _read_parquet(self, first: int, columns: list[str]) -> Iterator[Record]:
        for start, part in parquet_tables(self.path, first, columns):
            part.validate(full=True)  # offsets that point outside would end the process
            try:
                rows = part.to_pylist()
            except ValueError as error:  # text that is not UTF-8
                raise self._unreadable(error) from None
            for position, row in enumerate(rows, start):
                if position >= first:
                    yield Record(position, None, _cells(row))

    def _check_header(self, names: list[str]) -> None:
        check_header(names, self.path)
        if "response_audio" not in names:
            raise self._no_responses(names)

    def _no_responses(self, names: list[str]) -> DataError:
        found, expected = ", ".join(names) or "none", ", ".join(COLUMNS)
        return DataError(f"{self.path}: no column 'response_audio'; it has {found}; expected {expected}")

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self.path}: cannot be read ({error})")


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in COLUMNS if row.get(name) not in (None, "")}


def where(path: Path, record: Record, column: str | None = None) -> str:
    """Where a row or a cell stands, for the head of a message."""
    return place(path, record.position + 1, column, record.line)


def row_id(record: Record, path: Path) -> str:
    """The id of a row; by default its number, from 1.

    Raises:
        DataError: If it cannot be one.
    """
    value = record.cells.get("pair_id")
    text = str(record.position + 1) if value is None else plain_text(value)
    if not is_name(text):
        expected = "expected text without line breaks, or a whole number"
        raise DataError(f"{where(path, record, 'pair_id')}: value {shown(value)}; {expected}")
    return text


class Problem(NamedTuple):
    """Why a row has no score.

    Attributes:
        kind: The same for all rows that fail alike, for counting.
        text: One line: what was found and what is expected.
    """

    kind: str
    text: str


class Row(NamedTuple):
    """A row, ready to be scored; one of `pair` and `problem` is None."""

    pair_id: str
    pair: Pair | None
    problem: Problem | None


class _Unusable(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(kind, text)


class RowReader:
    """Makes pairs of rows. Paths are relative to one folder and stay in it."""

    def __init__(self, folder: Path | None) -> None:
        """Say where clips lie.

        Args:
            folder: What paths are relative to; None = rows hold the clips themselves, and a path is a problem.
        """
        self._folder = None if folder is None else folder.resolve()
        self._resolve = lru_cache(_PATHS_KEPT)(self._resolved)

    def of_record(self, record: Record, path: Path) -> Row:
        """A row of a manifest.

        Raises:
            DataError: If its id cannot be one.
        """
        return self.row(row_id(record, path), record.cells, where(path, record))

    def row(self, pair_id: str, cells: Mapping[str, Any], where: str) -> Row:
        """A row of any table.

        Args:
            pair_id: Its id.
            cells: By column. A clip is a path, bytes, or a mapping of `bytes` and `path`, as Hugging Face datasets
                have it; a context also a list of turns, each a mapping of `role` and `audio`, or of `role` and what
                makes a clip, as in the pairs of a pair dataset.
            where: Where the row stands, for the head of messages.
        """
        try:
            turns = self._context(cells.get("context_audio"), f"{where}, column 'context_audio'")
            response = self._clip(cells.get("response_audio"), f"{where}, column 'response_audio'")
            situation = cells.get("situation")
            if plain_text(situation) is None:  # empty, or NaN out of Parquet
                situation = None
            elif not is_text(situation):
                raise _Unusable("not text", f"{where}, column 'situation': value {shown(situation)}; expected text")
        except _Unusable as unusable:
            return Row(pair_id, None, unusable.problem)
        return Row(pair_id, Pair(pair_id, response, turns, situation=situation, group_id=pair_id), None)

    def _context(self, value: Any, where: str) -> tuple[Turn, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            return (Turn("user", self._clip(value, where)),)
        return tuple(self._turn(turn, where) for turn in value)

    def _turn(self, value: Any, where: str) -> Turn:
        if not isinstance(value, dict) or not is_name(value.get("role")):
            expected = 'expected {"role": "user", "audio": ...} per turn'
            raise _Unusable("not a turn", f"{where}: value {shown(value)}; {expected}")
        clip = {name: part for name, part in value.items() if name != "role"}
        return Turn(value["role"], self._clip(clip["audio"] if set(clip) == {"audio"} else clip, where))

    def _clip(self, value: Any, where: str) -> AudioSource:
        if isinstance(value, Mapping) and set(value) <= _CLIP_FIELDS:
            value = value.get("bytes") or value.get("path")
        if value in (None, "", b""):
            raise _Unusable("empty cell", f"{where}: empty; expected a clip")
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            expected = "expected the path of an audio file, or its bytes"
            raise _Unusable("not a clip", f"{where}: value {shown(value)}; {expected}")
        if self._folder is None:
            raise _Unusable("a path", f"{where}: value {shown(value)} is a path; expected bytes, or name the folder")
        try:
            return self._resolve(value)
        except OutsideError as error:
            raise _Unusable("leaves the folder", f"{where}{error}") from None
        except DataError as error:
            raise _Unusable("no such file", f"{where}{error}") from None

    def _resolved(self, value: str) -> Path:
        assert self._folder is not None
        return resolve_inside(self._folder, value, "")
