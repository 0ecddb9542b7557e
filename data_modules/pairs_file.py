"""``pairs.parquet``, or a folder ``pairs`` of shards: written row by row, read without the audio that is in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import DataError, place
from .folders import replace_file
from .rows import OPTIONAL_PAIR_COLUMNS, PAIRS_SCHEMA, TAGS, bad_cell, check_schema, parquet_errors, read_parquet
from .storage import DataPath, RemotePath, path_version
from .stored_clips import CONTEXT, RESPONSE, StoredFile, bytes_leaf, open_parquet

PAIRS_FILE = "pairs.parquet"
SHARD_FOLDER = "pairs"
SPLITS_FILE = "splits.parquet"
"""Beside a folder of shards: ``pair_id`` and ``split`` of every row, instead of the column in the shards. To split a
dataset must not mean to write all of its audio again."""
SHARD_ROWS = 10_000
ROW_GROUP_ROWS = 128
ROW_GROUP_BYTES = 4 * 2**20
"""Of one column of audio, repeats counted: what has to be read to get at one clip."""
_ROWS_WITHOUT_AUDIO = 50_000
_BATCH_ROWS = 8_192
_SPLITS_SCHEMA = pa.schema([("pair_id", pa.string()), ("split", pa.string())])
_BYTES_LEAVES = (f"{CONTEXT}.list.element.bytes", f"{RESPONSE}.bytes")
_CLIP_FIELDS = ("path", "sha256")
_SHARD_NAME = re.compile(r"part-\d{5}\.parquet")


def shard_name(number: int) -> str:
    """Path of a shard, relative to the dataset folder; numbers start at 0."""
    return f"{SHARD_FOLDER}/part-{number:05d}.parquet"


def pairs_files(root: DataPath) -> list[DataPath]:
    """The files of a dataset that hold its pairs, in order.

    Raises:
        DataError: If there is none, both layouts are there, or a shard is missing.
    """
    single, folder = root / PAIRS_FILE, root / SHARD_FOLDER
    if not folder.is_dir():
        return [single]
    if single.is_file():
        raise DataError(f"{root}: has {PAIRS_FILE} and a folder {SHARD_FOLDER}; expected one of them")
    found = folder.files() if isinstance(folder, RemotePath) else [path.name for path in folder.iterdir()]
    names = [name for name in found if _SHARD_NAME.fullmatch(name)]
    files = [root / shard_name(number) for number in range(max(len(names), 1))]
    for file in files:
        if file.name not in names:
            raise DataError(f"{file}: no such file; the folder has {len(names)} shards")
    return files


def write_pairs(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Writes checked rows to one Parquet file, which appears complete or not at all.

    Row groups with audio are small, so that reading a clip costs little; a clip that repeats in one is stored once.

    Args:
        rows: With the fields of `PAIRS_SCHEMA`; not more of them than one row group are held at a time.
        path: Of the file.
    """

    def write(temporary: Path) -> None:
        with _writer(temporary) as writer:
            for group in _row_groups(rows):
                stored = [{**row, TAGS: [{"name": name, "value": tag} for name, tag in row[TAGS]]} for row in group]
                writer.write_table(pa.Table.from_pylist(stored, PAIRS_SCHEMA), row_group_size=len(group))

    replace_file(path, write)


def write_split_column(root: Path, splits: list[str | None]) -> None:
    """Replaces the splits of all rows, given in order; audio in shards stays where it is."""
    files = pairs_files(root)
    if files != [root / PAIRS_FILE]:
        table = pa.concat_tables([_ids(file) for file in files]).append_column("split", pa.array(splits, pa.string()))
        replace_file(root / SPLITS_FILE, lambda temporary: pq.write_table(table, temporary))
        return

    def write(temporary: Path) -> None:
        start = 0
        with parquet_errors(files[0]), pq.ParquetFile(files[0]) as old, _writer(temporary) as writer:
            for number in range(old.num_row_groups):
                group = _completed(old.read_row_group(number, use_threads=False))
                column = pa.array(splits[start : start + len(group)], pa.string())
                index = PAIRS_SCHEMA.get_field_index("split")
                writer.write_table(group.set_column(index, "split", column), row_group_size=max(len(group), 1))
                start += len(group)

    replace_file(root / PAIRS_FILE, write)


