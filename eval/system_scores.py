"""Scores of systems' responses as `leaderboard` takes them: files that `score` wrote, and ratings of some responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from ..core.errors import DataError, UserError, names_shown, shown
from ..core.files import file_hash
from ..data_modules.layouts import (
    Names,
    ScoreColumn,
    column_names,
    read_rating_tables,
    score_cells,
    score_columns,
    with_numbers,
)
from ..data_modules.ratings import (
    A_NAME,
    LARGEST,
    N_RATINGS,
    RATING_COLUMNS,
    SD,
    check_ratings,
    is_name,
    ratings_behind,
    same_range,
)
from ..data_modules.schema import Dimension, PairDataset
from ..data_modules.tables import SourceTable, plain_text, read_table
from ..scoring.calibration import JudgeFacts
from ..scoring.score_table import PAIR_ID, cells_of, dimensions_of

ScoreFiles = str | Path | Sequence[str | Path] | Mapping[str, str | Path]
"""A file, several, or system -> the file of its responses; a text ``NAME=FILE`` is one of these."""
GROUP = "group_id"
_OWN = (PAIR_ID, GROUP, "system", "warnings", "seconds")  # columns of `Answers.rows` beside dimensions
# Parts of a job's identity without which scores do not mean the same
_SAME = ("judge", "backbone", "quantization", "long clips")


@dataclass(frozen=True, eq=False)
class Answers:
    """Scores of one judge on the responses of systems, a row for each response."""

    # ``pair_id, system, group_id, warnings, seconds``, and for each dimension `score_table.cells_of`, NaN = none
    rows: pd.DataFrame
    scales: dict[str, Dimension | None]  # each dimension; None = the files do not say
    judge: Mapping[str, str]  # what the judge is known by; empty = the files do not say
    facts: JudgeFacts
    files: tuple[tuple[str, str], ...]  # name and hash of each file


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings of scored responses by people."""

    rows: pd.DataFrame  # `RATING_COLUMNS`, and `SD` and `N_RATINGS` where scores are published means
    # dimension -> how many ratings of it are of other responses, or empty; they do not count
    others: dict[str, int]
    scales: dict[str, Dimension]  # of the dimensions, where the ratings say
    source: tuple[str, str]  # name and hash
    synthetic: bool = False  # whether they were not given by people


def read_answers(scores: ScoreFiles, by: str, dimensions: Sequence[str] | None, with_ratings: bool = False) -> Answers:
    """Read files of scores; see `leaderboard`. Ids of responses matter where there are ratings: several files without a
    column for them, or that number their rows alike, are else told apart by their names."""
    files = _files(scores)
    if not files:
        raise UserError("no file of scores; expected one or more that `score --out` wrote")
    tables = [(name, read_table(path)) for name, path in files]
    names = _dimensions([table for _, table in tables], dimensions)
    if taken := [name for name in names if name in _OWN]:
        raise UserError(f"{files[0][1]}: {shown(taken[0])} as a dimension; this name is taken, expected another column")
    numbered = _numbered_alike([table for _, table in tables])
    if numbered and with_ratings:
        raise DataError(
            f"{numbered}; ratings could be of either. Expected a column pair_id in each manifest, an id of its own "
            "for each response, and scores made anew; or no --ratings"
        )
    seen: dict[str | tuple[str, str, str], str] = {}
    rows: list[dict[str, Any]] = []
    for system, table in tables:
        for column in (*([] if numbered else [PAIR_ID]), GROUP, *names, *([] if system else [by])):
            if column not in table.columns:
                raise DataError(
                    f"{table.path}: no column {column!r}; it has {names_shown(table.columns)}{_advice(column, by)}"
                )
        for number, record in enumerate(table.records(), start=1):
            pair = record.name(PAIR_ID) if PAIR_ID in table.columns else str(number)
            row: dict[str, Any] = {PAIR_ID: pair, "system": system or record.name(by), GROUP: record.name(GROUP)}
            # What is one system's answer to one context stands twice even where files number their rows alike
            one = (row["system"], row[GROUP], pair) if numbered else pair
            if one in seen:
                raise DataError(
                    f"{record.place(PAIR_ID)}: {shown(pair)} stands twice, also in {seen[one]}; expected unique ids"
                )
            seen[one] = record.place()
            if numbered:
                row[PAIR_ID] = f"{table.path}/{pair}"
            row["warnings"] = record.text("warnings")
            for column in ("seconds", *names, *(cells_of(name).uncertainty for name in names)):
                row[column] = record.number(column) if column in table.columns else np.nan
            rows.append(row)
    judge, facts = _one_judge([table.path for _, table in tables])
    said = {scale.name: scale for scale in facts.dimensions}
    marks = tuple((table.path.name, file_hash(table.path)) for _, table in tables)
    # Sums depend on the order of their terms in the last bit: the order of the file must not show
    ordered = pd.DataFrame(rows).sort_values(PAIR_ID, ignore_index=True)
    return Answers(ordered, {name: said.get(name) for name in names}, judge, facts, marks)


