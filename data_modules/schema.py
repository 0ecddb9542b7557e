"""The pair dataset: a folder with ``pairs.parquet``, ``ratings.parquet``, ``preferences.parquet`` and
``dataset.yaml``.

Importers write it with `write_dataset`; everything else reads it with `PairDataset.load`, which trusts
nothing. The layout of the tables is in `rows`.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from .audio import AudioSource
from .errors import DataError, locate_in, place, shown
from .folders import CARD_FILE, replace_file, resolve_inside, resolve_remote
from .pairs_file import (
    PAIRS_FILE,
    SPLITS_FILE,
    RowBatch,
    pairs_files,
    read_pairs,
    read_splits,
    write_pairs,
    write_split_column,
)
from .ratings import SECONDS, Dimension, check_preferences, check_ratings, is_name
from .rows import (
    NAME_COLUMNS,
    PAIR_COLUMNS,
    PREFERENCES_SCHEMA,
    RATINGS_SCHEMA,
    TAGS,
    TEXT_COLUMNS,
    Tags,
    bad_cell,
    check_pair_rows,
    content_hash,
    hash_order,
    ratings_schema,
    read_parquet,
    repeated_id,
    to_arrow,
    to_row,
    write_parquet,
)
from .storage import DataPath, RemotePath, data_path
from .stored_clips import StoredClip, StoredFile

__all__ = [
    "PAIRS_FILE",
    "PREFERENCES_FILE",
    "RATINGS_FILE",
    "SCHEMA_VERSION",
    "DatasetCard",
    "Dimension",
    "Pair",
    "PairDataset",
    "Turn",
    "check_annotations",
    "complete_dataset",
    "write_dataset",
    "write_splits",
]

SCHEMA_VERSION = 1
RATINGS_FILE = "ratings.parquet"
PREFERENCES_FILE = "preferences.parquet"


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

    def tag(self, name: str) -> str | None:
        """The value of a tag, or None."""
        return next((value for tag, value in self.tags if tag == name), None)


@dataclass(frozen=True)
class DatasetCard:
    """What ``dataset.yaml`` says.

    Attributes:
        name: Name of the dataset.
        dimensions: What was rated, and on which scale.
        source: Where the data comes from.
        licence: Under which terms it may be used.
        synthetic: True where the ratings were not given by people.
        description: Free text.
        content_hash: SHA-256 over pairs (without `Pair.split`), audio content, ratings, preferences and
            scales, whatever the order of rows. `write_dataset` computes it; what stands here before does not
            count.
    """

    name: str
    dimensions: tuple[Dimension, ...]
    source: str
    licence: str
    synthetic: bool = False
    description: str = ""
    content_hash: str = ""

    def __post_init__(self) -> None:
        names = [dimension.name for dimension in self.dimensions]
        if not names or len(set(names)) != len(names):
            raise DataError(f"dataset {self.name}: dimensions {shown(names)}; expected at least one, each name once")

    def dimension(self, name: str) -> Dimension:
        """The dimension called `name`.

        Raises:
            DataError: If there is none; the message lists those that exist.
        """
        for dimension in self.dimensions:
            if dimension.name == name:
                return dimension
        names = ", ".join(dimension.name for dimension in self.dimensions)
        raise DataError(f"dataset {self.name}: no dimension {shown(name)}; it has {names}")


@dataclass(eq=False)
class PairDataset:
    """A loaded dataset, or a part of one.

    Attributes:
        root: The folder; a remote one is a `RemotePath`.
        card: Scales and origin; its content hash is that of the whole dataset, also in a subset.
        pairs: In the order of ``pairs.parquet``. Audio is an absolute path; where it is embedded or the dataset remote,
            a `StoredClip`.
        ratings: Columns `RATING_COLUMNS`, score in rating points (float64, never NaN; missing = no row). Where times
            are known also `SECONDS` (float64, at least 0): time that the rater took for the judgement, NaN = unknown.
        preferences: Columns `PREFERENCE_COLUMNS`, or None.
        fingerprints: Pair id -> SHA-256 of the encoded audio of each context turn, then of the response.
    """

    root: DataPath
    card: DatasetCard
    pairs: tuple[Pair, ...]
    ratings: pd.DataFrame
    preferences: pd.DataFrame | None = None
    fingerprints: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, folder: str | Path | RemotePath) -> PairDataset:
        """Reads and checks a dataset folder. Audio is neither read nor decoded; each file is looked up.

        Args:
            folder: A local folder, or an address that fsspec knows, such as ``hf://datasets/OWNER/NAME``.

        Raises:
            DataError: If a file is missing or has another schema, a row breaks the contract, an audio path
                leaves the folder or does not exist, or the content is not what the card's hash says.
        """
        root = data_path(folder)
        card = _read_card(root)
        pairs, prints = _read_pairs(root)
        ratings = read_parquet(root / RATINGS_FILE, RATINGS_SCHEMA, (SECONDS,)).to_pandas()
        has_preferences = (root / PREFERENCES_FILE).exists()
        preferences = read_parquet(root / PREFERENCES_FILE, PREFERENCES_SCHEMA).to_pandas() if has_preferences else None
        check_annotations(card, [pair.pair_id for pair in pairs], ratings, preferences, root)
        found = content_hash(card.dimensions, _as_rows(pairs, prints), ratings, preferences)
        if found != card.content_hash:
            raise DataError(
                f"{root / CARD_FILE}: content_hash {card.content_hash[:12]}... is not that of the tables "
                f"({found[:12]}...): a file was changed after the import; import the data again"
            )
        return cls(root, card, pairs, ratings, preferences, prints)

    def subset(self, split: str | Collection[str] | None) -> PairDataset:
        """The pairs of one split or of several, with their ratings and the preferences between them; None = all pairs.

        Raises:
            DataError: If no pair is in one of the splits; the message lists the splits that exist.
        """
        if split is None:
            return self
        wanted = (split,) if isinstance(split, str) else tuple(split)
        known = {pair.split for pair in self.pairs if pair.split is not None}
        for name in wanted or ("",):
            if name not in known:
                raise DataError(
                    f"{self.root}: no pair is in split {shown(name)}; it has "
                    + (", ".join(sorted(known)) if known else "no splits yet, make them with `empathy-judge split`")
                )
        pairs = tuple(pair for pair in self.pairs if pair.split in wanted)
        ids = {pair.pair_id for pair in pairs}
        ratings = self.ratings[self.ratings["pair_id"].isin(list(ids))].reset_index(drop=True)
        preferences = self.preferences
        if preferences is not None:
            both = preferences["chosen_id"].isin(list(ids)) & preferences["rejected_id"].isin(list(ids))
            preferences = preferences[both].reset_index(drop=True)
        fingerprints = {pair_id: value for pair_id, value in self.fingerprints.items() if pair_id in ids}
        return dataclasses.replace(
            self, pairs=pairs, ratings=ratings, preferences=preferences, fingerprints=fingerprints
        )

    def mean_scores(self) -> pd.DataFrame:
        """Mean over raters, in rating points.

        Returns:
            Index ``pair_id`` in the order of `pairs`, one float64 column per dimension of the card; NaN = not
            rated.
        """
        means = self.ratings.pivot_table(index="pair_id", columns="dimension", values="score", aggfunc="mean")
        index = pd.Index([pair.pair_id for pair in self.pairs], name="pair_id")
        names = [dimension.name for dimension in self.card.dimensions]
        return means.reindex(index=index, columns=names).astype("float64")

    def split_hash(self) -> str:
        """SHA-256 over the sorted lines ``pair_id<TAB>split`` (nothing after the tab = not split)."""
        lines = sorted(f"{pair.pair_id}\t{pair.split or ''}" for pair in self.pairs)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_dataset(
    folder: str | Path,
    card: DatasetCard,
    pairs: pd.DataFrame,
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None = None,
) -> DatasetCard:
    """Checks the tables, then writes them; each file appears complete or not at all, ``dataset.yaml`` last.

    Audio that is given as a path must lie in `folder` already. To make a whole folder appear at once, audio
    included, write inside `staged_folder`.

    Args:
        folder: The dataset folder; made if it does not exist.
        card: Its `content_hash` is ignored.
        pairs: Columns ``pair_id``, ``group_id``, ``response_audio`` and any other of `Pair`, with
            ``context_audio`` for its context. Audio is a path relative to `folder` (str) or encoded bytes.
            ``context_audio`` is one clip (role ``user``), a list of ``{"role", "audio"}``, or None; ``tags`` is a
            mapping. None or NaN = absent.
        ratings: Columns `RATING_COLUMNS`, and `SECONDS` where times are known.
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
    rows = [to_row(values, root, file, n, hashes) for n, values in enumerate(pairs.to_dict("records"), start=1)]
    check_pair_rows(rows, file)
    check_annotations(card, [row["pair_id"] for row in rows], ratings, preferences, root)
    root.mkdir(parents=True, exist_ok=True)
    write_pairs(rows, file)
    rows.sort(key=lambda row: hash_order(row["pair_id"]))
    return complete_dataset(root, card, rows, ratings, preferences)