def _completed(group: pa.Table) -> pa.Table:
    """The columns in order, also those that an older file has not."""
    for name in OPTIONAL_PAIR_COLUMNS:
        if name not in group.column_names:
            group = group.append_column(name, pa.nulls(len(group), PAIRS_SCHEMA.field(name).type))
    return group.select(PAIRS_SCHEMA.names)


def read_splits(root: DataPath, files: list[DataPath]) -> Iterator[tuple[str, str | None]] | None:
    """Id and split of every row, where they do not stand in the rows themselves."""
    path = root / SPLITS_FILE
    if files == [root / PAIRS_FILE] or not path.is_file():
        return None
    table = read_parquet(path, _SPLITS_SCHEMA)
    return zip(table.column("pair_id").to_pylist(), table.column("split").to_pylist(), strict=True)


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a file.

    Attributes:
        file: The file.
        start: Position of the first row in it (from 0).
        rows: As `PAIRS_SCHEMA` has them, without bytes: a clip is ``{"path", "sha256"}``, in the context with its
            ``role``. A clip without a path is embedded. Tags are a tuple of names and values.
        groups: Row group of each row.
    """

    file: StoredFile
    start: int
    rows: list[dict[str, Any]]
    groups: list[int]


def read_pairs(path: DataPath) -> Iterator[RowBatch]:
    """Reads a file of pairs in batches; audio is not touched.

    Raises:
        DataError: If the file is missing, is not Parquet, has another schema, or a clip has not either a path or bytes.
    """
    with parquet_errors(path), open_parquet(path) as opened:
        check_schema(opened.schema_arrow, PAIRS_SCHEMA, path, OPTIONAL_PAIR_COLUMNS)
        sizes = [opened.metadata.row_group(number).num_rows for number in range(opened.num_row_groups)]
        starts = [0, *accumulate(sizes)][: len(sizes)]
        file = StoredFile(path, path_version(path), tuple(starts))
        start = 0
        known: dict[Any, Any] = {}
        embedded = [0, 0]
        audio = [bytes_leaf(opened, column) for column in (CONTEXT, RESPONSE)]
        paths = [opened.schema.column(index).path for index in range(len(opened.schema))]
        for batch in _batches(opened, [path for path in paths if path not in audio]):
            rows = _to_rows(batch, known)
            groups = np.searchsorted(starts, np.arange(start, start + len(rows)), side="right") - 1
            yield RowBatch(file, start, rows, groups.tolist())
            start += len(rows)
            for index, clips in enumerate(_clips_of(rows)):
                embedded[index] += sum(clip["path"] is None for clip in clips)
        counts = [_count_embedded(opened.metadata, paths.index(leaf)) for leaf in audio]
        if any(count not in (None, found) for count, found in zip(counts, embedded, strict=True)):
            raise _clip_without_content(opened, path)


def _row_groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    group: list[Mapping[str, Any]] = []
    filled = [0, 0]
    for row in rows:
        sizes = [sum(len(clip["bytes"] or b"") for clip in clips) for clips in _clips_of([row])]
        more = [have + size for have, size in zip(filled, sizes, strict=True)]
        full = len(group) >= (ROW_GROUP_ROWS if any(more) else _ROWS_WITHOUT_AUDIO)
        if group and (full or max(more) > ROW_GROUP_BYTES):
            yield group
            group, more = [], sizes
        group.append(row)
        filled = more
    if group:
        yield group


def _clips_of(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Clips of contexts and of responses."""
    rows = list(rows)
    return [turn for row in rows for turn in row[CONTEXT] or ()], [row[RESPONSE] for row in rows]


