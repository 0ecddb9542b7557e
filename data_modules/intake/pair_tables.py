"""From a table of pairs and a table of ratings, wherever they were read from, to what `assemble` takes."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DataError, shown
from ..ratings import Dimension, parse_dimension
from ..rows import PAIR_COLUMNS, TAG_PREFIX, TAGS, check_pair_rows, sorted_tags
from ..schema import DatasetCard
from .assemble import Imported
from .clips import ClipCell
from .options import parse_mapping
from .rating_layouts import long_ratings
from .tables import SourceTable, full_mapping, plain_text

FindClip = Callable[[Any, str], ClipCell]
"""Value of a cell and where it stands -> the clip that it refers to."""


@dataclass(frozen=True)
class TableMapping:
    """How columns of somebody else's tables become ours.

    Attributes:
        columns: Our column name -> that in the table of pairs, where they differ.
        rating_columns: The same for the table of ratings (``pair_id``, ``rater_id``, ``dimension``, ``score``,
            ``seconds``).
        dimensions: The scales.
        wide: Whether the ratings are wide; None = see from the header.
        synthetic: Whether the ratings were not given by people.
    """

    columns: Mapping[str, str]
    rating_columns: Mapping[str, str]
    dimensions: Sequence[Dimension]
    wide: bool | None = None
    synthetic: bool = False


def add_mapping_arguments(parser: argparse.ArgumentParser) -> None:
    """Options for a `TableMapping`, and ``--ratings``."""
    parser.add_argument("--ratings", help="table of ratings; without it they stand beside the pairs")
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


def mapping_from(options: argparse.Namespace) -> TableMapping:
    """What the options of `add_mapping_arguments` say.

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


def read_pairs(
    pairs_table: SourceTable, ratings_table: SourceTable | None, mapping: TableMapping, find: FindClip
) -> Imported:
    """Pairs and ratings, checked. Pairs without ratings are allowed; the description lists columns left out.

    Args:
        pairs_table: The table of pairs.
        ratings_table: The table of ratings; None = the ratings stand in the table of pairs.
        mapping: The columns and scales.
        find: Finds the clips.

    Raises:
        DataError: If a table breaks the contract; file, row and column are named.
    """
    card = DatasetCard("", tuple(mapping.dimensions), "unknown", "unknown", mapping.synthetic)
    tags = [name for name in (*mapping.columns, *pairs_table.columns) if name.startswith(TAG_PREFIX)]
    columns = full_mapping(mapping.columns, [*PAIR_COLUMNS, *tags], pairs_table, ("pair_id", "response_audio"))
    rows = _pair_rows(pairs_table, columns)
    check_pair_rows(rows, pairs_table.path, pairs_table.locate(columns))

    rating_columns = mapping.rating_columns
    if ratings_table is None:
        rating_columns = {"pair_id": columns["pair_id"], **rating_columns}
    taken = columns.values() if ratings_table is None else ()
    pair_ids = [row["pair_id"] for row in rows]
    ratings, used = long_ratings(
        ratings_table or pairs_table, rating_columns, mapping.dimensions, mapping.wide, pair_ids, taken
    )

    ignored = [column for column in (ratings_table or pairs_table).columns if column not in {*used, *taken}]
    if ratings_table is not None:
        ignored = [column for column in pairs_table.columns if column not in columns.values()] + ignored
    if ignored:
        card = dataclasses.replace(card, description=f"Columns not imported: {', '.join(ignored)}.")
    _find_audio(rows, pairs_table, columns, find)
    return Imported(card, rows, ratings)


def _pair_rows(table: SourceTable, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows with our column names. Groups that are to be derived from the audio are a dash for now."""
    rows = []
    for position, values in enumerate(table.rows):
        row: dict[str, Any] = {**dict.fromkeys(PAIR_COLUMNS), "context_audio": []}
        row.update({our: plain_text(values.get(their)) for our, their in columns.items()})
        row["response_audio"] = values.get(columns["response_audio"])
        column = columns.get(TAGS, TAGS)
        where = table.place(position, column)
        named = {name.removeprefix(TAG_PREFIX): row.pop(name) for name in columns if name.startswith(TAG_PREFIX)}
        row[TAGS] = sorted_tags(dict(sorted_tags(values.get(column), where)) | named, where)
        if "context_audio" in columns:
            where = table.place(position, columns["context_audio"])
            row["context_audio"] = _turns(values.get(columns["context_audio"]), where)
        if "group_id" not in columns:
            row["group_id"] = "-"
        rows.append(row)
    return rows


def _turns(value: Any, where: str) -> list[dict[str, Any]]:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return []
    turns = value if isinstance(value, list) else [{"role": "user", "audio": value}]
    for turn in turns:
        if not isinstance(turn, dict) or set(turn) != {"role", "audio"}:
            raise DataError(f'{where}: value {shown(turn)}; accepted: {{"role": ..., "audio": ...}} per turn')
    return [dict(turn) for turn in turns]


def _find_audio(rows: Sequence[dict[str, Any]], table: SourceTable, columns: Mapping[str, str], find: FindClip) -> None:
    """Replaces what each cell of audio says by the clip that it refers to."""
    for position, row in enumerate(rows):
        for turn in row["context_audio"]:
            turn["audio"] = find(turn["audio"], table.place(position, columns["context_audio"]))
        row["response_audio"] = find(row["response_audio"], table.place(position, columns["response_audio"]))
        if "group_id" not in columns:
            row["group_id"] = None