def complete_dataset(
    root: Path,
    card: DatasetCard,
    rows: Iterable[Mapping[str, Any]],
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None,
) -> DatasetCard:
    """Writes what belongs to pairs that are in their place: ratings, preferences, and ``dataset.yaml`` last.

    Args:
        root: The dataset folder.
        card: Its `content_hash` is ignored.
        rows: The checked pairs as they are stored, sorted by `hash_order`; bytes are not looked at.
        ratings: Columns `RATING_COLUMNS`, and `SECONDS` where times are known, checked.
        preferences: Columns `PREFERENCE_COLUMNS`, checked.

    Returns:
        The card with its content hash.
    """
    card = dataclasses.replace(card, content_hash=content_hash(card.dimensions, rows, ratings, preferences))
    write_parquet(to_arrow(ratings, ratings_schema(ratings)), root / RATINGS_FILE)
    if preferences is not None:
        write_parquet(to_arrow(preferences, PREFERENCES_SCHEMA), root / PREFERENCES_FILE)
    else:
        (root / PREFERENCES_FILE).unlink(missing_ok=True)
    _write_card(card, root / CARD_FILE)
    return card


def check_annotations(
    card: DatasetCard,
    pair_ids: Sequence[str],
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None,
    root: DataPath,
) -> None:
    """Checks ratings and preferences against the pairs and the scales.

    Raises:
        DataError: If they do not fit, naming row and column in the files of `root`.
    """
    check_ratings(ratings, pair_ids, card.dimensions, root / RATINGS_FILE)
    if preferences is not None:
        check_preferences(preferences, pair_ids, card.dimensions, root / PREFERENCES_FILE)


