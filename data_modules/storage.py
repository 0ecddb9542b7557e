"""The tables of a dataset folder: their layout, the checks on columns of pairs, and the content hash."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..audio.stored_clips import CONTEXT, RESPONSE, StoredFile
from ..core.errors import DataError, Locate, bad_value, counted, place, system_errors
from ..core.files import DataPath, RemotePath, data_path, path_version
from ..core.parquet import open_parquet, parquet_errors
from .ratings import A_NAME, NAME, OPTIONAL_COLUMNS, PREFERENCE_COLUMNS, RATING_COLUMNS, is_name
from .steps import as_written

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

PAIRS_FILE = "pairs.parquet"
SHARD_FOLDER = "pairs"
SPLITS_FILE = "splits.parquet"
"""Beside a folder of shards: ``pair_id`` and ``split`` of every row, instead of the column in the shards, so that
splitting a dataset does not rewrite its audio."""
RATINGS_FILE = "ratings.parquet"
PREFERENCES_FILE = "preferences.parquet"

# The optional text columns of pairs.parquet: names, and texts that may have line breaks
NAME_COLUMNS = ("system_id", "context_speaker", "response_speaker", "setting", "language", "split")
TEXT_COLUMNS = ("situation", "context_text", "response_text")
TAGS = "tags"
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
TEXTS = ("pair_id", "group_id", *NAME_COLUMNS, *TEXT_COLUMNS, TAGS)
Tags = tuple[tuple[str, str], ...]
"""Name and value of each tag, sorted."""
SPLITS_SCHEMA = pa.schema([("pair_id", pa.string()), ("split", pa.string())])
# The last ones are optional: they stand only where something is known.
RATINGS_SCHEMA = pa.schema(
    [
        *((c, pa.float64() if c == "score" else pa.string()) for c in RATING_COLUMNS),
        *((c, pa.float64()) for c in OPTIONAL_COLUMNS),
    ]
)
PREFERENCES_SCHEMA = pa.schema([(c, pa.float64() if c == "strength" else pa.string()) for c in PREFERENCE_COLUMNS])

# Large enough that calls of pyarrow do not show in the time (200,000 pairs in 5 s)
_BATCH_ROWS = 4_096
_TEXT = re.compile(r"[^\ud800-\udfff]+")  # UTF-8 holds no half of a surrogate pair
_SHARD_NAME = re.compile(r"part-\d{5}\.parquet")


def ratings_schema(ratings: pd.DataFrame) -> pa.Schema:
    """How checked ratings are stored: without the `OPTIONAL_COLUMNS` of which nothing is known."""
    known = [name for name in OPTIONAL_COLUMNS if name in ratings and ratings[name].notna().to_numpy(bool).any()]
    return pa.schema([RATINGS_SCHEMA.field(name) for name in (*RATING_COLUMNS, *known)])


@dataclass(frozen=True)
class Unreadable:
    """Stands for a value that Python cannot hold, such as a date in the year 300,000. It is no text and no number."""

    value: str

    def __repr__(self) -> str:
        return f"<{self.value}>"


def array_values(array: Any, in_list: bool = False) -> list[Any]:
    """The values of an Arrow array as Python has them, or `Unreadable`; equal texts of a dictionary are one object.

    Numbers of float32 or float16 are those that were written: 1.1, which Python would make 1.100000023841858. Those in
    lists stay as they are: samples of audio are float32, and are read as that again.
    """
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        # Only those that occur: a part of four rows may have the dictionary of a million.
        used = array.indices.unique()
        texts = dict(zip(used.to_pylist(), array.dictionary.take(used).to_pylist(), strict=True))
        return [texts[index] for index in array.indices.to_pylist()]
    # Structures and lists are taken apart: `to_pylist` takes five times as long for them.
    if types.is_struct(kind) and kind.num_fields:
        names, parts = [field.name for field in kind], map(array_values, array.flatten())
        rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
    elif types.is_list(kind) or types.is_large_list(kind):
        items = array_values(array.flatten(), in_list=True)
        ends = array.value_lengths().fill_null(0).to_numpy().cumsum().tolist()
        rows = [items[start:end] for start, end in pairwise([0, *ends])]
    elif not in_list and (types.is_float32(kind) or types.is_float16(kind)):
        rows = as_written(array.fill_null(np.nan).to_numpy(zero_copy_only=False)).tolist()
    else:
        try:
            return array.to_pylist()
        except (ValueError, OverflowError, pa.ArrowInvalid):
            return [_python_value(cell) for cell in array]
    if array.null_count:
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    return rows


def _python_value(cell: pa.Scalar[Any]) -> Any:
    try:
        return cell.as_py()
    except (ValueError, OverflowError, pa.ArrowInvalid) as error:
        return Unreadable(f"{cell.type} that cannot be represented: {error}")


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
        footer, leaves = opened.metadata, [column.path for column in opened.metadata.schema]
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        sizes = [group.num_rows for group in groups]
        file = StoredFile(path, path_version(path), (0, *accumulate(sizes))[: len(sizes)])
        texts = [leaf for leaf in leaves if not leaf.endswith(".bytes")]
        embedded: dict[str, int] = {CONTEXT: 0, RESPONSE: 0}
        distinct_tags: dict[Any, Any] = {}
        # A batch never spans two row groups: pyarrow cannot join dictionaries inside lists.
        for number in range(len(groups)):
            row = 0
            for batch in opened.iter_batches(_BATCH_ROWS, row_groups=[number], columns=texts, use_threads=False):
                # pyarrow trusts offsets in a file: a damaged one would end the process with a segmentation fault
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
            chunks = [group.column(index).statistics for group in groups] if leaf.endswith(".bytes") else []
            if chunks and all(chunk is not None and chunk.has_null_count for chunk in chunks):
                # By the footer, which other writers may leave out: then a clip without content shows when it is read
                count = sum(
                    group.column(index).num_values - group.column(index).statistics.null_count for group in groups
                )
                if count != embedded[leaf.partition(".")[0]]:
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


def column_fault(
    columns: Mapping[str, Sequence[Any]],
    positions: dict[str, int],
    locate: Locate,
    *,
    grouped: bool = True,
    tag_columns: Collection[str] = (),
) -> tuple[int, DataError] | None:
    """Checks the next rows of a table of pairs, given as columns: texts, roles, and responses where they are given.

    Args:
        columns: Those of ``pairs.parquet``, without the audio.
        positions: Pair id -> position of its row, from 0, for all rows before; those of these rows are added.
        locate: What messages call a cell.
        grouped: Every pair has a group.
        tag_columns: The tags, such as ``tag:cue``, that have a column of their own where the table came from.

    Returns:
        The first bad row, from 0 among these, and what is wrong with it: a missing, empty or repeated ``pair_id``, or a
        text that is none. None = all are good.
    """
    start, names = len(positions), ("pair_id", "group_id", *NAME_COLUMNS)
    faults: list[tuple[int, str, object, str]] = []  # the first row of each kind: row, column, value, what is expected
    for column in (*names, *TEXT_COLUMNS):
        pattern, expected = (NAME, A_NAME) if column in names else (_TEXT, "text, not empty")
        values, none_is_good = columns[column], column not in names[: 1 + grouped]
        # Each distinct text once: a column of a million rows has few of them
        good = {value for value in {v for v in values if isinstance(v, str)} if pattern.fullmatch(value)}
        are_bad = (
            (row, column, value, expected)
            for row, value in enumerate(values)
            if not (value in good if isinstance(value, str) else value is None and none_is_good)
        )
        faults += islice(are_bad, 1)
    # By identity: `pair_columns` makes one object of equal tags, and most data sets have few of them.
    seen: set[int] = set()
    for row, tags in enumerate(columns[TAGS]):
        if tags and id(tags) not in seen:
            seen.add(id(tags))
            are_names = [isinstance(text, str) and NAME.fullmatch(text) for tag in tags for text in tag]
            if not all(are_names) or any(one >= other for (one, _), (other, _) in pairwise(tags)):
                faults.append((row, *_tag_fault(tags, tag_columns)))
                break
    roles = (
        (row, CONTEXT, turn, "a clip with a role such as 'user'")
        for row, turns in enumerate(columns[CONTEXT])
        for turn in turns or ()
        if turn is None or not (isinstance(turn["role"], str) and NAME.fullmatch(turn["role"]))
    )
    faults += islice(roles, 1)
    if None in (responses := columns.get(RESPONSE, ())):
        faults.append((responses.index(None), RESPONSE, None, "either a path or bytes"))
    first = min(faults, key=lambda fault: fault[0], default=None)
    for row, pair_id in enumerate(columns["pair_id"][: first and first[0]], start):
        if (earlier := positions.setdefault(pair_id, row)) != row:
            expected = f"each id once; it stands at {locate(earlier, 'pair_id')} already"
            return row - start, bad_value(locate(row, "pair_id"), pair_id, expected)
    if first is None:
        return None
    row, column, value, expected = first
    return row, bad_value(locate(start + row, column), value, expected)


def _tag_fault(tags: Tags, tag_columns: Collection[str]) -> tuple[str, object, str]:
    """What is wrong with tags: the column, what it holds and what is expected."""
    for name, value in tags:
        if not is_name(name):
            return TAGS, name, f"{A_NAME}, as name of a tag"
        if not is_name(value):
            column = f"{TAG_PREFIX}{name}"
            return column if column in tag_columns else TAGS, value, A_NAME
    return TAGS, [name for name, _ in tags], "each name once, sorted"


def split_names(folder: str | Path | RemotePath) -> set[str | None]:
    """The splits of a dataset folder, of which nothing else is read or checked; None = that of pairs without one.

    Raises:
        DataError: If there are no such tables.
    """
    root = data_path(folder)
    with system_errors(root, "read"):
        files = pairs_files(root)
        apart = files != [root / PAIRS_FILE] and (root / SPLITS_FILE).is_file()
        names: set[str | None] = set()
        for path in [root / SPLITS_FILE] if apart else files:
            with parquet_errors(path), open_parquet(path) as file:
                names.update(file.read(["split"])["split"].unique().to_pylist())
        return names
