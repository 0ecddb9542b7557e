"""Ratings out of a table in any of the layouts that people use, in long form and checked.

By the header:

    - long: ``pair_id, rater_id, dimension, score``; with one dimension its column may be left out;
    - ``pair_id, rater_id`` and one column per dimension: a row is what one rater says about one pair;
    - ``pair_id`` and columns ``DIMENSION:RATER``;
    - ``pair_id`` and one column per rater, for one dimension. Only on demand (`wide` true): a column such as
      ``mean`` would pass for a rater.

An empty cell of a wide table means not rated; in a long table a missing row does.

In the first two layouts a column ``seconds`` may say how long the rater took for the row; empty = unknown. Every rating
of the row carries it. In a table of pairs it must be mapped: there it may as well be the length of the clip.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..errors import DataError, shown
from ..ratings import RATING_COLUMNS, SECONDS, Dimension, check_ratings
from .tables import SourceTable, full_mapping, plain_text

_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_OURS = (*RATING_COLUMNS, SECONDS)


@dataclass(frozen=True)
class _ScoreColumn:
    """A column of scores; None = the row says which rater or dimension they are of."""

    name: str
    rater: str | None
    dimension: str | None


def long_ratings(
    table: SourceTable,
    given: Mapping[str, str],
    dimensions: Sequence[Dimension],
    wide: bool | None,
    pair_ids: Sequence[str],
    taken: Collection[str],
) -> tuple[pd.DataFrame, set[str]]:
    """Ratings in long form, checked, and the columns they came from.

    Args:
        table: The table of ratings.
        given: Our column name (``pair_id``, ``rater_id``, ``dimension``, ``score``, ``seconds``) -> theirs, where they
            differ.
        dimensions: The scales.
        wide: Whether the ratings are wide; None = see from the header.
        pair_ids: The pairs that exist.
        taken: Columns that say something about pairs, where the ratings have no table of their own: no raters, and no
            times unless mapped.

    Raises:
        DataError: If the header fits no layout or more than one, there are no ratings, or one breaks the contract.
    """
    names = full_mapping(given, _OURS, table, ("pair_id",))
    score_columns = _score_columns(table, names, [dimension.name for dimension in dimensions], wide, taken)
    used = {names["pair_id"], *(column.name for column in score_columns)}
    has_rater_id = any(column.rater is None for column in score_columns)
    if has_rater_id:
        used.add(full_mapping(names, _OURS, table, ("rater_id",))["rater_id"])
    if any(column.dimension is None for column in score_columns):
        used.add(full_mapping(names, _OURS, table, ("dimension",))["dimension"])
    seconds_column = _seconds_column(table, given, has_rater_id, table.columns if taken else used)
    if seconds_column is not None:
        used.add(seconds_column)
    ratings: list[tuple[Any, ...]] = []
    seconds: list[Any] = []
    cells: list[tuple[int, str]] = []
    for position, row in enumerate(table.rows):
        ours = {our: plain_text(row.get(their)) for our, their in names.items()}
        for column in score_columns:
            score = row.get(column.name)
            if plain_text(score) is None and column.name != names.get("score"):
                continue
            rater = ours["rater_id"] if column.rater is None else column.rater
            dimension = ours["dimension"] if column.dimension is None else column.dimension
            ratings.append((ours["pair_id"], rater, dimension, to_number(score)))
            cells.append((position, column.name))
            if seconds_column is not None:
                seconds.append(to_number(row.get(seconds_column)))
    frame = pd.DataFrame(ratings, columns=pd.Index(RATING_COLUMNS), dtype=object)
    if seconds_column is not None:
        frame[SECONDS] = pd.Series(seconds, dtype=object)

    def locate(position: int, column: str) -> str:
        row, score_column = cells[position]
        return table.place(row, score_column if column == "score" else names.get(column, score_column))

    if not ratings:
        raise DataError(f"{table.path}: the table holds no ratings")
    check_ratings(frame, pair_ids, dimensions, table.path, locate)
    return frame.astype({name: "float64" for name in ("score", SECONDS) if name in frame}), used


def _seconds_column(
    table: SourceTable, given: Mapping[str, str], has_rater_id: bool, other_columns: Collection[str]
) -> str | None:
    """The column that says how long the rater of a row took; by its name alone only if it says nothing else."""
    if SECONDS in given and not has_rater_id:
        raise DataError(
            f"{table.path}: column {shown(given[SECONDS])} cannot be {SECONDS}, because a row holds the ratings of "
            "several raters; accepted: a layout with a column rater_id"
        )
    is_named = has_rater_id and SECONDS in table.columns and SECONDS not in other_columns
    return given.get(SECONDS, SECONDS if is_named else None)


def _score_columns(
    table: SourceTable,
    names: Mapping[str, str],
    dimensions: Sequence[str],
    wide: bool | None,
    taken: Collection[str],
) -> list[_ScoreColumn]:
    """The columns of scores in the one layout that the header fits; see the head of this file."""
    fits: dict[str, list[_ScoreColumn]] = {}
    if "score" in names and wide is not True:
        only = dimensions[0] if len(dimensions) == 1 and "dimension" not in names else None
        fits["long (a column score)"] = [_ScoreColumn(names["score"], None, only)]
    if wide is not False:
        here = [name for name in dimensions if name in table.columns and name != names.get("score")]
        if "rater_id" in names and here:
            fits["wide (rater_id and a column per dimension)"] = [_ScoreColumn(d, None, d) for d in dimensions]
        split = [(column, *column.partition(":")) for column in table.columns]
        both = [_ScoreColumn(column, r, d) for column, d, _, r in split if d in dimensions and r]
        if both:
            fits["wide (columns DIMENSION:RATER)"] = both
        if wide and not fits and not here and "rater_id" not in names and len(dimensions) == 1:
            raters = [column for column in table.columns if column not in {names["pair_id"], *taken}]
            fits["wide (a column per rater)"] = [_ScoreColumn(r, r, dimensions[0]) for r in raters]
    if len(fits) == 1:
        (found,) = fits.values()
        missing = [column.name for column in found if column.name not in table.columns]
        if missing:
            raise DataError(f"{table.path}: no column {missing[0]!r}; accepted: a column for each dimension")
        return found
    raise DataError(
        f"{table.path}: the header ({', '.join(map(shown, table.columns))}) fits "
        f"{' and '.join(fits) or 'no layout'} for ratings of {', '.join(dimensions)}; accepted: pair_id, "
        "rater_id, dimension, score; or pair_id, rater_id and a column per dimension; or pair_id and columns "
        "DIMENSION:RATER; or, said to be wide, pair_id and a column per rater"
    )


def to_number(value: Any) -> Any:
    """The number that a text spells, in ASCII digits without separators; checks judge the rest."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
