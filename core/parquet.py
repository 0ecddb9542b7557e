"""Parquet files from outside, read in parts that fit in the memory, whatever a small file claims to hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import DataError, os_reason, place, shown
from .files import DataPath, RemotePath

PARQUET_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What pyarrow raises on damaged files; the last where the name of a column is no text."""
MAX_ROWS = 1 << 24
"""Rows of a table that is held in memory as a whole, at most."""
MAX_VALUES = 1 << 28
"""Values of such a table, and of one column in one row group, at most: lists can hold any number in a row."""
MAX_TEXT_BYTES = 4 << 30
"""Text in a table of ratings or preferences, at most."""
# What people store is packed far less tightly; a file that says more of itself is made to fill the memory.
MAX_RATIO = 1_000
"""A file that is larger than `BOMB_BYTES` once it is unpacked, and was packed tighter than this, is refused."""
BOMB_BYTES = 64 << 20
_BUFFER = 1 << 20  # small enough for a laptop, large enough that calls of pyarrow do not show in the time


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
        whole: It is to be held in memory as a whole: it may have `MAX_ROWS` rows.
        dictionaries: Read texts as dictionaries: a text that repeats a million times is held once.
        schema: The columns that it must have, in any order, and no others; `optional` ones may be missing.

    Raises:
        FileNotFoundError: If there is none.
        DataError: If a remote one cannot be reached, or a column is missing, of another type or unknown.
        pa.ArrowException: If it is not Parquet, or more comes out of it than can be held.
    """
    source: Any = path.open() if isinstance(path, RemotePath) else path
    # without these two whole row groups would be in memory
    options: dict[str, Any] = {"buffer_size": _BUFFER, "pre_buffer": False}
    # Closing it closes what it has opened itself; a remote file stays open for the second reader.
    with pq.ParquetFile(source, **options) as file:
        footer, found = file.metadata, file.schema_arrow
    _check_size(footer, path.stat().st_size if isinstance(path, Path) else None, whole)
    for expected in schema or ():
        types = [column.type for column in found if column.name == expected.name]
        if types != [expected.type] and (types or expected.name not in optional):
            problem = f"has type {types[0]}" if types else "is missing"
            raise DataError(f"{place(path, column=expected.name)} {problem}; expected {expected.type}")
    unknown = [name for name in found.names if schema is not None and name not in schema.names]
    if schema is not None and unknown:
        raise DataError(f"{path}: unknown column {shown(unknown[0])}; expected {', '.join(schema.names)}")
    columns = [footer.schema.column(index) for index in range(footer.num_columns)]
    texts = [col.path for col in columns if col.physical_type == "BYTE_ARRAY" and col.logical_type.type == "STRING"]
    return pq.ParquetFile(source, metadata=footer, read_dictionary=texts if dictionaries else None, **options)


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
        # Wide tables have few rows; to ask each of 100,000 columns would take seconds.
        if group.num_columns > 1_000:
            continue
        for index in range(group.num_columns):
            if (values := group.column(index).num_values) > MAX_VALUES:
                raise pa.ArrowInvalid(f"{values} values in a row group; expected at most {MAX_VALUES}")


def read_parquet(path: DataPath, schema: pa.Schema, optional: Collection[str] = ()) -> pa.Table:
    """A table of a dataset folder, its columns in the order of `schema`; `optional` ones may be missing.

    Raises:
        DataError: If the file is missing, is not Parquet, or has other columns or types.
    """
    import pyarrow.compute as pc

    with parquet_errors(path), open_parquet(path, whole=True, schema=schema, optional=optional) as file:
        fields = [field for field in schema if field.name in file.schema_arrow.names]
        table = file.read([field.name for field in fields], use_threads=False)
        table.validate(full=True)
        # Each text counts as often as it stands there: pandas holds the rows, whatever a dictionary saves in the file.
        text_bytes = 0
        for chunk in (chunk for column in table.columns for chunk in column.chunks):
            if isinstance(chunk, pa.DictionaryArray):
                lengths = pc.call_function("binary_length", [chunk.dictionary]).to_numpy(zero_copy_only=False)
                text_bytes += int(lengths.astype(np.int64)[chunk.indices.drop_null().to_numpy()].sum())
        if text_bytes > MAX_TEXT_BYTES:
            raise pa.ArrowInvalid(f"{text_bytes} bytes of text; expected at most {MAX_TEXT_BYTES}")
        return table.cast(pa.schema(fields))