def write_splits(folder: str | Path | RemotePath, splits: Sequence[str | None]) -> None:
    """Replaces the splits of all pairs; the content hash does not cover them.

    They stand in the column ``split`` of ``pairs.parquet``, or, where the pairs are in shards, in ``splits.parquet``.

    Args:
        folder: A dataset folder.
        splits: One per pair, in order.

    Raises:
        DataError: If the folder is remote.
    """
    root = data_path(folder)
    if isinstance(root, RemotePath):
        raise DataError(f"{root}: splits are not written to an address; expected a local copy of the folder")
    write_split_column(root, list(splits))


def _read_card(root: DataPath) -> DatasetCard:
    path = root / CARD_FILE
    if not path.is_file():
        raise DataError(f"{root}: not a pair dataset, it has no {CARD_FILE}; make one with `empathy-judge import`")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as YAML ({error})") from None
    if not isinstance(values, dict) or values.pop("schema_version", None) != SCHEMA_VERSION:
        raise DataError(f"{path}: schema_version; expected {SCHEMA_VERSION}")
    try:
        dimensions = tuple(Dimension(**dimension) for dimension in values.pop("dimensions"))
        card = DatasetCard(dimensions=dimensions, **values)
    except (KeyError, TypeError, OverflowError) as error:
        fields = ", ".join(f.name for f in dataclasses.fields(DatasetCard))
        raise DataError(f"{path}: {error}; expected schema_version, {fields}") from None
    for name, value in values.items():
        expected = bool if name == "synthetic" else str
        if not isinstance(value, expected):
            raise DataError(
                f"{path}: {name} {shown(value)}; expected {'true or false' if expected is bool else 'text'}"
            )
    return card


