"""A pair as everything else sees it, and the files of pairs: ``pairs.parquet``, or a folder ``pairs`` of shards.

Files are written row by row and read without the audio that is in them.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .audio import AudioSource
from .errors import DataError, Locate, bad_value, counted, place
from .folders import DataPath, RemotePath, data_path, path_version, replace_file, resolve_inside, resolve_remote
from .parquet import batches, open_parquet, parquet_errors, python_values, read_parquet, write_parquet
from .ratings import is_name
from .rows import NAME_COLUMNS, PAIRS_SCHEMA, TAGS, TEXT_COLUMNS, Tags, checked_pairs, hash_order
from .stored_clips import CONTEXT, RESPONSE, StoredClip, StoredFile, bytes_leaf

PAIRS_FILE = "pairs.parquet"
SHARD_FOLDER = "pairs"
SPLITS_FILE = "splits.parquet"
"""Beside a folder of shards: ``pair_id`` and ``split`` of every row, instead of the column in the shards, so that
splitting a dataset does not rewrite its audio."""
SHARD_ROWS = 10_000
ROW_GROUP_ROWS = 128
ROW_GROUP_BYTES = 4 * 2**20
"""Limit for one column of audio, repeats counted: this much is read to get at one clip."""
_ROWS_WITHOUT_AUDIO = 50_000
_TEXT_SHARE = 16  # a row group may hold so much more text than audio: it is read once
_BATCH_ROWS = 8_192
_SPLITS_SCHEMA = pa.schema([("pair_id", pa.string()), ("split", pa.string())])
_BYTES_LEAVES = (f"{CONTEXT}.list.element.bytes", f"{RESPONSE}.bytes")
_LEAVES_WITHOUT_BYTES = (
    *(f"{CONTEXT}.list.element.{name}" for name in ("role", "path", "sha256")),
    *(f"{RESPONSE}.{name}" for name in ("path", "sha256")),
    *(f"{TAGS}.list.element.{name}" for name in ("name", "value")),
    *("pair_id", "group_id", *NAME_COLUMNS, *TEXT_COLUMNS),
)
_SHARD_NAME = re.compile(r"part-\d{5}\.parquet")
_AT = "at"  # beside the columns of a row that was read: its file, row group, and position in that


@dataclass(frozen=True, slots=True)
class Turn:
    """One context turn: who speaks (``user``, ``assistant``) and the clip."""

    role: str
    audio: AudioSource


@dataclass(frozen=True, slots=True)
class Pair:
    """A context and the spoken response that people rate.

    Attributes:
        pair_id: Unique in the dataset.
        response: The clip that is judged.
        context: Turns before it, oldest first; the last one is answered. May be empty.
        situation: Text that the raters were given about the situation; the judge reads it too.
        group_id: Same context or script; a group is never split apart. Never empty in a loaded dataset.
        system_id: Who made the response.
        context_speaker: Who speaks in the turn that is answered.
        response_speaker: Who speaks in the response.
        setting: ``context_variant``, ``tone_variant`` or free text.
        language: Language tag.
        split: ``train``, ``validation``, ``test`` or another name; None = not split.
        context_text: Transcript, for baselines and reports only.
        response_text: Transcript, for baselines and reports only.
        tags: Name and value of whatever else is known, such as the cue or the sex of a speaker; sorted. Reports are
            sliced and splits made by them; no judge is told.
    """

    pair_id: str
    response: AudioSource
    context: tuple[Turn, ...] = ()
    situation: str | None = None
    group_id: str = ""
    system_id: str | None = None
    context_speaker: str | None = None
    response_speaker: str | None = None
    setting: str | None = None
    language: str | None = None
    split: str | None = None
    context_text: str | None = None
    response_text: str | None = None
    tags: Tags = ()

    @property
    def told(self) -> str | None:
        """The situation as it is read: blanks are none."""
        return self.situation if self.situation and self.situation.strip() else None

    @property
    def clips(self) -> tuple[AudioSource, ...]:
        """The audio of each turn, then of the response, as `PairDataset.fingerprints` has their hashes."""
        return (*(turn.audio for turn in self.context), self.response)

    def tag(self, name: str) -> str | None:
        """The value of a tag, or None."""
        return next((value for tag, value in self.tags if tag == name), None)


def shard_name(number: int) -> str:
    """Path of a shard, relative to the dataset folder; numbers start at 0."""
    return f"{SHARD_FOLDER}/part-{number:05d}.parquet"


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
        is_full = len(group) >= (ROW_GROUP_ROWS if any(new_sizes[:2]) else _ROWS_WITHOUT_AUDIO)
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
    files = _pairs_files(root)
    if files != [root / PAIRS_FILE]:
        ids: list[str] = []
        for file in files:
            with parquet_errors(file), open_parquet(file, dictionaries=False) as opened:
                ids += opened.read(columns=["pair_id"]).column(0).to_pylist()
        write_parquet(pa.table({"pair_id": ids, "split": splits}, _SPLITS_SCHEMA), root / SPLITS_FILE)
        return

    def write(temporary: Path) -> None:
        start = 0
        with open_parquet(files[0], whole=True, dictionaries=False) as source, _writer(temporary) as writer:
            for number in range(source.num_row_groups):
                group = source.read_row_group(number, use_threads=False)
                size, columns = len(group), dict(zip(group.column_names, group.columns, strict=True))
                columns["split"] = pa.array(splits[start : start + size], pa.string())
                whole = [columns.get(field.name, pa.nulls(size, field.type)) for field in PAIRS_SCHEMA]
                writer.write_table(pa.table(whole, PAIRS_SCHEMA), row_group_size=max(size, 1))
                start += size

    replace_file(root / PAIRS_FILE, write)


def load_pairs(root: DataPath) -> tuple[tuple[Pair, ...], dict[str, tuple[str, ...]]]:
    """Pairs and the hashes of their clips, from one file or shard after the other. Audio is looked up, not read.

    Raises:
        DataError: If a file is missing, is not Parquet or has another schema, a row breaks the contract, a clip has
            neither or both of path and bytes, or a path is no file of the folder.
    """
    files = _pairs_files(root)
    splits = _stored_splits(root, files)
    pairs: list[Pair] = []
    fingerprints: dict[str, tuple[str, ...]] = {}
    starts: list[int] = []  # position of the first row of each file

    def rows() -> Iterator[dict[str, Any]]:
        for file in files:
            starts.append(len(pairs))
            yield from _read_rows(file)

    def locate(position: int, column: str) -> str:
        index = bisect.bisect_right(starts, position) - 1
        return place(files[index], position - starts[index] + 1, column)

    text_columns = NAME_COLUMNS + TEXT_COLUMNS
    finder, texts_of = _Finder(root, locate), itemgetter(*text_columns)
    mismatch = DataError(f"{root / SPLITS_FILE}: belongs to other pairs; run `empathy-judge split --overwrite`")
    for position, row in enumerate(checked_pairs(rows(), files[0], locate)):
        if splits is not None:
            split_id, row["split"] = next(splits, (None, None))
            if split_id != row["pair_id"] or not (row["split"] is None or is_name(row["split"])):
                raise mismatch
        context, response = row[CONTEXT] or (), row[RESPONSE]
        if response is None:
            raise bad_value(locate(position, RESPONSE), None, "either a path or bytes")
        turns = [Turn(turn["role"], finder.find(turn, row[_AT], position, n)) for n, turn in enumerate(context)]
        pairs.append(
            Pair(
                pair_id=row["pair_id"],
                response=finder.find(response, row[_AT], position, None),
                context=tuple(turns),
                group_id=row["group_id"],
                **dict(zip(text_columns, texts_of(row), strict=True)),
                tags=row[TAGS],
            )
        )
        fingerprints[row["pair_id"]] = tuple(clip["sha256"] for clip in (*context, response))
    if splits is not None and next(splits, None) is not None:
        raise mismatch
    return tuple(pairs), fingerprints


def hashed_rows(pairs: Sequence[Pair], prints: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """The rows that `content_hash` takes, made one at a time."""
    names = ("pair_id", "group_id", *NAME_COLUMNS, *TEXT_COLUMNS, TAGS)
    values_of = attrgetter(*names)
    for pair in sorted(pairs, key=lambda pair: hash_order(pair.pair_id)):
        *context, response = prints[pair.pair_id]
        turns = [{"role": turn.role, "sha256": sha256} for turn, sha256 in zip(pair.context, context, strict=True)]
        row: dict[str, Any] = dict(zip(names, values_of(pair), strict=True))
        yield {**row, CONTEXT: turns, RESPONSE: {"sha256": response}}


def _pairs_files(root: DataPath) -> list[DataPath]:
    """The files of a dataset that hold its pairs, in order.

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


