"""Tables of a dataset folder: their layout in Parquet, the checks on rows of pairs, and the content hash."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .audio import audio_hash
from .errors import DataError, Locate, locate_in, place, shown
from .folders import replace_file, resolve_inside
from .ratings import PREFERENCE_COLUMNS, RATING_COLUMNS, Dimension, is_name

# The optional text columns of pairs.parquet: names, and texts that may have line breaks.
NAME_COLUMNS = ("system_id", "context_speaker", "response_speaker", "setting", "language", "split")
TEXT_COLUMNS = ("situation", "context_text", "response_text")
# `path` is relative to the folder; either it or `bytes` is set. `sha256` is of the encoded bytes.
_AUDIO = [("path", pa.string()), ("bytes", pa.large_binary()), ("sha256", pa.string())]
PAIRS_SCHEMA = pa.schema(
    [
        ("pair_id", pa.string()),
        ("group_id", pa.string()),
        ("context_audio", pa.list_(pa.struct([("role", pa.string()), *_AUDIO]))),
        ("response_audio", pa.struct(_AUDIO)),
        *[(name, pa.string()) for name in NAME_COLUMNS + TEXT_COLUMNS],
    ]
)
PAIR_COLUMNS: tuple[str, ...] = tuple(PAIRS_SCHEMA.names)
RATINGS_SCHEMA = pa.schema([(c, pa.float64() if c == "score" else pa.string()) for c in RATING_COLUMNS])
PREFERENCES_SCHEMA = pa.schema([(c, pa.float64() if c == "strength" else pa.string()) for c in PREFERENCE_COLUMNS])


def read_parquet(path: Path, schema: pa.Schema) -> pa.Table:
    """A table of the folder, its columns in the order of `schema`.

    Raises:
        DataError: If the file is missing, is not Parquet, or has other columns or types.
    """
    try:
        with pq.ParquetFile(path) as file:  # pq.read_table would also read columns out of folder names
            table = file.read()
        table.validate(full=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as Parquet ({error})") from None
    for expected in schema:
        found = [field.type for field in table.schema if field.name == expected.name]
        if found != [expected.type]:
            what = f"has type {found[0]}" if found else "is missing"
            raise DataError(f"{place(path, column=expected.name)} {what}; accepted: {expected.type}")
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise DataError(f"{path}: unknown column {shown(unknown[0])}; accepted: {', '.join(schema.names)}")
    return table.select(schema.names)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Replaces the file at once."""
    replace_file(path, lambda temporary: pq.write_table(table, temporary))


def to_row(values: Mapping[Any, Any], root: Path, file: Path, number: int) -> dict[str, Any]:
    """A row of ``pairs.parquet`` from a row of the table that `write_dataset` takes.

    Args:
        values: The caller's row.
        root: The dataset folder.
        file: What messages call the table.
        number: Row, counted from 1.

    Raises:
        DataError: If audio is neither encoded bytes nor the relative path of a file in the folder.
    """
    row = {name: None if _is_absent(values.get(name)) else values[name] for name in PAIRS_SCHEMA.names}
    context = row["context_audio"] or []
    if not isinstance(context, list | tuple):
        context = [{"role": "user", "audio": context}]
    where = place(file, number, "context_audio")
    for turn in context:
        if not isinstance(turn, dict) or set(turn) != {"role", "audio"}:
            raise DataError(f"{where}: value {shown(turn)}; accepted: {{role, audio}}")
    row["context_audio"] = [{"role": turn["role"], **_to_audio(turn["audio"], root, where)} for turn in context]
    row["response_audio"] = _to_audio(row["response_audio"], root, place(file, number, "response_audio"))
    return row


def _to_audio(cell: Any, root: Path, where: str) -> dict[str, Any]:
    if isinstance(cell, bytes) and cell:
        return {"path": None, "bytes": cell, "sha256": audio_hash(cell)}
    if isinstance(cell, str) and cell:
        return {
            "path": cell,
            "bytes": None,
            "sha256": audio_hash(resolve_inside(root.resolve(), cell, where)),
        }
    raise DataError(f"{where}: value {shown(cell)}; accepted: a relative path or encoded bytes")


