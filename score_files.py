"""Scores for a manifest of pairs: one row in, one row out, in the same order."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import track

from .data_modules.errors import AudioError, DataError
from .data_modules.folders import resolve_inside
from .data_modules.intake.tables import SourceTable, read_table
from .data_modules.schema import Pair
from .scorer import Scorer, make_pair

_COLUMNS = ("pair_id", "context_audio", "response_audio", "situation")


def score_manifest(scorer: Scorer, manifest: Path, out: Path | None) -> int:
    """Score every row of a table of pairs.

    Args:
        scorer: The judge.
        manifest: CSV, TSV, JSONL or Parquet with `response_audio` and optionally `pair_id` (default: the row number),
            `context_audio` (one path) and `situation`. Paths are relative to the manifest and stay inside its folder.
        out: CSV with `pair_id`, one column per dimension and `status`; appears when it is complete. None = standard
            output.

    Returns:
        How many rows have no score; their status says why.

    Raises:
        DataError: If the table cannot be read or lacks `response_audio`, or a path leaves its folder.
    """
    pairs = _read_pairs(manifest)
    console = Console(stderr=True)
    scored = track(
        scorer.score_pairs(pairs),
        "scoring",
        total=len(pairs),
        console=console,
        disable=not console.is_terminal,
    )
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
    names = [dimension.name for dimension in scorer.dimensions]
    writer = csv.writer(file)
    writer.writerow(["pair_id", *names, "status"])
    failed = 0
    for pair, scores in scored:
        if isinstance(scores, AudioError):
            failed += 1
            writer.writerow([pair.pair_id, *("" for _ in names), str(scores)])
        else:
            writer.writerow([pair.pair_id, *(f"{scores[name]:.6f}" for name in names), "ok"])
    return failed


def _read_pairs(manifest: Path) -> list[Pair]:
    table = read_table(manifest)
    if "response_audio" not in table.columns:
        found = ", ".join(table.columns)
        raise DataError(f"{manifest}: no column 'response_audio'; it has {found}; accepted: {', '.join(_COLUMNS)}")
    return list(_rows(table, manifest))


def _rows(table: SourceTable, manifest: Path) -> Iterator[Pair]:
    folder = manifest.parent.resolve()
    seen: set[str] = set()
    for position, row in enumerate(table.rows):
        cells = {name: row[name] for name in _COLUMNS if name in row and row[name] not in (None, "")}
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
