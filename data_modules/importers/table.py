"""Imports a table of pairs and a table of ratings: CSV, TSV, JSON, JSONL or Parquet, with the audio beside them.

Pairs
    One row per pair with ``pair_id`` and ``response_audio``; any other column of ``pairs.parquet`` may be there,
    under its own name or mapped. Audio is a path relative to the folder of the table, or bytes (Parquet).
    ``context_audio`` is one clip, or in JSON and Parquet a list of ``{"role", "audio"}``. Without a column
    ``group_id``, pairs with the same context audio and situation are one group; a pair that has neither is in one
    group with those of the same response. A column ``tag:NAME``, such as ``tag:cue``, is a tag, which splits are made
    and reports sliced by; --column tag:cue=emotion makes another column one. The card's description lists the columns
    that were not imported. A pair whose clip is missing or unusable is skipped and listed, within --max-skipped.

Ratings, by the header:

    - long: ``pair_id, rater_id, dimension, score``; with one dimension its column may be left out;
    - ``pair_id, rater_id`` and one column per dimension: a row holds what one rater gave one pair;
    - ``pair_id`` and columns ``DIMENSION:RATER``;
    - ``pair_id`` and one column per rater, for one dimension. Only on demand (--layout wide): a column such
      as ``mean`` would pass for a rater.

    All may also stand in the table of pairs. In the first two layouts a row then holds a pair and what one rater gave
    it: the pair stands in a row for each rater, and all its rows say the same about it. Without a column ``pair_id``
    rows with the same clips and situation are one pair, called by the number of its first row, from 0.

    An empty cell of a wide table means not rated; in a long table a missing row does, and a class label of a Hugging
    Face dataset that is "no label". The card's description says how many such rows there are.

    In the first two layouts a column ``seconds`` may say how long the rater took for the row; empty = unknown. Under
    another name, or in the table of pairs, it is mapped (--rating-column seconds=NAME).

Preferences
    A table with columns ``chosen`` and ``rejected`` (and ``prompt``, the context) is imported as preferences, without
    --dimension and --ratings: each row compares two pairs. Cells are clips, or messages (``[{"role", "content"}]``)
    with parts ``{"type": "audio", "audio": clip}``; a prompt may also be text, which becomes the situation. Columns
    ``rater_id``, ``strength`` (0 = tie) and ``situation`` count too; --column chosen=better maps another name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...core.errors import DataError, UserError, counted, shown
from ...core.numerals import to_number
from ..ratings import RATING_COLUMNS, SECONDS, check_ratings, parse_dimension
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
_RATING_NAMES = (*RATING_COLUMNS, SECONDS)


@dataclass(frozen=True, kw_only=True)
class Options(AudioRoot):
    """Options for a `TableMapping`, and ``--ratings``.

    Attributes:
        ratings: table of ratings; without it they stand beside the pairs
        dimension (NAME=LOW:HIGH[:STEP][:lower]): scale; repeatable; needed for ratings
        column (OURS=THEIRS): column of the pairs; repeatable
        rating_column (OURS=THEIRS): the same for ratings
        layout: of the ratings, where the header leaves it open
        synthetic: the ratings were not given by people
    """

    ratings: str | None = None
    dimension: Sequence[str] = field(default=(), metadata=REPEATABLE)
    column: Sequence[str] = field(default=(), metadata=REPEATABLE)
    rating_column: Sequence[str] = field(default=(), metadata=REPEATABLE)
    layout: Literal["long", "wide"] | None = None
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
        wide={"wide": True, "long": False, None: None}[options.layout],
        synthetic=options.synthetic,
    )


def read(path: Path, options: Options) -> Imported:
    """Reads the tables that the command line names."""
    # First, so that a wrong option is reported before a large table is read.
    mapping = mapping_from(options)
    ratings = None if options.ratings is None else read_table(options.ratings)
    find = partial(find_clip, folder=path.parent.resolve(), root=options.audio_root)
    return read_pairs(read_table(path), ratings, mapping, find)


def read_pairs(
    pairs_table: SourceTable, ratings_table: SourceTable | None, mapping: TableMapping, find: FindClip
) -> Imported:
    """Reads checked pairs and ratings, or preferences. Pairs without ratings are allowed; the description lists columns
    that are left out. Without `ratings_table` the ratings are in `pairs_table`.

    Raises:
        DataError: If a table breaks the contract; file, row and column are named.
        UserError: If options are missing, or others are there than such a table needs.
    """
    if has_preferences(pairs_table, mapping.columns):
        if ratings_table is not None:
            raise UserError(f"{pairs_table.path}: columns chosen and rejected are preferences; expected no --ratings")
        return read_preferences(pairs_table, mapping, find)
    if not mapping.dimensions:
        raise DataError(
            f"{pairs_table.path}: no dimensions (--dimension NAME=LOW:HIGH[:STEP]); expected at least one, each name "
            "once, or a table with columns chosen and rejected"
        )
    by_rating = has_raters(pairs_table, mapping.rating_columns)
    if by_rating and ratings_table is None and "pair_id" not in {*mapping.columns, *pairs_table.columns}:
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
    if ratings_table is None:
        rating_columns = {"pair_id": columns["pair_id"], **rating_columns}
    taken = columns.values() if ratings_table is None else ()
    source = ratings_table or pairs_table
    ratings, used, n_without = _ratings(source, mapping, rating_columns, taken, [row["pair_id"] for row in rows])
    ignored = [column for column in source.columns if column not in {*used, *taken}]
    if ratings_table is not None:
        ignored = [column for column in pairs_table.columns if column not in columns.values()] + ignored
    notes = [f"Columns not imported: {', '.join(ignored)}."] if ignored else []
    notes += [f"{counted(n_without, 'row')} with no label as the score: not rated."] if n_without else []
    card = replace(card, description=" ".join(notes))
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
    row["context_audio"] = context_turns(None if plain_text(context) is None else context, where)
    return row


class _ScoreColumn(NamedTuple):
    """A column of scores; None = the row says which rater or dimension they are of."""

    name: str
    rater: str | None
    dimension: str | None


def _score_columns(
    table: SourceTable, names: Mapping[str, str], dimensions: Sequence[str], wide: bool | None, taken: Collection[str]
) -> list[_ScoreColumn]:
    layouts: dict[str, list[_ScoreColumn]] = {}
    if "score" in names and wide is not True:
        dimension = dimensions[0] if len(dimensions) == 1 and "dimension" not in names else None
        layouts["long (a column score)"] = [_ScoreColumn(names["score"], None, dimension)]
    if wide is not False:
        present = [name for name in dimensions if name in table.columns and name != names.get("score")]
        if "rater_id" in names and present:
            layouts["wide (rater_id and a column per dimension)"] = [_ScoreColumn(d, None, d) for d in dimensions]
        split_names = [(column, *column.partition(":")) for column in table.columns]
        rated_columns = [_ScoreColumn(column, r, d) for column, d, _, r in split_names if d in dimensions and r]
        folded = {dimension.casefold(): dimension for dimension in dimensions}
        for column, d, _, r in split_names:
            meant = folded.get(d.strip().casefold())
            if rated_columns and r and meant is not None and d not in dimensions:
                raise DataError(f"{table.path}: column {shown(column)}; expected {f'{meant}:{r}'!r}, or another name")
        if rated_columns:
            layouts["wide (columns DIMENSION:RATER)"] = rated_columns
        if wide and not layouts and not present and "rater_id" not in names and len(dimensions) == 1:
            raters = [column for column in table.columns if column not in {names["pair_id"], *taken}]
            layouts["wide (a column per rater)"] = [_ScoreColumn(r, r, dimensions[0]) for r in raters]
    if len(layouts) == 1:
        (columns,) = layouts.values()
        missing = [column.name for column in columns if column.name not in table.columns]
        if missing:
            raise DataError(f"{table.path}: no column {missing[0]!r}; expected a column for each dimension")
        return columns
    raise DataError(
        f"{table.path}: the header ({', '.join(map(shown, table.columns))}) fits "
        f"{' and '.join(layouts) or 'no layout'} for ratings of {', '.join(dimensions)}; expected pair_id, "
        "rater_id, dimension, score; or pair_id, rater_id and a column per dimension; or pair_id and columns "
        "DIMENSION:RATER; or, with --layout wide, pair_id and a column per rater"
    )


def _ratings(
    table: SourceTable, mapping: TableMapping, given: Mapping[str, str], taken: Collection[str], pair_ids: Sequence[str]
) -> tuple[pd.DataFrame, set[str], int]:
    """Ratings in long form, checked, the columns that they stood in, and in how many rows of a long table the score is
    a class label that says "no label"; the layout is the one that the header fits.

    `given` is our column name -> theirs. `taken` are the columns of pairs, where ratings stand in the same table: they
    are not read as raters, nor as times unless mapped.
    """
    import pandas as pd

    names = full_mapping(given, _RATING_NAMES, table, ("pair_id",), "--rating-column")
    scores = _score_columns(table, names, [dimension.name for dimension in mapping.dimensions], mapping.wide, taken)
    has_rater_id = any(column.rater is None for column in scores)
    required = ["rater_id"] if has_rater_id else []
    required += ["dimension"] if any(column.dimension is None for column in scores) else []
    full_mapping(names, _RATING_NAMES, table, required, "--rating-column")
    used = {names["pair_id"], *(column.name for column in scores), *(names[name] for name in required)}
    if SECONDS in given and not has_rater_id:
        raise DataError(
            f"{table.path}: column {shown(given[SECONDS])} cannot be {SECONDS}, because a row holds the ratings of "
            "several raters; expected a layout with a column rater_id"
        )
    # By its name alone only where it can say nothing else
    is_named = has_rater_id and not taken and SECONDS in table.columns and SECONDS not in used
    seconds = given.get(SECONDS, SECONDS if is_named else None)

    rows: list[tuple[Any, ...]] = []
    cells: list[tuple[int, str]] = []
    n_without = 0
    for position, row in enumerate(table.rows):
        fields = {our: plain_text(row.get(their)) for our, their in names.items()}
        for column in scores:
            score = row.get(column.name)
            if plain_text(score) is None and (column.name != names.get("score") or column.name in table.labels):
                n_without += column.name == names.get("score")
                continue
            rater = fields["rater_id"] if column.rater is None else column.rater
            dimension = fields["dimension"] if column.dimension is None else column.dimension
            rows.append((fields["pair_id"], rater, dimension, to_number(score), to_number(row.get(seconds or ""))))
            cells.append((position, column.name))
    if not cells:
        reason = f": {counted(n_without, 'row')} with no label as the score" if n_without else ""
        raise DataError(f"{table.path}: the table holds no ratings{reason}")
    frame = pd.DataFrame(rows, columns=pd.Index(_RATING_NAMES), dtype=object)
    if seconds is None:
        del frame[SECONDS]

    def locate(number: int, name: str) -> str:
        position, column = cells[number]
        return table.place(position, column if name == "score" else names.get(name, column))

    ratings = check_ratings(frame, pair_ids, mapping.dimensions, table.path, locate)
    return ratings, used | ({seconds} if seconds is not None else set()), n_without
