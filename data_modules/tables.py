"""The one reader of tables: CSV with any separator, TSV, JSON, JSONL, Parquet and Excel, without guessing types:
``001`` in CSV stays ``001``. The rows that Qualtrics puts under the header are left out.

Audio in a Parquet file stays there (`embedded`); all else is held in memory. Every value can be named in a message:
file, row, line and column.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from ..core.errors import DataError, Locate, UserError, bad_value, counted, names_shown, place, shown, system_errors
from ..core.files import path_version
from ..core.json_text import unique_object
from ..core.numerals import EXACT, as_float, to_number
from ..core.parquet import parquet_errors
from .class_labels import described_columns, name_labels
from .embedded_tables import EmbeddingTable, parquet_tables
from .excel import read_sheet
from .ratings import A_NAME, LARGEST, OF_MEANS, SECONDS, Dimension, is_name, is_text

LONGEST_CELL = 1 << 24
"""Characters of a CSV cell; the default of the module csv is 131,072."""
# For the whole process: the module csv has no limit of one reader
csv.field_size_limit(LONGEST_CELL)
Value = TypeVar("Value")


@dataclass(frozen=True)
class SourceTable:
    """A table as somebody else wrote it."""

    path: Path  # the file
    columns: tuple[str, ...]  # column names in the order of the file
    rows: list[dict[str, Any]]  # column name -> value. A CSV value is text; an empty one, like JSON's `null`, is None
    # line of the file where each row starts, counted from 1; None where the format has no lines
    lines: list[int] | None = None
    decimal_comma: bool = False  # whether 3,5 is a number: in text whose columns are not separated by commas

    @classmethod
    def of(cls, path: Path, rows: list[dict[str, Any]], lines: list[int] | None = None) -> SourceTable:
        """A table whose columns are the fields of its rows."""
        return cls(path, tuple(dict.fromkeys(name for row in rows for name in row)), rows, lines)

    def place(self, position: int, column: str | None = None) -> str:
        """Where a row or a cell stands, for the head of a message; `position` counts from 0."""
        return place(self.path, position + 1, column, self.lines[position] if self.lines else None)

    def records(self) -> list[TableRow]:
        """The rows, each with its place."""
        return [TableRow(self, position) for position in range(len(self.rows))]

    def locate(self, columns: Mapping[str, str]) -> Locate:
        """`place` by our column names, given ours -> theirs."""
        return lambda position, column: self.place(position, columns.get(column, column))


@dataclass(frozen=True)
class TableRow:
    """One row of a table; `position` counts from 0. Methods that read a value raise a `DataError` that names it if it
    is something else."""

    table: SourceTable
    position: int

    @property
    def values(self) -> Mapping[str, Any]:
        """Field -> value, as the file has it."""
        return self.table.rows[self.position]

    def place(self, field: str | None = None) -> str:
        """Where the row or a value of it stands, for the head of a message."""
        return self.table.place(self.position, field)

    def error(self, field: str, expected: str) -> DataError:
        """The error for one value of this row."""
        return bad_value(self.place(field), self.values.get(field), expected)

    def name(self, field: str) -> str:
        """An identifier: text on one line, not empty, or a whole number as text."""
        value = plain_text(self.values.get(field))
        if not is_name(value):
            raise self.error(field, f"{A_NAME}; or a whole number")
        return value

    def optional_name(self, field: str) -> str | None:
        """`name`, or None where the field is missing, null or empty."""
        return None if self.values.get(field) in (None, "") else self.name(field)

    def text(self, field: str) -> str | None:
        """Text that may have line breaks, without space around it; None where it is missing, null or blank."""
        value = self.values.get(field)
        if value is None:
            return None
        if not is_text(value):
            raise self.error(field, "text")
        return value.strip() or None

    def number(self, field: str) -> float:
        """A number of at most `LARGEST`; NaN where it is missing: null, empty, or NaN as a number (not as text)."""
        value = to_number(self.values.get(field))
        if plain_text(value) is None:
            return math.nan
        number = as_float(value)
        if not abs(number) <= LARGEST:
            if isinstance(value, int) and abs(value) > EXACT:
                raise self.error(field, "a number that float64 holds, such as whole ones up to 2**53")
            raise self.error(field, f"a finite number, at most {LARGEST:g}, or nothing where it is missing")
        return number


def read_records(path: Path, fields: Sequence[str] = ()) -> list[TableRow]:
    """The rows of a table.

    Raises:
        DataError: As `read_table` does, or if one of `fields` is missing in all rows: then the layout is another one.
    """
    table = read_table(path)
    for name in fields:
        if name not in table.columns:
            raise DataError(
                f"{path}: no field {name!r}; it has {names_shown(table.columns)}; expected {', '.join(fields)}"
            )
    return table.records()


def read_table(path: str | Path) -> SourceTable:
    """Reads a table by its suffix, in upper or lower case.

    Raises:
        DataError: If the file is missing, has another suffix, is not UTF-8, not what its suffix says, or has
            no rows.
    """
    path = Path(path)
    check_file(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        sheet = " (save the sheet as .xlsx or CSV UTF-8)" if path.suffix.lower() in (".xls", ".ods") else ""
        raise DataError(f"{path}: suffix {shown(path.suffix)}; expected {', '.join(_READERS)}{sheet}")
    table = _without_qualtrics(reader(path))
    if not table.rows:
        raise DataError(f"{path}: the table holds no rows")
    return table


def _without_qualtrics(table: SourceTable) -> SourceTable:
    """The table without the two rows under the header of an export of Qualtrics: the questions, and import ids."""
    given = [str(value) for value in table.rows[1].values() if value is not None] if len(table.rows) > 1 else []
    if not given or not all(value.startswith('{"ImportId"') for value in given):
        return table
    return replace(table, rows=table.rows[2:], lines=table.lines and table.lines[2:])


def check_file(path: Path) -> None:
    """Raises a `DataError` where there is no such file, or the system does not say."""
    with system_errors(path, "read"):
        if not path.is_file():
            kind = "folder" if path.is_dir() else "device or pipe" if path.exists() else None
            raise DataError(f"{path}: " + ("no such file" if kind is None else f"is a {kind}; expected a file"))


def _read_text(path: Path) -> str:
    with system_errors(path, "read"):
        data = path.read_bytes()
    try:
        # Excel writes a byte-order mark, which would else become part of the first column's name
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec strips a byte-order mark of 3 bytes before it counts.
        offset = error.start + len(data) - len(error.object)
        line = data.count(b"\n", 0, offset) + 1
        raise DataError(
            f"{place(path, line=line)}: byte 0x{data[offset]:02x} at offset {offset} is not UTF-8; "
            "expected text saved as UTF-8"
        ) from None


def csv_rows(lines: Iterable[str], path: Path, delimiter: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """The header of a CSV file, then its rows, each with the line where it starts; empty lines are skipped.

    Lines keep their line ends. Without a delimiter the header shows it, see `delimiter_of`.

    Raises:
        DataError: If a row has not as many values as the header, a column stands twice, or it cannot be read as CSV.
    """
    lines = iter(lines)
    first = next(lines, "")
    reader = csv.reader(chain([first], lines), delimiter=delimiter or delimiter_of(first, path), strict=True)
    n_columns = row = end = 0
    try:
        for values in reader:
            # A quoted value may span lines, so a row begins behind the end of the one before
            line, end = end + 1, reader.line_num
            if not values:
                continue
            if not n_columns:
                check_header(values, path)
                n_columns = len(values)
            elif len(values) != n_columns:
                where = place(path, row, line=line)
                raise DataError(f"{where}: {counted(len(values), 'value')}; expected {n_columns}, one per column")
            yield line, values
            row += 1
    except csv.Error as error:
        raise DataError(f"{place(path, line=end + 1)}: not readable as CSV ({error})") from None


def delimiter_of(header: str, path: Path) -> str:
    """What separates the columns: of comma, semicolon, tab and bar what stands most often in the header outside quotes,
    and where two do so, or none, a tab in a `.tsv` and a comma elsewhere."""
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    # A name may go on in the next line: surveys take whole questions for names
    outside = re.sub(r'"[^"]*("|$)', "", header)
    # Of equals `max` returns the first: the usual one
    return max((usual, ",", ";", "\t", "|"), key=outside.count)


def jsonl_rows(lines: Iterable[str], path: Path, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file from row `first` on, each with its line; blank lines are skipped.

    Raises:
        DataError: If a line is no JSON object.
    """
    row = 0
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        row += 1
        # Counted and not parsed: a worker begins in the middle of a long manifest
        if row <= first:
            continue
        try:
            values = json.loads(text, object_pairs_hook=unique_object)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place(path, row, line=line)}: not readable as JSON ({error})") from None
        if not isinstance(values, dict):
            raise bad_value(place(path, row, line=line), values, "one JSON object per line")
        yield line, values


