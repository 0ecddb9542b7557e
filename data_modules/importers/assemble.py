"""Writes what an importer read as a dataset folder: checks and stores clips, counts and lists skipped pairs."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ...audio.stored_clips import CONTEXT, RESPONSE, StoredClip
from ...core.errors import AudioError, DataError, UserError, counted, shown
from ...core.files import path_version
from ...core.processes import map_threads
from ...core.staging import staged_folder
from ..embedded_tables import EmbeddedClip
from ..ratings import PREFERENCE_COLUMNS, RATING_COLUMNS, check_preferences, check_ratings
from ..schema import SCHEMA_VERSION, DatasetCard, PairDataset, hash_order
from ..storage import (
    PAIR_COLUMNS,
    PAIRS_FILE,
    PREFERENCES_FILE,
    RATINGS_FILE,
    SHARD_FOLDER,
    TAGS,
    ratings_schema,
    shard_name,
)
from ..writing import SHARD_ROWS, checked_pairs, complete_dataset, hashed_rows, sorted_tags, write_pairs
from .clips import CheckedClip, ClipCell, Content, check_clips, read_clip

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

SKIPPED_FILE = "skipped.csv"
DEFAULT_MAX_SKIPPED = 0.01
Clips = Mapping[Content, CheckedClip | AudioError]


class Skipped(NamedTuple):
    """A pair of the source that cannot be used: its file, row and column, or its name, and what is wrong."""

    where: str
    reason: str


@dataclass(frozen=True)
class Imported:
    """What an importer read.

    Attributes:
        card: Scales and origin; without a name it takes that of the folder.
        pairs: Rows with columns of ``pairs.parquet``. ``response_audio`` is a `ClipCell`, ``context_audio`` a list of
            ``{"role": str, "audio": ClipCell}``. ``group_id`` None or absent = pairs with the same context audio and
            situation are one group, and those that have neither are with those of the same response.
        ratings: Columns `RATING_COLUMNS`, and some of `OPTIONAL_COLUMNS`; None = nobody gave scores.
        preferences: Columns `PREFERENCE_COLUMNS`; None = nobody compared pairs.
        skipped: Pairs of the source that `pairs` leaves out.
    """

    card: DatasetCard
    pairs: Sequence[Mapping[str, Any]]
    ratings: pd.DataFrame | None = None
    preferences: pd.DataFrame | None = None
    skipped: Sequence[Skipped] = ()


def assemble(
    imported: Imported,
    out: str | Path,
    *,
    overwrite: bool = False,
    embed_audio: bool = False,
    shard_rows: int = SHARD_ROWS,
    max_skipped: float = DEFAULT_MAX_SKIPPED,
) -> PairDataset:
    """Writes the dataset; `out` appears complete or not at all.

    Every clip is decoded once, and not more than a few are in memory. A pair with an unusable clip is skipped together
    with its ratings and preferences; ``skipped.csv`` lists them all. An import that was killed or interrupted goes on
    where it stopped when it is called again with the same pairs, clips and layout; see `staged_folder`.

    Args:
        imported: From an importer.
        out: The dataset folder to make.
        overwrite: Replace a pair dataset at `out`.
        embed_audio: Keep audio inside Parquet files instead of in a folder.
        shard_rows: Pairs in a file of embedded audio; more pairs go into several files.
        max_skipped: Share of the source's pairs that may be skipped.

    Returns:
        The dataset as it loads.

    Raises:
        UserError: If `shard_rows` or `max_skipped` cannot be used.
        DataError: If the tables break the contract, or more pairs are unusable than `max_skipped`, or all; the first is
            named.
    """
    if shard_rows < 1:
        raise UserError(f"{shard_rows} pairs in a shard; expected at least 1")
    # Written so that NaN is refused, too.
    if not 0 <= max_skipped <= 1:
        raise UserError(f"--max-skipped {max_skipped:g}: expected a share of the pairs, from 0 to 1")
    out = Path(out).resolve()
    with staged_folder(out, overwrite, _key(imported.pairs, embed_audio, shard_rows)) as stage:
        clips = check_clips((cell for row in imported.pairs for cell in _cells(row)), stage, embed_audio)
        usable: list[Mapping[str, Any]] = []
        skipped = [*imported.skipped]
        for row in imported.pairs:
            unknown_columns = [name for name in row if name not in PAIR_COLUMNS]
            if unknown_columns:
                raise DataError(f"{row[RESPONSE].where}: unknown column {shown(unknown_columns[0])}")
            checked = [(cell.where, clips[cell.content]) for cell in _cells(row)]
            errors = [Skipped(where, str(clip)) for where, clip in checked if isinstance(clip, AudioError)]
            # One for each pair, as their share is what `max_skipped` limits
            skipped += errors[:1]
            usable += [] if errors else [row]
        total = len(imported.pairs) + len(imported.skipped)
        too_many = len(skipped) > max_skipped * total
        if too_many or (skipped and not usable):
            count_note = f" ({len(skipped) - 1} more unusable of {total} pairs)" if len(skipped) > 1 else ""
            limit = "; no pair is left"
            if too_many:
                limit = f"; at most {max_skipped:.0%} may be skipped" if max_skipped else ""
            raise DataError(f"{skipped[0].where}: {skipped[0].reason}{count_note}{limit}")
        # For the check alone: rows are made anew when they are written, so that one at a time is held
        deque(checked_pairs((_stored(row, clips) for row in usable), out / PAIRS_FILE), maxlen=0)
        ratings, preferences = _annotations_of(usable, imported)
        card = dataclasses.replace(imported.card, name=imported.card.name or out.name)
        ids = [row["pair_id"] for row in usable]
        ratings = check_ratings(ratings, ids, card.dimensions, out / RATINGS_FILE)
        if preferences is not None:
            preferences = check_preferences(preferences, ids, card.dimensions, out / PREFERENCES_FILE)
        if skipped:
            # A file's name may hold bytes that are no UTF-8
            with (stage / SKIPPED_FILE).open("w", encoding="utf-8", newline="", errors="backslashreplace") as file:
                csv.writer(file).writerows([("where", "reason"), *skipped])
            note = f"{counted(len(skipped), 'pair')} skipped, see {SKIPPED_FILE}."
            card = dataclasses.replace(card, description=f"{card.description} {note}".strip())
        _write_rows(usable, clips, stage, shard_rows if embed_audio else len(usable))
        usable.sort(key=lambda row: hash_order(row["pair_id"]))
        complete_dataset(stage, card, hashed_rows(_stored(row, clips) for row in usable), ratings, preferences)
    return PairDataset.load(out)


def _key(pairs: Sequence[Mapping[str, Any]], embed: bool, shard_rows: int) -> str:
    """Hash of all that determines what is staged. Files count by name, size and time of change."""

    @lru_cache(None)
    def version(path: Path) -> str:
        return path_version(path) if path.is_file() else "gone"

    def clip(content: Content) -> list[str]:
        match content:
            case EmbeddedClip():
                return [content.table.version, str(content.row), *map(str, content.steps)]
            case StoredClip():
                return [content.sha256]
        return [str(content), "" if isinstance(content, AudioError) else version(content)]

    digest = hashlib.sha256(json.dumps([SCHEMA_VERSION, embed, shard_rows if embed else 0]).encode())
    for row in pairs:
        texts = [(name, value) for name, value in sorted(row.items()) if name not in (CONTEXT, RESPONSE)]
        roles = [turn["role"] for turn in row.get(CONTEXT) or ()]
        clips = [clip(cell.content) for cell in _cells(row)]
        digest.update(json.dumps([texts, roles, clips], default=repr).encode() + b"\n")
    return digest.hexdigest()


def _cells(row: Mapping[str, Any]) -> list[ClipCell]:
    return [*(turn["audio"] for turn in row.get(CONTEXT) or ()), row[RESPONSE]]


def _stored(row: Mapping[str, Any], clips: Clips) -> dict[str, Any]:
    """A usable pair as a row of ``pairs.parquet`` without bytes; made anew each time, so that only one is held."""
    checked = [cast(CheckedClip, clips[cell.content]) for cell in _cells(row)]
    *context, response = [{"path": clip.path, "bytes": None, "sha256": clip.sha256} for clip in checked]
    turns = [{"role": turn["role"], **clip} for turn, clip in zip(row.get(CONTEXT) or (), context, strict=True)]
    stored = {name: row.get(name) for name in PAIR_COLUMNS} | {CONTEXT: turns, RESPONSE: response}
    stored[TAGS] = sorted_tags(stored[TAGS], row[RESPONSE].where)
    if stored["group_id"] is None:
        has_context = context or stored["situation"] is not None
        key = [*(clip["sha256"] for clip in context), stored["situation"]] if has_context else [response["sha256"]]
        stored["group_id"] = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return stored


def _write_rows(rows: Sequence[Mapping[str, Any]], clips: Clips, stage: Path, shard_rows: int) -> None:
    """Writes one file, or shards of so many rows; shards that are there already stay."""
    shards = [PAIRS_FILE]
    if len(rows) > shard_rows:
        shards = [shard_name(number) for number in range(-(-len(rows) // shard_rows))]
        (stage / SHARD_FOLDER).mkdir(exist_ok=True)
    # Shards are made one after the other: so many of the first ones are whole.
    n_written = sum((stage / shard).is_file() for shard in shards)
    start = min(n_written * shard_rows, len(rows))

    def with_bytes(row: Mapping[str, Any]) -> dict[str, Any]:
        stored = _stored(row, clips)
        for clip, cell in zip([*stored[CONTEXT], stored[RESPONSE]], _cells(row), strict=True):
            if clip["path"] is None:
                try:
                    clip["bytes"] = read_clip(cell.content)
                except AudioError as error:
                    raise DataError(f"{cell.where}: {error}") from None
                if hashlib.sha256(clip["bytes"]).hexdigest() != clip["sha256"]:
                    raise DataError(f"{cell.where}: the clip was changed during the import")
        return stored

    with closing(map_threads(with_bytes, rows[start:], "Writing pairs", len(rows), start)) as full_rows:
        for shard in shards[n_written:]:
            write_pairs(islice(full_rows, shard_rows) if len(shards) > 1 else full_rows, stage / shard)


def _annotations_of(
    usable: Sequence[Mapping[str, Any]], imported: Imported
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Ratings and preferences of the usable pairs; those of skipped pairs are left out."""
    import pandas as pd

    ratings, preferences = imported.ratings, imported.preferences
    skipped_ids = list({row["pair_id"] for row in imported.pairs} - {row["pair_id"] for row in usable})
    if ratings is None:
        ratings = pd.DataFrame({name: [] for name in RATING_COLUMNS}).astype({"score": "float64"})
    ratings = ratings.loc[~ratings["pair_id"].isin(skipped_ids), ratings_schema(ratings).names].reset_index(drop=True)
    if preferences is not None:
        is_skipped = preferences["chosen_id"].isin(skipped_ids) | preferences["rejected_id"].isin(skipped_ids)
        preferences = preferences.loc[~is_skipped, list(PREFERENCE_COLUMNS)].reset_index(drop=True)
    return ratings, preferences
