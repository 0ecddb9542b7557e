"""Imports a table of pairs and a table of ratings: CSV, TSV, JSONL or Parquet, with the audio beside them.

Pairs
    One row per pair with ``pair_id`` and ``response_audio``; any other column of ``pairs.parquet`` may be
    there, under its own name or mapped. Audio is a path relative to the folder of the table, or bytes
    (Parquet). ``context_audio`` is one clip, or in JSONL and Parquet a list of ``{"role", "audio"}``. Without
    a column ``group_id``, pairs with the same context audio and situation are one group; a pair that has
    neither is in one group with those of the same response. The card's description lists the columns that
    were not imported.

Ratings, by the header:

    - long: ``pair_id, rater_id, dimension, score``; with one dimension its column may be left out;
    - ``pair_id, rater_id`` and one column per dimension: a row is what one rater says about one pair;
    - ``pair_id`` and columns ``DIMENSION:RATER``;
    - ``pair_id`` and one column per rater, for one dimension. Only on demand (`wide` true): a column such as
      ``mean`` would pass for a rater.

    The last two may also stand in the table of pairs. An empty cell of a wide table means not rated; in a
    long table a missing row does.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import DataError, shown
from ..intake.assemble import Imported
from ..intake.clips import find_clip
from ..intake.options import parse_mapping
from ..intake.tables import SourceTable, read_table
from ..ratings import RATING_COLUMNS, Dimension, check_ratings, parse_dimension
from ..rows import PAIR_COLUMNS, check_pair_rows
from ..schema import DatasetCard

_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")


EXAMPLE = "table pairs.csv --ratings ratings.csv --dimension vocal_empathy=1:5:1 --out data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of tables."""
    parser.add_argument("--ratings", help="table of ratings; without it they stand in the table of pairs")
    parser.add_argument(
        "--dimension", action="append", required=True, metavar="NAME=LOW:HIGH[:STEP][:lower]",
        help="scale; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--column", action="append", default=[], metavar="OURS=THEIRS", help="column of the pairs; repeatable"
    )
    parser.add_argument(
        "--rating-column", action="append", default=[], metavar="OURS=THEIRS", help="the same for ratings"
    )
    parser.add_argument("--layout", choices=["long", "wide"], help="of the ratings, where the header leaves it open")
    parser.add_argument("--synthetic", action="store_true", help="the ratings were not given by people")


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads the tables that the command line names."""
    return read_tables(
        path,
        options.ratings,
        columns=parse_mapping(options.column, "--column"),
        rating_columns=parse_mapping(options.rating_column, "--rating-column"),
        dimensions=[parse_dimension(text) for text in options.dimension],
        wide={"wide": True, "long": False, None: None}[options.layout],
        synthetic=options.synthetic,
    )


def read_tables(
    pairs_path: str | Path,
    ratings_path: str | Path | None,
    *,
    columns: Mapping[str, str],
    rating_columns: Mapping[str, str],
    dimensions: Sequence[Dimension],
    wide: bool | None = None,
    synthetic: bool = False,
) -> Imported:
    """Reads pairs and ratings. Pairs without ratings are allowed.

    Args:
        pairs_path: The table of pairs.
        ratings_path: The table of ratings; None = the ratings stand in the table of pairs.
        columns: Our column name -> that in the table of pairs, where they differ.
        rating_columns: The same for the table of ratings (``pair_id``, ``rater_id``, ``dimension``,
            ``score``).
        dimensions: The scales.
        wide: Whether the ratings are wide; None = see from the header.
        synthetic: Whether the ratings were not given by people.

    Raises:
        DataError: If a table breaks the contract or a clip is missing; file, row and column are named.
    """
    card = DatasetCard("", tuple(dimensions), "unknown", "unknown", synthetic)
    pairs_table = read_table(pairs_path)
    columns = _full_mapping(columns, PAIR_COLUMNS, pairs_table, ("pair_id", "response_audio"))
    rows = _pair_rows(pairs_table, columns)
    check_pair_rows(rows, pairs_table.path, pairs_table.locate(columns))

    if ratings_path is None:
        rating_columns = {"pair_id": columns["pair_id"], **rating_columns}
    ratings_table = pairs_table if ratings_path is None else read_table(ratings_path)
    pair_ids = [row["pair_id"] for row in rows]
    taken = columns.values() if ratings_path is None else ()
    ratings, used = _ratings(ratings_table, rating_columns, dimensions, wide, pair_ids, taken)

    ignored = [column for column in ratings_table.columns if column not in {*used, *taken}]
    if ratings_path is not None:
        ignored = [column for column in pairs_table.columns if column not in columns.values()] + ignored
    if ignored:
        card = dataclasses.replace(card, description=f"Columns not imported: {', '.join(ignored)}.")
    _find_audio(rows, pairs_table, columns)
    return Imported(card, rows, ratings)


def _full_mapping(
    given: Mapping[str, str], ours: Sequence[str], table: SourceTable, required: Sequence[str]
) -> dict[str, str]:
    """Our name -> theirs for every column that the table has; a name that is not mapped stands for itself."""
    has = f"it has {', '.join(map(shown, table.columns))}"
    for our, their in given.items():
        if our not in ours:
            raise DataError(f"column mapping {our}={their}: accepted to the left of '=': {', '.join(ours)}")
        if their not in table.columns:
            raise DataError(f"{table.path}: no column {shown(their)} (mapped to {our}); {has}")
    mapping = {our: given.get(our, our) for our in ours if given.get(our, our) in table.columns}
    for our in required:
        if our not in mapping:
            raise DataError(f"{table.path}: no column {our!r}; {has}; accepted: a mapping {our}=COLUMN")
    return mapping


def _pair_rows(table: SourceTable, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows with our column names. Groups that are to be derived from the audio are a dash for now."""
    rows = []
    for position, values in enumerate(table.rows):
        row: dict[str, Any] = {**dict.fromkeys(PAIR_COLUMNS), "context_audio": []}
        row.update({our: _text(values.get(their)) for our, their in columns.items()})
        row["response_audio"] = values.get(columns["response_audio"])
        if "context_audio" in columns:
            where = table.place(position, columns["context_audio"])
            row["context_audio"] = _turns(values.get(columns["context_audio"]), where)
        if "group_id" not in columns:
            row["group_id"] = "-"
        rows.append(row)
    return rows