def read_csv(path: Path, delimiter: str | None = None) -> SourceTable:
    """Reads a CSV file, whatever its suffix; see `csv_rows`."""
    # A million ratings hold few different texts: each is held once.
    distinct: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    header: list[str] = []
    # Line ends stay as they are: within quotes they belong to the value
    text = io.StringIO(_read_text(path), newline="")
    delimiter = delimiter or delimiter_of(text.readline(), path)
    text.seek(0)
    for line, values in csv_rows(text, path, delimiter):
        if not header:
            header = values
            continue
        rows.append(dict(zip(header, (distinct.setdefault(value, value) or None for value in values), strict=True)))
        lines.append(line)
    return SourceTable(path, tuple(header), rows, lines, decimal_comma=delimiter != ",")


def check_header(header: Sequence[str], path: Path) -> None:
    """Raises a `DataError` where a name stands twice."""
    repeated = next((name for name, count in Counter(header).items() if count > 1), None)
    if repeated is not None:
        raise DataError(f"{path}: column {shown(repeated)} stands twice in the header; expected each name once")


def _read_jsonl(path: Path) -> SourceTable:
    # `splitlines` would cut at U+2028, too, which JSON allows within a text
    numbered_rows = list(jsonl_rows(_read_text(path).split("\n"), path))
    return SourceTable.of(path, [row for _, row in numbered_rows], [line for line, _ in numbered_rows])


