"""Rows of a source that is not ours, each value with the place where it stands: what cannot be used is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError, UserError, place, shown
from ..ratings import is_name
from .assemble import Skipped
from .tables import SourceTable, read_table, unique_object


@dataclass(frozen=True)
class Record:
    """One row of a table.

    Attributes:
        table: The table.
        position: Of the row, from 0.
    """

    table: SourceTable
    position: int

    @property
    def values(self) -> Mapping[str, Any]:
        """Field -> value, as the file has it."""
        return self.table.rows[self.position]

    def place(self, field: str) -> str:
        """Where a value of this row stands, for the head of a message."""
        return self.table.place(self.position, field)

    def error(self, field: str, accepted: str) -> DataError:
        """The error for one value of this row."""
        return DataError(f"{self.place(field)}: value {shown(self.values.get(field))}; accepted: {accepted}")

    def skipped(self, error: UserError) -> Skipped:
        """The entry for the list of what was skipped; its place is that of the value where the error names one."""
        lines = self.table.lines
        row = place(self.table.path, self.position + 1, line=lines[self.position] if lines else None)
        text = str(error)
        if not text.startswith((f"{row}, ", f"{row}: ")):
            return Skipped(row, text)
        value, _, reason = text[len(row) :].partition(": ")
        return Skipped(row + value, reason)

    def name(self, field: str) -> str:
        """An identifier: text on one line, or a whole number as text.

        Raises:
            DataError: If it is missing, empty or something else.
        """
        value = self.values.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value) if value.bit_length() < 64 else None
        if not is_name(value):
            raise self.error(field, "text without line breaks, not empty, or a whole number")
        return str(value)

    def optional_name(self, field: str) -> str | None:
        """`name`, or None where the field is missing, null or empty.

        Raises:
            DataError: If it is something else.
        """
        return None if self.values.get(field) in (None, "") else self.name(field)

    def text(self, field: str) -> str | None:
        """Text that may have line breaks, without space around it; None where it is missing, null or blank.

        Raises:
            DataError: If it is something else.
        """
        value = self.values.get(field)
        if value is None:
            return None
        if not is_text(value):
            raise self.error(field, "text")
        return value.strip() or None


def is_text(value: object) -> bool:
    """Whether it is text that UTF-8 can hold; JSON can spell half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def records(table: SourceTable) -> list[Record]:
    """The rows of a table."""
    return [Record(table, position) for position in range(len(table.rows))]


def read_records(path: Path) -> list[Record]:
    """The rows of a JSON list of objects, or of a table that `read_table` reads.

    Raises:
        DataError: If the file is missing, of another format, unreadable, or without rows.
    """
    if path.suffix.lower() != ".json":
        return records(read_table(path))
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique_object)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON in UTF-8 ({error})") from None
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path}: value {shown(rows)}; accepted: a JSON list of objects, not empty")
    for position, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{place(path, position + 1)}: value {shown(row)}; accepted: a JSON object")
    columns = dict.fromkeys(name for row in rows for name in row)
    return records(SourceTable(path, tuple(columns), rows, None))


def need_fields(rows: Sequence[Record], fields: Sequence[str]) -> None:
    """Refuses a table that lacks a field in all of its rows: then the layout is another one.

    Raises:
        DataError: If so; it says which fields there are.
    """
    table = rows[0].table
    for field in fields:
        if field not in table.columns:
            has = ", ".join(map(shown, table.columns))
            raise DataError(f"{table.path}: no field {field!r}; it has {has}; accepted: {', '.join(fields)}")


def source_files(path: Path, patterns: Sequence[str]) -> list[Path]:
    """The file `path`, or the files below the folder `path` that fit a pattern, in a fixed order.

    Hidden files and folders do not count: ``.cache`` of a download, ``._*`` of macOS.

    Raises:
        DataError: If there is no such file or none that fits.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    found = {file for pattern in patterns for file in path.rglob(pattern) if file.is_file()}
    seen = [file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not seen:
        raise DataError(f"{path}: holds no file {' or '.join(patterns)}; accepted: the folder as it was downloaded")
    return sorted(seen)
