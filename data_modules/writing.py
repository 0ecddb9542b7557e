"""Writes a dataset folder: rows of pairs, which are checked, their files, and what belongs to them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ..audio.decode import audio_hash
from ..audio.stored_clips import CONTEXT, RESPONSE
from ..core.errors import DataError, Locate, bad_value, locate_in, place, shown
from ..core.files import CARD_FILE, DataPath, RemotePath, data_path, replace_file, replace_text, resolve_inside
from ..core.parquet import open_parquet, parquet_errors  # fmt: skip
from .ratings import check_preferences, check_ratings
from .schema import HASHED_COLUMNS, SCHEMA_VERSION, DatasetCard, content_hash, hash_order
from .storage import (
    PAIR_COLUMNS,
    PAIRS_FILE,
    PAIRS_SCHEMA,
    PREFERENCES_FILE,
    PREFERENCES_SCHEMA,
    RATINGS_FILE,
    SPLITS_FILE,
    SPLITS_SCHEMA,
    TAGS,
    TEXT_COLUMNS,
    TEXTS,
    Tags,
    column_fault,
    pairs_files,
    ratings_schema,
)

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

SHARD_ROWS = 10_000
ROW_GROUP_ROWS = 128
ROW_GROUP_BYTES = 4 * 2**20
"""Limit for one column of audio, repeats counted: this much is read to get at one clip."""
_ROWS_WITHOUT_AUDIO = 50_000
_TEXT_SHARE = 16  # a row group may hold so much more text than audio: it is read once
_ROWS_AT_ONCE = 1_024
_BYTES_LEAVES = (f"{CONTEXT}.list.element.bytes", f"{RESPONSE}.bytes")
_LEAVES_WITHOUT_BYTES = (
    *(f"{CONTEXT}.list.element.{name}" for name in ("role", "path", "sha256")),
    *(f"{RESPONSE}.{name}" for name in ("path", "sha256")),
    *(f"{TAGS}.list.element.{name}" for name in ("name", "value")),
    *(name for name in PAIR_COLUMNS if name not in (CONTEXT, RESPONSE, TAGS)),
)
Row = TypeVar("Row", bound=Mapping[str, Any])


def write_dataset(
    folder: str | Path,
    card: DatasetCard,
    pairs: pd.DataFrame,
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None = None,
) -> DatasetCard:
    """Checks the tables, then writes them; each file appears complete or not at all, ``dataset.yaml`` last.

    To make a whole folder appear at once, audio included, write inside `staged_folder`.

    Args:
        folder: Made if it does not exist; audio that is given as a path lies in it already.
        card: Its `content_hash` is ignored.
        pairs: Columns ``pair_id``, ``group_id``, ``response_audio`` and any other of `Pair`, with
            ``context_audio`` for its context. Audio is a path relative to `folder` (str) or encoded bytes.
            ``context_audio`` is one clip (role ``user``), a list of ``{"role", "audio"}``, or None; ``tags`` is a
            mapping. None or NaN = absent.
        ratings: Columns `RATING_COLUMNS`, and those of `OPTIONAL_COLUMNS` of which something is known.
        preferences: Columns `PREFERENCE_COLUMNS`.

    Returns:
        The card with its content hash.

    Raises:
        DataError: If the tables break the contract; nothing is written then.
    """
    root = Path(folder)
    file = root / PAIRS_FILE
    unknown = [name for name in pairs.columns if name not in PAIR_COLUMNS]
    if unknown:
        raise DataError(f"{file}: unknown column {shown(unknown[0])}; expected {', '.join(PAIR_COLUMNS)}")
    hashes: dict[str, str] = {}
    records = enumerate(pairs.to_dict("records"), start=1)
    rows = list(checked_pairs([to_row(values, root, file, n, hashes) for n, values in records], file))
    ids = [row["pair_id"] for row in rows]
    ratings = check_ratings(ratings, ids, card.dimensions, root / RATINGS_FILE)
    if preferences is not None:
        preferences = check_preferences(preferences, ids, card.dimensions, root / PREFERENCES_FILE)
    root.mkdir(parents=True, exist_ok=True)
    write_pairs(rows, file)
    # The content hash must not depend on the order of the rows in the table
    rows.sort(key=lambda row: hash_order(row["pair_id"]))
    return complete_dataset(root, card, hashed_rows(rows), ratings, preferences)


def complete_dataset(
    root: Path,
    card: DatasetCard,
    pairs: Iterable[Sequence[Any]],
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None,
) -> DatasetCard:
    """Writes what belongs to pairs that were written before: ratings, preferences, and ``dataset.yaml`` last.

    All is checked already, as by `write_dataset`; `pairs` are what `content_hash` takes. Returns the card
    with its content hash.
    """
    card = dataclasses.replace(card, content_hash=content_hash(card.dimensions, pairs, ratings, preferences))
    write_parquet(to_arrow(ratings, ratings_schema(ratings)), root / RATINGS_FILE)
    if preferences is not None:
        write_parquet(to_arrow(preferences, PREFERENCES_SCHEMA), root / PREFERENCES_FILE)
    else:
        # Those of an earlier data set in this folder
        (root / PREFERENCES_FILE).unlink(missing_ok=True)
    values = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(card)}
    values["dimensions"] = list(values["dimensions"])
    # Last: a folder without its card is no data set, whatever a kill has left in it
    replace_text(root / CARD_FILE, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    return card


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
    # `NAType` by its name: pandas is not imported here
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

    Rows have the columns of ``pairs.parquet``. `file` is what messages call the table, `locate` what they call a cell,
    where it came from another layout; for the rest see `column_fault`.

    Raises:
        DataError: On the first bad row, and on an empty table.
    """
    positions: dict[str, int] = {}
    remaining = iter(rows)
    while part := list(islice(remaining, _ROWS_AT_ONCE)):
        columns = {name: [row[name] for row in part] for name in (*TEXTS, CONTEXT)}
        where = locate or locate_in(file)
        fault = column_fault(columns, positions, where, grouped=grouped, tag_columns=tag_columns)
        yield from part[: fault and fault[0]]
        if fault is not None:
            raise fault[1]
    if not positions:
        raise DataError(f"{file}: the table holds no pairs")


