"""From what an importer read to a dataset folder: clips checked and stored, skipped pairs counted and listed."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import AudioError, DataError
from ..folders import staged_folder
from ..ratings import PREFERENCE_COLUMNS, RATING_COLUMNS
from ..schema import DatasetCard, PairDataset, write_dataset
from .clips import ClipCell, StoredClip, store_clips

SKIPPED_FILE = "skipped.csv"
DEFAULT_MAX_SKIPPED = 0.01


@dataclass(frozen=True)
class Skipped:
    """A pair of the source that cannot be used.

    Attributes:
        where: File, row and column, or the name of the pair in the source.
        reason: What was found and what is accepted.
    """

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
        ratings: Columns `RATING_COLUMNS`; None = nobody gave scores.
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
    max_skipped: float = DEFAULT_MAX_SKIPPED,
) -> PairDataset:
    """Writes the dataset; `out` appears complete or not at all.

    Every clip is decoded once. A pair with an unusable clip is skipped together with what people said about it;
    ``skipped.csv`` lists them all.

    Args:
        imported: From an importer.
        out: The dataset folder to make.
        overwrite: Replace a pair dataset at `out`.
        embed_audio: Keep audio inside ``pairs.parquet`` instead of in a folder.
        max_skipped: Share of the source's pairs that may be skipped.

    Returns:
        The dataset as it loads.

    Raises:
        DataError: If the tables break the contract, or more pairs are unusable than `max_skipped`; the first is named.
    """
    with staged_folder(out, overwrite) as stage:
        rows, unusable = _store_audio(imported.pairs, stage, embed_audio)
        skipped = [*imported.skipped, *unusable]
        _check_skipped(skipped, len(imported.pairs) + len(imported.skipped), max_skipped)
        kept = {row["pair_id"] for row in rows}
        ratings, preferences = _opinions_on(kept, imported)
        if skipped:
            _write_skipped(skipped, stage / SKIPPED_FILE)
        card = dataclasses.replace(imported.card, name=imported.card.name or Path(out).resolve().name)
        if skipped:
            card = _with_note(card, f"{len(skipped)} pairs skipped, see {SKIPPED_FILE}.")
        write_dataset(stage, card, pd.DataFrame(rows, dtype=object), ratings, preferences)
    return PairDataset.load(out)


def _store_audio(
    pairs: Sequence[Mapping[str, Any]], stage: Path, embed: bool
) -> tuple[list[dict[str, Any]], list[Skipped]]:
    """Rows with stored clips, and the pairs that have an unusable one."""
    cells = [cell for row in pairs for cell in _cells(row)]
    stored = iter(store_clips(cells, stage, embed))
    rows, skipped = [], []
    for row in pairs:
        clips: list[StoredClip] = []
        failed: Skipped | None = None
        for cell in _cells(row):
            clip = next(stored)
            if isinstance(clip, AudioError):
                failed = failed or Skipped(cell.where, str(clip))
            else:
                clips.append(clip)
        if failed is None:
            rows.append(_with_clips(row, clips))
        else:
            skipped.append(failed)
    return rows, skipped


def _cells(row: Mapping[str, Any]) -> list[ClipCell]:
    return [*(turn["audio"] for turn in row.get("context_audio") or ()), row["response_audio"]]


def _with_clips(row: Mapping[str, Any], clips: Sequence[StoredClip]) -> dict[str, Any]:
    *context, response = clips
    turns = [
        {"role": turn["role"], "audio": clip.content}
        for turn, clip in zip(row.get("context_audio") or (), context, strict=True)
    ]
    full = {**row, "context_audio": turns, "response_audio": response.content}
    if row.get("group_id") is None:
        situation = row.get("situation")
        key = [*(clip.sha256 for clip in context), situation] if context or situation is not None else [response.sha256]
        full["group_id"] = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return full


def _check_skipped(skipped: Sequence[Skipped], total: int, accepted: float) -> None:
    if len(skipped) > accepted * total:
        more = f" ({len(skipped) - 1} more unusable of {total} pairs)" if len(skipped) > 1 else ""
        raise DataError(f"{skipped[0].where}: {skipped[0].reason}{more}; at most {accepted:.0%} may be skipped")


def _opinions_on(kept: set[str], imported: Imported) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Ratings and preferences of the pairs that are there; those of skipped pairs go with them."""
    ratings, preferences = imported.ratings, imported.preferences
    lost = {row["pair_id"] for row in imported.pairs} - kept
    if ratings is None:
        ratings = pd.DataFrame({name: [] for name in RATING_COLUMNS}).astype({"score": "float64"})
    ratings = ratings[~ratings["pair_id"].isin(list(lost))].reset_index(drop=True)
    if preferences is not None:
        gone = preferences["chosen_id"].isin(list(lost)) | preferences["rejected_id"].isin(list(lost))
        preferences = preferences.loc[~gone, list(PREFERENCE_COLUMNS)].reset_index(drop=True)
    return ratings, preferences


def _write_skipped(skipped: Sequence[Skipped], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["where", "reason"])
        writer.writerows((item.where, item.reason) for item in skipped)


def _with_note(card: DatasetCard, note: str) -> DatasetCard:
    return dataclasses.replace(card, description=" ".join(text for text in (card.description, note) if text))