def _numbered_alike(tables: Sequence[SourceTable]) -> str:
    """What is wrong with the ids of several files, as the head of a message; empty = nothing."""
    if len(tables) < 2:
        return ""
    seen: dict[str, Path] = {}
    for table in tables:
        if PAIR_ID not in table.columns:
            return f"{table.path}: no column {PAIR_ID!r}"
        for pair in dict.fromkeys(record.name(PAIR_ID) for record in table.records()):
            if seen.setdefault(pair, table.path) != table.path:
                return f"{table.path}: {shown(pair)} stands in {seen[pair]}, too: both number their rows alike"
    return ""


def _files(scores: ScoreFiles) -> list[tuple[str | None, Path]]:
    """System of a whole file (None = its rows say) and file."""
    found: list[tuple[str | None, Path]] = []
    if isinstance(scores, Mapping):
        found += [(name, Path(path)) for name, path in scores.items()]
        scores = []
    for entry in [scores] if isinstance(scores, str | Path) else scores:
        name, equals, path = str(entry).partition("=")
        found.append((name, Path(path)) if equals and not Path(entry).exists() else (None, Path(entry)))
    for system, path in found:
        if system is not None and not is_name(system):
            raise UserError(f"{path}: system {shown(system)}; expected NAME=FILE, NAME {A_NAME}")
    return found


def _advice(column: str, by: str) -> str:
    """What to do about a missing column."""
    if column == by:
        return "; name the system of a whole file by NAME=FILE, or the column by --by"
    return "; `score` copies it from the manifest: it says what a response answers" if column == GROUP else ""


