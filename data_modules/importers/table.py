"""Imports a table of pairs and tables of ratings, with the audio beside them: CSV with any separator and decimal mark,
TSV, JSON, JSONL, Parquet or Excel (.xlsx).

Pairs
    One row per pair with ``pair_id`` and ``response_audio``; any other column of ``pairs.parquet`` may be there,
    under its own name or mapped. Audio is a path in the folder of the table, or bytes (Parquet).
    ``context_audio`` is one clip, or in JSON and Parquet a list of ``{"role", "audio"}``. Without a column
    ``group_id``, pairs with the same context audio and situation are one group; a pair that has neither is in one
    group with those of the same response. A column ``tag:NAME``, such as ``tag:cue``, is a tag, which splits are made
    and reports sliced by; --column tag:cue=emotion makes another column one. The card's description lists the columns
    that were not imported. A pair whose clip is missing or unusable is skipped and listed, within --max-skipped.

Ratings, by the header:

    - long: ``pair_id, rater_id, dimension, score``; with one dimension its column may be left out;
    - ``pair_id, rater_id`` and one column per dimension: a row holds what one rater gave one pair;
    - ``pair_id`` and columns ``DIMENSION:RATER``;
    - ``pair_id, mean, sd, n``, with ``dimension`` where there are several: the mean of n ratings and their standard
      deviation (over n - 1), where no more was published. Such a dimension has a scale without steps;
    - ``pair_id`` and one column per rater, or ``rater_id`` and one column per pair, for one dimension. Only with
      --scores and the names of these columns, such as 'R*': a column such as ``duration`` would pass for a rater.

    All may also stand in the table of pairs. In the first two layouts a row then holds a pair and what one rater gave
    it: the pair stands in a row for each rater, and all its rows say the same about it. Without a column ``pair_id``
    rows with the same clips and situation are one pair, called by the number of its first row, from 0.

    Ratings may also stand in several files, and RATER=FILE says that one rater gave all that is in a file. ``item`` and
    ``annotator`` may be the names of pair_id and rater_id. Exports of Qualtrics (CSV) and Label Studio (JSON) are read
    as they are. A score is a number, a number with a word (``4 - agree``), a word of a usual scale (``strongly
    disagree``) or one that --choice gives a number. An empty cell, NA, n/a, NaN, null, a dash or a class label of a
    Hugging Face dataset that is "no label" is not rated; the card's description says how many such rows there are.

    In the first two layouts a column ``seconds`` may say how long the rater took for the row; empty = unknown. Under
    another name, or in the table of pairs, it is mapped (--rating-column seconds=NAME).

Preferences
    A table with columns ``chosen`` and ``rejected`` (and ``prompt``, the context) is imported as preferences, without
    --dimension and --ratings: each row compares two pairs. Cells are clips, or messages (``[{"role", "content"}]``)
    with parts ``{"type": "audio", "audio": clip}``; a prompt may also be text, which becomes the situation. Columns
    ``rater_id``, ``strength`` (0 = tie) and ``situation`` count too; --column chosen=better maps another name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import DataError, UserError, counted, shown
from ...core.numerals import to_number
from ..layouts import Cell, Names, column_names, read_rating_tables, score_cells, score_columns, with_numbers
from ..rating_words import parse_choices, unknown_words
from ..ratings import (
    N_RATINGS,
    OPTIONAL_COLUMNS,
    RATING_COLUMNS,
    SD,
    SECONDS,
    check_ratings,
    parse_dimension,
)
from ..schema import DatasetCard
from ..storage import PAIR_COLUMNS, TAG_PREFIX, TAGS
from ..tables import SourceTable, TableMapping, full_mapping, parse_mapping, plain_text, read_table
from ..writing import checked_pairs, context_turns, sorted_tags
from . import REPEATABLE, AudioRoot
from .assemble import Imported
from .clips import find_clip
from .preferences import has_preferences, read_preferences
from .repeated_rows import FindClip, has_raters, one_row_per_pair, with_ids

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

EXAMPLE = "table pairs.csv --ratings ratings.csv --dimension vocal_empathy=1:5:1 --out data"
NAMES = Names("pair_id", "rater_id", "--rating-column", (SECONDS,))
"""What columns of ratings are called here."""


@dataclass(frozen=True, kw_only=True)
class Options(AudioRoot):
    """Options for a `TableMapping`, and ``--ratings``.

    Attributes:
        ratings ([RATER=]FILE): tables of ratings; without them they stand beside the pairs
        dimension (NAME=LOW:HIGH[:STEP][:lower]): scale; repeatable; needed for ratings
        column (OURS=THEIRS): column of the pairs, or several
        rating_column (OURS=THEIRS): the same for ratings
        scores (COLUMN): columns of the ratings that hold scores, where the header leaves it open; 'R*' = all that begin
            with R
        choice (WORD=SCORE): what a word of the scale stands for
        synthetic: the ratings were not given by people
    """

    ratings: Sequence[str] = ()
    dimension: Sequence[str] = field(default=(), metadata=REPEATABLE)
    column: Sequence[str] = field(default=(), metadata={"action": "extend"})
    rating_column: Sequence[str] = field(default=(), metadata={"action": "extend"})
    scores: Sequence[str] = ()
    choice: Sequence[str] = field(default=(), metadata={"action": "extend"})
    synthetic: bool = False


def mapping_from(options: Options) -> TableMapping:
    """The `TableMapping` of the command line.

    Raises:
        UserError: If a value has another form.
    """
    return TableMapping(
        columns=parse_mapping(options.column, "--column"),
        rating_columns=parse_mapping(options.rating_column, "--rating-column"),
        dimensions=[parse_dimension(text) for text in options.dimension],
        scores=options.scores,
        choices=parse_choices(options.choice),
        synthetic=options.synthetic,
    )


def read(path: Path, options: Options) -> Imported:
    """Reads the tables that the command line names."""
    # First, so that a wrong option is reported before a large table is read.
    mapping = mapping_from(options)
    ratings = read_rating_tables(options.ratings, NAMES)
    find = partial(find_clip, folder=path.parent.resolve(), root=options.audio_root, may_name=True)
    return read_pairs(read_table(path), ratings, mapping, find)


def read_pairs(
    pairs_table: SourceTable, rating_tables: Sequence[SourceTable], mapping: TableMapping, find: FindClip
) -> Imported:
    """Reads checked pairs and ratings, or preferences. Pairs without ratings are allowed; the description lists columns
    that are left out. Without `rating_tables` the ratings are in `pairs_table`.

    Raises:
        DataError: If a table breaks the contract; file, row and column are named.
        UserError: If options are missing, or others are there than such a table needs.
    """
    if has_preferences(pairs_table, mapping.columns):
        if rating_tables:
            raise UserError(f"{pairs_table.path}: columns chosen and rejected are preferences; expected no --ratings")
        return read_preferences(pairs_table, mapping, find)
    if not mapping.dimensions:
        raise DataError(
            f"{pairs_table.path}: no dimensions (--dimension NAME=LOW:HIGH[:STEP]); expected at least one, each name "
            "once, or a table with columns chosen and rejected"
        )
    by_rating = has_raters(pairs_table, mapping.rating_columns)
    if by_rating and not rating_tables and "pair_id" not in {*mapping.columns, *pairs_table.columns}:
        # For its errors alone: a table without response_audio has nothing to make ids of
        full_mapping(mapping.columns, [*PAIR_COLUMNS, *mapping.columns], pairs_table, ("response_audio",))
        pairs_table = with_ids(pairs_table, mapping.columns, find)
    card = DatasetCard("", tuple(mapping.dimensions), "unknown", "unknown", mapping.synthetic)
    tags = [name for name in (*mapping.columns, *pairs_table.columns) if name.startswith(TAG_PREFIX)]
    columns = full_mapping(mapping.columns, [*PAIR_COLUMNS, *tags], pairs_table, ("pair_id", "response_audio"))
    pair_rows = [_pair_row(pairs_table, position, columns) for position in range(len(pairs_table.rows))]
    positions = list(range(len(pair_rows)))
    if by_rating:
        positions = one_row_per_pair(pair_rows, pairs_table, columns, find)
        pair_rows = [pair_rows[position] for position in positions]
    place_of, grouped = pairs_table.locate(columns), "group_id" in columns

    def locate(number: int, column: str) -> str:
        return place_of(positions[number], column)

    rows = list(checked_pairs(pair_rows, pairs_table.path, locate, grouped=grouped, tag_columns=tags))

    rating_columns = mapping.rating_columns
    if not rating_tables:
        rating_columns = {"pair_id": columns["pair_id"], **rating_columns}
    taken = () if rating_tables else columns.values()
    sources = rating_tables or [pairs_table]
    ratings, used, n_without = _ratings(sources, mapping, rating_columns, taken, [row["pair_id"] for row in rows])
    ignored = [column for column in pairs_table.columns if column not in columns.values()] if rating_tables else []
    ignored += [column for source in sources for column in source.columns if column not in {*used, *taken}]
    notes = [f"Columns not imported: {', '.join(ignored)}."] if ignored else []
    notes += [f"{counted(n_without, 'row')} with no score: not rated."] if n_without else []
    card = replace(card, description=" ".join(notes))
    # Last, since looking for files takes long: a table that breaks the contract is told before
    for position, row in enumerate(rows):
        for turn in row["context_audio"]:
            turn["audio"] = find(turn["audio"], locate(position, "context_audio"))
        row["response_audio"] = find(row["response_audio"], locate(position, "response_audio"))
    return Imported(card, rows, ratings)


def _pair_row(table: SourceTable, position: int, columns: Mapping[str, str]) -> dict[str, Any]:
    """A row with our column names, audio as it stands."""
    values = table.rows[position]
    row: dict[str, Any] = dict.fromkeys(PAIR_COLUMNS)
    row.update({our: plain_text(values.get(their)) for our, their in columns.items()})
    row["response_audio"] = values.get(columns["response_audio"])
    column = columns.get(TAGS, TAGS)
    where = table.place(position, column)
    tags = {name.removeprefix(TAG_PREFIX): row.pop(name) for name in columns if name.startswith(TAG_PREFIX)}
    row[TAGS] = sorted_tags(dict(sorted_tags(values.get(column), where)) | tags, where)
    context = values.get(columns.get("context_audio", ""))
    where = table.place(position, columns.get("context_audio"))
    # pandas writes NaN for an empty cell, which is no clip
    row["context_audio"] = context_turns(None if plain_text(context) is None else context, where)
    return row


def _ratings(
    tables: Sequence[SourceTable],
    mapping: TableMapping,
    given: Mapping[str, str],
    taken: Collection[str],
    pair_ids: Sequence[str],
) -> tuple[pd.DataFrame, set[str], int]:
    """Ratings in long form, checked, the columns that they stood in, and how many rows of long tables have no score.

    `given` is our column name -> theirs. `taken` are the columns of pairs, where ratings stand in the same table: they
    are not read as raters, nor as times unless mapped.
    """
    import pandas as pd

    dimensions = [dimension.name for dimension in mapping.dimensions]
    cells: list[Cell] = []
    more: list[tuple[Any, ...]] = []  # cells of `OPTIONAL_COLUMNS`
    used: set[str] = set()
    known: set[str] = set()
    for table in tables:
        names = column_names(table, given, NAMES)
        columns = score_columns(table, names, NAMES, dimensions, mapping.scores, taken)
        of_row = all(column.annotator is None for column in columns)
        if SECONDS in given and not of_row:
            raise DataError(
                f"{table.path}: column {shown(given[SECONDS])} cannot be {SECONDS}, because a row holds the ratings of "
                "several raters; expected a layout with a column rater_id"
            )
        # By its name alone only where it can say nothing else
        is_named = of_row and not taken and SECONDS in names
        seconds = given.get(SECONDS, SECONDS if is_named else None)
        found = list(score_cells(table, names, columns, mapping.choices))
        cells += found
        for cell in found:
            time = None if seconds is None else table.rows[cell.position].get(seconds)
            more.append(tuple(map(to_number, (time, *(cell.of_mean or (None, None))))))
        known |= {SECONDS} if seconds is not None else set()
        if of_means := columns[0].of_mean:
            known |= {SD, N_RATINGS}
            used |= {*of_means}
        parts = ["pair_id", *(["rater_id"] if of_row else [])]
        parts += ["dimension"] if any(column.dimension is None for column in columns) else []
        used |= {names[part] for part in parts if part in names} | {column.name for column in columns}
        used |= {seconds} if seconds is not None else set()
    scales = {dimension.name: dimension for dimension in mapping.dimensions}
    both = [(cell, rest) for cell, rest in zip(with_numbers(cells, scales), more, strict=True) if not _is_nan(cell)]
    n_without = len(cells) - len(both)
    if not both:
        reason = f": {counted(n_without, 'row')} with no score" if n_without else ""
        raise DataError(f"{tables[0].path}: the table holds no ratings{reason}")
    frame = pd.DataFrame(
        [(cell.item, cell.annotator, cell.dimension, cell.score, *rest) for cell, rest in both],
        columns=pd.Index((*RATING_COLUMNS, *OPTIONAL_COLUMNS)),
        dtype=object,
    ).drop(columns=[name for name in OPTIONAL_COLUMNS if name not in known])
    words = [cell.score for cell, _ in both if isinstance(cell.score, str)]

    def locate(number: int, name: str) -> str:
        cell = both[number][0]
        names = column_names(cell.table, given, NAMES)
        return cell.table.place(cell.position, cell.column if name == "score" else names.get(name, cell.column))

    expected = unknown_words(words) if words else None
    ratings = check_ratings(frame, pair_ids, mapping.dimensions, tables[0].path, locate, expected)
    return ratings, used, n_without


def _is_nan(cell: Cell) -> bool:
    return isinstance(cell.score, float) and math.isnan(cell.score)
