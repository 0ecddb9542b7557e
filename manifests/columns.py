"""The columns of scores, wherever they are written: what a judge says of a response as one flat row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:  # neither is needed by who only puts parts together, and both load torch
    from ..assessment import Assessment
    from ..scorer import Scorer

Value = float | bool | str | None
_DECIMALS = 6


class Column(NamedTuple):
    """A column of scores.

    Attributes:
        name: Its name.
        kind: `number`: rating points, None = unknown; `flag`; or `text`.
    """

    name: str
    kind: Literal["number", "flag", "text"]


def score_columns(scorer: Scorer) -> tuple[Column, ...]:
    """What a judge says of a response.

    Its dimensions; of a calibrated judge then of each `NAME_standard_error`, `NAME_low` and `NAME_high`, and where it
    may abstain `NAME_abstained` (true = too unsure to be asked); then `NAME_label`, the nearest of five words, empty
    where scores are no rating points; and `warnings`, codes of `assessment.Caution` joined by `;`, mostly empty.
    """
    names = [dimension.name for dimension in scorer.dimensions]
    known: list[Column] = []
    if scorer.calibration is not None:
        for name in names:
            known += [Column(f"{name}_{kind}", "number") for kind in ("standard_error", "low", "high")]
            known += [Column(f"{name}_abstained", "flag")] if scorer.calibration.abstains else []
    labels = [Column(f"{name}_label", "text") for name in names]
    return (*(Column(name, "number") for name in names), *known, *labels, Column("warnings", "text"))


def row_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of a file of scores: `pair_id`, these, and `status`: `ok`, or why there are no scores."""
    return (Column("pair_id", "text"), *columns, Column("status", "text"))


def flat_scores(found: Assessment, columns: Sequence[Column]) -> dict[str, Value]:
    """The values of `score_columns`; numbers are rounded to six decimals."""
    values: dict[str, Value] = {"warnings": ";".join(caution.code for caution in found.warnings)}
    for name, own in found.scores.items():
        values[name] = _rounded(own.score)
        values[f"{name}_standard_error"] = _rounded(own.standard_error)
        values[f"{name}_low"], values[f"{name}_high"] = _rounded(own.low), _rounded(own.high)
        values[f"{name}_abstained"], values[f"{name}_label"] = own.abstained, own.label
    return {column.name: values[column.name] for column in columns}


def flat_row(pair_id: str, scores: Mapping[str, Value] | None, status: str, columns: Sequence[Column]) -> list[Value]:
    """The values of `row_columns` in their order, given `score_columns`; without scores these are None."""
    return [pair_id, *(None if scores is None else scores[column.name] for column in columns), status]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DECIMALS)
