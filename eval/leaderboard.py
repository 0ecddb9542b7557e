"""Which of several systems sounds better: `leaderboard`, from scores of their responses to the same contexts.

Scores alone are the opinion of the judge, and a judge has opinions about systems, too: what it adds to all scores of a
system is no sampling error, and no number of responses removes it. With ratings of some responses by people, means and
differences are those of people, and the judge only narrows their intervals (`statistics.system_means`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.version import __version__
from ..data_modules.errors import DataError, UserError, counted, names_shown, shown
from ..data_modules.folders import file_hash
from ..data_modules.ratings import RATING_COLUMNS
from ..data_modules.schema import PairDataset
from ..data_modules.tables import SourceTable, read_table
from .report.base import SCHEMA_VERSION
from .report.leaderboard import Board, BoardDifference, BoardSystem, Figure, LeaderboardReport
from .statistics.significance import ALPHA, holm, significance_clusters
from .statistics.system_means import SystemEstimate, SystemMeans, SystemSums, system_means

GROUP = "group_id"
_LABEL = "_label"  # each dimension of a file of scores has a column of this ending
_ERROR = "_standard_error"


@dataclass(frozen=True, eq=False)
class Answers:
    """Scores of one judge on the responses of systems, a row for each response."""

    # ``pair_id, system, group_id, warnings``, and for each dimension ``NAME`` and ``NAME_standard_error``, NaN = none
    rows: pd.DataFrame
    dimensions: tuple[str, ...]
    judge: str | None  # hash of the judge; None = the files do not say
    sources: tuple[str, ...]  # file and hash, for the signature


def leaderboard(
    scores: str | Path | Sequence[str | Path] | Mapping[str, str | Path],
    *,
    by: str = "system_id",
    ratings: str | Path | None = None,
    dimensions: Sequence[str] | None = None,
    baseline: str | None = None,
) -> LeaderboardReport:
    """Compare systems by their responses to the same contexts.

    Args:
        scores: Files that `score --out` wrote, or tables with ``pair_id``, ``group_id`` (the context), `by`, and a
            column for each dimension. A mapping, or a text ``NAME=FILE``, names the system of a whole file.
        by: The column that names the system of each response.
        ratings: A pair dataset, or a table with ``pair_id, rater_id, dimension, score``, of some of the responses.
            They must have been chosen without looking at the responses, such as at random.
        dimensions: Dimensions to compare on (None = all that the files have).
        baseline: The system that others are compared with (None = the best one).

    Raises:
        UserError: If a file cannot be read, a column is missing, a response stands twice, files are of different
            judges, there is only one system, no response was rated, or there is no such dimension or baseline.
    """
    answers = read_answers(scores, by, dimensions)
    systems = sorted(answers.rows["system"].unique())
    if len(systems) < 2:
        raise UserError(f"{answers.sources[0].split(' ')[0]}: one system, {shown(systems[0])}; expected two or more")
    if baseline is not None and baseline not in systems:
        raise UserError(f"baseline {shown(baseline)}: no such system; expected {names_shown(systems)}")
    people = None if ratings is None else read_ratings(ratings, answers)
    boards = [_board(answers, dimension, people) for dimension in answers.dimensions]
    marks = [*answers.sources, *([] if ratings is None else [f"ratings {Path(ratings).name}"])]
    text = f"leaderboard {__version__} | judge {(answers.judge or 'unknown')[:12]} | " + " | ".join(marks)
    return LeaderboardReport(
        schema_version=SCHEMA_VERSION, signature=text, by=by, baseline=baseline, boards=tuple(boards)
    )


# ---------------------------------------------------------------- reading


def read_answers(
    scores: str | Path | Sequence[str | Path] | Mapping[str, str | Path], by: str, dimensions: Sequence[str] | None
) -> Answers:
    """Read files of scores; see `leaderboard`."""
    files = _files(scores)
    tables = [(name, read_table(path)) for name, path in files]
    names = _dimensions([table for _, table in tables], dimensions)
    seen: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    judges: dict[str, Path] = {}
    for system, table in tables:
        needed = ["pair_id", GROUP, *names, *([] if system else [by])]
        for column in needed:
            if column not in table.columns:
                raise DataError(
                    f"{table.path}: no column {column!r}; it has {names_shown(table.columns)}{_advice(column, by)}"
                )
        for record in table.records():
            pair = record.name("pair_id")
            if pair in seen:
                raise DataError(f"{record.place('pair_id')}: {shown(pair)} stands twice, also in {seen[pair]}")
            seen[pair] = record.place("pair_id")
            row: dict[str, Any] = {"pair_id": pair, "system": system or record.name(by), GROUP: record.name(GROUP)}
            row["warnings"] = record.text("warnings") if "warnings" in table.columns else None
            for name in names:
                row[name] = record.number(name)
                row[name + _ERROR] = record.number(name + _ERROR) if name + _ERROR in table.columns else np.nan
            rows.append(row)
        if (judge := _judge(table.path)) is not None:
            judges.setdefault(judge, table.path)
    if len(judges) > 1:
        (first, one), (second, other), *_ = judges.items()
        raise UserError(
            f"{other}: scores of another judge ({second[:12]}) than {one} ({first[:12]}); "
            "their scores do not mean the same: score all systems with one judge"
        )
    marks = tuple(f"{table.path.name} {file_hash(table.path)[:12]}" for _, table in tables)
    return Answers(pd.DataFrame(rows), names, next(iter(judges), None), marks)


def _files(scores: str | Path | Sequence[str | Path] | Mapping[str, str | Path]) -> list[tuple[str | None, Path]]:
    """System of a whole file (None = its rows say) and file."""
    if isinstance(scores, Mapping):
        return [(name, Path(path)) for name, path in scores.items()]
    found: list[tuple[str | None, Path]] = []
    for entry in [scores] if isinstance(scores, (str, Path)) else scores:
        name, equals, path = str(entry).partition("=")
        found.append((name, Path(path)) if equals and not Path(entry).exists() else (None, Path(entry)))
    return found


def _advice(column: str, by: str) -> str:
    """What to do about a missing column."""
    if column == by:
        return "; name the system of a whole file by NAME=FILE, or the column by --by"
    return (
        "; it says which responses answer the same context: `score` copies it from the manifest"
        if column == GROUP
        else ""
    )


def _dimensions(tables: Sequence[SourceTable], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The dimensions that all files have, or those that are asked for."""
    if wanted:
        return tuple(wanted)
    of_each = [[name.removesuffix(_LABEL) for name in table.columns if name.endswith(_LABEL)] for table in tables]
    shared = [name for name in of_each[0] if all(name in names for names in of_each)]
    if not shared:
        raise UserError(f"{tables[0].path}: no column says what is a dimension; name it by --dimension")
    return tuple(shared)