def _stored_splits(root: DataPath, files: list[DataPath]) -> Iterator[tuple[str, str | None]] | None:
    """Id and split of every row, where they do not stand in the rows themselves."""
    path = root / SPLITS_FILE
    if files == [root / PAIRS_FILE] or not path.is_file():
        return None
    table = read_parquet(path, _SPLITS_SCHEMA)
    return zip(table.column("pair_id").to_pylist(), table.column("split").to_pylist(), strict=True)


def _read_rows(path: DataPath) -> Iterator[dict[str, Any]]:
    """The rows of a file without the audio in it: an embedded clip has no path. Tags are as `Pair` has them; equal
    texts of a file are one object."""
    with parquet_errors(path), open_parquet(path, whole=True, schema=PAIRS_SCHEMA) as opened:
        sizes = [opened.metadata.row_group(number).num_rows for number in range(opened.num_row_groups)]
        file = StoredFile(path, path_version(path), (0, *accumulate(sizes))[: len(sizes)])
        addresses = ((file, group, row) for group, size in enumerate(sizes) for row in range(size))
        paths = [opened.schema.column(index).path for index in range(len(opened.schema))]
        audio_leaves = [bytes_leaf(opened, column) for column in (CONTEXT, RESPONSE)]
        distinct_tags: dict[Tags, Tags] = {}
        embedded = [0, 0]  # clips of contexts, of responses
        leaves = [path for path in paths if path not in audio_leaves]
        for batch in batches(opened, _BATCH_ROWS, leaves):
            batch.validate(full=True)
            columns = {name: python_values(batch.column(name)) for name in batch.schema.names}
            tags = (tuple((tag["name"], tag["value"]) for tag in cell or ()) for cell in columns[TAGS])
            columns[TAGS] = [distinct_tags.setdefault(pair_tags, pair_tags) for pair_tags in tags]
            columns[_AT] = list(islice(addresses, len(batch)))
            embedded[0] += sum(
                turn is not None and turn["path"] is None for turns in columns[CONTEXT] for turn in turns or ()
            )
            embedded[1] += sum(clip is not None and clip["path"] is None for clip in columns[RESPONSE])
            for values in zip(*columns.values(), strict=True):
                yield dict(zip(columns, values, strict=True))
        for leaf, count in zip(audio_leaves, embedded, strict=True):
            if _count_values(opened.metadata, paths.index(leaf)) not in (None, count):
                raise _clip_without_content(path)


