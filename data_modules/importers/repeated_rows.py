"""Pairs that stand in several rows of a table, one for each rating: what the rows say about a pair is read once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ...audio.stored_clips import CONTEXT, RESPONSE
from ...core.errors import AudioError, DataError, bad_value
from ..embedded_tables import EmbeddedClip
from ..storage import TAG_PREFIX, TAGS
from ..tables import SourceTable, plain_text
from .clips import ClipCell

FindClip = Callable[[Any, str], ClipCell]
"""Value of a cell and where it stands -> the clip that it refers to."""
_RATER = "rater_id"


def has_raters(table: SourceTable, rating_columns: Mapping[str, str]) -> bool:
    """Whether each row names a rater: then a pair may stand in several rows, each with a rating of it."""
    return rating_columns.get(_RATER, _RATER) in table.columns


def with_ids(table: SourceTable, columns: Mapping[str, str], find: FindClip) -> SourceTable:
    """A table of ratings beside pairs, which has no ids, with a column ``pair_id``: the number of the first row, from
    0, that has the same clips and situation.

    Args:
        table: The rows.
        columns: Our column name -> theirs, where they differ.
        find: Finds a clip.
    """
    names = {our: columns.get(our, our) for our in (CONTEXT, RESPONSE, "situation")}
    place_of, ids = table.locate(names), dict[tuple[Any, ...], str]()
    # The same few paths stand in many rows, and each look-up asks the file system.
    known: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for position, row in enumerate(table.rows):
        # As text: a cell may hold a list, of which no key can be made
        key: list[Any] = [repr(plain_text(row.get(names["situation"])))]
        for our in (CONTEXT, RESPONSE):
            value = row.get(names[our])
            clips = known.get(value) if isinstance(value, str) else None
            if clips is None:
                clips = _clips(value, place_of(position, our), find)
            if isinstance(value, str):
                known[value] = clips
            key.append(clips)
        rows.append({"pair_id": ids.setdefault(tuple(key), str(position)), **row})
    return dataclasses.replace(table, columns=("pair_id", *table.columns), rows=rows)


def one_row_per_pair(
    rows: Sequence[dict[str, Any]], table: SourceTable, columns: Mapping[str, str], find: FindClip
) -> list[int]:
    """The positions of the first row of each pair, rising.

    Args:
        rows: Rows of the table with our column names, audio as it stands.
        table: Where they come from.
        columns: Our column name -> theirs.
        find: Finds a clip.

    Raises:
        DataError: If a later row says something else about its pair; both rows are named.
    """
    first: dict[str, int] = {}
    positions: list[int] = []
    place_of = table.locate(columns)
    for position, row in enumerate(rows):
        pair_id = row["pair_id"]
        # What is no id is refused later, at its own row
        earlier = first.setdefault(pair_id, position) if isinstance(pair_id, str) else position
        if earlier == position:
            positions.append(position)
            continue
        for column, value in row.items():
            before = rows[earlier][column]
            # Two ways to write a path may name one file
            if column in (CONTEXT, RESPONSE) and value != before:
                before, value = (
                    _clips(cell, place_of(at, column), find) for at, cell in ((earlier, before), (position, value))
                )
            if value != before:
                name = _tag_that_differs(row, rows[earlier], columns) if column == TAGS else column
                where, there = place_of(position, name), place_of(earlier, name)
                shown_value = table.rows[position].get(columns.get(name, name))
                raise bad_value(where, shown_value, f"what stands at {there}, since both are pair {pair_id!r}")
    return positions


def _tag_that_differs(row: Mapping[str, Any], earlier: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """The column of the tag, or of all tags."""
    one, other = dict(row[TAGS]), dict(earlier[TAGS])
    changed = (f"{TAG_PREFIX}{name}" for name in {**one, **other} if one.get(name) != other.get(name))
    return next((column for column in changed if column in columns), TAGS)


def _clips(value: Any, where: str, find: FindClip) -> Any:
    """What tells the clips of a cell from others: files by their path, bytes in a table by their hash."""
    if isinstance(value, list | tuple):
        return tuple(
            (str(turn.get("role")), _clips(turn.get("audio"), where, find)) if isinstance(turn, Mapping) else repr(turn)
            for turn in value
        )
    if plain_text(value) is None:
        return None
    try:
        content = find(value, where).content
        if isinstance(content, EmbeddedClip):
            return _digest(content)
    except (AudioError, DataError) as error:
        content = error
    return str(content) if isinstance(content, Exception) else content


@lru_cache(maxsize=65_536)
def _digest(clip: EmbeddedClip) -> str:
    return hashlib.sha256(clip.read()).hexdigest()
