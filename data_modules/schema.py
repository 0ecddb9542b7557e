"""The pair dataset: a folder with ``pairs.parquet``, ``ratings.parquet``, ``preferences.parquet`` and
``dataset.yaml``.

Importers write it (`importers.assemble`), and `write_dataset`, where all is in memory; everything else reads it with
`PairDataset.load`, which checks all of it. The layout of the tables is in `rows`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from .errors import DataError, first_problem, shown, system_errors
from .folders import CARD_FILE, DataPath, RemotePath, data_path, replace_text
from .pairs_file import PAIRS_FILE, Pair, Turn, hashed_rows, load_pairs, write_pairs, write_splits
from .parquet import read_parquet, write_parquet
from .ratings import SECONDS, Dimension, check_preferences, check_ratings
from .rows import (
    PAIR_COLUMNS,
    PREFERENCES_SCHEMA,
    RATINGS_SCHEMA,
    checked_pairs,
    content_hash,
    hash_order,
    ratings_schema,
    to_arrow,
    to_row,
)
from .yaml_files import read_yaml

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

__all__ = [
    "PAIRS_FILE", "PREFERENCES_FILE", "RATINGS_FILE", "SCHEMA_VERSION", "DatasetCard", "Dimension", "Pair",
    "PairDataset", "Turn", "check_annotations", "complete_dataset", "write_dataset", "write_splits",
]  # fmt: skip

SCHEMA_VERSION = 1
RATINGS_FILE = "ratings.parquet"
PREFERENCES_FILE = "preferences.parquet"


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
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        names = [dimension.name for dimension in self.dimensions]
        if not names or len(set(names)) != len(names):
            raise DataError(f"dataset {self.name}: dimensions {shown(names)}; expected at least one, each name once")


_CARD = TypeAdapter(DatasetCard)


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
        with system_errors(root, "read"):
            card = _read_card(root)
            pairs, fingerprints = load_pairs(root)
            ratings = read_parquet(root / RATINGS_FILE, RATINGS_SCHEMA, (SECONDS,)).to_pandas()
            compared = (root / PREFERENCES_FILE).exists()
            preferences = read_parquet(root / PREFERENCES_FILE, PREFERENCES_SCHEMA).to_pandas() if compared else None
        checked = check_annotations(card, [pair.pair_id for pair in pairs], ratings, preferences, root)
        computed_hash = content_hash(card.dimensions, hashed_rows(pairs, fingerprints), ratings, preferences)
        if computed_hash != card.content_hash:
            raise DataError(
                f"{root / CARD_FILE}: content_hash {card.content_hash[:12]}... is not that of the tables "
                f"({computed_hash[:12]}...): a file was changed after the import; import the data again"
            )
        return cls(root, card, pairs, *checked, fingerprints)

    def subset(self, split: str | Collection[str] | None) -> PairDataset:
        """The pairs of one split or of several, with their ratings and the preferences between them; None = all pairs.

        Raises:
            DataError: If no pair is in one of the splits; the message lists the splits that exist.
        """
        if split is None:
            return self
        requested = (split,) if isinstance(split, str) else tuple(split)
        present = {pair.split for pair in self.pairs if pair.split is not None}
        listed = ", ".join(sorted(present)) or "no splits yet, make them with `empathy-judge split`"
        for name in requested or ("",):
            if name not in present:
                raise DataError(f"{self.root}: no pair is in split {shown(name)}; it has {listed}")
        return self.only({pair.pair_id for pair in self.pairs if pair.split in requested})

    def only(self, ids: Collection[str]) -> PairDataset:
        """The pairs of these ids, with their ratings and the preferences between them."""
        pairs = tuple(pair for pair in self.pairs if pair.pair_id in ids)
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
        import pandas as pd

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

    To make a whole folder appear at once, audio included, write inside `staged_folder`.

    Args:
        folder: Made if it does not exist; audio that is given as a path lies in it already.
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
    records = enumerate(pairs.to_dict("records"), start=1)
    rows = list(checked_pairs([to_row(values, root, file, n, hashes) for n, values in records], file))
    ratings, preferences = check_annotations(card, [row["pair_id"] for row in rows], ratings, preferences, root)
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
    """Writes what belongs to pairs that were written before: ratings, preferences, and ``dataset.yaml`` last.

    All is checked already, as by `write_dataset`; `rows` are the pairs as stored, sorted by `hash_order`; their
    bytes are not looked at. Returns the card with its content hash.
    """
    card = dataclasses.replace(card, content_hash=content_hash(card.dimensions, rows, ratings, preferences))
    write_parquet(to_arrow(ratings, ratings_schema(ratings)), root / RATINGS_FILE)
    if preferences is not None:
        write_parquet(to_arrow(preferences, PREFERENCES_SCHEMA), root / PREFERENCES_FILE)
    else:
        (root / PREFERENCES_FILE).unlink(missing_ok=True)
    values = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(card)}
    values["dimensions"] = list(values["dimensions"])
    replace_text(root / CARD_FILE, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    return card


def check_annotations(
    card: DatasetCard, pair_ids: Sequence[str], ratings: pd.DataFrame, preferences: pd.DataFrame | None, root: DataPath
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Checks ratings and preferences against the pairs and the scales.

    Returns:
        Both as `check_ratings` and `check_preferences` return them.

    Raises:
        DataError: If they do not fit, naming row and column in the files of `root`.
    """
    rated = check_ratings(ratings, pair_ids, card.dimensions, root / RATINGS_FILE)
    if preferences is not None:
        preferences = check_preferences(preferences, pair_ids, card.dimensions, root / PREFERENCES_FILE)
    return rated, preferences


def _read_card(root: DataPath) -> DatasetCard:
    path = root / CARD_FILE
    if not path.is_file():
        raise DataError(f"{root}: not a pair dataset, it has no {CARD_FILE}; make one with `empathy-judge import`")
    values = read_yaml(path)
    if not isinstance(values, dict) or "schema_version" not in values:
        raise DataError(f"{path}: schema_version is missing; expected {SCHEMA_VERSION}")
    if (version := values.pop("schema_version")) != SCHEMA_VERSION:
        raise DataError(f"{path}: schema_version {shown(version)}; expected {SCHEMA_VERSION}")
    try:
        return _CARD.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        fields = ", ".join(field.name for field in dataclasses.fields(DatasetCard))
        raise DataError(f"{path}: {first_problem(error)}; expected schema_version, {fields}") from None
    except (TypeError, ValueError, OverflowError) as error:  # a date, say, which JSON does not have
        raise DataError(f"{path}: {error}; expected text, numbers, true or false") from None