def _count_values(metadata: pq.FileMetaData, index: int) -> int | None:
    """Number of values of a column by the footer, nulls left out; None = the footer does not say."""
    count = 0
    for number in range(metadata.num_row_groups):
        chunk = metadata.row_group(number).column(index)
        if chunk.statistics is None or not chunk.statistics.has_null_count:
            return None
        count += chunk.num_values - chunk.statistics.null_count
    return count


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


class _Finder:
    """Finds the audio of clips; each path is looked up once."""

    def __init__(self, root: DataPath, locate: Locate) -> None:
        self._root = root if isinstance(root, RemotePath) else root.resolve()
        self._locate = locate
        self._found: dict[str, Path | StoredFile] = {}
        self._folders: dict[Path, Path] = {}
        self._files: frozenset[str] | None = None

    def find(
        self, clip: Mapping[str, Any], at: tuple[StoredFile, int, int], position: int, turn: int | None
    ) -> Path | StoredClip:
        path = clip["path"]
        if path is None:
            file, group, row = at
            return StoredClip(clip["sha256"], file, group, row, turn)
        if path not in self._found:
            where = self._locate(position, RESPONSE if turn is None else CONTEXT)
            if isinstance(self._root, RemotePath):
                self._files = frozenset(self._root.files()) if self._files is None else self._files
                self._found[path] = StoredFile(resolve_remote(self._root, path, self._files, where), "")
            else:
                self._found[path] = resolve_inside(self._root, path, where, self._folders)
        source = self._found[path]
        return StoredClip(clip["sha256"], source) if isinstance(source, StoredFile) else source
