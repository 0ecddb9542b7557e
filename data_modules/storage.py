"""How a dataset folder is stored: the layout of its tables, the reading of Parquet files in parts that fit in the
memory, whatever a small file claims to hold, and clips that stay where they are until they are decoded."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import AudioError, DataError, bad_value, counted, os_reason, place, shown
from .folders import DataPath, RemotePath, path_version
from .ratings import PREFERENCE_COLUMNS, RATING_COLUMNS, SECONDS

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

PAIRS_FILE = "pairs.parquet"
SHARD_FOLDER = "pairs"
SPLITS_FILE = "splits.parquet"
"""Beside a folder of shards: ``pair_id`` and ``split`` of every row, instead of the column in the shards, so that
splitting a dataset does not rewrite its audio."""
RATINGS_FILE = "ratings.parquet"
PREFERENCES_FILE = "preferences.parquet"

# The optional text columns of pairs.parquet: names, and texts that may have line breaks.
NAME_COLUMNS = ("system_id", "context_speaker", "response_speaker", "setting", "language", "split")
TEXT_COLUMNS = ("situation", "context_text", "response_text")
RESPONSE, CONTEXT, TAGS = "response_audio", "context_audio", "tags"
TAG_PREFIX = "tag:"
"""Begins the name of a tag where it stands among the columns of a table: ``tag:cue``."""
# `path` is relative to the folder; either it or `bytes` is set. `sha256` is of the encoded bytes.
_AUDIO = [("path", pa.string()), ("bytes", pa.large_binary()), ("sha256", pa.string())]
PAIRS_SCHEMA = pa.schema(
    [
        ("pair_id", pa.string()),
        ("group_id", pa.string()),
        (CONTEXT, pa.list_(pa.struct([("role", pa.string()), *_AUDIO]))),
        (RESPONSE, pa.struct(_AUDIO)),
        *[(name, pa.string()) for name in NAME_COLUMNS + TEXT_COLUMNS],
        # A list, not a map: Hugging Face datasets have no type for maps.
        (TAGS, pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))),
    ]
)
PAIR_COLUMNS: tuple[str, ...] = tuple(PAIRS_SCHEMA.names)
SPLITS_SCHEMA = pa.schema([("pair_id", pa.string()), ("split", pa.string())])
# `seconds` is optional: it stands only where times are known.
RATINGS_SCHEMA = pa.schema(
    [*((c, pa.float64() if c == "score" else pa.string()) for c in RATING_COLUMNS), (SECONDS, pa.float64())]
)
PREFERENCES_SCHEMA = pa.schema([(c, pa.float64() if c == "strength" else pa.string()) for c in PREFERENCE_COLUMNS])

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
_BATCH_ROWS = 8_192
_SHARD_NAME = re.compile(r"part-\d{5}\.parquet")
_OPEN_FILES = 32
_KEPT_BYTES = 128 * 2**20
"""Per process, of encoded audio. Row groups hold at most 4 MiB per column (`writing`), so that the 16 that a shuffled
epoch reads from at a time (`sampling.WINDOW_BLOCKS`) fit."""


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
        for expected in schema or ():
            types = [column.type for column in file.schema_arrow if column.name == expected.name]
            if types != [expected.type] and (types or expected.name not in optional):
                problem = f"has type {types[0]}" if types else "is missing"
                raise DataError(f"{place(path, column=expected.name)} {problem}; expected {expected.type}")
        unknown = [name for name in file.schema_arrow.names if schema is not None and name not in schema.names]
        if schema is not None and unknown:
            raise DataError(f"{path}: unknown column {shown(unknown[0])}; expected {', '.join(schema.names)}")
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
        text_bytes = 0  # repeats counted
        for chunk in (chunk for column in table.columns for chunk in column.chunks):
            if isinstance(chunk, pa.DictionaryArray):
                lengths = pc.call_function("binary_length", [chunk.dictionary]).to_numpy(zero_copy_only=False)
                text_bytes += int(lengths.astype(np.int64)[chunk.indices.drop_null().to_numpy()].sum())
        if text_bytes > MAX_TEXT_BYTES:
            raise pa.ArrowInvalid(f"{text_bytes} bytes of text; expected at most {MAX_TEXT_BYTES}")
        return table.cast(pa.schema(fields))


def ratings_schema(ratings: pd.DataFrame) -> pa.Schema:
    """How checked ratings are stored: without `SECONDS` where no time is known."""
    timed = SECONDS in ratings and ratings[SECONDS].notna().to_numpy(bool).any()
    return RATINGS_SCHEMA if timed else pa.schema([RATINGS_SCHEMA.field(name) for name in RATING_COLUMNS])


def array_values(array: Any) -> list[Any]:
    """The values of an array; equal texts of a dictionary are one object, and see `Unreadable`. Structures and lists
    are taken apart: `to_pylist` takes five times as long for them."""
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        used = array.indices.unique()  # a part of four rows may have the dictionary of a million
        texts = dict(zip(used.to_pylist(), array.dictionary.take(used).to_pylist(), strict=True))
        return [texts[index] for index in array.indices.to_pylist()]
    if types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*map(array_values, array.flatten()), strict=True)]
    elif types.is_list(kind) or types.is_large_list(kind):
        items, ends = array_values(array.flatten()), array.value_lengths().fill_null(0).to_numpy().cumsum().tolist()
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


@dataclass(frozen=True)
class StoredFile:
    """A file of a dataset, shared by the clips in it."""

    path: DataPath  # of the Parquet file, or of a file of audio
    version: str  # `folders.path_version` when the dataset was loaded
    # first row of each row group (from 0) of a Parquet file
    starts: tuple[int, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class StoredClip:
    """Where a clip of a dataset lies, in a Parquet file or behind an address, and the hash of its content; see `read`. It
    is never held as a whole. Small, and fit for other processes, forked or spawned.

    Two of the same content are equal, wherever they lie."""

    sha256: str  # of the encoded bytes, in hexadecimal digits
    file: StoredFile  # where it lies
    row_group: int | None = None  # of the Parquet file; None = the whole file is the clip
    row: int = 0  # in the row group, from 0
    turn: int | None = None  # turn of the context, from 0; None = the response

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredClip) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    @property
    def name(self) -> str:
        """The name of the clip in messages."""
        if self.row_group is None:
            return str(self.file.path)
        row = self.file.starts[self.row_group] + self.row + 1
        return place(self.file.path, row, RESPONSE if self.turn is None else CONTEXT)

    def read(self) -> bytes:
        """The encoded bytes as they are now, without a check of their hash.

        Raises:
            AudioError: If the file cannot be read or has no bytes there.
        """
        try:
            data = self.file.path.read_bytes() if self.row_group is None else _columns.clip(self, self.row_group)
        except FileNotFoundError:
            raise AudioError(f"{self.name}: no such file", "no such file") from None
        except PermissionError as error:
            raise AudioError(f"{self.name}: cannot be read ({os_reason(error)})", "cannot be read") from None
        except DataError as error:
            raise AudioError(str(error), "cannot be read") from None
        except (*PARQUET_DAMAGE, IndexError, TypeError, KeyError) as error:
            reason = f" ({error})" if isinstance(error, pa.ArrowException) else ""
            message = f"{self.name}: not readable as Parquet{reason}; was the file changed?"
            raise AudioError(message, "cannot be read") from None
        if data is None:
            raise AudioError(f"{self.name}: neither a path nor bytes; expected either a path or bytes")
        return data

    def read_checked(self) -> bytes:
        """The encoded bytes that were imported: a clip stands for its hash wherever scores are kept.

        Raises:
            AudioError: If they cannot be read or have another hash.
        """
        data = self.read()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise AudioError(f"{self.name}: the content is not what was imported", "not what was imported")
        return data


class _Columns:
    """The columns of audio that were read last. Safe for threads, not for forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: OrderedDict[tuple[StoredFile, int, str], pa.ChunkedArray] = OrderedDict()
        self._bytes = 0

    def clip(self, clip: StoredClip, row_group: int) -> bytes | None:
        with self._lock:
            column = self._column(clip.file, row_group, RESPONSE if clip.turn is None else CONTEXT)
        cell = column[clip.row] if clip.turn is None else column[clip.row].values[clip.turn]
        return cell["bytes"].as_py() if cell.is_valid else None

    def _column(self, file: StoredFile, row_group: int, name: str) -> pa.ChunkedArray:
        key = (file, row_group, name)
        if key not in self._arrays:
            opened = _open(file)
            leaves = [leaf for leaf in leaf_names(opened) if leaf.startswith(f"{name}.") and leaf.endswith(".bytes")]
            if not leaves:
                raise pa.ArrowInvalid(f"no column {name} with bytes")
            table = opened.read_row_group(row_group, columns=leaves[:1], use_threads=False)
            self._arrays[key] = table.column(name)
            self._bytes += table.nbytes
            while self._bytes > _KEPT_BYTES and len(self._arrays) > 1:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes
        self._arrays.move_to_end(key)
        return self._arrays[key]