def _judge(path: Path) -> str | None:
    """Hash of the judge by the summary that `score` writes beside its scores."""
    summary = path.with_name(f"{path.name}.summary.json")
    try:
        found = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    identity = found.get("identity") if isinstance(found, dict) else None
    return identity.get("judge") if isinstance(identity, dict) else None


def read_ratings(ratings: str | Path, answers: Answers) -> pd.DataFrame:
    """Ratings of the scored responses, with `RATING_COLUMNS`; those of others are left out."""
    path = Path(ratings)
    if path.is_dir():
        table = PairDataset.load(path).ratings
    else:
        source = read_table(path)
        for column in RATING_COLUMNS:
            if column not in source.columns:
                raise DataError(f"{path}: no column {column!r}; expected {', '.join(RATING_COLUMNS)}")
        rows = [
            {name: record.number(name) if name == "score" else record.name(name) for name in RATING_COLUMNS}
            for record in source.records()
        ]
        table = pd.DataFrame(rows, columns=list(RATING_COLUMNS))
    known = table["pair_id"].isin(answers.rows["pair_id"].tolist()) & table["dimension"].isin(list(answers.dimensions))
    own = table.loc[known & table["score"].notna()]
    if own.empty:
        raise UserError(
            f"{path}: rates none of the scored responses on {names_shown(answers.dimensions)}; "
            "expected ratings of the same pair_id and dimension"
        )
    return own


# ---------------------------------------------------------------- one dimension


