"""The pair dataset: a folder with ``pairs.parquet``, ``ratings.parquet``, ``preferences.parquet`` and
``dataset.yaml``. `PairDataset.load` reads and checks all of it, column by column; how it is stored is in `storage`,
who writes it in `importers.assemble` and `writing`.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..audio.decode import AudioSource
from ..audio.stored_clips import CONTEXT, RESPONSE, StoredClip, StoredFile
from ..core.errors import DataError, Locate, TextError, first_problem, place, shown, system_errors
from ..core.files import (
    CARD_FILE,
    DataPath,
    RemotePath,
    data_path,
    files_inside,
    resolve_inside,
    resolve_remote,
    stays_inside,
)
from ..core.parquet import read_parquet
from ..core.yaml_files import read_yaml
from .ratings import NAME, OPTIONAL_COLUMNS, Dimension, check_preferences, check_ratings, is_text
from .storage import (
    NAME_COLUMNS,
    PAIRS_FILE,
    PREFERENCES_FILE,
    PREFERENCES_SCHEMA,
    RATINGS_FILE,
    RATINGS_SCHEMA,
    SPLITS_FILE,
    SPLITS_SCHEMA,
    TEXT_COLUMNS,
    TEXTS,
    Tags,
    column_fault,
    pair_columns,
    pairs_files,
    ratings_schema,
)

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

__all__ = ["DatasetCard", "Dimension", "Pair", "PairDataset", "Turn"]

SCHEMA_VERSION = 1
HASHED_COLUMNS = tuple(name for name in ("pair_id", "group_id", *NAME_COLUMNS, *TEXT_COLUMNS) if name != "split")
# Pair id -> sort key of pairs: a line in `content_hash` begins with it
hash_order: Callable[[str], str] = json.dumps
# Position of its row, turn of the context or None for the response, path or None where it is embedded, and hash
Clips = list[tuple[int, int | None, str | None, str]]


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
            sliced and splits made by them; no judge sees them.
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
    def situation_or_none(self) -> str | None:
        """The situation, or None where it is blank."""
        return self.situation if self.situation and self.situation.strip() else None

    @property
    def clips(self) -> tuple[AudioSource, ...]:
        """The audio of each turn, then of the response, as `PairDataset.fingerprints` has their hashes."""
        return (*(turn.audio for turn in self.context), self.response)

    def tag(self, name: str) -> str | None:
        """The value of a tag, or None."""
        return next((value for tag, value in self.tags if tag == name), None)


def check_situation(text: object) -> None:
    """A text about the situation is text, or None.

    Raises:
        TextError: If it is something else, or text that UTF-8 cannot hold.
    """
    if text is None or is_text(text):
        return
    why = ": half of a surrogate pair; expected Unicode text" if isinstance(text, str) else "; expected text, or None"
    raise TextError(f"situation {shown(text)}{why}", "not text")


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
            scales, whatever the order of rows. `writing.write_dataset` computes it; what stands here before does not
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
            are known also `SECONDS` (float64, at least 0): time that the rater took for the judgement, NaN = unknown;
            where scores are published means also `SD` and `N_RATINGS` (float64, NaN = the score is a rating).
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
            pairs, fingerprints = _load_pairs(root)
            ratings = read_parquet(root / RATINGS_FILE, RATINGS_SCHEMA, OPTIONAL_COLUMNS).to_pandas()
            compared = (root / PREFERENCES_FILE).exists()
            preferences = read_parquet(root / PREFERENCES_FILE, PREFERENCES_SCHEMA).to_pandas() if compared else None
        ids = [pair.pair_id for pair in pairs]
        rated = check_ratings(ratings, ids, card.dimensions, root / RATINGS_FILE)
        if preferences is not None:
            preferences = check_preferences(preferences, ids, card.dimensions, root / PREFERENCES_FILE)
        computed_hash = content_hash(card.dimensions, hashed_pairs(pairs, fingerprints), ratings, preferences)
        # Scores, splits and judges are known by this hash: they must not pass for those of a table that was edited.
        if computed_hash != card.content_hash:
            raise DataError(
                f"{root / CARD_FILE}: content_hash {card.content_hash[:12]}... is not that of the tables "
                f"({computed_hash[:12]}...): a file was changed after the import; import the data again"
            )
        return cls(root, card, pairs, rated, preferences, fingerprints)

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
        # Through JSON, because pydantic is strict about lists in place of tuples in Python values alone.
        return _CARD.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        fields = ", ".join(field.name for field in dataclasses.fields(DatasetCard))
        raise DataError(f"{path}: {first_problem(error)}; expected schema_version, {fields}") from None
    except (TypeError, ValueError, OverflowError) as error:  # a date, say, which JSON does not have
        raise DataError(f"{path}: {error}; expected text, numbers, true or false") from None


def _load_pairs(root: DataPath) -> tuple[tuple[Pair, ...], dict[str, tuple[str, ...]]]:
    """Pairs and the hashes of their clips, from one file or shard after the other. Audio is looked up, not read.

    Raises:
        DataError: If a file is missing, is not Parquet or has another schema, a row breaks the contract, a clip has
            neither or both of path and bytes, or a path is no file of the folder.
    """
    files = pairs_files(root)
    splits, mismatch = None, f"{root / SPLITS_FILE}: belongs to other pairs; run `empathy-judge split --overwrite`"
    if files != [root / PAIRS_FILE] and (root / SPLITS_FILE).is_file():
        splits = read_parquet(root / SPLITS_FILE, SPLITS_SCHEMA).to_pydict()
    pairs: list[Pair] = []
    fingerprints: dict[str, tuple[str, ...]] = {}
    positions: dict[str, int] = {}
    found: dict[str, Path | StoredFile] = {}
    starts: list[int] = []  # position of the first row of each file

    def locate(position: int, column: str) -> str:
        index = bisect.bisect_right(starts, position) - 1
        return place(files[index], position - starts[index] + 1, column)

    for path in files:
        starts.append(len(pairs))
        for columns, file, group, first in pair_columns(path):
            fault = column_fault(columns, positions, locate)
            start, ids, responses = len(pairs), columns["pair_id"], columns[RESPONSE]
            contexts = [turns or () for turns in columns[CONTEXT]]
            clips: Clips = [
                (start + row, turn, clip["path"], clip["sha256"])
                for row, turns in enumerate(contexts[: fault and fault[0]])
                for turn, clip in (*enumerate(turns), (None, responses[row]))
            ]
            _find_files(root, clips, found, locate)
            # After the files of the rows before it: the first bad row is named, whatever is wrong with it
            if fault is not None:
                raise fault[1]
            if splits is not None:
                columns["split"] = splits["split"][start : start + len(ids)]
                are_names = all(map(NAME.fullmatch, set(columns["split"]) - {None}))
                if splits["pair_id"][start : start + len(ids)] != ids or not are_names:
                    raise DataError(mismatch)
            row = first - start  # of a position, in the row group
            audio = iter(
                [
                    StoredClip(sha256, file, group, row + position, turn)
                    if name is None
                    else StoredClip(sha256, source)
                    if isinstance(source := found[name], StoredFile)
                    else source
                    for position, turn, name, sha256 in clips
                ]
            )
            texts = zip(*(columns[name] for name in TEXTS), strict=True)
            pairs += [
                Pair(
                    context=tuple([Turn(turn["role"], next(audio)) for turn in turns]),
                    response=next(audio),
                    **dict(zip(TEXTS, values, strict=True)),
                )
                for turns, values in zip(contexts, texts, strict=True)
            ]
            hashes = iter([clip[-1] for clip in clips])
            fingerprints |= zip(ids, (tuple(islice(hashes, len(turns) + 1)) for turns in contexts), strict=True)
    if not pairs:
        raise DataError(f"{files[0]}: the table holds no pairs")
    if splits is not None and len(splits["pair_id"]) != len(pairs):
        raise DataError(mismatch)
    return tuple(pairs), fingerprints


def _find_files(root: DataPath, clips: Clips, found: dict[str, Path | StoredFile], locate: Locate) -> None:
    """Adds to `found` the files of clips that have a path; each is looked up once.

    Raises:
        DataError: If one is no file of the folder; the first is named.
    """
    new = [path for path in dict.fromkeys(clip[2] for clip in clips) if path is not None and path not in found]
    if isinstance(root, Path):
        root = root.resolve()
        found |= files_inside(root, new)
    # A remote folder is listed once: to ask for each file would take a request for each.
    elif new and not found:
        found |= {path: StoredFile(root / path, "") for path in root.files() if stays_inside(path)}
    for position, turn, path, _ in clips:
        if path is not None and path not in found:
            where = locate(position, RESPONSE if turn is None else CONTEXT)
            if isinstance(root, RemotePath):
                found[path] = StoredFile(resolve_remote(root, path, found, where), "")
            else:
                found[path] = resolve_inside(root, path, where)


def hashed_pairs(pairs: Iterable[Pair], fingerprints: Mapping[str, tuple[str, ...]]) -> Iterator[list[Any]]:
    """The lines that `content_hash` takes, of loaded pairs, made one at a time."""
    texts_of = attrgetter(*HASHED_COLUMNS)
    return (
        [*texts_of(p), [turn.role for turn in p.context], fingerprints[p.pair_id], *([p.tags] if p.tags else [])]
        for p in sorted(pairs, key=lambda pair: hash_order(pair.pair_id))
    )


def content_hash(
    dimensions: Sequence[Dimension],
    pairs: Iterable[Sequence[Any]],
    ratings: pd.DataFrame,
    preferences: pd.DataFrame | None,
) -> str:
    """SHA-256 (hex) over scales, pairs without their split, ratings and preferences, whatever the order of rows.

    Audio counts by its content and not by its name. Each pair is a list: its `HASHED_COLUMNS`, the roles of the
    context, the hashes of all clips, and the tags if there are any; sorted by `hash_order`, so that none is held.
    """
    import pyarrow.compute as pc

    scales = [
        [d.name, float(d.minimum), float(d.maximum), d.step and float(d.step), d.higher_is_better] for d in dimensions
    ]
    digest = hashlib.sha256(json.dumps(scales).encode())
    for pair in pairs:
        digest.update(json.dumps(pair).encode() + b"\n")
    digest.update(b"\n")
    compared = [] if preferences is None else [(preferences, PREFERENCES_SCHEMA)]
    for table, schema in [(ratings, ratings_schema(ratings)), *compared]:
        # Each row is a JSON list, in Arrow: as Python objects the ratings of many raters would fill the memory. JSON is
        # ASCII, so that bytes sort as text does; texts come first and differ, so that numbers do not count.
        cells = [_as_json(table[field.name], field.type == pa.string()) for field in schema]
        lines = pc.call_function("binary_join_element_wise", [*cells, pa.scalar(", ", pa.large_string())])
        order = pc.call_function("array_sort_indices", [lines])
        for start in range(0, len(order), 1 << 16):
            part = lines.take(order[start : start + (1 << 16)]).to_pylist()
            digest.update("".join(f"[{line}]\n" for line in part).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _as_json(values: Any, is_text: bool) -> pa.LargeStringArray:
    """Each cell as JSON spells it, equal ones once. No two numbers differ only in rounding; NaN is ``null``."""
    import pandas as pd

    if is_text:
        codes, distinct = pd.factorize(values)
        spelled = [json.dumps(value) for value in distinct]
    else:
        bits, codes = np.unique(values.to_numpy(np.float64, na_value=np.nan).view(np.int64), return_inverse=True)
        spelled = ["null" if math.isnan(value) else repr(value) for value in bits.view(np.float64).tolist()]
    return pa.array(spelled, pa.large_string()).take(pa.array(codes))