def _writer(path: Path) -> pq.ParquetWriter:
    # encoded audio does not get smaller
    compression: Any = dict.fromkeys(_LEAVES_WITHOUT_BYTES, "snappy") | dict.fromkeys(_BYTES_LEAVES, "none")
    return pq.ParquetWriter(path, PAIRS_SCHEMA, compression=compression, dictionary_pagesize_limit=2 * ROW_GROUP_BYTES)


def _leaves(schema: pa.Schema) -> list[str]:
    """Paths of the columns as Parquet stores them."""
    leaves = []
    for name in schema.names:
        kind = schema.field(name).type
        prefix = f"{name}.list.element" if pa.types.is_list(kind) else name
        inner = kind.value_type if pa.types.is_list(kind) else kind
        leaves += [f"{prefix}.{child.name}" for child in inner] if pa.types.is_struct(inner) else [name]
    return leaves


_LEAVES_WITHOUT_BYTES = [leaf for leaf in _leaves(PAIRS_SCHEMA) if leaf not in _BYTES_LEAVES]


def _ids(path: DataPath) -> pa.Table:
    with parquet_errors(path), open_parquet(path) as opened:
        return opened.read(columns=["pair_id"])


def _batches(file: pq.ParquetFile, leaves: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in file.iter_batches(_BATCH_ROWS, columns=leaves, use_threads=False):
        batch.validate(full=True)
        yield batch


def _to_rows(batch: pa.RecordBatch, known: dict[Any, Any]) -> list[dict[str, Any]]:
    """Rows as Python values, equal texts and tags as one object. `known` holds those seen so far."""

    def texts(column: pa.Array) -> list[Any]:
        values = column.to_numpy(zero_copy_only=False).tolist()
        return [value if value is None else known.setdefault(value, value) for value in values]

    def clips(column: pa.StructArray, fields: tuple[str, ...]) -> list[dict[str, Any] | None]:
        values = zip(*(texts(column.field(name)) for name in fields), strict=True)
        absent = column.is_null().to_numpy(zero_copy_only=False)
        return [
            None if missing else dict(zip(fields, value, strict=True))
            for missing, value in zip(absent, values, strict=True)
        ]

    def lists(column: pa.ListArray, values: list[Any]) -> list[list[Any]]:
        ends = np.cumsum(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)).tolist()
        return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    columns: dict[str, list[Any]] = {}
    for name in PAIRS_SCHEMA.names:
        if name not in batch.schema.names:
            columns[name] = [()] * len(batch)
            continue
        column = batch.column(name)
        if name == RESPONSE:
            columns[name] = clips(column, _CLIP_FIELDS)
        elif name == CONTEXT:
            columns[name] = lists(column, clips(column.flatten(), ("role", *_CLIP_FIELDS)))
        elif name == TAGS:
            inner = column.flatten()
            tags = list(zip(texts(inner.field("name")), texts(inner.field("value")), strict=True))
            columns[name] = [known.setdefault(tuple(own), tuple(own)) for own in lists(column, tags)]
        else:
            columns[name] = texts(column)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _count_embedded(metadata: pq.FileMetaData, index: int) -> int | None:
    """How many values of a column are there, by the footer; None = it does not say."""
    count = 0
    for number in range(metadata.num_row_groups):
        chunk = metadata.row_group(number).column(index)
        if chunk.statistics is None or not chunk.statistics.has_null_count:
            return None
        count += chunk.num_values - chunk.statistics.null_count
    return count


def _clip_without_content(file: pq.ParquetFile, path: DataPath) -> DataError:
    """Names the clip that has not either a path or bytes; reads the audio for it, one row group at a time."""
    start = 0
    for number in range(file.num_row_groups):
        rows = file.read_row_group(number, columns=[CONTEXT, RESPONSE], use_threads=False).to_pylist()
        for position, row in enumerate(rows, start=start + 1):
            for column, clips in zip((CONTEXT, RESPONSE), _clips_of([row]), strict=True):
                for clip in clips:
                    if (clip["path"] is None) == (clip["bytes"] is None):
                        return bad_cell(place(path, position, column), clip, "either a path or bytes")
        start += len(rows)
    return DataError(f"{path}: its footer counts other clips than it has; was the file changed?")
