"""Parquet files: opened, checked and read in parts that fit in the memory, whatever a small file claims to hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import DataError, os_reason, place, shown
from .folders import DataPath, RemotePath, replace_file
from .steps import as_written

PARQUET_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What pyarrow raises on damaged files; the last where the name of a column is no text."""
MAX_ROWS = 1 << 24
"""Rows of a table that is held in memory as a whole, at most."""
MAX_VALUES = 1 << 28
"""Values of such a table, and of one column in one row group, at most: lists can hold any number in a row."""
MAX_TEXT_BYTES = 4 << 30
"""Text in a table of ratings or preferences, at most."""
MAX_RATIO = 1_000
"""A file that is larger than `BOMB_BYTES` once it is unpacked, and was packed tighter than this, is refused."""
BOMB_BYTES = 64 << 20
_BUFFER = 1 << 20
_EMBEDDING_ROWS, _TEXT_ROWS = 4, 1 << 16  # read at a time, with clips and without

Tables = Iterator[tuple[int, pa.Table]]
"""Consecutive parts of a table, small ones where there is audio, each with the position of its first row."""


class Unreadable:
    """Stands for a value that Python cannot hold, such as a date in the year 300,000. It is no text and no number."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"<{self._value}>"


@contextmanager
def parquet_errors(path: DataPath) -> Iterator[None]:
    """Turns what pyarrow says of a missing or damaged file into a `DataError` of one line."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        reason = "cannot be read" if error.errno else "not readable as Parquet"
        raise DataError(f"{path}: {reason} ({os_reason(error)})") from None
    except (pa.ArrowException, ValueError) as error:  # ValueError: the name of a column is not UTF-8
        raise DataError(f"{path}: not readable as Parquet ({error})") from None


def open_parquet(
    path: DataPath,
    *,
    whole: bool = False,
    dictionaries: bool = True,
    schema: pa.Schema | None = None,
    optional: Collection[str] = (),
) -> pq.ParquetFile:
    """A Parquet file, of which nothing but the footer has been read.

    Args:
        path: Where it is.
        whole: It is to be held in memory as a whole: then it may have `MAX_ROWS` rows.
        dictionaries: Read texts as dictionaries: a text that repeats a million times is held once.
        schema: The columns that it must have, in any order, and no others.
        optional: Those of them that may be missing.

    Raises:
        FileNotFoundError: If there is none.
        DataError: If a remote one cannot be reached, or it has another schema: the first column that is missing, of
            another type or unknown is named.
        pa.ArrowException: If it is not Parquet, or more comes out of it than can be held.
    """
    source: Any = path.open() if isinstance(path, RemotePath) else path
    # without these two whole row groups would be in memory
    options: dict[str, Any] = {"buffer_size": _BUFFER, "pre_buffer": False}
    file = pq.ParquetFile(source, **options)
    try:
        _check_size(file.metadata, path.stat().st_size if isinstance(path, Path) else None, whole)
        if schema is not None:
            _check_schema(file.schema_arrow, schema, path, optional)
        if not dictionaries:
            return file
        columns = [file.schema.column(index) for index in range(len(file.schema))]
        texts = [col.path for col in columns if col.physical_type == "BYTE_ARRAY" and col.logical_type.type == "STRING"]
        if isinstance(path, Path):
            file.close()
        return pq.ParquetFile(source, metadata=file.metadata, read_dictionary=texts, **options)
    except BaseException:
        file.close()
        raise


def _check_size(footer: pq.FileMetaData, size: int | None, whole: bool) -> None:
    """Refuses a file that would fill the memory."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    if size is not None and unpacked > max(BOMB_BYTES, MAX_RATIO * size):
        raise pa.ArrowInvalid(f"{size} bytes that become {unpacked}; expected at most {MAX_RATIO} times as many")
    if whole and (footer.num_rows > MAX_ROWS or footer.num_rows * footer.num_columns > MAX_VALUES):
        limits = f"at most {MAX_ROWS} rows and {MAX_VALUES} cells"
        raise pa.ArrowInvalid(f"{footer.num_rows} rows of {footer.num_columns} columns; expected {limits} in one file")
    for group in groups:
        if group.num_columns > 1_000:  # wide tables have few rows; to ask each column would take seconds
            continue
        for index in range(group.num_columns):
            if (values := group.column(index).num_values) > MAX_VALUES:
                raise pa.ArrowInvalid(f"{values} values in a row group; expected at most {MAX_VALUES}")


def parquet_tables(path: Path, row: int, columns: Sequence[str] | None = None, *, whole: bool = False) -> Tables:
    """The table in a Parquet file, or columns of it, from the row group of a row (from 0) on; texts are dictionaries.

    Raises:
        pa.ArrowException: If the file is damaged; or an OSError or ValueError.
    """
    # pq.read_table would also read columns out of folder names
    with open_parquet(path, whole=whole) as file:
        start = group = 0
        while group < file.num_row_groups and start + file.metadata.row_group(group).num_rows <= row:
            start += file.metadata.row_group(group).num_rows
            group += 1
        schema = file.schema_arrow
        fields = schema if columns is None else [schema.field(name) for name in columns]
        size = _EMBEDDING_ROWS if any(has_bytes(field.type) for field in fields) else _TEXT_ROWS
        for batch in batches(file, size, columns, group):
            yield start, pa.Table.from_batches([batch])
            start += batch.num_rows


def batches(file: pq.ParquetFile, size: int, columns: Sequence[str] | None, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Rows from a row group on; none spans two, because dictionaries inside lists cannot."""
    for group in range(first, file.num_row_groups):
        yield from file.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)


