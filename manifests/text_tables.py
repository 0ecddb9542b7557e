"""CSV, TSV and JSONL, read line by line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..data_modules.errors import DataError, place, shown
from ..data_modules.tables import check_header, unique_object
from .records import Digest, Record, Start, cells, no_responses, where

DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LONGEST_LINE = 2**24  # bytes: a file without line breaks must not fill the memory
_BOM = b"\xef\xbb\xbf"
_NAMES_SHOWN = 20


class _Lines:
    """Lines of a file as text, counted."""

    def __init__(self, path: Path, file: BinaryIO, line: int, digest: Digest | None) -> None:
        self.offset, self.line = file.tell(), line
        self._path, self._file, self._digest = path, file, digest

    def __iter__(self) -> Iterator[str]:
        while data := self._file.readline(_LONGEST_LINE + 1):
            first = self.offset == 0
            self.offset += len(data)
            self.line += 1
            if len(data) > _LONGEST_LINE:
                longest = f"accepted: lines of at most {_LONGEST_LINE >> 20} MiB"
                raise DataError(f"{place(self._path, line=self.line)}: a longer line; {longest}")
            if self._digest is not None:
                self._digest.update(data)
            yield self._decode(data.removeprefix(_BOM) if first else data)

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{place(self._path, line=self.line)}: byte 0x{data[error.start]:02x} is not UTF-8; accepted: text "
                "saved as UTF-8"
            ) from None


class TextTable:
    """A `Table` in a text file."""

    embeds = False

    def __init__(self, path: Path) -> None:
        """Name a file.

        Args:
            path: With a suffix of `DELIMITERS`, or JSONL.
        """
        self.path = path
        self._delimiter = DELIMITERS.get(path.suffix.lower())

    def records(self, start: Start | None = None, digest: Digest | None = None) -> Iterator[Record]:
        """See `Table`."""
        try:
            with open(self.path, "rb") as file:
                if self._delimiter is None:
                    yield from self._json(self._from(file, start, digest), start)
                else:
                    header = self._header(file)
                    yield from self._separated(self._from(file, start, digest), start, header)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from None

    def _from(self, file: BinaryIO, start: Start | None, digest: Digest | None) -> _Lines:
        file.seek(0 if start is None else start.offset)
        return _Lines(self.path, file, 0 if start is None else (start.line or 1) - 1, digest)

    def _header(self, file: BinaryIO) -> tuple[str, ...]:
        for values in self._parsed(_Lines(self.path, file, 0, None)):
            if values:
                check_header(values, self.path)
                if "response_audio" not in values:
                    raise no_responses(self.path, tuple(values))
                return tuple(values)
        return ()

    def _separated(self, lines: _Lines, start: Start | None, header: tuple[str, ...]) -> Iterator[Record]:
        position, skip = (0, True) if start is None else (start.position, False)
        offset, line = lines.offset, lines.line
        for values in self._parsed(lines):
            began, offset, line = Start(position, offset, line + 1), lines.offset, lines.line
            if not values:
                continue
            if skip:
                skip = False
                continue
            if len(values) != len(header):
                accepted = f"accepted: {len(header)}, one per column"
                raise DataError(f"{where(self.path, began)}: {len(values)} values; {accepted}")
            yield Record(began, offset, cells(dict(zip(header, values, strict=True))))
            position += 1

    def _parsed(self, lines: _Lines) -> Iterator[list[str]]:
        try:
            yield from csv.reader(iter(lines), delimiter=self._delimiter or ",", strict=True)
        except csv.Error as error:
            raise DataError(f"{place(self.path, line=lines.line)}: not readable as CSV ({error})") from None

    def _json(self, lines: _Lines, start: Start | None) -> Iterator[Record]:
        names: dict[str, None] = {}
        position = 0 if start is None else start.position
        offset, found = lines.offset, start is not None
        for text in lines:
            began, offset = Start(position, offset, lines.line), lines.offset
            if not text.strip():
                continue
            row = self._object(text, began)
            found = found or "response_audio" in row
            if not found and len(names) < _NAMES_SHOWN:
                names.update(dict.fromkeys(row))
            yield Record(began, offset, cells(row))
            position += 1
        if position and not found:
            raise no_responses(self.path, tuple(names))

    def _object(self, text: str, start: Start) -> dict[str, Any]:
        try:
            row = json.loads(text, object_pairs_hook=unique_object)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where(self.path, start)}: not readable as JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{where(self.path, start)}: value {shown(row)}; accepted: one JSON object per line")
        return row
