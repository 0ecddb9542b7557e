"""A judge that ran elsewhere: its scores in a table (the spec ``scores:FILE``)."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ...core.errors import DataError, counted, names_shown, shown
from ...data_modules.schema import Pair
from ...data_modules.tables import TableRow, read_table
from ...scoring.score_table import OK, PAIR_ID, STATUS, are_shares, long_cells
from ..results import ITEMS_FILE, REPORT_FILE
from . import given_scores


class ScoresFile:
    """Scores from a CSV, TSV, JSONL or Parquet table with columns ``pair_id``, ``dimension``, ``score``.

    Columns ``uncertainty`` and ``levels`` (shares of raters at each step of the scale, the lowest first, joined by
    ``;``) are read where they are; others are ignored. A file of ``score --manifest``, which has a
    column for each dimension, does as well. A pair without a row, or whose score is empty, null, or NaN as a number,
    gets a status that says so; the text ``NaN`` is refused, as in every table. It knows pairs by their id only, so it
    cannot take the listening checks.

    Args:
        path: The table.
        pair_ids: Of the dataset that is measured, whatever its split. Rows of other pairs are left out with a warning.

    Raises:
        DataError: If the table cannot be read, lacks a column, or has a row without a pair or a dimension, a score that
            is no finite number, or two rows for one pair and dimension; or if it has none of the pairs.
    """

    only_given: str | None = "a file of scores cannot score changed pairs"
    signature: str | None
    """Signature of the report that the items belong to (`eval.results.signature`); None = they belong to no report."""

    def __init__(self, path: str | Path, pair_ids: Collection[str] | None = None) -> None:
        table = read_table(path)
        cells = long_cells(table.columns, table.rows)
        dimensions = [cell.dimension for cell in cells if cell.dimension is not None]
        for column in (PAIR_ID,) if dimensions else (PAIR_ID, "dimension", "score"):
            if column not in table.columns:
                raise DataError(f"{table.path}: no column {column!r}; it has {names_shown(table.columns)}")
        self._absent = f"no score in {table.path.name}"
        self.signature = _signature_of(table.path)
        # The items of all reports are called items.csv: the folder tells two judges apart
        of_report = f"{table.path.parent.name}/" if self.signature is not None else ""
        self.name = f"scores:{of_report}{table.path.name}"
        self.record: Mapping[str, Any] = {"sha256": hashlib.sha256(table.path.read_bytes()).hexdigest()}
        self._scores: dict[tuple[str, str], float] = {}
        self._uncertainties: dict[tuple[str, str], float] = {}
        self._levels: dict[tuple[str, str], tuple[float, ...]] = {}
        for record in table.records():
            for name, score, uncertainty, levels in cells:
                key = record.name(PAIR_ID), name or record.name("dimension")
                if key in self._scores:
                    raise DataError(
                        f"{record.place('pair_id')}: value {shown(key[0])} has a score for {shown(key[1])} already; "
                        "expected one row per pair and dimension"
                    )
                # A row of `score --manifest` that failed has empty cells, and says why in its status
                if dimensions and record.values.get(STATUS) != OK:
                    continue
                self._scores[key] = record.number(score)
                self._uncertainties[key] = record.number(uncertainty)
                if record.text(levels) is not None:
                    self._levels[key] = _levels_of(record, levels)
        if pair_ids is not None:
            _check_pairs(table.records(), frozenset(pair_ids))
        self.dimensions = tuple(dimensions or dict.fromkeys(dimension for _, dimension in self._scores))

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        return given_scores(pairs, self.dimensions, self._scores, self._absent, self._uncertainties, self._levels)


def _levels_of(record: TableRow, field: str) -> tuple[float, ...]:
    """The shares in a cell."""
    try:
        levels = tuple(float(share) for share in (record.text(field) or "").split(";"))
    except ValueError:
        levels = ()
    if not are_shares(levels):
        raise record.error(field, "shares of raters that sum to 1, lowest step first, such as 0.1;0.2;0.7")
    return levels


def _check_pairs(rows: Sequence[TableRow], known: frozenset[str]) -> None:
    others = [row for row in rows if row.name("pair_id") not in known]
    if not others:
        return
    found = f"{others[0].place('pair_id')}: value {shown(others[0].values['pair_id'])}; no such pair in the dataset"
    if len(others) == len(rows):
        raise DataError(f"{found}, and so in all rows; expected its pair ids")
    print(f"warning: {found} ({counted(len(others), 'such row')} of {len(rows)} left out)", file=sys.stderr)


def _signature_of(items: Path) -> str | None:
    if items.name != ITEMS_FILE:
        return None
    try:
        signature = json.loads(items.with_name(REPORT_FILE).read_text(encoding="utf-8"))["signature"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # no report, or none of ours
        return None
    return signature if isinstance(signature, str) else None