def has_bytes(kind: pa.DataType) -> bool:
    """Whether values of a type are bytes, or lists or structures around bytes."""
    types = pa.types
    if types.is_dictionary(kind):
        return has_bytes(kind.value_type)
    if types.is_nested(kind):
        return any(has_bytes(kind.field(index).type) for index in range(kind.num_fields))
    is_bytes = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in is_bytes)


def python_rows(part: pa.Table) -> list[dict[str, Any]]:
    """Column -> value for each row; equal texts of a column are one object, and see `Unreadable`.

    Raises:
        pa.ArrowException: If offsets point outside, which would end the process, or a text is not UTF-8.
    """
    part.validate(full=True)
    columns = [python_values(column) for column in part.columns]
    return [dict(zip(part.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def python_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of a column, as `python_rows` has them; a number of float32 or float16 is the one that was written.

    Lists stay as they are: samples of audio are float32, and are read as that again.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_float32(column.type) or pa.types.is_float16(column.type):
        # 1.1, which Python would make 1.100000023841858
        numbers = [as_written(chunk.fill_null(np.nan).to_numpy(zero_copy_only=False)).tolist() for chunk in chunks]
        valid = [chunk.is_valid().to_pylist() for chunk in chunks]
        return [
            number if is_given else None
            for part, given in zip(numbers, valid, strict=True)
            for number, is_given in zip(part, given, strict=True)
        ]
    return [value for chunk in chunks for value in _values(chunk)]


def _values(array: Any) -> list[Any]:
    """As `python_values`. Structures and lists are taken apart: `to_pylist` takes five times as long for them."""
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        used = array.indices.unique()  # a part of four rows may have the dictionary of a million
        texts = dict(zip(used.to_pylist(), array.dictionary.take(used).to_pylist(), strict=True))
        return [texts[index] for index in array.indices.to_pylist()]
    if types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*map(_values, array.flatten()), strict=True)]
    elif types.is_list(kind) or types.is_large_list(kind):
        items, ends = _values(array.flatten()), array.value_lengths().fill_null(0).to_numpy().cumsum().tolist()
        rows = [items[start:end] for start, end in pairwise([0, *ends])]
    else:
        try:
            return array.to_pylist()
        except (ValueError, OverflowError, pa.ArrowInvalid):
            return [_value(cell) for cell in array]
    if array.null_count:
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    return rows


def _value(cell: pa.Scalar[Any]) -> Any:
    try:
        return cell.as_py()
    except (ValueError, OverflowError, pa.ArrowInvalid) as error:
        return Unreadable(f"{cell.type} that cannot be represented: {error}")


def read_parquet(path: DataPath, schema: pa.Schema, optional: Collection[str] = ()) -> pa.Table:
    """A table of a dataset folder, its columns in the order of `schema`; `optional` ones may be missing.

    Raises:
        DataError: If the file is missing, is not Parquet, or has other columns or types.
    """
    with parquet_errors(path), open_parquet(path, whole=True, schema=schema, optional=optional) as file:
        fields = [field for field in schema if field.name in file.schema_arrow.names]
        table = file.read([field.name for field in fields], use_threads=False)
        table.validate(full=True)
        text_bytes = sum(map(_text_bytes, table.columns))
        if text_bytes > MAX_TEXT_BYTES:
            raise pa.ArrowInvalid(f"{text_bytes} bytes of text; expected at most {MAX_TEXT_BYTES}")
        return table.cast(pa.schema(fields))


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of the texts in a column of dictionaries, repeats counted."""
    import pyarrow.compute as pc

    chunks = [chunk for chunk in column.chunks if isinstance(chunk, pa.DictionaryArray)]
    total = 0
    for chunk in chunks:
        lengths = pc.call_function("binary_length", [chunk.dictionary]).to_numpy(zero_copy_only=False).astype(np.int64)
        total += int(lengths[chunk.indices.drop_null().to_numpy()].sum())
    return total


def _check_schema(found: pa.Schema, expected: pa.Schema, path: DataPath, optional: Collection[str]) -> None:
    for field in expected:
        types = [column.type for column in found if column.name == field.name]
        if types != [field.type] and (types or field.name not in optional):
            problem = f"has type {types[0]}" if types else "is missing"
            raise DataError(f"{place(path, column=field.name)} {problem}; expected {field.type}")
    unknown = [name for name in found.names if name not in expected.names]
    if unknown:
        raise DataError(f"{path}: unknown column {shown(unknown[0])}; expected {', '.join(expected.names)}")


def write_parquet(table: pa.Table, path: Path) -> None:
    """Replaces the file at once."""
    replace_file(path, lambda temporary: pq.write_table(table, temporary))