def _write_card(card: DatasetCard, path: Path) -> None:
    values = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(card)}
    values["dimensions"] = list(values["dimensions"])
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _read_pairs(root: DataPath) -> tuple[tuple[Pair, ...], dict[str, tuple[str, ...]]]:
    """Pairs and the hashes of their clips, from one file or shard after the other."""
    files = pairs_files(root)
    splits = read_splits(root, files)
    find = _Finder(root)
    pairs: list[Pair] = []
    prints: dict[str, tuple[str, ...]] = {}
    starts: list[int] = []
    for file in files:
        starts.append(len(pairs))
        for batch in read_pairs(file):
            locate = locate_in(file)
            check_pair_rows(batch.rows, file, lambda n, column, locate=locate, at=batch.start: locate(at + n, column))
            for position, row in enumerate(batch.rows):
                pair_id = row["pair_id"]
                if pair_id in prints:
                    first = next(number for number, pair in enumerate(pairs) if pair.pair_id == pair_id)
                    shard = bisect.bisect_right(starts, first) - 1
                    already = place(files[shard], first - starts[shard] + 1, "pair_id")
                    raise repeated_id(locate(batch.start + position, "pair_id"), pair_id, already)
                if splits is not None:
                    row["split"] = _next_split(splits, pair_id, root)
                pairs.append(_to_pair(row, batch, position, find))
                clips = (*(row["context_audio"] or ()), row["response_audio"])
                prints[pair_id] = tuple(clip["sha256"] for clip in clips)
    if splits is not None and next(splits, None) is not None:
        raise _foreign_splits(root)
    if not pairs:
        raise DataError(f"{files[0]}: the table holds no pairs")
    return tuple(pairs), prints


def _next_split(splits: Iterator[tuple[str, str | None]], pair_id: str, root: DataPath) -> str | None:
    known, split = next(splits, (None, None))
    if known != pair_id or not (split is None or is_name(split)):
        raise _foreign_splits(root)
    return split


def _foreign_splits(root: DataPath) -> DataError:
    return DataError(f"{root / SPLITS_FILE}: belongs to other pairs; run `empathy-judge split --overwrite`")


class _Finder:
    """Looks up each path of audio once."""

    def __init__(self, root: DataPath) -> None:
        self._root = root if isinstance(root, RemotePath) else root.resolve()
        self._found: dict[str, Path | StoredFile] = {}
        self._folders: dict[Path, Path] = {}
        self._files: frozenset[str] | None = None

    def find(self, path: str, where: str) -> Path | StoredFile:
        if path not in self._found:
            if isinstance(self._root, RemotePath):
                self._files = frozenset(self._root.files()) if self._files is None else self._files
                self._found[path] = StoredFile(resolve_remote(self._root, path, self._files, where), "")
            else:
                self._found[path] = resolve_inside(self._root, path, where, self._folders)
        return self._found[path]


def _to_pair(row: Mapping[str, Any], batch: RowBatch, position: int, finder: _Finder) -> Pair:
    file = batch.file

    def source(clip: Mapping[str, Any] | None, column: str, turn: int | None) -> AudioSource:
        if clip is not None and clip["path"] is None:
            group = batch.groups[position]
            return StoredClip(clip["sha256"], file, group, batch.start + position - file.starts[group], turn)
        where = place(file.path, batch.start + position + 1, column)
        if clip is None:
            raise bad_cell(where, clip, "either a path or bytes")
        found = finder.find(clip["path"], where)
        return StoredClip(clip["sha256"], found) if isinstance(found, StoredFile) else found

    turns = row["context_audio"] or ()
    return Pair(
        pair_id=row["pair_id"],
        response=source(row["response_audio"], "response_audio", None),
        context=tuple(Turn(turn["role"], source(turn, "context_audio", n)) for n, turn in enumerate(turns)),
        group_id=row["group_id"],
        **{name: row[name] for name in NAME_COLUMNS + TEXT_COLUMNS},
        tags=row[TAGS],
    )


def _as_rows(pairs: Sequence[Pair], prints: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """What `content_hash` takes, made one at a time."""
    for pair in sorted(pairs, key=lambda pair: hash_order(pair.pair_id)):
        *context, response = prints[pair.pair_id]
        turns = [{"role": turn.role, "sha256": sha256} for turn, sha256 in zip(pair.context, context, strict=True)]
        names = ("pair_id", "group_id", *NAME_COLUMNS, *TEXT_COLUMNS, TAGS)
        row: dict[str, Any] = {name: getattr(pair, name) for name in names}
        yield {**row, "context_audio": turns, "response_audio": {"sha256": response}}