def _is_absent(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def check_pair_rows(rows: Sequence[Mapping[str, Any]], file: str | Path, locate: Locate | None = None) -> None:
    """Checks the texts of pairs, whatever their audio.

    Args:
        rows: One mapping per pair with the columns of ``pairs.parquet``; of ``context_audio`` the roles count
            here.
        file: What messages call the table.
        locate: What messages call a cell, where the table came from another layout.

    Raises:
        DataError: On an empty table, a missing, empty or repeated ``pair_id``, or a text that is none.
    """
    locate = locate or locate_in(file)
    if not rows:
        raise DataError(f"{file}: the table holds no pairs")
    first: dict[str, int] = {}
    for position, row in enumerate(rows):
        for column in ("pair_id", "group_id", *NAME_COLUMNS):
            if not is_name(row[column]) and (row[column] is not None or column not in NAME_COLUMNS):
                raise bad_cell(locate(position, column), row[column], "text without line breaks, not empty")
        for column in TEXT_COLUMNS:
            if row[column] is not None and not _is_text(row[column]):
                raise bad_cell(locate(position, column), row[column], "text, not empty")
        for turn in row["context_audio"] or ():
            if turn is None or not is_name(turn["role"]):
                raise bad_cell(locate(position, "context_audio"), turn, "a clip with a role such as 'user'")
        known = first.setdefault(row["pair_id"], position)
        if known != position:
            where = locate(known, "pair_id")
            raise bad_cell(locate(position, "pair_id"), row["pair_id"], f"each id once; it stands at {where} already")


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        return False


def bad_cell(where: str, value: object, accepted: str) -> DataError:
    """The error for one cell; `where` is the head of the message."""
    return DataError(f"{where}: value {shown(value)}; accepted: {accepted}")


def to_arrow(table: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """Checked ratings or preferences as they are stored."""
    return pa.Table.from_pandas(table[schema.names], schema, preserve_index=False).replace_schema_metadata(None)


def fingerprints(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Pair id -> SHA-256 of the clip of each context turn, then of the response."""
    return {
        row["pair_id"]: tuple(clip["sha256"] for clip in [*(row["context_audio"] or ()), row["response_audio"]])
        for row in rows
    }


def content_hash(
    dimensions: Sequence[Dimension],
    rows: Sequence[Mapping[str, Any]],
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None,
) -> str:
    """SHA-256 (hex) over scales, pairs without their split, ratings and preferences, whatever the order of
    rows.

    Audio counts by its content, not by its name or by how it is stored.
    """
    audio = fingerprints(rows)
    columns = [name for name in ("pair_id", "group_id", *NAME_COLUMNS, *TEXT_COLUMNS) if name != "split"]
    lines = [
        [
            *(row[name] for name in columns),
            [turn["role"] for turn in row["context_audio"] or ()],
            audio[row["pair_id"]],
        ]
        for row in rows
    ]
    tables = [lines, _opinion_lines(ratings, RATING_COLUMNS)]
    if preferences is not None:
        tables.append(_opinion_lines(preferences, PREFERENCE_COLUMNS))
    scales = [
        [d.name, float(d.minimum), float(d.maximum), d.step and float(d.step), d.higher_is_better] for d in dimensions
    ]
    digest = hashlib.sha256(json.dumps(scales).encode())
    for table in tables:
        for line in sorted(json.dumps(line) for line in table):
            digest.update(line.encode() + b"\n")
        digest.update(b"\n")
    return digest.hexdigest()


def _opinion_lines(table: pd.DataFrame, columns: Sequence[str]) -> list[list[Any]]:
    """Rows as lists; numbers as float, so that 3 and 3.0 are the same."""
    return [[*texts, float(number)] for *texts, number in zip(*(table[column] for column in columns), strict=True)]
