"""A manifest as a stream of rows, and the pair that each row asks for.

A manifest is CSV, TSV, JSONL or Parquet. It may have ten million rows or hold the clips themselves, so it is never held
in memory: `data_modules.tables.read_table` is for tables that are.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.types import is_nested

from ...audio.decode import AudioSource
from ...core.errors import AccessError, AudioError, DataError, OutsideError, names_shown, place, shown
from ...core.files import resolve_inside
from ...core.processes import say
from ...data_modules.embedded_tables import has_bytes, parquet_tables, python_rows
from ...data_modules.ratings import A_NAME, is_name
from ...data_modules.schema import Pair, Turn
from ...data_modules.tables import check_file, check_header, csv_rows, is_text, jsonl_rows, plain_text
from ..score_table import COPIED, Column

COLUMNS = ("pair_id", "context_audio", "response_audio", "situation")
"""Columns that pairs are made of."""
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Suffixes of tables that are read and written row by row; a JSON list is not."""
_LONGEST_LINE = 2**24  # bytes: a file without line breaks must not fill the memory
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NAMES_SHOWN = 20
_PATHS_KEPT = 4096  # one context is often answered several times
_CLIP_FIELDS = {"bytes", "path", "sha256"}  # as in Hugging Face datasets, and in ours


class ManifestRow(NamedTuple):
    """A row as it stands in the file."""

    position: int  # of the row, from 0
    line: int | None  # where it begins, from 1; None in Parquet
    cells: Mapping[str, Any]  # those that hold something; of Parquet without nested ones that are not of `COLUMNS`


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
        check_file(path)
        self.path, self._suffix, self.embeds = path, path.suffix.lower(), False
        if self._suffix not in SUFFIXES:
            raise DataError(f"{path}: suffix {shown(path.suffix)}; expected {', '.join(SUFFIXES)}")
        self._groups = [0]  # first rows of row groups, at which reading can begin
        self._columns: list[str] = []
        self._names: Sequence[str] = ()  # all columns, once they are known
        if self._suffix == ".parquet":
            self._read_footer()
        self._rest: Iterator[ManifestRow] = iter(())
        self._next = -1

    def read(self, first: int, count: int) -> Iterator[ManifestRow]:
        """Read `count` rows from position `first` on.

        Raises:
            DataError: If the file cannot be read, or has no such rows.
        """
        # The open file is read on, unless a row group that begins between here and there saves reading
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
        """Read all rows once, holding 8 bytes for each; returns how many there are. Contexts under another name are
        pointed out, on standard error.

        Raises:
            DataError: If the file cannot be read as what its suffix says, has no rows or no column `response_audio`, or
                two rows have one id.
        """
        # Hashes in place of ids: 8 bytes for each row, however long ids are
        hashes = array("q", (hash(row_id(record, self.path)) for record in self._records(0, ids_only=True)))
        if not hashes:
            raise DataError(f"{self.path}: the table holds no rows")
        ordered = np.sort(np.frombuffer(hashes, dtype=np.int64))
        duplicates = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        seen: dict[str, ManifestRow] = {}
        # Equal hashes may be of two ids
        for record in self._records(0, ids_only=True) if duplicates else ():
            pair_id = row_id(record, self.path)
            if pair_id in seen:
                here, first = where(self.path, record, "pair_id"), where(self.path, seen[pair_id])
                raise DataError(f"{here}: {shown(pair_id)} stands there twice, also in {first}; expected unique ids")
            if hash(pair_id) in duplicates:
                seen[pair_id] = record
        # A request to the service calls it `context`
        if "context" in self._names and "context_audio" not in self._names:
            say(f"{self.path}: column 'context' is not read; expected context_audio for clips")
        return len(hashes)

    def copied(self, taken: Collection[str] = ()) -> dict[str, Column]:
        """The columns that are copied to the scores, by their names here: all that pairs are not made of; of JSONL,
        those that its first row fills. Those whose name is `taken` are called ``manifest_NAME``, as often as it takes.

        Raises:
            DataError: If the file cannot be read.
        """
        first = next(self._records(0), None)  # after which the names are known
        names: Sequence[str] = self._columns if self._suffix == ".parquet" else self._names
        if self._suffix == ".jsonl":
            names = [] if first is None else [name for name, cell in first.cells.items() if not _is_nested(cell)]
        kept = [name for name in names if name not in COLUMNS]
        columns: dict[str, Column] = {}
        used = {*taken, *kept}
        for name in kept:
            own = name
            # Scores that are scored again may have both names
            while own in taken or (own != name and own in used):
                own = f"{COPIED}{own}"
            used.add(own)
            columns[name] = Column(own, "text")
        return columns

    def sha256(self, whole: bool) -> str:
        """Hash of the content. Parquet may hold all clips: unless the `whole` file shall be read, it is known by its
        size, its modification time and its footer, which holds the places, sizes and extremes of all columns."""
        with open(self.path, "rb") as file:
            if whole or self._suffix != ".parquet":
                return hashlib.file_digest(file, "sha256").hexdigest()
            # A Parquet file ends with its footer, the length of this in 4 bytes, and 4 letters
            size = file.seek(-8, os.SEEK_END) + 8
            file.seek(max(0, size - 8 - int.from_bytes(file.read(4), "little")))
            changed = os.fstat(file.fileno()).st_mtime_ns
            return hashlib.sha256(f"{size} {changed}\n".encode() + file.read()).hexdigest()

    def _records(self, first: int, ids_only: bool = False) -> Iterator[ManifestRow]:
        """Rows from `first` on, or from a little before it; the file is opened anew."""
        try:
            if self._suffix == ".jsonl":
                yield from self._read_json(first)
            elif self._suffix != ".parquet":
                yield from self._read_separated(first)
            elif ids_only and "pair_id" not in self._columns:
                yield from (ManifestRow(position, None, {}) for position in range(self._groups[-1]))
            else:
                yield from self._read_parquet(first, ["pair_id"] if ids_only else self._columns)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def _lines(self) -> Iterator[str]:
        with open(self.path, "rb") as file:
            for line in itertools.count(1):
                data = file.readline(_LONGEST_LINE + 1)
                if not data:
                    return
                if len(data) > _LONGEST_LINE:
                    longest = f"expected lines of at most {_LONGEST_LINE >> 20} MiB"
                    raise DataError(f"{place(self.path, line=line)}: a longer line; {longest}")
                try:
                    yield (data.removeprefix(_BYTE_ORDER_MARK) if line == 1 else data).decode()
                except UnicodeDecodeError as error:
                    wrong = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
                    raise DataError(f"{place(self.path, line=line)}: {wrong}; expected text saved as UTF-8") from None

    def _read_separated(self, first: int) -> Iterator[ManifestRow]:
        rows = csv_rows(self._lines(), self.path)
        _, header = next(rows, (0, COLUMNS))
        header = [name.strip() for name in header]  # `a, b`: with its space a name would be another column
        check_header(header, self.path)
        self._check_columns(header)
        for position, (line, values) in enumerate(rows):
            if position >= first:
                yield ManifestRow(position, line, _cells(dict(zip(header, values, strict=True))))

    def _read_json(self, first: int) -> Iterator[ManifestRow]:
        names: dict[str, None] = {}
        position = first - 1
        for position, (line, row) in enumerate(jsonl_rows(self._lines(), self.path, first), start=first):
            row = {name.strip(): value for name, value in row.items()}
            if len(names) < _NAMES_SHOWN or "response_audio" in row:
                names.update(dict.fromkeys(row))
            yield ManifestRow(position, line, _cells(row))
        # Fields differ from row to row: who has read the file from its beginning knows them all
        if first == 0 <= position:
            self._check_columns(tuple(names))

    def _read_footer(self) -> None:
        try:
            with pq.ParquetFile(self.path) as file:
                schema = file.schema_arrow
                groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                names = schema.names
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._unreadable(error) from None
        check_header(names, self.path)
        self._check_columns(names)
        self._columns = [
            field.name
            for field in schema
            if field.name in COLUMNS or not (is_nested(field.type) or has_bytes(field.type))
        ]
        self._groups = list(accumulate(groups, initial=0))
        self.embeds = any(has_bytes(schema.field(name).type) for name in self._columns)

    def _read_parquet(self, first: int, columns: list[str]) -> Iterator[ManifestRow]:
        for start, part in parquet_tables(self.path, first, columns):
            for position, row in enumerate(python_rows(part), start):
                if position >= first:
                    yield ManifestRow(position, None, _cells(row))

    def _check_columns(self, names: Sequence[str]) -> None:
        if spaced := next((name for name in names if name != name.strip()), None):  # of Parquet
            raise DataError(f"{self.path}: column {shown(spaced)}; expected a name without spaces around it")
        if "response_audio" not in names:
            columns, expected = names_shown(names), ", ".join(COLUMNS)
            raise DataError(f"{self.path}: no column 'response_audio'; it has {columns}; expected {expected}")
        self._names = names

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self.path}: cannot be read ({error})")


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not (value is None or (isinstance(value, str) and not value))}


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | dict | bytes)