def _board(answers: Answers, dimension: str, people: pd.DataFrame | None) -> Board:
    scored = answers.rows.loc[answers.rows[dimension].notna()]
    mine = None if people is None else people.loc[people["dimension"] == dimension]
    rated = None if mine is None or mine.empty else mine
    human = pd.Series(dtype=float) if rated is None else rated.groupby("pair_id")["score"].mean()
    sums = SystemSums.of(
        scored["system"].tolist(),
        scored[GROUP].tolist(),
        scored[dimension].to_numpy(float),
        human.reindex(scored["pair_id"]).to_numpy(float),
        scored[dimension + _ERROR].to_numpy(float),
    )
    alone = system_means(sums, "judge")
    by_people = None if rated is None else system_means(sums, "ratings")
    found = alone if rated is None else system_means(sums, "both")
    names = sums.systems
    order = sorted(range(len(names)), key=lambda k: -(-np.inf if (v := found.means[k].value) is None else v))
    wins = _wins(scored, dimension, names)
    differences = _differences(found, names, order, wins, _rater_noise(rated))
    clusters = _clusters(differences, [names[k] for k in order])
    systems = tuple(
        _system(sums, k, cluster, found, alone, by_people, wins, scored)
        for k, cluster in zip(order, clusters, strict=True)
    )
    n_ratings = 0 if rated is None else int(rated["pair_id"].isin(scored["pair_id"]).sum())
    board = Board(
        dimension=dimension,
        higher_is_better=True,
        source="judge" if rated is None else "judge and ratings",
        n_contexts=len(sums.pairs),
        n_ratings=n_ratings,
        weight=None if rated is None else found.weight,
        ratings_worth=None if rated is None or np.isnan(found.ratings_worth) else found.ratings_worth,
        rater_noise=_rater_noise(rated),
        systems=systems,
        differences=tuple(differences),
        text=(),
    )
    return board.model_copy(update={"text": tuple(_sentences(board, answers, dimension))})


def _system(
    sums: SystemSums,
    k: int,
    cluster: int | None,
    found: SystemMeans,
    alone: SystemMeans,
    people: SystemMeans | None,
    wins: np.ndarray,
    scored: pd.DataFrame,
) -> BoardSystem:
    rows = scored.loc[scored["system"] == sums.systems[k]]
    others = np.delete((wins[k] - wins[:, k] + 1) / 2, k)
    warned = rows["warnings"]
    return BoardSystem(
        system=sums.systems[k],
        cluster=cluster,
        n_pairs=len(rows),
        n_rated=int(sums.rated[:, k].sum()),
        mean=_figure(found.means[k]),
        judge=_figure(alone.means[k]),
        ratings=None if people is None else _figure(people.means[k]),
        win_rate=None if np.isnan(others).all() else float(np.nanmean(others)),
        unlike_training=float(warned.str.contains("unlike_training", na=False).mean()),
    )


def _figure(found: SystemEstimate, sign: int = 1) -> Figure:
    """The estimate, or with `sign` -1 its opposite."""
    ends = sorted(sign * end for end in (found.low, found.high) if end is not None)
    return Figure(
        value=None if found.value is None else sign * found.value,
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
        standard_error=found.standard_error,
        n_groups=found.groups,
        reason=found.reason,
    )


def _wins(scored: pd.DataFrame, dimension: str, names: Sequence[str]) -> np.ndarray:
    """Share of the contexts that both answer in which the row's system scores higher than the column's; NaN = none."""
    means = scored.pivot_table(index=GROUP, columns="system", values=dimension).reindex(columns=list(names)).to_numpy()
    shares = np.full((len(names), len(names)), np.nan)
    for i in range(len(names)):  # one system at a time: contexts x systems x systems would not fit the memory
        both = ~np.isnan(means[:, [i]]) & ~np.isnan(means)
        higher = ((means[:, [i]] > means) & both).sum(0)
        shares[i] = np.divide(higher, both.sum(0), out=np.full(len(names), np.nan), where=both.sum(0) > 0)
    return shares