def _dimensions(tables: Sequence[SourceTable], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The dimensions that all files have, or those that are asked for."""
    if wanted:
        return tuple(wanted)
    of_each = [dimensions_of(table.columns, table.rows) for table in tables]
    shared = [name for name in of_each[0] if all(name in names for names in of_each)]
    if not shared:
        has = names_shown(tables[0].columns)
        found = f"{tables[0].path}: no column says what is a dimension; it has {has}"
        raise UserError(f"{found}; expected --dimension NAME")
    return tuple(shared)


def _one_judge(paths: Sequence[Path]) -> tuple[Mapping[str, str], JudgeFacts]:
    """What the judge of all files is known by, and what is known of it; empty where a file does not say.

    Raises:
        UserError: If files are of different judges.
    """
    found: list[tuple[Path, Mapping[str, str], JudgeFacts]] = []
    for path in paths:
        summary = _summary(path)
        if summary is not None:
            identity = {name: str(summary["identity"].get(name)) for name in _SAME}
            found.append((path, identity, _facts(summary.get("judge"))))
    for path, identity, _ in found:
        first, expected, _ = found[0]
        if differs := [name for name in _SAME if identity[name] != expected[name]]:
            name = differs[0]
            raise UserError(
                f"{path}: another {name} ({identity[name][:12]}) than in {first} ({expected[name][:12]}); "
                "their scores do not mean the same: score all systems with one judge"
            )
    return found[0][1:] if len(found) == len(paths) else ({}, JudgeFacts())


def _facts(written: Any) -> JudgeFacts:
    try:
        return TypeAdapter(JudgeFacts).validate_json(json.dumps(written))  # a strict dataclass is no dict in Python
    except (ValidationError, UserError):
        return JudgeFacts()


def _summary(path: Path) -> dict[str, Any] | None:
    """What `score` wrote beside its scores; None = nothing, or the file was changed since."""
    try:
        found = json.loads(path.with_name(f"{path.name}.summary.json").read_text(encoding="utf-8"))
        return found if found["out"]["sha256"] == file_hash(path) and found["identity"]["judge"] else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def read_ratings(ratings: str | Path, answers: Answers) -> Ratings:
    """Read ratings of scored responses; see `leaderboard`."""
    path, scales, synthetic = Path(ratings), {}, False
    if path.is_dir():
        dataset = PairDataset.load(path)
        synthetic = dataset.card.synthetic
        table, mark = dataset.ratings, dataset.card.content_hash or ""
        scales = {dimension.name: dimension for dimension in dataset.card.dimensions}
        for name, judged in answers.scales.items():
            if judged and (rated := scales.get(name)) and not same_range(judged, rated):
                raise UserError(f"{path}: {name} from {rated.scale}; the judge scores from {judged.scale}")
    else:
        table, mark = _rating_table(path, answers.scales), file_hash(path)
    known, others = np.zeros(len(table), dtype=bool), {}
    for name in answers.scales:
        of_name = table["dimension"].to_numpy(str) == name
        scored = answers.rows.loc[answers.rows[name].notna(), PAIR_ID].to_numpy(str)
        own = of_name & np.isin(table[PAIR_ID].to_numpy(str), scored) & ~np.isnan(table["score"].to_numpy(float))
        known |= own
        others[name] = int(ratings_behind(table.loc[of_name & ~own]).sum())
    if not known.any():
        raise UserError(
            f"{path}: rates none of the scored responses on {names_shown(answers.scales)}; "
            "expected ratings of the same pair_id and dimension"
        )
    columns = [*RATING_COLUMNS, *(name for name in (SD, N_RATINGS) if name in table)]
    rows = table.loc[known, columns].sort_values(list(RATING_COLUMNS[:3]), ignore_index=True)
    return Ratings(rows, others, scales, (path.name, mark), synthetic)


def _rating_table(path: Path, judged: Mapping[str, Dimension | None]) -> pd.DataFrame:
    """The ratings on the judge's dimensions in a table of any layout of `layouts`, checked; an empty score is none.
    People may rate between the steps of the judge."""
    # Ratings of any other layout are a data set first: `import table` has the options that say what columns are
    expected = (
        f"pair_id, rater_id, dimension and score, columns DIMENSION:RATER, or a data set that import table made of it: "
        f"import table MANIFEST --ratings {path.name} --out DATA, then --ratings DATA"
    )
    called = Names(PAIR_ID, "rater_id", "import table --rating-column", (), expected)
    (table,) = read_rating_tables([path], called)
    names = column_names(table, {}, called)
    if {*RATING_COLUMNS} <= names.keys():  # further columns may be called as dimensions are
        columns = [ScoreColumn(names["score"])]
    else:
        there = [name for name in judged if any(own.partition(":")[0] == name for own in table.columns)]
        columns = score_columns(table, names, called, there or list(judged))
    own = [cell for cell in score_cells(table, names, columns, {}) if cell.dimension in list(judged)]
    scales = {name: scale for name, scale in judged.items() if scale is not None}
    cells = [cell for cell in with_numbers(own, scales) if plain_text(cell.score) is not None]
    rows = [(cell.item, cell.annotator, cell.dimension, cell.score, *(cell.of_mean or ())) for cell in cells]
    kept = (*RATING_COLUMNS, SD, N_RATINGS) if columns[0].of_mean else RATING_COLUMNS
    frame = pd.DataFrame(rows, columns=pd.Index(kept), dtype=object)
    ends = {
        name: (-LARGEST / 2, LARGEST / 2) if own is None else (own.minimum, own.maximum) for name, own in judged.items()
    }

    def locate(number: int, name: str) -> str:
        cell = cells[number]
        return table.place(cell.position, cell.column if name == "score" else names.get(name, cell.column))

    known = [pair for pair in frame["pair_id"] if isinstance(pair, str)]
    return check_ratings(frame, known, [Dimension(name, *own) for name, own in ends.items()], path, locate)
