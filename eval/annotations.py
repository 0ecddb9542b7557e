"""A plain long table of scores by people and judges: one row per item, dimension and annotator, no audio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from ..data_modules.errors import DataError, UserError, shown
from ..data_modules.tables import Record, full_mapping, read_table, records

REQUIRED_COLUMNS = ("item", "annotator", "dimension", "score")
OPTIONAL_COLUMNS = ("dataset", "group", "system")


@dataclass(frozen=True, eq=False)
class Block:
    """The scores of one dimension of one dataset.

    Attributes:
        dataset: Its name; None where the table has no column of datasets.
        dimension: Its name.
        ratings: Columns ``pair_id, rater_id, dimension, score, group_id, system_id``; ``pair_id`` is the item,
            ``score`` is finite (rating points), ``system_id`` None where there is none.
        missing: Annotator -> items whose score is empty or NaN, where there are any.
    """

    dataset: str | None
    dimension: str
    ratings: pd.DataFrame
    missing: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Annotations:
    """The table.

    Attributes:
        path: The file.
        annotators: Everybody who gave a score, in the order of the file.
        has_systems: Whether it has a column of systems.
        rows: Columns ``dataset`` and those of `Block.ratings`; ``score`` NaN = missing.
    """

    path: Path
    annotators: tuple[str, ...]
    has_systems: bool
    rows: pd.DataFrame

    def select(self, annotators: Sequence[str], excluded: Sequence[str]) -> Annotations:
        """Only these annotators (none named = all), without those that are excluded.

        Raises:
            UserError: If one is not in the table or nobody is left.
        """
        self.check(annotators, "--annotators")
        self.check(excluded, "--exclude")
        kept = [name for name in self.annotators if name in (annotators or self.annotators) and name not in excluded]
        if not kept:
            raise UserError(f"--exclude leaves no annotator of {self.path}; it has {_listed(self.annotators)}")
        rows = self.rows.loc[self.rows["rater_id"].isin(kept)]
        return Annotations(self.path, tuple(kept), self.has_systems, rows)

    def check(self, names: Sequence[str], option: str) -> None:
        """Refuses names that are no annotators.

        Raises:
            UserError: If there is one.
        """
        for name in names:
            if name not in self.annotators:
                where = f"not among the annotators of {self.path} that count"
                raise UserError(f"{option} {name!r}: {where}; expected {_listed(self.annotators)}")

    def blocks(self) -> Iterator[Block]:
        """Each dimension of each dataset, in the order of the file."""
        for key, own in self.rows.groupby(["dataset", "dimension"], sort=False, dropna=False):
            dataset, dimension = cast(tuple[object, object], key)
            missing = own.loc[own["score"].isna(), "rater_id"].value_counts(sort=False)
            yield Block(
                str(dataset) if isinstance(dataset, str) else None,
                str(dimension),
                own.loc[own["score"].notna()],
                {str(name): int(count) for name, count in missing.items()},
            )


def read_annotations(path: str | Path, columns: Mapping[str, str]) -> Annotations:
    """Reads a CSV, TSV, JSONL or Parquet table.

    An empty score, null or NaN is a missing one. The items of different datasets are different ones. An item without
    a group is a group of its own.

    Args:
        path: The file.
        columns: Our column name (`REQUIRED_COLUMNS`, `OPTIONAL_COLUMNS`) -> theirs, where they differ.

    Raises:
        DataError: If the file is unreadable, a column is missing, a name is empty, a score is no finite number, an
            annotator scores an item twice on a dimension, or an item has two groups or two systems.
    """
    table = read_table(path)
    named = full_mapping(columns, (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS), table, REQUIRED_COLUMNS)
    reader = _Rows(named)
    rows = [reader.read(record) for record in records(table)]
    frame = pd.DataFrame(
        rows, columns=["dataset", "pair_id", "rater_id", "dimension", "score", "group_id", "system_id"]
    )
    return Annotations(table.path, tuple(dict.fromkeys(frame["rater_id"])), "system" in named, frame)


class _Rows:
    """Reads row after row and remembers what must not change between them."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._first: dict[tuple[str | None, ...], int] = {}  # key of a score -> position of its row
        self._of_item: dict[tuple[str, str | None, str], str | None] = {}  # column, dataset, item -> group or system

    def read(self, record: Record) -> tuple[Any, ...]:
        item, annotator, dimension = (record.name(self._columns[name]) for name in ("item", "annotator", "dimension"))
        dataset = self._optional(record, "dataset")
        first = self._first.setdefault((dataset, item, dimension, annotator), record.position)
        if first != record.position:
            raise DataError(
                f"{record.place(self._columns['item'])}: {annotator} scores item {shown(item)} on {dimension} again, "
                f"as in row {first + 1}; expected one score per item, dimension and annotator"
            )
        group, system = (self._fixed(record, name, dataset, item) for name in ("group", "system"))
        group_id = f"item {item}" if group is None else f"group {group}"
        return dataset, item, annotator, dimension, self._score(record), group_id, system

    def _optional(self, record: Record, name: str) -> str | None:
        return record.optional_name(self._columns[name]) if name in self._columns else None

    def _fixed(self, record: Record, name: str, dataset: str | None, item: str) -> str | None:
        value = self._optional(record, name)
        known = self._of_item.setdefault((name, dataset, item), value)
        if value != known:
            raise record.error(self._columns[name], f"one {name} per item; item {shown(item)} has {shown(known)} above")
        return value

    def _score(self, record: Record) -> float:
        value = record.values.get(self._columns["score"])
        if value is None or value == "":
            return math.nan
        try:
            score = math.inf if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.inf
        if np.isinf(score):
            raise record.error(self._columns["score"], "a finite number, or nothing where the score is missing")
        return score


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names))
