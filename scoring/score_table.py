"""Scores as rows of a table, in one of two forms.

A wide table has a row for each pair and some columns for each dimension: `score --manifest` and `score_table` make it.
A long one has a row for each pair and dimension: every judge of `evaluate` returns it. What a column is called in
either form, and which column of a wide table is which of a long one, stands here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..data_modules.ratings import LABELS

if TYPE_CHECKING:  # scipy and torch: a process that only joins finished scores needs neither
    from .assessment import Assessment
    from .calibration import Calibration

Value = float | int | bool | str | None
DECIMALS = 6
"""Digits of numbers behind the point, in wide tables."""

# Columns that both forms have
PAIR_ID, STATUS, WINDOWS = "pair_id", "status", "windows"
"""`windows`: in how many windows a pair was read (`Assessment.windows`); of trained judges alone."""
COPIED = "manifest_"
"""What a column of the manifest begins with whose own name is taken."""
OK = "ok"
"""The status of a row with a score; any other status says in words why there is none."""

# Columns of a long table; a wide one has each of them once for each dimension, as `NAME_abstained`
DISTRIBUTION = "levels"
"""Of judges that predict how ratings spread: the share of raters at each step of the scale, the lowest first. Numbers
joined by `;` in files (`levels_text`)."""
ABSTAINED = "abstained"
"""Of judges that may abstain: True where the judge abstains; the row still has its score."""
SCORE_COLUMNS = (PAIR_ID, "dimension", "score", "uncertainty", STATUS, "meta")
"""Columns that every long table has; `uncertainty` is `NAME_standard_error` of a wide one."""


class Column(NamedTuple):
    """A column of a wide table."""

    name: str
    # `number`: rating points or seconds, None = unknown; `count`; `flag`; or `text`
    kind: Literal["number", "count", "flag", "text"]


class LongCells(NamedTuple):
    """Where a row of a table has what a long table says of one dimension."""

    dimension: str | None  # None = in the column `dimension`
    score: str
    uncertainty: str
    levels: str


def score_columns(names: Sequence[str], calibration: Calibration | None, levels: bool = False) -> tuple[Column, ...]:
    """The columns of what a judge of these dimensions says of a response.

    Its dimensions; of a calibrated judge then of each `NAME_standard_error`, `NAME_low` and `NAME_high`, and where it
    may abstain `NAME_abstained` (true = too unsure to be asked); of one with `levels` then `NAME_levels`; then
    `NAME_label`, the nearest of five words, empty where scores are no rating points; `warnings`, codes of `Caution`
    joined by `;`, mostly empty; and `windows` and `seconds` as in `Assessment`.
    """
    calibrated: list[Column] = []
    if calibration is not None:
        for name in names:
            calibrated += [Column(f"{name}_{kind}", "number") for kind in ("standard_error", "low", "high")]
            calibrated += [Column(f"{name}_{ABSTAINED}", "flag")] if calibration.abstains else []
    labels = [Column(f"{name}_{DISTRIBUTION}", "text") for name in names if levels]
    labels += [Column(f"{name}_label", "text") for name in names]
    last = (Column("warnings", "text"), Column(WINDOWS, "count"), Column("seconds", "number"))
    return (*(Column(name, "number") for name in names), *calibrated, *labels, *last)


def row_columns(columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns of a wide table: `pair_id`, these, and `status`: `ok`, or why there are no scores."""
    return (Column(PAIR_ID, "text"), *columns, Column(STATUS, "text"))


def flat_scores(found: Assessment, columns: Iterable[Column]) -> dict[str, Value]:
    """The values of `score_columns`; numbers are rounded to six decimals."""
    values: dict[str, Value] = {
        "warnings": ";".join(caution.code for caution in found.warnings),
        WINDOWS: found.windows,
        "seconds": round(found.seconds, DECIMALS),
    }
    for name, score in found.scores.items():
        numbers = {"": score.score, "_standard_error": score.standard_error, "_low": score.low, "_high": score.high}
        for kind, value in numbers.items():
            values[f"{name}{kind}"] = None if value is None else round(value, DECIMALS)
        values[f"{name}_{ABSTAINED}"], values[f"{name}_label"] = score.abstained, score.label
        values[f"{name}_{DISTRIBUTION}"] = None if found.levels is None else levels_text(found.levels[name])
    return {column.name: values[column.name] for column in columns}


def dimensions_of(columns: Collection[str], rows: Iterable[Mapping[str, object]]) -> list[str]:
    """The dimensions of a wide table, which has a label for each: one of `LABELS`, or none.

    Columns of the manifest may look like that, also those of scores that were scored again (`Manifest.copied`).
    """
    names = [name for name in columns if f"{name}_label" in columns and not _is_copied(name, columns)]
    for row in rows:
        names = [name for name in names if row.get(f"{name}_label") in (None, "", *LABELS)]
    return names


def _is_copied(name: str, columns: Collection[str]) -> bool:
    while name.startswith(COPIED):
        name = name.removeprefix(COPIED)
        if name in columns:
            return True
    return False


def cells_of(dimension: str) -> LongCells:
    """Where a row of a wide table has what a long table says of a dimension."""
    return LongCells(dimension, dimension, f"{dimension}_standard_error", f"{dimension}_{DISTRIBUTION}")


def long_cells(columns: Collection[str], rows: Iterable[Mapping[str, object]]) -> list[LongCells]:
    """Where a row of a table with these columns, in either form, has what a long table says of each dimension."""
    # A wide table has rows without scores, and may have copied a column `dimension`
    wide = STATUS in columns and not {"dimension", "score"} <= {*columns}
    own = [cells_of(name) for name in dimensions_of(columns, rows)] if wide else []
    return own or [LongCells(None, "score", "uncertainty", DISTRIBUTION)]


def are_shares(levels: Sequence[float]) -> bool:
    """Whether these are shares of a whole: none below 0, and a sum of 1, within a hundredth for what was rounded."""
    return all(share >= 0 for share in levels) and abs(sum(levels) - 1) <= 0.01


def levels_text(levels: Iterable[float]) -> str:
    """Shares as one cell of a file: `0.050000;0.150000;0.800000`."""
    return ";".join(f"{share:.{DECIMALS}f}" for share in levels)