def hashed_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The lines that `content_hash` takes, of rows as they are stored, sorted by `hash_order`; bytes do not count."""
    for row in rows:
        turns, tags = row[CONTEXT] or (), [row[TAGS]] if row[TAGS] else []
        hashes = [clip["sha256"] for clip in (*turns, row[RESPONSE])]
        yield [*(row[name] for name in HASHED_COLUMNS), [turn["role"] for turn in turns], hashes, *tags]


def write_pairs(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Writes checked rows to one Parquet file, which appears complete or not at all.

    Row groups with audio are small, so that reading a clip costs little; a clip that repeats in one is stored once. Not
    more rows (fields of `PAIRS_SCHEMA`) than one row group are held at a time.
    """

    def write(temporary: Path) -> None:
        with _writer(temporary) as writer:
            for group in _row_groups(rows):
                stored = [{**row, TAGS: [{"name": name, "value": tag} for name, tag in row[TAGS]]} for row in group]
                writer.write_table(pa.Table.from_pylist(stored, PAIRS_SCHEMA), row_group_size=len(group))

    replace_file(path, write)


def _writer(path: Path) -> pq.ParquetWriter:
    # encoded audio does not get smaller
    compression: Any = dict.fromkeys(_LEAVES_WITHOUT_BYTES, "snappy") | dict.fromkeys(_BYTES_LEAVES, "none")
    return pq.ParquetWriter(path, PAIRS_SCHEMA, compression=compression, dictionary_pagesize_limit=2 * ROW_GROUP_BYTES)


def _row_groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    group: list[Mapping[str, Any]] = []
    group_sizes = [0, 0, 0]
    for row in rows:
        sizes = [sum(len(clip["bytes"] or b"") for clip in clips) for clips in (row[CONTEXT] or (), [row[RESPONSE]])]
        sizes.append(sum(len(row[name] or "") for name in TEXT_COLUMNS) // _TEXT_SHARE)
        new_sizes = [group_size + size for group_size, size in zip(group_sizes, sizes, strict=True)]
        # Without bytes no clip is read from this file, and its groups may be large
        is_full = len(group) >= (ROW_GROUP_ROWS if any(new_sizes[:2]) else _ROWS_WITHOUT_AUDIO)
        # A row group is what is read to get at one clip; see `stored_clips`.
        if group and (is_full or max(new_sizes) > ROW_GROUP_BYTES):
            yield group
            group, new_sizes = [], sizes
        group.append(row)
        group_sizes = new_sizes
    if group:
        yield group


def write_splits(folder: str | Path | RemotePath, splits: Sequence[str | None]) -> None:
    """Replaces the splits of all pairs; the content hash does not cover them.

    They stand, one per pair, in order, in the column ``split`` of ``pairs.parquet``, or, where the pairs are in shards,
    in ``splits.parquet``: audio in shards stays where it is.

    Raises:
        DataError: If the folder is remote.
    """
    root = data_path(folder)
    if isinstance(root, RemotePath):
        raise DataError(f"{root}: splits are not written to an address; expected a local copy of the folder")
    files = pairs_files(root)
    if files != [root / PAIRS_FILE]:
        ids: list[str] = []
        for file in files:
            with parquet_errors(file), open_parquet(file, dictionaries=False) as opened:
                ids += opened.read(columns=["pair_id"]).column(0).to_pylist()
        write_parquet(pa.table({"pair_id": ids, "split": splits}, SPLITS_SCHEMA), root / SPLITS_FILE)
        return

    def write(temporary: Path) -> None:
        start = 0
        with open_parquet(files[0], whole=True, dictionaries=False) as source, _writer(temporary) as writer:
            for number in range(source.num_row_groups):
                # One at a time: a file with audio does not fit into memory
                group = source.read_row_group(number, use_threads=False)
                size, columns = len(group), dict(zip(group.column_names, group.columns, strict=True))
                columns["split"] = pa.array(splits[start : start + size], pa.string())
                whole = [columns.get(field.name, pa.nulls(size, field.type)) for field in PAIRS_SCHEMA]
                writer.write_table(pa.table(whole, PAIRS_SCHEMA), row_group_size=max(size, 1))
                start += size

    replace_file(root / PAIRS_FILE, write)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Replaces the file at once."""
    replace_file(path, lambda temporary: pq.write_table(table, temporary))


def to_arrow(table: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """Checked ratings or preferences as they are stored."""
    return pa.Table.from_pandas(table[schema.names], schema, preserve_index=False).replace_schema_metadata(None)