def where(path: Path, record: ManifestRow, column: str | None = None) -> str:
    """Where a row or a cell stands, for the head of a message."""
    return place(path, record.position + 1, column, record.line)


def row_id(record: ManifestRow, path: Path) -> str:
    """The id of a row; by default its number, from 1.

    Raises:
        DataError: If it cannot be one.
    """
    value = record.cells.get("pair_id")
    text = str(record.position + 1) if value is None else plain_text(value)
    if not is_name(text):
        expected = f"expected {A_NAME}; or a whole number"
        raise DataError(f"{where(path, record, 'pair_id')}: value {shown(value)}; {expected}")
    return text


def _copy(value: Any) -> str | None:
    """A cell as text, as it stands, with spaces at its ends; None = there is nothing, or nothing that text can say."""
    value = plain_text(value)
    if value is None or _is_nested(value):
        return None
    text = str(value)
    return text if is_text(text) else None


class Row(NamedTuple):
    """A row, ready to be scored: its id, its pair or why there is none, and what is copied to its scores."""

    pair_id: str
    pair: Pair | AudioError
    copied: tuple[str | None, ...] = ()


class RowReader:
    """Makes pairs of rows. Paths are relative to one folder and stay in it, or lie in another one that is named."""

    def __init__(
        self,
        folder: Path | None,
        audio_root: Path | None = None,
        copied: Mapping[str, Column] = {},
        may_name: bool = False,
    ) -> None:
        """Say what paths are relative to (None = rows hold the clips themselves, and a path is an error), another
        folder in which clips may lie and whether there is an option for it, see `resolve_inside`, and which columns are
        copied as text (`Manifest.copied`); what is nested becomes None."""
        self.copied = tuple(copied.values())
        self._copied = tuple(copied)
        self._folder = None if folder is None else folder.resolve()
        self._resolve = lru_cache(_PATHS_KEPT)(partial(resolve_inside, also=audio_root, may_name=may_name))

    def of_record(self, record: ManifestRow, path: Path) -> Row:
        """A row of a manifest.

        Raises:
            DataError: If its id cannot be one.
        """
        return self.row(row_id(record, path), record.cells, where(path, record))

    def row(self, pair_id: str, cells: Mapping[str, Any], where: str) -> Row:
        """A row of any table; `where` it stands heads messages.

        A clip is a path, bytes, or a mapping of `bytes` and `path`, as Hugging Face datasets have it; a context also a
        list of turns, each a mapping of `role` and `audio`, or of `role` and what makes a clip, as in the pairs of a
        pair dataset.
        """
        copied = tuple(_copy(cells.get(name)) for name in self._copied)
        try:
            turns = self._context(cells.get("context_audio"), f"{where}, column 'context_audio'")
            response = self._clip(cells.get("response_audio"), f"{where}, column 'response_audio'")
            situation = cells.get("situation")
            if plain_text(situation) is None:  # empty, or NaN out of Parquet
                situation = None
            elif not is_text(situation):
                text = f"{where}, column 'situation': value {shown(situation)}; expected text"
                raise AudioError(text, "not text")
        except AudioError as error:
            return Row(pair_id, error, copied)
        return Row(pair_id, Pair(pair_id, response, turns, situation=situation, group_id=pair_id), copied)

    def _context(self, value: Any, where: str) -> tuple[Turn, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            return (Turn("user", self._clip(value, where)),)
        turns = []
        for turn in value:
            if not isinstance(turn, dict) or not is_name(turn.get("role")):
                text = f'{where}: value {shown(turn)}; expected {{"role": "user", "audio": ...}} per turn'
                raise AudioError(text, "not a turn")
            clip = {name: part for name, part in turn.items() if name != "role"}
            turns.append(Turn(turn["role"], self._clip(clip["audio"] if set(clip) == {"audio"} else clip, where)))
        return tuple(turns)

    def _clip(self, value: Any, where: str) -> AudioSource:
        if isinstance(value, Mapping) and set(value) <= _CLIP_FIELDS:
            value = value.get("bytes") or value.get("path")
        if value in (None, "", b""):
            raise AudioError(f"{where}: empty; expected a clip", "empty cell")
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            expected = "expected the path of an audio file, or its bytes"
            raise AudioError(f"{where}: value {shown(value)}; {expected}", "not a clip")
        if self._folder is None:
            raise AudioError(f"{where}: value {shown(value)} is a path; expected bytes, or name the folder", "a path")
        try:
            return self._resolve(self._folder, value, "")
        except OutsideError as error:
            raise AudioError(f"{where}{error}", "leaves the folder") from None
        except DataError as error:
            kind = "cannot be read" if isinstance(error, AccessError) else "no such file"
            raise AudioError(f"{where}{error}", kind) from None


def rows_of_manifest(path: Path, audio_root: Path | None) -> Iterator[Row]:
    """The rows of a manifest, which is checked first.

    Raises:
        DataError: As `Manifest.check`.
    """
    manifest = Manifest(path)
    count, reader = manifest.check(), RowReader(path.parent, audio_root, may_name=True)
    return (reader.of_record(record, path) for record in manifest.read(0, count))