def _read_json(path: Path) -> SourceTable:
    try:
        rows = json.loads(_read_text(path), object_pairs_hook=unique_object)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(rows, list):
        raise bad_value(str(path), rows, "a list of JSON objects")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise bad_value(place(path, number), row, "a JSON object")
    return SourceTable.of(path, rows)


def _read_parquet(path: Path) -> SourceTable:
    with parquet_errors(path):
        schema = pq.read_schema(path)
        check_header(schema.names, path)
        table = EmbeddingTable(f"{path} {path_version(path)}", lambda row: parquet_tables(path, row, whole=True))
        return replace(read_parts(path, table, described_columns(schema)), columns=tuple(schema.names))


def read_parts(path: Path, table: EmbeddingTable, features: Mapping[str, Any]) -> SourceTable:
    """All rows of a table that may hold audio: an `EmbeddedClip` stands in place of bytes, which stay where they are,
    and class labels get their names (`features`: see `name_labels`).

    Raises:
        DataError: If a label is none of the classes.
    """
    rows = list(table.rows())
    name_labels(rows, features, path)
    return SourceTable.of(path, rows)


def _read_excel(path: Path) -> SourceTable:
    header, rows, lines = read_sheet(path)
    check_header(header, path)
    # A number that was typed as text has the comma of its writer's country
    return SourceTable(path, header, rows, lines, decimal_comma=True)


_READERS = {
    ".csv": read_csv, ".tsv": read_csv, ".txt": read_csv, ".json": _read_json, ".jsonl": _read_jsonl,
    ".parquet": _read_parquet, ".xlsx": _read_excel, ".xlsm": _read_excel,
}  # fmt: skip
SUFFIXES = tuple(_READERS)


