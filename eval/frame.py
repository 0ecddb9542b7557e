"""One long frame of ratings and scores: who gave which item which score on which dimension.

`evaluate` and `compare` make it from a pair dataset and the score tables of judges, `agreement` and ``compare --table``
from a table with one row per score. Everything that is measured starts from a `Panel`: the ratings by people of one
dimension, and the scores of judges on the rated items.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from ..core.errors import DataError, UserError, bad_value, shown
from ..core.numerals import EXACT, as_float
from ..data_modules.folds import group_of
from ..data_modules.layouts import (
    Cell,
    Names,
    column_names,
    fitting,
    read_rating_tables,
    score_cells,
    score_columns,
    with_numbers,
)
from ..data_modules.rating_words import unknown_words
from ..data_modules.ratings import (
    A_NAME,
    LARGEST,
    N_RATINGS,
    PANEL,
    SD,
    Check,
    RatingTable,
    check_numbers_of_means,
    is_name,
)
from ..data_modules.steps import same_scores
from ..data_modules.tables import SourceTable, TableRow, plain_text
from .statistics.agreement import Statistic, spearman
from .statistics.bootstrap import Interval, Resamples, estimate
from .statistics.reliability import Reliability, affordable_draws, measure

if TYPE_CHECKING:  # pairs are clips, whose decoders a table of ratings does not need
    from ..data_modules.schema import PairDataset

COLUMNS = ("dataset", "dimension", "pair_id", "rater_id", "is_judge", "score", "group_id", "system_id", "cluster")
"""Columns of a long frame: ``score`` in rating points (NaN = missing); ``dataset`` and ``system_id`` are None where
there is none; ``cluster`` is the unit that intervals draw, and permutations exchange, as a whole. Where some scores are
published means, `SD` and `N_RATINGS` follow."""

TABLE_COLUMNS = ("item", "annotator", "dimension", "score", "dataset", "group", "system")
"""Columns of a table; see `layouts` for which have to be there."""
_SUMMARIES = {"average", "max", "mean", "median", "min", "mittelwert", "sd", "std", "sum", "total"}
"""Names of rows that a spreadsheet has below its items, in lower case."""
_NAMES = Names("item", "annotator", "--column", TABLE_COLUMNS[4:])


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
            # Who scored nothing on this dimension has scored none of its items
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
    files: tuple[Path, ...] = ()  # those of a table

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
        of_means = [name for name in (SD, N_RATINGS) if name in dataset.ratings]
        columns = ["dimension", "pair_id", "rater_id", "is_judge", "score", *of_means]
        rows = pd.concat([part.reindex(columns=columns) for part in parts], ignore_index=True)
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
        return cls(rows[[*COLUMNS, *of_means]], dataset.card.name)

    @property
    def annotators(self) -> tuple[str, ...]:
        """Everybody who gave a score, judges as well, in the order of the rows."""
        return tuple(self.rows["rater_id"].unique())

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

    def with_judges(self, judges: Sequence[str]) -> Frame:
        """The frame in which these annotators are judges, and the others people.

        Raises:
            UserError: If one gave no score, nobody is left, or one scored none of the items or dimensions that people
                rated: then two files spell them differently.
        """
        self.check(judges, "--judges")
        rows = self.rows.assign(is_judge=self.rows["rater_id"].isin(judges))
        if len(rows) and rows["is_judge"].to_numpy(bool).all():
            raise UserError(f"--judges names every annotator of {self.source}; expected at least one person is left")
        given = rows.loc[rows["score"].notna()]
        for column, what in (("pair_id", "items"), ("dimension", "dimensions")):
            rated = set(given.loc[~given["is_judge"], column])
            for judge in judges:
                scored = given.loc[given["rater_id"] == judge, column]
                if rated and len(scored) and rated.isdisjoint(scored):
                    raise UserError(
                        f"{self.source}: {judge} scores none of the {what} that people rate, but "
                        f"{shown(scored.iloc[0])} and the like where they have {shown(min(rated))}; expected the same "
                        f"names of {what}"
                    )
        return replace(self, rows=rows)

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
            self._check_means(rows, str(dimension))
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

    def _check_means(self, rows: pd.DataFrame, dimension: str) -> None:
        """Refuse published means beside ratings on one dimension: the ceiling of neither holds for both."""
        if SD not in rows:
            return
        single = rows.loc[~rows["is_judge"] & rows[SD].isna() & rows["score"].notna(), ["rater_id", "pair_id"]]
        if len(single) and not np.isnan(rows[SD].to_numpy(float)).all():
            rater, item = single.iloc[0]
            if rater == PANEL:  # a row of the same table
                found, cure = f"of item {shown(item)} one without {SD} and {N_RATINGS}", f"{SD} and {N_RATINGS} of all"
            else:
                found, cure = f"scores by {shown(rater)}", f"--judges {shown(rater)}, or only one of these"
            raise UserError(f"{self.source}: {dimension} has published means, and {found}; expected {cure}")


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


def read_frame(
    paths: str | Path | Sequence[str | Path],
    columns: Mapping[str, str],
    scores: Sequence[str] = (),
    choices: Mapping[str, float] | None = None,
) -> Frame:
    """Reads ratings in any layout of `layouts`, from one file or several; nobody is a judge yet.

    A score is missing where the cell is empty, null, NaN or one of `rating_words.NO_SCORE`. Scores that differ only
    because some were stored in float32 or float16 become one (`steps.same_scores`). The items of different datasets are
    different ones. An item without a group is a group of its own.

    Args:
        paths: The file, or several; ``ANNOTATOR=FILE`` says that one annotator gave all scores in it.
        columns: Our column name (`TABLE_COLUMNS`) -> theirs, where they differ.
        scores: Columns that hold scores, see `layouts.score_columns`.
        choices: Word of a scale -> score.

    Raises:
        DataError: If a file is unreadable, columns are missing, a name is empty, a score is no finite number, an
            annotator scores an item twice on a dimension, or an item has two groups or two systems.
    """
    tables = read_rating_tables([paths] if isinstance(paths, str | Path) else paths, _NAMES)
    source = " + ".join(str(table.path) for table in tables)
    cells: list[Cell] = []
    more: list[tuple[str | None, ...]] = []
    names_of: dict[int, Mapping[str, str]] = {}
    for table in tables:
        # What is named may stand in one of several tables: a judge's scores have other columns than ratings of people
        own, all_names = table.columns, [name for one in tables for name in one.columns]
        mapped = {our: their for our, their in columns.items() if their in own or their not in all_names}
        named = [pattern for pattern in scores if fitting(own, pattern) or not fitting(all_names, pattern)]
        names = names_of[id(table)] = column_names(table, mapped, _NAMES)
        rows = list(zip(*(_optional_names(table, names.get(name)) for name in _NAMES.optional), strict=True))
        found = list(score_cells(table, names, score_columns(table, names, _NAMES, scores=named), choices or {}))
        cells += found
        more += [rows[cell.position] for cell in found]
    cells = with_numbers(cells)

    def column(number: int, name: str) -> str:
        return names_of[id(cells[number].table)].get(name, cells[number].column)

    values = [[getattr(cell, part) for cell in cells] for part in ("item", "annotator", "dimension")]
    for name, given in zip(TABLE_COLUMNS, values, strict=False):
        # Each distinct text is checked once
        good = {value for value in {value for value in given if isinstance(value, str)} if is_name(value)}
        bad = next((n for n, value in enumerate(given) if not isinstance(value, str) or value not in good), None)
        if bad is not None:
            where = cells[bad].table.place(cells[bad].position, column(bad, name))
            raise bad_value(where, given[bad], f"{A_NAME}; or a whole number")
    words = dict.fromkeys(cell.score for cell in cells if isinstance(cell.score, str))
    for number, cell in enumerate(cells):
        if not (isinstance(cell.score, float) and (abs(cell.score) <= LARGEST or math.isnan(cell.score))):
            score = as_float(cell.score)
            if abs(score) <= LARGEST:
                cells[number] = cell._replace(score=score)
                continue
            expected = f"a finite number, at most {LARGEST:g}, or nothing where it is missing"
            if isinstance(cell.score, int) and abs(cell.score) > EXACT:
                expected = "a number that float64 holds, such as whole ones up to 2**53"
            raise bad_value(cell.where, cell.score, unknown_words(words) if isinstance(cell.score, str) else expected)
    items, annotators, dimensions = values
    datasets, groups, systems = ([row[at] for row in more] for at in range(3))
    if len(tables) > 1:  # a table without such a column, as of a judge's scores, says nothing: others do
        for name, given in (("group", groups), ("system", systems)):
            says = [name in names_of[id(cell.table)] for cell in cells]
            said = {(d, i): own for d, i, own, own_says in zip(datasets, items, given, says, strict=True) if own_says}
            if said:
                given[:] = [
                    own if own_says else said.get((d, i))
                    for d, i, own, own_says in zip(datasets, items, given, says, strict=True)
                ]
    frame = pd.DataFrame(
        {
            "dataset": pd.Series(datasets, dtype=object),
            "dimension": pd.Series(dimensions, dtype=object),
            "pair_id": pd.Series(items, dtype=object),
            "rater_id": pd.Series(annotators, dtype=object),
            "is_judge": False,
            "score": [cell.score for cell in cells],
            "group_id": [f"item {i}" if g is None else f"group {g}" for i, g in zip(items, groups, strict=True)],
            "system_id": pd.Series(systems, dtype=object),
        }
    )
    _check_rows(frame, cells, column)
    if summary := next((cell for cell in cells if cell.item.casefold() in _SUMMARIES), None):
        where = f"{summary.table.place(summary.position)}: {shown(summary.item)}"
        print(f"warning: {where} counts as an item; delete the row if it sums up the others", file=sys.stderr)
    _check_spread(frame, source)
    columns_of = COLUMNS
    if any(cell.of_mean for cell in cells):
        spread = [cell.of_mean or (None, None) for cell in cells]
        frame[SD], frame[N_RATINGS] = (pd.Series(values, dtype=object) for values in zip(*spread, strict=True))

        def locate(number: int, name: str) -> str:
            return cells[number].table.place(cells[number].position, column(number, name))

        frame[SD], frame[N_RATINGS] = check_numbers_of_means(Check(frame, source, locate))
        columns_of = (*COLUMNS, SD, N_RATINGS)
    # By dataset too: the same name may stand for another scale there
    by_scale = frame.groupby(["dataset", "dimension"], sort=False, dropna=False)["score"]
    frame = frame.assign(score=by_scale.transform(same_scores), cluster=frame["group_id"])
    return Frame(frame.loc[:, list(columns_of)], source, tuple(table.path for table in tables))


def _optional_names(table: SourceTable, column: str | None) -> list[str | None]:
    """The names in a column, None where there is none; each distinct text is checked once."""
    if column is None:
        return [None] * len(table.rows)
    known: dict[str, str | None] = {}
    names: list[str | None] = []
    for position, row in enumerate(table.rows):
        value = row.get(column)
        if isinstance(value, str) and value in known:
            names.append(known[value])
            continue
        name = TableRow(table, position).optional_name(column)
        if isinstance(value, str):
            known[value] = name
        names.append(name)
    return names


def _check_rows(frame: pd.DataFrame, cells: Sequence[Cell], column: Callable[[int, str], str]) -> None:
    """Refuse two scores of one annotator for one thing, and an item with two groups or two systems; `column` tells what
    a column of ours is called in the table of a cell."""
    repeated = frame.duplicated(["dataset", "pair_id", "dimension", "rater_id"]).to_numpy(bool)
    first_bad = int(repeated.argmax()) if repeated.any() else len(frame)
    ids = frame.groupby(["dataset", "pair_id"], sort=False, dropna=False).ngroup().to_numpy()
    _, starts = np.unique(ids, return_index=True)
    for name, prefix in (("group_id", "group"), ("system_id", "system")):
        values = frame[name].fillna("").to_numpy(object)
        other = values != values[starts][ids]
        if other.any() and int(other.argmax()) <= first_bad:
            number = int(other.argmax())
            cell, first = cells[number], cells[int(starts[ids[number]])]
            theirs = column(number, prefix)
            has = plain_text(first.table.rows[first.position].get(theirs))
            wanted = (
                f"one {prefix} per item; item {shown(cell.item)} has {shown(has)} above, and an item is one response"
            )
            raise bad_value(cell.table.place(cell.position, theirs), cell.table.rows[cell.position].get(theirs), wanted)
    if first_bad < len(frame):
        keys = frame[["dataset", "pair_id", "dimension", "rater_id"]].fillna("").agg(tuple, axis="columns")
        earlier = cells[int((keys == keys.iloc[first_bad]).to_numpy().argmax())]
        cell = cells[first_bad]
        where = cell.table.place(cell.position, column(first_bad, "item"))
        raise DataError(
            f"{where}: {cell.annotator} scores item {shown(cell.item)} on {cell.dimension} "
            f"again, as in {_row(earlier, cell)}; expected one score per item, dimension and annotator"
        )


def _row(earlier: Cell, cell: Cell) -> str:
    return f"row {earlier.position + 1}" if earlier.table is cell.table else earlier.table.place(earlier.position)