@lru_cache(_OPEN_FILES)
def _open(file: StoredFile) -> pq.ParquetFile:
    return open_parquet(file.path, dictionaries=False)


def leaf_names(file: pq.ParquetFile) -> list[str]:
    """The columns of a file with the parts of structures and lists: their middle part differs between writers."""
    return [file.schema.column(index).path for index in range(len(file.schema))]


_columns = _Columns()


def _forget() -> None:
    """A child process opens files of its own: a lock may be held, and processes that share a file share its offset."""
    global _columns
    _columns = _Columns()
    _open.cache_clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)


def shard_name(number: int) -> str:
    """Path of a shard, relative to the dataset folder; numbers start at 0."""
    return f"{SHARD_FOLDER}/part-{number:05d}.parquet"


def pairs_files(root: DataPath) -> list[DataPath]:
    """The files of a dataset that hold its pairs, in order: ``pairs.parquet``, or the shards in a folder ``pairs``.

    Raises:
        DataError: If there is none, both layouts are there, or a shard is missing.
    """
    single, folder = root / PAIRS_FILE, root / SHARD_FOLDER
    if not folder.is_dir():
        return [single]
    if single.is_file():
        raise DataError(f"{root}: has {PAIRS_FILE} and a folder {SHARD_FOLDER}; expected one of them")
    listed = folder.files() if isinstance(folder, RemotePath) else [path.name for path in folder.iterdir()]
    names = [name for name in listed if _SHARD_NAME.fullmatch(name)]
    files = [root / shard_name(number) for number in range(max(len(names), 1))]
    for file in files:
        if file.name not in names:
            raise DataError(f"{file}: no such file; the folder has {counted(len(names), 'shard')}")
    return files


