"""The pair dataset: a folder with ``pairs.parquet``, ``ratings.parquet``, ``preferences.parquet`` and
``dataset.yaml``.

Importers write it with `write_dataset`; everything else reads it with `PairDataset.load`, which trusts
nothing. The layout of the tables is in `rows`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import yaml

from .audio import AudioSource
from .errors import DataError, place, shown
from .folders import CARD_FILE, replace_file, resolve_inside
from .ratings import Dimension, check_preferences, check_ratings
from .rows import (
    NAME_COLUMNS,
    PAIR_COLUMNS,
    PAIRS_SCHEMA,
    PREFERENCES_SCHEMA,
    RATINGS_SCHEMA,
    TEXT_COLUMNS,
    bad_cell,
    check_pair_rows,
    content_hash,
    fingerprints,
    read_parquet,
    to_arrow,
    to_row,
    write_parquet,
)

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
    "write_dataset",
    "write_splits",
]

SCHEMA_VERSION = 1
PAIRS_FILE = "pairs.parquet"
RATINGS_FILE = "ratings.parquet"
PREFERENCES_FILE = "preferences.parquet"


@dataclass(frozen=True)
class Turn:
    """One context turn: who speaks (``user``, ``assistant``) and the clip."""

    role: str
    audio: AudioSource


@dataclass(frozen=True)
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
            raise DataError(f"dataset {self.name}: dimensions {shown(names)}; accepted: at least one, each name once")

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
        root: The folder.
        card: Scales and origin; its content hash is that of the whole dataset, also in a subset.
        pairs: In the order of ``pairs.parquet``. Audio is an absolute path or encoded bytes.
        ratings: Columns `RATING_COLUMNS`, score in rating points (float64, never NaN; missing = no row).
        preferences: Columns `PREFERENCE_COLUMNS`, or None.
        fingerprints: Pair id -> SHA-256 of the encoded audio of each context turn, then of the response.
    """

    root: Path
    card: DatasetCard
    pairs: tuple[Pair, ...]
    ratings: pd.DataFrame
    preferences: pd.DataFrame | None = None
    fingerprints: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> PairDataset:
        """Reads and checks a dataset folder. Audio is not decoded; each file is looked up.

        Raises:
            DataError: If a file is missing or has another schema, a row breaks the contract, an audio path
                leaves the folder or does not exist, or the content is not what the card's hash says.
        """
        root = Path(folder)
        card = _read_card(root)
        rows = read_parquet(root / PAIRS_FILE, PAIRS_SCHEMA).to_pylist()
        check_pair_rows(rows, root / PAIRS_FILE)
        pairs = _to_pairs(rows, root)
        ratings = read_parquet(root / RATINGS_FILE, RATINGS_SCHEMA).to_pandas()
        has_preferences = (root / PREFERENCES_FILE).exists()
        preferences = read_parquet(root / PREFERENCES_FILE, PREFERENCES_SCHEMA).to_pandas() if has_preferences else None
        _check_opinions(card, rows, ratings, preferences, root)
        found = content_hash(card.dimensions, rows, ratings, preferences)
        if found != card.content_hash:
            raise DataError(
                f"{root / CARD_FILE}: content_hash {card.content_hash[:12]}... is not that of the tables "
                f"({found[:12]}...): a file was changed after the import; import the data again"
            )
        return cls(root, card, pairs, ratings, preferences, fingerprints(rows))

    def subset(self, split: str | None) -> PairDataset:
        """The pairs of one split with their ratings, and the preferences between them; None = all pairs.

        Raises:
            DataError: If no pair is in the split; the message lists the splits that exist.
        """
        if split is None:
            return self
        pairs = tuple(pair for pair in self.pairs if pair.split == split)
        if not pairs:
            known = sorted({pair.split for pair in self.pairs if pair.split is not None})
            raise DataError(
                f"{self.root}: no pair is in split {shown(split)}; it has "
                + (", ".join(known) if known else "no splits yet, make them with `empathy-judge split`")
            )
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
            ``context_audio`` is one clip (role ``user``), a list of ``{"role", "audio"}``, or None. None or
            NaN = absent.
        ratings: Columns `RATING_COLUMNS`.
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
        raise DataError(f"{file}: unknown column {shown(unknown[0])}; accepted: {', '.join(PAIR_COLUMNS)}")
    rows = [to_row(values, root, file, n) for n, values in enumerate(pairs.to_dict("records"), start=1)]
    check_pair_rows(rows, file)
    _check_opinions(card, rows, ratings, preferences, root)
    card = dataclasses.replace(card, content_hash=content_hash(card.dimensions, rows, ratings, preferences))
    root.mkdir(parents=True, exist_ok=True)
    write_parquet(pa.Table.from_pylist(rows, PAIRS_SCHEMA), root / PAIRS_FILE)
    write_parquet(to_arrow(ratings, RATINGS_SCHEMA), root / RATINGS_FILE)
    if preferences is not None:
        write_parquet(to_arrow(preferences, PREFERENCES_SCHEMA), root / PREFERENCES_FILE)
    else:
        (root / PREFERENCES_FILE).unlink(missing_ok=True)
    _write_card(card, root / CARD_FILE)
    return card


