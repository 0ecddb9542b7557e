"""Scores for a manifest of pairs: one row in, one row out, in the same order."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import track

from .assessment import Assessment
from .audio_inputs import make_pair
from .data_modules.errors import AudioError, DataError
from .data_modules.folders import resolve_inside
from .data_modules.intake.tables import SourceTable, read_table
from .data_modules.schema import Pair
from .models.calibration import DEFAULT_LEVEL
from .scorer import Scorer

_ACCEPTED = ("pair_id", "context_audio", "response_audio", "situation")


def score_manifest(scorer: Scorer, manifest: Path, out: Path | None, level: float = DEFAULT_LEVEL) -> int:
    """Score every row of a table of pairs.

    Args:
        scorer: The judge.
        manifest: CSV, TSV, JSONL or Parquet with `response_audio` and optionally `pair_id` (default: the row number),
            `context_audio` (one path) and `situation`. Paths are relative to the manifest and stay inside its folder.
        out: CSV with `pair_id`, one column per dimension and `status`; of a calibrated judge also `uncertain_columns`.
            Appears when it is complete. None = standard output.
        level: Of the intervals of a calibrated judge.

    Returns:
        How many rows have no score; their status says why.

    Raises:
        DataError: If the table cannot be read or lacks `response_audio`, or a path leaves its folder.
    """
    scored = score_rows(scorer, read_pairs(manifest), level)
    if out is None:
        return _write(scorer, scored, sys.stdout)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        with open(unfinished, "w", encoding="utf-8", newline="") as file:
            failed = _write(scorer, scored, file)
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)
    return failed


def _write(scorer: Scorer, scored: Any, file: TextIO) -> int:
    write_header(scorer, file)
    return write_rows(scorer, scored, file)


def score_rows(scorer: Scorer, pairs: Sequence[Pair], level: float, quiet: bool = False) -> Iterable[Any]:
    """Each pair with its scores, with what is known of their errors where the judge is calibrated.

    Args:
        scorer: The judge.
        pairs: What to score.
        level: Of the intervals of a calibrated judge.
        quiet: No progress bar.
    """
    console = Console(stderr=True)
    return track(
        scorer.assess_pairs(pairs, level),
        "scoring",
        total=len(pairs),
        console=console,
        disable=quiet or not console.is_terminal,
    )


def _columns(scorer: Scorer) -> list[str]:
    names = [dimension.name for dimension in scorer.dimensions]
    return names if scorer.calibration is None else uncertain_columns(names, scorer.calibration.abstains)


def write_header(scorer: Scorer, file: TextIO) -> None:
    """The first line of a table of scores."""
    csv.writer(file).writerow(["pair_id", *_columns(scorer), "status"])


def write_rows(scorer: Scorer, scored: Iterable[Any], file: TextIO) -> int:
    """A line for each pair of `score_rows`.

    Returns:
        How many rows have no score.
    """
    columns, writer = _columns(scorer), csv.writer(file)
    failed = 0
    for pair, found in scored:
        if isinstance(found, AudioError):
            failed += 1
            writer.writerow([pair.pair_id, *("" for _ in columns), str(found)])
        else:
            values = flat_scores(found)
            writer.writerow([pair.pair_id, *(_cell(values[column]) for column in columns), "ok"])
    return failed


def uncertain_columns(names: Sequence[str], abstains: bool) -> list[str]:
    """The columns of a calibrated judge: its dimensions, then of each `NAME_standard_error`, `NAME_low` and `NAME_high`
    (rating points, empty = unknown), and where it may abstain `NAME_abstained`: `true` = too unsure to be asked."""
    kinds = ["standard_error", "low", "high", *(["abstained"] if abstains else [])]
    return [*names, *(f"{name}_{kind}" for name in names for kind in kinds)]


def flat_scores(found: Assessment) -> dict[str, float | bool | None]:
    """The values of `uncertain_columns` by column."""
    values: dict[str, float | bool | None] = {}
    for name, own in found.scores.items():
        values[name] = own.score
        kinds = ("standard_error", "low", "high", "abstained")
        values |= {f"{name}_{kind}": getattr(own, kind) for kind in kinds}
    return values


def _cell(value: float | bool | None) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:.6f}"


def read_pairs(manifest: Path) -> list[Pair]:
    """The pairs of a manifest, see `score_manifest`."""
    table = read_table(manifest)
    if "response_audio" not in table.columns:
        found = ", ".join(table.columns)
        raise DataError(f"{manifest}: no column 'response_audio'; it has {found}; accepted: {', '.join(_ACCEPTED)}")
    return list(_rows(table, manifest))


def _rows(table: SourceTable, manifest: Path) -> Iterator[Pair]:
    folder = manifest.parent.resolve()
    seen: set[str] = set()
    for position, row in enumerate(table.rows):
        cells = {name: row[name] for name in _ACCEPTED if name in row and row[name] not in (None, "")}
        pair_id = str(cells.get("pair_id", position + 1))
        if pair_id in seen:
            raise DataError(f"{table.place(position, 'pair_id')}: {pair_id!r} stands there twice; accepted: unique ids")
        seen.add(pair_id)
        clips = {}
        for column in ("context_audio", "response_audio"):
            if column in cells:
                clips[column] = resolve_inside(folder, str(cells[column]), table.place(position, column))
        if "response_audio" not in clips:
            raise DataError(f"{table.place(position, 'response_audio')}: empty; accepted: path of an audio file")
        yield make_pair(pair_id, clips.get("context_audio"), clips["response_audio"], cells.get("situation"))
