"""Tables of a dataset folder: their layout in Parquet, the checks on rows of pairs, and the content hash."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from .audio import audio_hash
from .errors import DataError, Locate, bad_value, locate_in, place
from .folders import DataPath, resolve_inside
from .ratings import A_NAME, PREFERENCE_COLUMNS, RATING_COLUMNS, SECONDS, Dimension, is_name, is_text

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

# The optional text columns of pairs.parquet: names, and texts that may have line breaks.
NAME_COLUMNS = ("system_id", "context_speaker", "response_speaker", "setting", "language", "split")
TEXT_COLUMNS = ("situation", "context_text", "response_text")
TAGS = "tags"
TAG_PREFIX = "tag:"
"""Begins the name of a tag where it stands among the columns of a table: ``tag:cue``."""
Tags = tuple[tuple[str, str], ...]
"""Name and value of each tag, sorted."""
# `path` is relative to the folder; either it or `bytes` is set. `sha256` is of the encoded bytes.
_AUDIO = [("path", pa.string()), ("bytes", pa.large_binary()), ("sha256", pa.string())]
PAIRS_SCHEMA = pa.schema(
    [
        ("pair_id", pa.string()),
        ("group_id", pa.string()),
        ("context_audio", pa.list_(pa.struct([("role", pa.string()), *_AUDIO]))),
        ("response_audio", pa.struct(_AUDIO)),
        *[(name, pa.string()) for name in NAME_COLUMNS + TEXT_COLUMNS],
        # A list, not a map: Hugging Face datasets have no type for maps.
        (TAGS, pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))),
    ]
)
PAIR_COLUMNS: tuple[str, ...] = tuple(PAIRS_SCHEMA.names)
# `seconds` is optional: it stands only where times are known.
RATINGS_SCHEMA = pa.schema(
    [*((c, pa.float64() if c == "score" else pa.string()) for c in RATING_COLUMNS), (SECONDS, pa.float64())]
)
Row = TypeVar("Row", bound=Mapping[str, Any])
_LINES_AT_ONCE = 65_536
PREFERENCES_SCHEMA = pa.schema([(c, pa.float64() if c == "strength" else pa.string()) for c in PREFERENCE_COLUMNS])


def to_row(values: Mapping[Any, Any], root: Path, file: Path, number: int, hashes: dict[str, str]) -> dict[str, Any]:
    """A row of ``pairs.parquet`` from row `number` (from 1) of the table that `write_dataset` takes.

    `hashes` is path -> SHA-256 of the files in the folder `root` that were read already; it grows.

    Raises:
        DataError: If audio is neither encoded bytes nor the relative path of a file in the folder.
    """
    row = {name: None if is_missing(values.get(name)) else values[name] for name in PAIRS_SCHEMA.names}
    where = place(file, number, "context_audio")
    turns = context_turns(row["context_audio"] or None, where)
    row["context_audio"] = [{"role": turn["role"], **_to_audio(turn["audio"], root, where, hashes)} for turn in turns]
    row["response_audio"] = _to_audio(row["response_audio"], root, place(file, number, "response_audio"), hashes)
    row[TAGS] = sorted_tags(row[TAGS], place(file, number, TAGS))
    return row


def context_turns(value: Any, where: str) -> list[dict[str, Any]]:
    """The turns in a cell of context: ``{"role", "audio"}`` each; one clip is a turn of the user, None is no turn.

    Raises:
        DataError: If a turn is something else.
    """
    turns = value if isinstance(value, list | tuple) else [] if value is None else [{"role": "user", "audio": value}]
    for turn in turns:
        if not isinstance(turn, dict) or set(turn) != {"role", "audio"}:
            raise bad_value(where, turn, '{"role": ..., "audio": ...} per turn')
    return [dict(turn) for turn in turns]


def sorted_tags(value: Any, where: str) -> Tags:
    """Tags as rows have them, from a mapping or a list of ``{"name", "value"}``; without those that have no value.

    A tuple is taken for a result of this function and returned as it is.

    Raises:
        DataError: If it is neither, or a name is no text.
    """
    if value is None or isinstance(value, tuple):
        return value or ()
    items: list[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | np.ndarray) and all(isinstance(tag, Mapping) for tag in value):
        items = [(tag.get("name"), tag.get("value")) for tag in value]
    if items is None or not all(isinstance(name, str) for name, _ in items):
        raise bad_value(where, value, "text as value for each name")
    return tuple(sorted(((name, tag) for name, tag in items if not is_missing(tag)), key=lambda tag: tag[0]))


def _to_audio(cell: Any, root: Path, where: str, hashes: dict[str, str]) -> dict[str, Any]:
    if isinstance(cell, bytes) and cell:
        return {"path": None, "bytes": cell, "sha256": audio_hash(cell)}
    if isinstance(cell, str) and cell:
        if cell not in hashes:
            hashes[cell] = audio_hash(resolve_inside(root.resolve(), cell, where))
        return {"path": cell, "bytes": None, "sha256": hashes[cell]}
    raise bad_value(where, cell, "a relative path or encoded bytes")


def is_missing(value: Any) -> bool:
    """Whether a cell of a table holds nothing: None, NaN, or what pandas writes for it."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def checked_pairs(
    rows: Iterable[Row],
    file: str | DataPath,
    locate: Locate | None = None,
    *,
    grouped: bool = True,
    tag_columns: Collection[str] = (),
) -> Iterator[Row]:
    """The same rows, after a check of their texts; audio is not checked.

    Rows have the columns of ``pairs.parquet``; of ``context_audio`` the roles count here. `file` is what messages call
    the table, `locate` what they call a cell, where it came from another layout; `grouped`: every pair has a group;
    `tag_columns`: the tags, such as ``tag:cue``, that have a column of their own there.

    Raises:
        DataError: On an empty table, a missing, empty or repeated ``pair_id``, or a text that is none.
    """
    locate = locate or locate_in(file)
    first_positions: dict[str, int] = {}
    known_name = lru_cache(maxsize=None)(is_name)  # most columns repeat a few values
    tags: Tags = ()  # those of the row before, which are often the same object
    columns = ("pair_id", "group_id", *NAME_COLUMNS)
    optional = NAME_COLUMNS if grouped else columns[1:]

    for position, row in enumerate(rows):
        for column in columns:
            value = row[column]
            if not (isinstance(value, str) and known_name(value)) and not (value is None and column in optional):
                raise bad_value(locate(position, column), value, A_NAME)
        for column in TEXT_COLUMNS:
            if row[column] is not None and not (is_text(row[column]) and row[column]):
                raise bad_value(locate(position, column), row[column], "text, not empty")
        if row[TAGS] is not tags:
            tags = row[TAGS]
            for name, value in tags:
                if not known_name(name):
                    raise bad_value(locate(position, TAGS), name, f"{A_NAME}, as name of a tag")
                if not (isinstance(value, str) and known_name(value)):
                    column = f"{TAG_PREFIX}{name}"
                    raise bad_value(locate(position, column if column in tag_columns else TAGS), value, A_NAME)
            tag_names = [name for name, _ in tags]
            if sorted(set(tag_names)) != tag_names:
                raise bad_value(locate(position, TAGS), tag_names, "each name once, sorted")
        for turn in row["context_audio"] or ():
            if turn is None or not is_name(turn["role"]):
                raise bad_value(locate(position, "context_audio"), turn, "a clip with a role such as 'user'")
        earlier = first_positions.setdefault(row["pair_id"], position)
        if earlier != position:
            expected = f"each id once; it stands at {locate(earlier, 'pair_id')} already"
            raise bad_value(locate(position, "pair_id"), row["pair_id"], expected)
        yield row
    if not first_positions:
        raise DataError(f"{file}: the table holds no pairs")


