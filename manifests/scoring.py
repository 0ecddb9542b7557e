"""Rows to values: the same for every engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..assessment import Assessment
from ..data_modules.errors import AudioError
from ..data_modules.schema import Pair
from ..models.calibration import DEFAULT_LEVEL
from ..scorer import Scorer
from .columns import Column, Value, flat_row, flat_scores
from .rows import Problem, Row


class ScoredRow(NamedTuple):
    """A row of scores.

    Attributes:
        values: Those of `columns.row_columns`.
        problem: Why there are none; None = there are.
    """

    values: list[Value]
    problem: Problem | None


def score_rows(
    scorer: Scorer, rows: Iterable[Row], columns: Sequence[Column], level: float | None
) -> Iterator[ScoredRow]:
    """Score rows, in order.

    Args:
        scorer: The judge.
        rows: Taken a few batches at a time.
        columns: `score_columns` of the judge.
        level: Of the intervals of a calibrated judge; None = the usual one.
    """
    waiting: deque[Row] = deque()
    for pair, found in scorer.assess_pairs(_pairs(rows, waiting), DEFAULT_LEVEL if level is None else level):
        while waiting[0].pair is not pair:
            yield without_scores(waiting.popleft(), columns)
        waiting.popleft()
        problem = Problem(found.kind, str(found)) if isinstance(found, AudioError) else _not_finite(found)
        if problem is None and isinstance(found, Assessment):
            yield ScoredRow(flat_row(pair.pair_id, flat_scores(found, columns), "ok", columns), None)
        else:
            yield without_scores(Row(pair.pair_id, None, problem), columns)
    for row in waiting:
        yield without_scores(row, columns)


def without_scores(row: Row, columns: Sequence[Column]) -> ScoredRow:
    """A row with a problem."""
    assert row.problem is not None
    return ScoredRow(flat_row(row.pair_id, None, row.problem.text, columns), row.problem)


def _pairs(rows: Iterable[Row], waiting: deque[Row]) -> Iterator[Pair]:
    """Those that can be scored; all rows are remembered."""
    for row in rows:
        waiting.append(row)
        if row.pair is not None:
            yield row.pair


def _not_finite(found: Assessment) -> Problem | None:
    for name, score in found.points.items():
        if not math.isfinite(score):
            return Problem("no finite score", f"{name}: the judge's score is {score}; accepted: a finite number")
    return None
