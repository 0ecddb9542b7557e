"""One long frame of ratings and scores: who gave which item which score on which dimension.

`evaluate` and `compare` make it from a pair dataset and the score tables of judges, `agreement` and ``compare --table``
from a table with one row per score. Everything that is measured starts from a `Panel`: the ratings by people of one
dimension, and the scores of judges on the rated items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from ..core.errors import DataError, UserError, shown
from ..data_modules.folds import group_of
from ..data_modules.ratings import LARGEST, RatingTable
from ..data_modules.schema import PairDataset
from ..data_modules.steps import same_scores
from ..data_modules.tables import full_mapping, read_table
from .statistics.agreement import Statistic, spearman
from .statistics.bootstrap import Interval, Resamples, estimate
from .statistics.reliability import Reliability, affordable_draws, measure

COLUMNS = ("dataset", "dimension", "pair_id", "rater_id", "is_judge", "score", "group_id", "system_id", "cluster")
"""Columns of a long frame: ``score`` in rating points (NaN = missing); ``dataset`` and ``system_id`` are None where
there is none; ``cluster`` is the unit that intervals draw, and permutations exchange, as a whole."""

TABLE_COLUMNS = ("item", "annotator", "dimension", "score", "dataset", "group", "system")
"""Columns of a table; the first four are required."""


@dataclass(frozen=True, eq=False)
class Panel:
    """The ratings by people of one dimension, on n items, with the scores of judges on these items."""

    dataset: str | None  # its name; None where there is only one
    dimension: str  # its name
    items: pd.DataFrame  # n rows: ``pair_id, group_id, system_id, cluster``
    rows: pd.DataFrame  # of the frame, those of the dimension
    scores: Mapping[str, np.ndarray]  # judge -> scores of the items, shape (n,), rating points, NaN = not scored
    draws: Resamples  # over the items
    seed: int  # of the draws and of the halvings of the panel

    @cached_property
    def table(self) -> RatingTable:
        """The ratings of the items."""
        ratings = self.rows.loc[~self.rows["is_judge"].to_numpy(bool) & self.rows["score"].notna()]
        return RatingTable.of(ratings, self.dimension, self.items["pair_id"].tolist())

    @cached_property
    def human(self) -> np.ndarray:
        """Shape (n,), mean over the raters."""
        return self.table.means

    @cached_property
    def reliability(self) -> Reliability:
        """How well people agree on the items."""
        return measure(self.table, self.draws, self.seed)

    def select(self, kept: np.ndarray) -> Panel:
        """The panel with only the items of a mask of shape (n,), on the same draws."""
        if kept.all():
            return self
        scores = {judge: score[kept] for judge, score in self.scores.items()}
        return replace(self, items=self.items.loc[kept], scores=scores, draws=self.draws.select(kept))

    def scored(self, *judges: str) -> np.ndarray:
        """A mask of shape (n,) of the items that all of these judges scored."""
        mask = np.ones(len(self.items), dtype=bool)
        for judge in judges:
            mask &= ~np.isnan(self.scores[judge]) if judge in self.scores else False
        return mask

    def judged(self, judge: str) -> Judged:
        """A judge on the items that it scored."""
        selected = self.select(self.scored(judge))
        return Judged(selected, selected.scores.get(judge, np.empty(0)))


@dataclass(frozen=True, eq=False)
class Judged:
    """A judge on the n items of a panel, all of which it scored."""

    panel: Panel
    score: np.ndarray  # (n,), rating points

    @cached_property
    def spearman(self) -> Statistic:
        """Spearman correlation of the scores with the mean over the raters."""
        return estimate(spearman, self.score, self.panel.human, resamples=self.panel.draws)


@dataclass(frozen=True, eq=False)
class Frame:
    """Ratings and scores in long form: `COLUMNS`, one row per dataset, dimension, item and rater or judge."""

    rows: pd.DataFrame
    source: str  # where they come from, for messages

    @classmethod
    def of_dataset(cls, dataset: PairDataset, scores: Mapping[str, pd.DataFrame], clusters: Mapping[str, str]) -> Frame:
        """The ratings of a dataset, and scores of judges.

        Args:
            dataset: Pairs and ratings.
            scores: Judge -> rows with ``pair_id, dimension, score``.
            clusters: Pair id -> what is drawn as a whole, of the pairs that count.
        """
        # Judges come first: their rows are in the order of the pairs, and items take the order of the rows
        parts = [table.assign(rater_id=judge, is_judge=True) for judge, table in scores.items()]
        parts.append(dataset.ratings.assign(is_judge=False))
        columns = ["dimension", "pair_id", "rater_id", "is_judge", "score"]
        rows = pd.concat([part[columns] for part in parts], ignore_index=True)
        pairs = pd.DataFrame(
            [(group_of(pair), pair.system_id, clusters[pair.pair_id]) for pair in dataset.pairs],
            index=[pair.pair_id for pair in dataset.pairs],
            columns=["group_id", "system_id", "cluster"],
            dtype=object,
        )
        rows = (
            rows.loc[[pair_id in clusters for pair_id in rows["pair_id"]]]
            .join(pairs, on="pair_id")
            .assign(dataset=None)
        )
        _check_spread(rows, dataset.card.name)
        return cls(rows[list(COLUMNS)], dataset.card.name)

    @property
    def annotators(self) -> tuple[str, ...]:
        """Everybody who gave a score, judges as well, in the order of the rows."""
        return tuple(dict.fromkeys(self.rows["rater_id"]))

    @property
    def has_systems(self) -> bool:
        """Whether any item names its system."""
        return bool(self.rows["system_id"].notna().any())

    def check(self, names: Iterable[str], option: str) -> None:
        """Raises a UserError for a name that gave no score."""
        present = self.annotators
        for name in names:
            if name not in present:
                where = f"not among the annotators of {self.source} that count"
                raise UserError(f"{option} {name!r}: {where}; expected {', '.join(map(shown, present))}")

    def select(self, annotators: Sequence[str], excluded: Sequence[str]) -> Frame:
        """Only these annotators (none named = all), without those that are excluded.

        Raises:
            UserError: If one is not in the frame or nobody is left.
        """
        self.check(annotators, "--annotators")
        self.check(excluded, "--exclude")
        present = self.annotators
        chosen = [name for name in present if name in (annotators or present) and name not in excluded]
        if not chosen:
            has = ", ".join(map(shown, present))
            raise UserError(f"--exclude leaves no annotator of {self.source}; it has {has}")
        return replace(self, rows=self.rows.loc[self.rows["rater_id"].isin(chosen)])

    def panels(
        self,
        resamples: int,
        seed: int,
        interval: Interval = "percentile",
        dimensions: Sequence[str] = (),
        judged: bool = False,
    ) -> Iterator[Panel]:
        """The panel of each dimension of each dataset, with draws over the rated items (`affordable_draws`).

        Only for these `dimensions` (empty = all); with `judged` only the items that a judge scored as well.
        """
        for (dataset, dimension), rows in self.rows.groupby(["dataset", "dimension"], sort=False, dropna=False):  # type: ignore[misc]
            if dimensions and dimension not in dimensions:
                continue
            scored_rows = rows.loc[rows["score"].notna()]
            items = scored_rows.drop_duplicates("pair_id")[["pair_id", "group_id", "system_id", "cluster"]]
            by_judge = scored_rows["is_judge"].to_numpy(bool)
            for scored in (scored_rows.loc[~by_judge], *([scored_rows.loc[by_judge]] if judged else [])):
                items = items.loc[items["pair_id"].isin(scored["pair_id"])]
            scores = {
                str(judge): judge_rows.set_index("pair_id")["score"].reindex(items["pair_id"]).to_numpy(np.float64)
                for judge, judge_rows in rows.loc[rows["is_judge"].to_numpy(bool)].groupby("rater_id", sort=False)
            }
            draws = affordable_draws(items["cluster"].tolist(), resamples, seed, interval)
            name = dataset if isinstance(dataset, str) else None
            yield Panel(name, str(dimension), items, rows, scores, draws, seed)


def clusters_by(names: Iterable[Any], ids: Iterable[str]) -> list[str]:
    """The cluster of each item: its name (None or empty = none) or, without one, the item alone, whatever its id is."""
    # A system may be called as an item without a system is: then both get a prefix
    both = [(name if isinstance(name, str) else "", own) for name, own in zip(names, ids, strict=True)]
    if {name for name, _ in both}.isdisjoint(own for name, own in both if not name):
        return [name or own for name, own in both]
    return [f"named {name}" if name else f"item {own}" for name, own in both]


def _check_spread(rows: pd.DataFrame, source: str) -> None:
    """Refuse scores so close to each other that their squares would be lost below the least float64."""
    for name, scores in rows.groupby(["dimension", "rater_id"], sort=False)["score"]:
        values = scores.to_numpy(np.float64)
        # Without any score the range is NaN, and neither side of the comparison holds
        if not 0 < np.fmax.reduce(values) - np.fmin.reduce(values) < 1 / LARGEST:
            continue
        dimension, annotator = cast("tuple[str, str]", name)
        raise DataError(
            f"{source}: all scores of {annotator} on {dimension} lie within {1 / LARGEST:g}; "
            "expected another unit, such as their logarithm"
        )


def read_frame(path: str | Path, columns: Mapping[str, str]) -> Frame:
    """Reads a CSV, TSV, JSONL or Parquet table with one row per score; nobody is a judge yet.

    A score is missing where the cell is empty, null, or NaN as a number; the text ``NaN`` is refused. Scores that
    differ only because some were stored in float32 or float16 become one (`steps.same_scores`). The items of different
    datasets are different ones. An item without a group is a group of its own.

    Args:
        path: The file.
        columns: Our column name (`TABLE_COLUMNS`) -> theirs, where they differ.

    Raises:
        DataError: If the file is unreadable, a column is missing, a name is empty, a score is no finite number, an
            annotator scores an item twice on a dimension, or an item has two groups or two systems.
    """
    table = read_table(path)
    column_of = full_mapping(columns, TABLE_COLUMNS, table, TABLE_COLUMNS[:4])
    first_row: dict[tuple[str | None, ...], int] = {}  # key of a score -> position of its row
    of_item: dict[tuple[str, str | None, str], str | None] = {}  # column, dataset, item -> group or system
    rows: list[tuple[Any, ...]] = []
    for record in table.records():
        item, annotator, dimension = (record.name(column_of[name]) for name in TABLE_COLUMNS[:3])
        dataset, group, system = (
            record.optional_name(column_of[name]) if name in column_of else None for name in TABLE_COLUMNS[4:]
        )
        earlier = first_row.setdefault((dataset, item, dimension, annotator), record.position)
        if earlier != record.position:
            raise DataError(
                f"{record.place(column_of['item'])}: {annotator} scores item {shown(item)} on {dimension} again, "
                f"as in row {earlier + 1}; expected one score per item, dimension and annotator"
            )
        for name, value in (("group", group), ("system", system)):
            expected = of_item.setdefault((name, dataset, item), value)
            if value != expected:
                wanted = f"one {name} per item; item {shown(item)} has {shown(expected)} above"
                raise record.error(column_of[name], wanted)
        group_id = f"item {item}" if group is None else f"group {group}"
        score = record.number(column_of["score"])
        rows.append((dataset, dimension, item, annotator, False, score, group_id, system, group_id))
    frame = pd.DataFrame(rows, columns=pd.Index(COLUMNS))
    _check_spread(frame, str(table.path))
    by_scale = frame.groupby(["dataset", "dimension"], sort=False, dropna=False)["score"]
    return Frame(frame.assign(score=by_scale.transform(same_scores)), str(table.path))