def _rater_noise(rated: pd.DataFrame | None) -> float | None:
    """Standard deviation of the ratings of one response around their mean, over responses with two or more."""
    if rated is None:
        return None
    of_pair = rated.groupby("pair_id")["score"].agg(["var", "count"])
    several = of_pair.loc[of_pair["count"] > 1]
    freedom = several["count"] - 1
    noise = float(np.sqrt((several["var"] * freedom).sum() / freedom.sum())) if len(several) else 0.0
    return noise or None


def _differences(
    found: SystemMeans, names: Sequence[str], order: Sequence[int], wins: np.ndarray, noise: float | None
) -> list[BoardDifference]:
    """All pairs in the order of the board; the first of a pair is the one with the higher difference."""
    tested = [pair for pair, own in found.differences.items() if own.p is not None]
    adjusted = dict(zip(tested, holm(np.array([found.differences[pair].p for pair in tested])).tolist(), strict=True))
    rows = []
    for above, first in enumerate(order):
        for second in order[above + 1 :]:
            pair = (min(first, second), max(first, second))
            own, sign = found.differences[pair], 1 if first < second else -1
            if own.value is not None and sign * own.value < 0:  # over the shared contexts it is the other way round
                first_here, second_here, sign = second, first, -sign
            else:
                first_here, second_here = first, second
            difference, p = _figure(own, sign), adjusted.get(pair)
            win, loss = wins[first_here, second_here], wins[second_here, first_here]
            rows.append(
                BoardDifference(
                    first=names[first_here],
                    second=names[second_here],
                    difference=difference,
                    in_rater_noise=None if noise is None or difference.value is None else difference.value / noise,
                    p=p,
                    better=p is not None and p < ALPHA and bool(difference.value),
                    wins=None if np.isnan(win) else float(win),
                    losses=None if np.isnan(loss) else float(loss),
                )
            )
    return rows


def _clusters(differences: Sequence[BoardDifference], names: Sequence[str]) -> tuple[int | None, ...]:
    """Cluster of each system, best first; None where no difference has an interval."""
    if all(row.p is None for row in differences):
        return (None,) * len(names)
    better = np.zeros((len(names), len(names)), dtype=bool)
    for row in differences:
        better[names.index(row.first), names.index(row.second)] = row.better
    return significance_clusters(better)


# ---------------------------------------------------------------- what may be said


def _sentences(board: Board, answers: Answers, dimension: str) -> list[str]:
    rows = {name: len(own) for name, own in answers.rows.groupby("system")}
    missing = int(answers.rows[dimension].isna().sum())
    said = []
    if board.source == "judge":
        said.append(
            "This is the opinion of the judge. Its own bias for or against a system is in no interval: a difference "
            "here is not yet one that people hear. Ratings of some responses (--ratings) make it one."
        )
    else:
        saved = board.ratings_worth
        said.append(
            f"Means and differences are those of people, by {counted(board.n_ratings, 'rating')}. The judge only "
            "narrows the intervals: they hold however bad it is, if the rated responses were chosen at random."
        )
        if saved is not None and saved >= 1.05:
            needed = f"{round(board.n_ratings * saved):,}"
            said.append(f"Without the judge these intervals would have needed {needed} ratings.")
        elif saved is not None:
            said.append("The judge adds nothing here: the intervals are those of the ratings alone.")
    if board.systems[0].cluster is None:
        reasons = {row.difference.reason for row in board.differences if row.difference.reason}
        said.append(f"No order can be stated: {'; '.join(sorted(reasons)) or 'no interval'}.")
    else:
        told = sum(row.better for row in board.differences)
        said.append(
            f"{told} of {counted(len(board.differences), 'pair')} of systems differ at the 5 % level, corrected for "
            "all pairs (Holm)."
        )
    shared = min((row.difference.n_groups for row in board.differences), default=0)
    if board.source == "judge" and shared < board.n_contexts:
        said.append(
            f"Not all systems answer all {board.n_contexts} contexts: differences are over those that two share, "
            f"{shared} or more."
        )
    if missing:
        said.append(f"{counted(missing, 'response')} of {sum(rows.values()):,} had no score and do not count.")
    unlike = sum(round((row.unlike_training or 0) * row.n_pairs) for row in board.systems)
    if unlike:
        said.append(f"{counted(unlike, 'response')} sound unlike what the judge was calibrated on.")
    return said
