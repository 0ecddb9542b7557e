"""Tables of ratings in any layout, as one long list: what ``import table``, ``agreement`` and ``plan`` read.

Layouts, by the header (here with the names of ``agreement``):

    - long: ``item, annotator, dimension, score``; without ``dimension`` all scores are of one;
    - ``item, annotator`` and a column for each dimension;
    - ``item`` and columns ``DIMENSION:ANNOTATOR``;
    - ``item`` and a column for each annotator;
    - ``annotator`` and a column for each item, as survey programs export it;
    - ``item, mean, sd, n``: what was published of ratings.

Only the first, and columns ``DIMENSION:ANNOTATOR``, are seen from the header alone, or the second where the dimensions
are known: a column such as ``mean`` would pass for an annotator. For the others the columns of scores are named.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import DataError, names_shown, shown
from .rating_words import as_score, numbers_of
from .ratings import MEAN, N_RATINGS, OF_MEANS, PANEL, SD, Dimension
from .tables import SourceTable, full_mapping, missing_columns, plain_text, read_table

ALSO = {"item": "pair_id", "annotator": "rater_id", "group": "group_id", "system": "system_id"}
"""Columns of a table of scores, and what pair datasets call them: where one is missing, the other counts."""
_ALSO = {**ALSO, **{theirs: ours for ours, theirs in ALSO.items()}}
_QUALTRICS = (
    "ResponseId", "Progress", "Duration (in seconds)", "Finished", "Status", "IPAddress", "LocationLatitude",
    "LocationLongitude",
)  # fmt: skip
"""What an export of Qualtrics says of each respondent, who is a rater, the name first."""
NO_DIMENSION = "score"
"""What scores are of where nothing says it."""


class Names(NamedTuple):
    """How a reader calls the columns of ratings, and what it tells a user whose columns do not fit."""

    item: str
    annotator: str
    option: str  # which maps other columns to them
    optional: tuple[str, ...]  # further columns, which are carried along; those of `OF_MEANS` are always looked for
    expected: str = ""  # the end of a message of a reader without such options; empty = name them, and `--scores`


class Cell(NamedTuple):
    """A score: where it stands, what it is of, and what it is: a number, NaN (none was given) or what is no number."""

    table: SourceTable
    position: int  # of the row, from 0
    column: str
    item: Any
    annotator: Any
    dimension: Any
    score: Any
    of_mean: tuple[Any, ...] | None = None  # what stands as deviation and number of the ratings that it is the mean of

    @property
    def where(self) -> str:
        """Where the score stands, for the head of a message."""
        return self.table.place(self.position, self.column)


class ScoreColumn(NamedTuple):
    """A column of scores; None = the row says which item, annotator or dimension they are of."""

    name: str
    item: str | None = None
    annotator: str | None = None
    dimension: str | None = None
    of_mean: tuple[str, str] | None = None  # columns of deviation and number of ratings, where it holds means


def read_rating_tables(paths: Sequence[str | Path], names: Names) -> list[SourceTable]:
    """The tables in files, or in ``ANNOTATOR=FILE``, which says that one annotator gave all scores in it. An export of
    Label Studio (JSON) becomes a table with a row for each score.

    Raises:
        DataError: As `read_table`, or if a table of a named annotator has a column of annotators.
    """
    tables: list[SourceTable] = []
    for path in paths:
        who, sign, file = str(path).partition("=")
        # The name of a file may have a sign of equality in it
        is_named = bool(sign and file) and not Path(path).exists()
        table = read_table(file if is_named else path)
        if "annotations" in table.columns and "data" in table.columns:
            from .importers.label_studio import scores_of_export

            table = scores_of_export(table, names.item, names.annotator)
        if is_named:
            if names.annotator in table.columns:
                raise DataError(f"{table.path}: has a column {names.annotator!r}; expected none, since all is by {who}")
            rows = [{**row, names.annotator: who} for row in table.rows]
            table = dataclasses.replace(table, columns=(*table.columns, names.annotator), rows=rows)
        tables.append(table)
    return tables


def column_names(table: SourceTable, given: Mapping[str, str], names: Names) -> dict[str, str]:
    """Our name -> theirs for the columns that are there; names of `ALSO` count as ours."""
    ours = (names.item, names.annotator, "dimension", "score", *names.optional, *OF_MEANS)
    given = {our if our in ours else _ALSO.get(our, our): their for our, their in given.items()}
    # In a survey who answers is the rater, unless another column is said to be
    respondent, raters = _QUALTRICS[0], {names.annotator, _ALSO.get(names.annotator)}
    if respondent in {*table.columns} - {*given.values()} and not raters & {*given, *table.columns}:
        given[names.annotator] = respondent
    for our in ours:
        other = _ALSO.get(our)
        if other in table.columns and our not in given and our not in table.columns:
            given[our] = other
    return full_mapping(given, ours, table, (), names.option)


def score_columns(
    table: SourceTable,
    found: Mapping[str, str],
    names: Names,
    dimensions: Sequence[str] = (),
    scores: Sequence[str] = (),
    taken: Collection[str] = (),
) -> list[ScoreColumn]:
    """The columns that hold scores.

    Args:
        table: The table.
        found: Our name -> theirs, from `column_names`.
        names: How the reader calls them.
        dimensions: Those that are known; none = all that occur.
        scores: Columns that were named, as patterns (``r*``); none = see from the header.
        taken: Columns that are something else.

    Raises:
        DataError: If columns are missing (all are named), or the header fits no layout or two.
    """
    absent = [name for name in (names.item, names.annotator) if name not in found]
    only = dimensions[0] if len(dimensions) == 1 else None
    if scores:
        # A rater may be called `mean`
        others = {their for our, their in found.items() if our not in ("score", *OF_MEANS)}
        columns = _named_columns(table, scores, {*others, *taken} - {found.get("score", "")})
        # One named column beside item and annotator is the long layout, whatever it is called
        if len(columns) == 1 and not absent:
            found = {**found, "score": columns[0]}
        else:
            return _by_names(table, columns, found, names, dimensions)
    layouts: dict[str, list[ScoreColumn]] = {}
    if "score" in found:
        of = None if "dimension" in found else only
        if of is None and "dimension" not in found and not dimensions:
            of = found["score"]
        if of is None and "dimension" not in found:
            absent.append("dimension")
        layouts["long (a column score)"] = [ScoreColumn(found["score"], dimension=of)]
    present = [name for name in dimensions if name in table.columns and name != found.get("score")]
    if present and names.annotator in found:
        if missing := [name for name in dimensions if name not in present and "score" not in found]:
            expected = names.expected or "a column for each dimension"
            raise DataError(f"{table.path}: no column {missing[0]!r}; expected {expected}")
        layouts["wide (a column per dimension)"] = [ScoreColumn(d, dimension=d) for d in present]
    rated = _dimension_and_annotator(table, dimensions, taken) if not scores else []
    if rated:
        layouts["wide (columns DIMENSION:RATER)"] = rated
    # Where the ratings themselves are not there
    if not (layouts or scores or names.annotator in found or {*OF_MEANS} - {*found}):
        of = None if "dimension" in found else only if dimensions else NO_DIMENSION
        absent += ["dimension"] if of is None and "dimension" not in found else []
        layouts["published means"] = [ScoreColumn(found[MEAN], None, PANEL, of, (found[SD], found[N_RATINGS]))]
    if len(layouts) > 1:
        expected = names.expected or "one layout, or --scores COLUMN for those that hold scores"
        raise DataError(
            f"{table.path}: the header ({names_shown(table.columns)}) fits {' and '.join(layouts)}; expected {expected}"
        )
    if not layouts:
        absent.append("score")
    columns = next(iter(layouts.values()), [])
    if any(column.annotator is not None for column in columns):
        absent = [name for name in absent if name != names.annotator]
    if absent:
        free = [
            name
            for name in table.columns
            if name not in {*found.values(), *taken, *_QUALTRICS} and _holds_scores(table, name)
        ]
        wide = ""
        if not layouts:  # words of a scale could as well be remarks
            columns_of = f"{' '.join(map(shown, free[:12]))} for columns of scores" if free else "COLUMN ... for words"
            wide = f", or --scores {columns_of}"
        if not layouts and {*OF_MEANS} - {*found}:
            wide += f"; or, of published means, {names.option} {' '.join(f'{our}=COLUMN' for our in OF_MEANS)}"
        raise missing_columns(table, dict.fromkeys(absent), names.option, wide, names.expected)
    return columns


def fitting(names: Iterable[str], pattern: str) -> list[str]:
    """The names of columns that are the pattern of ``--scores``, or fit it."""
    return [name for name in names if name == pattern or fnmatchcase(name, pattern)]


def _named_columns(table: SourceTable, scores: Sequence[str], taken: Collection[str]) -> list[str]:
    named: set[str] = set()
    for pattern in scores:
        if not (found := fitting(table.columns, pattern)):
            raise DataError(f"{table.path}: no column {shown(pattern)} (--scores); it has {names_shown(table.columns)}")
        named.update(found)
    return [name for name in table.columns if name in named and name not in taken]


def _by_names(
    table: SourceTable, columns: Sequence[str], found: Mapping[str, str], names: Names, dimensions: Sequence[str]
) -> list[ScoreColumn]:
    """What the columns of scores are, by what else the table has."""
    split = [name.partition(":") for name in columns]
    if columns and all(d and r and (not dimensions or d in dimensions) for d, _, r in split):
        return [ScoreColumn(column, annotator=r, dimension=d) for column, (d, _, r) in zip(columns, split, strict=True)]
    if names.annotator in found and names.item in found:
        if unknown := [name for name in columns if dimensions and name not in dimensions]:
            raise DataError(f"{table.path}: column {shown(unknown[0])}; expected a dimension: {', '.join(dimensions)}")
        return [ScoreColumn(name, dimension=name) for name in columns]
    if "dimension" not in found and len(dimensions) > 1:
        raise missing_columns(table, {"dimension": None}, names.option)
    dimension = None if "dimension" in found else dimensions[0] if dimensions else NO_DIMENSION
    if names.item in found:
        return [ScoreColumn(name, annotator=name, dimension=dimension) for name in columns]
    if names.annotator in found:
        return [ScoreColumn(name, item=name, dimension=dimension) for name in columns]
    raise missing_columns(table, {names.item: None}, names.option)


def _dimension_and_annotator(
    table: SourceTable, dimensions: Sequence[str], taken: Collection[str]
) -> list[ScoreColumn]:
    split = [(name, *name.partition(":")) for name in table.columns if name not in taken]
    rated = [
        ScoreColumn(name, annotator=r, dimension=d)
        for name, d, _, r in split
        if d and r and (d in dimensions or (not dimensions and _holds_scores(table, name)))
    ]
    # Other capitals or spaces: the column would be left out without a word
    folded = {dimension.casefold(): dimension for dimension in dimensions}
    for name, d, _, r in split:
        meant = folded.get(d.strip().casefold())
        if rated and r and meant is not None and d not in dimensions:
            raise DataError(f"{table.path}: column {shown(name)}; expected {f'{meant}:{r}'!r}, or another name")
    return rated


def _holds_scores(table: SourceTable, name: str) -> bool:
    """Whether a column states a number, and nothing but numbers; what looks like the name of an id does not count."""
    if re.search(r"(^|_)id$", name, re.IGNORECASE):
        return False
    # A thousand rows tell a column of scores from others; every cell is checked when it is read
    numbers = [as_score(row.get(name), {}, table.decimal_comma) for row in table.rows[:1000]]
    is_number = [isinstance(value, int | float) and not isinstance(value, bool) for value in numbers]
    return all(is_number) and not all(math.isnan(value) for value in numbers)


def score_cells(
    table: SourceTable, found: Mapping[str, str], columns: Sequence[ScoreColumn], choices: Mapping[str, float]
) -> Iterator[Cell]:
    """All scores of a table, row by row; an empty cell of a table with several columns of scores is none."""
    names, several = {our: found.get(our, "") for our in ("dimension", *_ALSO)}, len(columns) > 1
    known: dict[str, Any] = {}
    item_in = names["item"] or names["pair_id"]
    of_row = item_in, names["annotator"] or names["rater_id"], names["dimension"]
    for position, row in enumerate(table.rows):
        item, annotator, dimension = (
            value if isinstance(value := row.get(name), str) and value else plain_text(value) for name in of_row
        )
        for column in columns:
            value = row.get(column.name)
            if isinstance(value, str):
                # A long column has few distinct texts
                score = known.get(value)
                if score is None:
                    score = known[value] = as_score(value, choices, table.decimal_comma)
            else:
                score = as_score(value, choices, table.decimal_comma)
            # In a wide table whoever did not rate an item has an empty cell; in a long one it is a row to report
            if several and isinstance(score, float) and math.isnan(score):
                continue
            yield Cell(
                table, position, column.name,
                item if column.item is None else column.item,
                annotator if column.annotator is None else column.annotator,
                dimension if column.dimension is None else column.dimension,
                score,
                column.of_mean and tuple(as_score(row.get(name), {}, table.decimal_comma) for name in column.of_mean),
            )  # fmt: skip


def with_numbers(cells: Sequence[Cell], scales: Mapping[str, Dimension] | None = None) -> list[Cell]:
    """The cells with numbers for the words of usual scales (`rating_words.SERIES`), found for each dimension.

    A single word, or words among numbers, are rather mistakes: they stay. So does the one word that is none of the
    scale which all others are of.
    """
    words: dict[Any, dict[str, None]] = {}
    numbered: set[Any] = set()
    for cell in cells:
        if not isinstance(cell.dimension, str):  # it is refused later
            continue
        if isinstance(cell.score, str):
            words.setdefault(cell.dimension, {})[cell.score] = None
        elif not (isinstance(cell.score, float) and math.isnan(cell.score)):
            numbered.add(cell.dimension)
    if not words:
        return list(cells)
    numbers = {
        name: _of_a_scale(found, (scales or {}).get(name)) if name not in numbered else {}
        for name, found in words.items()
    }
    in_words = (isinstance(cell.score, str) and isinstance(cell.dimension, str) for cell in cells)
    return [
        cell._replace(score=numbers[cell.dimension].get(cell.score, cell.score)) if is_word else cell
        for cell, is_word in zip(cells, in_words, strict=True)
    ]


def _of_a_scale(words: Collection[str], scale: Dimension | None) -> dict[str, float]:
    """Numbers of the words, or of all but one that must be a mistake: the message for that one then names its row."""
    # One word may belong to several scales, in which it stands for other numbers
    if len(words) < 2:
        return {}
    if numbers := numbers_of(words, scale):
        return numbers
    without_one = [numbers_of([word for word in words if word != odd], scale) for odd in words if len(words) > 3]
    known = [numbers for numbers in without_one if numbers]
    return known[0] if len(known) == 1 else {}
