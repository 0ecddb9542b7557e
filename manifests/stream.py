"""Scores of a manifest printed as they come, for pipes; a run that ends early begins anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ..scorer import Scorer
from .columns import row_columns, score_columns
from .formats import CSV
from .index import index, open_table
from .rows import Row, RowReader
from .scoring import score_rows


def print_scores(scorer: Scorer, manifest: Path, file: TextIO, level: float | None = None) -> int:
    """Write CSV with the columns of `columns.row_columns`.

    Args:
        scorer: The judge.
        manifest: The table, as for `run.score_manifest`.
        file: Where to.
        level: Of the intervals of a calibrated judge; None = the usual one.

    Returns:
        How many rows have no scores.

    Raises:
        DataError: If the table cannot be read, lacks `response_audio` or has an id twice.
    """
    table = open_table(manifest)
    index(table)
    columns, reader, failed = score_columns(scorer), RowReader(manifest.parent), 0

    def rows() -> Iterator[Row]:
        for record in table.records():
            yield reader.of_record(record, manifest)

    file.write(CSV.header(row_columns(columns)))
    for row in score_rows(scorer, rows(), columns, level):
        failed += row.problem is not None
        file.write(CSV.lines([row.values]))
    return failed