@dataclass(frozen=True)
class TableMapping:
    """How columns of somebody else's tables become ours."""

    columns: Mapping[str, str]  # our column name -> that in the table of pairs, where they differ
    # the same for the table of ratings (`pair_id`, `rater_id`, `dimension`, `score`, `seconds`, `mean`, `sd`, `n`)
    rating_columns: Mapping[str, str]
    dimensions: Sequence[Dimension]  # the scales
    scores: Sequence[str] = ()  # columns of the ratings that hold scores, as patterns; none = see from the header
    choices: Mapping[str, float] = field(default_factory=dict)  # word of a scale -> its score
    synthetic: bool = False  # whether the ratings were not given by people


def full_mapping(
    given: Mapping[str, str], ours: Sequence[str], table: SourceTable, required: Sequence[str], option: str = "--column"
) -> dict[str, str]:
    """Our name -> theirs for every column that the table has; a name that is not mapped (`given`) stands for itself.

    Messages name the option that maps on the command line.

    Raises:
        DataError: If columns are missing (all are named), a name to map is unknown, or a column that is not mapped has
            one of our names but for upper case or space around it: left out, it would be missed in silence.
    """
    for our, their in given.items():
        if our not in ours:
            raise DataError(f"column mapping {our}={their}: expected to the left of '=': {', '.join(ours)}")
    mapping = {our: given.get(our, our) for our in ours if given.get(our, our) in table.columns}
    absent = [our for our in (*given, *required) if our not in mapping]
    if absent:
        raise missing_columns(table, {our: given.get(our) for our in absent}, option)
    # Columns called Mean, SD, N or Seconds are common, and often say something else
    strict = {*ours} - {*mapping, SECONDS, *OF_MEANS}
    named = {their: their.strip().casefold() for their in table.columns if their not in given.values()}
    if near := {their: our for their, our in named.items() if their != our and our in strict}:
        ours_are = ", ".join(map(repr, near.values()))
        maps = " ".join(shown(f"{our}={their}") for their, our in near.items())
        raise DataError(
            f"{table.path}: column {names_shown(near)}; expected {ours_are}, a mapping {option} {maps}, or another name"
        )
    return mapping


def missing_columns(
    table: SourceTable, absent: Mapping[str, str | None], option: str, more: str = "", expected: str = ""
) -> DataError:
    """The error for columns that are not there: ours -> the name that it was mapped to, or None. All are named at once,
    so that one more try is enough; with `expected` the message ends so, and names no option."""
    names = [repr(our) if their is None else f"{shown(their)} (mapped to {our})" for our, their in absent.items()]
    expected = expected or f"{option} {' '.join(f'{our}=COLUMN' for our in absent)}{more}"
    return DataError(
        f"{table.path}: no column {', '.join(names)}; it has {names_shown(table.columns)}; expected {expected}"
    )


def parse_mapping(items: Sequence[str], option: str) -> dict[str, str]:
    """``["response_speaker=speaker_id"]`` of the command line as our name -> theirs.

    Raises:
        UserError: If an item has another form, or a name stands twice.
    """
    mapping: dict[str, str] = {}
    for item in items:
        ours, _, theirs = item.partition("=")
        if not (ours and theirs):
            raise UserError(f"{option} {item!r}: expected OURS=THEIRS, such as response_speaker=speaker_id")
        set_once(mapping, ours, theirs, f"{option} {item!r}")
    return mapping


def set_once(values: dict[str, Value], name: str, value: Value, option: str) -> None:
    """Sets a value that an option gives a name. `option` is what the message calls it.

    Raises:
        UserError: If the name has a value already: the last one would win in silence.
    """
    if name in values:
        raise UserError(f"{option}: {name} is {values[name]} already; expected each name once")
    values[name] = value


def plain_text(value: Any) -> Any:
    """A whole number (an id in JSON or Parquet) as text, NaN and empty text as None, else itself.

    So is one that is stored as a float, as pandas does in a column with an empty cell.
    """
    if not isinstance(value, str):
        value = to_number(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() < 64 else value
    if value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def text_of(value: Any) -> str | None:
    """The value if it is text and not blank, else None."""
    return value if isinstance(value, str) and value.strip() else None