def write_splits(folder: str | Path, splits: Sequence[str | None]) -> None:
    """Replaces the column ``split`` of ``pairs.parquet``; the content hash does not cover it.

    Args:
        folder: A dataset folder.
        splits: One per row.
    """
    table = read_parquet(Path(folder) / PAIRS_FILE, PAIRS_SCHEMA)
    column = pa.array(splits, pa.string())
    write_parquet(table.set_column(table.schema.get_field_index("split"), "split", column), Path(folder) / PAIRS_FILE)


def _read_card(root: Path) -> DatasetCard:
    path = root / CARD_FILE
    if not path.is_file():
        raise DataError(f"{root}: not a pair dataset, it has no {CARD_FILE}; make one with `empathy-judge import`")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as YAML ({error})") from None
    if not isinstance(values, dict) or values.pop("schema_version", None) != SCHEMA_VERSION:
        raise DataError(f"{path}: schema_version; accepted: {SCHEMA_VERSION}")
    try:
        dimensions = tuple(Dimension(**dimension) for dimension in values.pop("dimensions"))
        card = DatasetCard(dimensions=dimensions, **values)
    except (KeyError, TypeError, OverflowError) as error:
        fields = ", ".join(f.name for f in dataclasses.fields(DatasetCard))
        raise DataError(f"{path}: {error}; accepted: schema_version, {fields}") from None
    for name, value in values.items():
        accepted = bool if name == "synthetic" else str
        if not isinstance(value, accepted):
            raise DataError(
                f"{path}: {name} {shown(value)}; accepted: {'true or false' if accepted is bool else 'text'}"
            )
    return card


def _write_card(card: DatasetCard, path: Path) -> None:
    values = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(card)}
    values["dimensions"] = list(values["dimensions"])
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _to_pairs(rows: Sequence[Mapping[str, Any]], root: Path) -> tuple[Pair, ...]:
    """Pairs with absolute audio paths; each path is looked up once."""
    file, folder = root / PAIRS_FILE, root.resolve()
    known: dict[str, Path] = {}

    def source(audio: Mapping[str, Any] | None, number: int, column: str) -> AudioSource:
        if audio is None or (audio["path"] is None) == (audio["bytes"] is None):
            raise bad_cell(place(file, number, column), audio, "either a path or bytes")
        path = audio["path"]
        if path is None:
            return audio["bytes"]
        if path not in known:
            known[path] = resolve_inside(folder, path, place(file, number, column))
        return known[path]

    return tuple(
        Pair(
            pair_id=row["pair_id"],
            response=source(row["response_audio"], number, "response_audio"),
            context=tuple(
                Turn(turn["role"], source(turn, number, "context_audio")) for turn in row["context_audio"] or ()
            ),
            group_id=row["group_id"],
            **{name: row[name] for name in NAME_COLUMNS + TEXT_COLUMNS},
        )
        for number, row in enumerate(rows, start=1)
    )


def _check_opinions(
    card: DatasetCard,
    rows: Sequence[Mapping[str, Any]],
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None,
    root: Path,
) -> None:
    """Ratings and preferences against the pairs and the scales."""
    ids = [row["pair_id"] for row in rows]
    check_ratings(ratings, ids, card.dimensions, root / RATINGS_FILE)
    if preferences is not None:
        check_preferences(preferences, ids, card.dimensions, root / PREFERENCES_FILE)