def pair_columns(path: DataPath) -> Iterator[tuple[dict[str, list[Any]], StoredFile, int, int]]:
    """The columns of a file of pairs, some rows at a time, without the audio in it: an embedded clip has no path. Tags
    are as `Pair` has them; equal texts are one object. Then the file, the row group, and the first row in that.

    Raises:
        DataError: If it is missing, is not Parquet or has another schema, or a clip has neither or both of path and
            bytes; that is known at its end.
    """
    with parquet_errors(path), open_parquet(path, whole=True, schema=PAIRS_SCHEMA) as opened:
        footer, leaves = opened.metadata, leaf_names(opened)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        sizes = [group.num_rows for group in groups]
        file = StoredFile(path, path_version(path), (0, *accumulate(sizes))[: len(sizes)])
        texts = [leaf for leaf in leaves if not leaf.endswith(".bytes")]
        embedded = dict.fromkeys((CONTEXT, RESPONSE), 0)
        distinct_tags: dict[Any, Any] = {}
        for number in range(len(groups)):  # no batch spans two: dictionaries inside lists cannot
            row = 0
            for batch in opened.iter_batches(_BATCH_ROWS, row_groups=[number], columns=texts, use_threads=False):
                batch.validate(full=True)
                columns = {name: array_values(batch.column(name)) for name in batch.schema.names}
                tags = (tuple((tag["name"], tag["value"]) for tag in cell or ()) for cell in columns[TAGS])
                columns[TAGS] = [distinct_tags.setdefault(pair_tags, pair_tags) for pair_tags in tags]
                turns = (turn for cell in columns[CONTEXT] for turn in cell or ())
                for name, clips in ((CONTEXT, turns), (RESPONSE, columns[RESPONSE])):
                    embedded[name] += sum(clip is not None and clip["path"] is None for clip in clips)
                yield columns, file, number, row
                row += len(batch)
        for index, leaf in enumerate(leaves):
            chunks = [group.column(index) for group in groups] if leaf.endswith(".bytes") else []
            told = [c for c in chunks if c.statistics is not None and c.statistics.has_null_count]
            count = sum(chunk.num_values - chunk.statistics.null_count for chunk in told)  # by the footer
            if chunks and len(told) == len(chunks) and count != embedded[leaf.partition(".")[0]]:
                raise _clip_without_content(path)


def _clip_without_content(path: DataPath) -> DataError:
    """The error for a clip that does not have either a path or bytes. Reads the audio, one row group at a time."""
    position = 0
    with open_parquet(path, dictionaries=False) as file:
        for number in range(file.num_row_groups):
            for row in file.read_row_group(number, columns=[CONTEXT, RESPONSE], use_threads=False).to_pylist():
                position += 1
                for column, clips in ((CONTEXT, row[CONTEXT] or ()), (RESPONSE, [row[RESPONSE]])):
                    for clip in clips:
                        if (clip["path"] is None) == (clip["bytes"] is None):
                            return bad_value(place(path, position, column), clip, "either a path or bytes")
    return DataError(f"{path}: its footer counts other clips than it has; was the file changed?")
