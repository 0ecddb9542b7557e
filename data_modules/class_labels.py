"""Class labels as Hugging Face ``datasets`` store them: numbers in the cells, names in a description.

A negative number stands for "no label" there (`datasets.ClassLabel`; -1 in hidden test splits): a missing value.
Descriptions are those of ``Features.to_dict()``, which Parquet files of the library carry as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..core.errors import bad_value, place
from ..core.numerals import parse_whole

if TYPE_CHECKING:
    import pyarrow as pa

_Named = Callable[[Any], Any]
"""A cell with class labels -> the cell with names."""
_LISTS = ("List", "LargeList", "Sequence")


class _NoSuchClass(Exception):
    def __init__(self, column: str, value: object, classes: int) -> None:
        self.column, self.value, self.classes = column, value, classes


def name_labels(rows: Sequence[dict[str, Any]], features: Mapping[str, Any], file: object) -> None:
    """Puts names in place of the class labels of a table, however deep they are in lists and structures.

    Args:
        rows: Column -> value; changed in place. A negative label becomes None.
        features: Column -> its description.
        file: What messages call the table.

    Raises:
        DataError: If a label is none of the classes; row and column are named, ``ratings.score`` of a structure.
    """
    for column, feature in features.items():
        named = _named(feature, column)
        if named is None:
            continue
        for position, row in enumerate(rows):
            try:
                row[column] = named(row.get(column))
            except _NoSuchClass as error:
                where = place(file, position + 1, error.column)
                expected = f"a class label from 0 to {error.classes - 1}, or -1 where there is none"
                raise bad_value(where, error.value, expected) from None


def described_columns(schema: pa.Schema) -> Mapping[str, Any]:
    """Column -> its description, from the schema of a Parquet file that ``datasets`` wrote; else empty."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return features if isinstance(features, Mapping) else {}


def has_labels(feature: Any) -> bool:
    """Whether a description is of class labels, however deep in lists and structures."""
    return _named(feature, "") is not None


def _named(feature: Any, column: str) -> _Named | None:
    """How a cell of this description gets its names; None where it holds no labels."""
    kind = feature.get("_type") if isinstance(feature, Mapping) else None
    if isinstance(feature, list | tuple) and feature:  # how old versions write a list
        return _of_list(_named(feature[0], column))
    if not isinstance(feature, Mapping):
        return None
    if kind == "ClassLabel" and isinstance(feature.get("names"), list | tuple):
        return _of_label([str(name) for name in feature["names"]], column)
    if kind in _LISTS:
        inner = feature.get("feature")
        if isinstance(inner, Mapping) and not isinstance(inner.get("_type"), str):
            # Of a `Sequence` of structures the library makes a structure of lists
            by_name = {name: {"_type": "List", "feature": part} for name, part in inner.items()}
            of_structure, of_list = _named(by_name, column), _of_list(_named(inner, column))
            if of_structure is None or of_list is None:
                return None
            return lambda value: of_structure(value) if isinstance(value, Mapping) else of_list(value)
        return _of_list(_named(inner, column))
    if isinstance(kind, str):
        return None
    parts = {name: _named(part, f"{column}.{name}") for name, part in feature.items()}
    return _of_structure({name: named for name, named in parts.items() if named is not None})


def _of_structure(parts: Mapping[str, _Named]) -> _Named | None:
    def named(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {**value, **{name: part(value[name]) for name, part in parts.items() if name in value}}

    return named if parts else None


def _of_list(of_one: _Named | None) -> _Named | None:
    return of_one and (lambda value: [of_one(part) for part in value] if isinstance(value, list) else value)


def _of_label(classes: Sequence[str], column: str) -> _Named:
    names = dict(enumerate(classes))
    # A text file beside a card that describes it may hold the names themselves, or numbers as text
    names_themselves = frozenset(classes)

    def named(value: Any) -> str | None:
        if value is None or (isinstance(value, str) and value in names_themselves):
            return value
        if isinstance(value, str):
            with suppress(ValueError):
                value = parse_whole(value)
        if isinstance(value, bool) or not isinstance(value, int) or value >= len(classes):
            raise _NoSuchClass(column, value, len(classes))
        return names.get(value)

    return named