def _text(value: Any) -> Any:
    """A whole number (an id in JSON or Parquet) as text, NaN and empty text as None, else itself."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() < 64 else value
    if value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def _turns(value: Any, where: str) -> list[dict[str, Any]]:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return []
    turns = value if isinstance(value, list) else [{"role": "user", "audio": value}]
    for turn in turns:
        if not isinstance(turn, dict) or set(turn) != {"role", "audio"}:
            raise DataError(f'{where}: value {shown(turn)}; accepted: {{"role": ..., "audio": ...}} per turn')
    return [dict(turn) for turn in turns]


def _find_audio(rows: Sequence[dict[str, Any]], table: SourceTable, columns: Mapping[str, str]) -> None:
    """Replaces what each cell of audio says by the clip that it refers to."""
    folder = table.path.parent.resolve()
    for position, row in enumerate(rows):
        for turn in row["context_audio"]:
            turn["audio"] = find_clip(turn["audio"], folder, table.place(position, columns["context_audio"]))
        where = table.place(position, columns["response_audio"])
        row["response_audio"] = find_clip(row["response_audio"], folder, where)
        if "group_id" not in columns:
            row["group_id"] = None


@dataclass(frozen=True)
class _ScoreColumn:
    """A column of scores; None = the row says which rater or dimension they are of."""

    name: str
    rater: str | None
    dimension: str | None


def _ratings(
    table: SourceTable,
    given: Mapping[str, str],
    dimensions: Sequence[Dimension],
    wide: bool | None,
    pair_ids: Sequence[str],
    taken: Collection[str],
) -> tuple[pd.DataFrame, set[str]]:
    """Ratings in long form, checked, and the columns they came from. No column in `taken` is a rater."""
    names = _full_mapping(given, RATING_COLUMNS, table, ("pair_id",))
    score_columns = _score_columns(table, names, [dimension.name for dimension in dimensions], wide, taken)
    used = {names["pair_id"], *(column.name for column in score_columns)}
    if any(column.rater is None for column in score_columns):
        used.add(_full_mapping(names, RATING_COLUMNS, table, ("rater_id",))["rater_id"])
    if any(column.dimension is None for column in score_columns):
        used.add(_full_mapping(names, RATING_COLUMNS, table, ("dimension",))["dimension"])
    ratings: list[tuple[Any, ...]] = []
    cells: list[tuple[int, str]] = []
    for position, row in enumerate(table.rows):
        ours = {our: _text(row.get(their)) for our, their in names.items()}
        for column in score_columns:
            score = row.get(column.name)
            if _text(score) is None and column.name != names.get("score"):
                continue
            rater = ours["rater_id"] if column.rater is None else column.rater
            dimension = ours["dimension"] if column.dimension is None else column.dimension
            ratings.append((ours["pair_id"], rater, dimension, _number(score)))
            cells.append((position, column.name))
    frame = pd.DataFrame(ratings, columns=pd.Index(RATING_COLUMNS), dtype=object)

    def locate(position: int, column: str) -> str:
        row, score_column = cells[position]
        return table.place(row, score_column if column == "score" else names.get(column, score_column))

    if not ratings:
        raise DataError(f"{table.path}: the table holds no ratings")
    check_ratings(frame, pair_ids, dimensions, table.path, locate)
    return frame.astype({"score": "float64"}), used


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


def _number(value: Any) -> Any:
    """The number that a text spells, in ASCII digits without separators; checks judge the rest."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