def ratings_schema(ratings: pd.DataFrame) -> pa.Schema:
    """How checked ratings are stored: without `SECONDS` where no time is known."""
    timed = SECONDS in ratings and ratings[SECONDS].notna().to_numpy(bool).any()
    return RATINGS_SCHEMA if timed else pa.schema([RATINGS_SCHEMA.field(name) for name in RATING_COLUMNS])


def to_arrow(table: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """Checked ratings or preferences as they are stored."""
    return pa.Table.from_pandas(table[schema.names], schema, preserve_index=False).replace_schema_metadata(None)


def hash_order(pair_id: str) -> str:
    """Sort key of pairs, in the order of their lines in `content_hash`: a line begins with it."""
    return json.dumps(pair_id)


def content_hash(
    dimensions: Sequence[Dimension],
    rows: Iterable[Mapping[str, Any]],
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None,
) -> str:
    """SHA-256 (hex) over scales, pairs without their split, ratings and preferences, whatever the order of rows.

    Audio counts by its content, not by its name or by how it is stored, and `SECONDS` where a time is known. Rows are
    the pairs as they are stored, sorted by `hash_order`, so that none need be kept; the tables are checked.
    """
    scales = [
        [d.name, float(d.minimum), float(d.maximum), d.step and float(d.step), d.higher_is_better] for d in dimensions
    ]
    digest = hashlib.sha256(json.dumps(scales).encode())
    columns = [name for name in ("pair_id", "group_id", *NAME_COLUMNS, *TEXT_COLUMNS) if name != "split"]
    previous_line = ""
    for row in rows:
        turns = row["context_audio"] or ()
        hashes = [clip["sha256"] for clip in (*turns, row["response_audio"])]
        tags = [row[TAGS]] if row[TAGS] else []
        line = json.dumps([*(row[name] for name in columns), [turn["role"] for turn in turns], hashes, *tags])
        if line < previous_line:
            raise ValueError("content_hash: the pairs are not sorted")
        digest.update(line.encode() + b"\n")
        previous_line = line
    digest.update(b"\n")
    compared = [] if preferences is None else [(preferences, PREFERENCES_SCHEMA)]
    for table, schema in [(ratings, ratings_schema(ratings)), *compared]:
        for batch in _sorted_lines(table, schema):
            digest.update(batch)
        digest.update(b"\n")
    return digest.hexdigest()


def _sorted_lines(table: pd.DataFrame, schema: pa.Schema) -> Iterator[bytes]:
    """Each row as a JSON list, sorted, each with a line break after it, in batches.

    In Arrow, because the ratings of many raters would fill the memory as Python objects. JSON is ASCII, so that bytes
    sort as text does. No two rows have the same texts, which come first: numbers do not matter to the order.
    """
    import pyarrow.compute as pc

    cells: list[Any] = [
        _encoded(table[field.name]) if field.type == pa.string() else _floats(table[field.name]) for field in schema
    ]
    lines = pc.call_function("binary_join_element_wise", [*cells, pa.scalar(", ", pa.large_string())])
    order = pc.call_function("array_sort_indices", [lines])
    for start in range(0, len(order), _LINES_AT_ONCE):
        part = lines.take(order[start : start + _LINES_AT_ONCE]).to_pylist()
        yield "".join(f"[{line}]\n" for line in part).encode()


def _encoded(values: Any) -> pa.LargeStringArray:
    """Each text as JSON spells it; equal ones are spelled once."""
    import pandas as pd

    codes, distinct = pd.factorize(values)
    spelled = pa.array([json.dumps(value) for value in distinct], pa.large_string())
    return spelled.take(pa.array(codes))


def _floats(values: Any) -> pa.LargeStringArray:
    """Each number as JSON spells it, so that no two differ only in rounding; NaN as ``null``."""
    bits, codes = np.unique(values.to_numpy(np.float64, na_value=np.nan).view(np.int64), return_inverse=True)
    spelled = ["null" if math.isnan(value) else repr(value) for value in bits.view(np.float64).tolist()]
    return pa.array(spelled, pa.large_string()).take(pa.array(codes))
