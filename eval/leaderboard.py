"""Which of several systems sounds better: `leaderboard`, from scores of their responses to the same contexts.

Scores alone are the opinion of the judge, and a judge favours systems, too: what it adds to all scores of a
system is no sampling error, and no number of responses removes it. With ratings of some responses by people, means and
differences are those of people, and the judge only narrows their intervals (`statistics.system_means`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..core.errors import UserError, names_shown, shown
from ..core.version import __version__
from .board import board_of
from .pages.leaderboard import PAGE_FILE, read_clips, render_board
from .report.base import SCHEMA_VERSION, read_report
from .report.dataset import Report
from .report.leaderboard import LeaderboardReport, Measured
from .report.others import StressReport
from .results import REPORT_FILE, identified, write_results
from .system_scores import Answers, Ratings, ScoreFiles, read_answers, read_ratings


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """Boards of systems, and what they were made of."""

    report: LeaderboardReport
    answers: Answers
    ratings: Ratings | None

    def save(self, folder: str | Path, clips: str | Path | None = None) -> None:
        """Write ``index.html``, ``leaderboard.json``, ``systems.csv`` and ``differences.csv``; all or none.

        Args:
            folder: Made if it does not exist. What an earlier call wrote is replaced.
            clips: The manifest that was scored, or the folder of a pair dataset: the page then plays the responses that
                tell the systems apart.

        Raises:
            UserError: If the manifest cannot be read, or a file of somebody else would be replaced.
        """
        # First, so that a manifest that cannot be read is told before charts are drawn
        play = None if clips is None else read_clips(clips)
        files = {
            PAGE_FILE: render_board(self.report, self.answers.rows, self.ratings and self.ratings.rows, play),
            "leaderboard.json": self.report,
            "systems.csv": self._frame("systems"),
            "differences.csv": self._frame("differences"),
        }
        write_results("leaderboard", Path(folder), files)

    def _frame(self, what: str) -> pd.DataFrame:
        rows = [{"dimension": board.dimension} | row.as_json() for board in self.report.boards
                for row in getattr(board, what)]  # fmt: skip
        return pd.json_normalize(rows, sep="_")


def leaderboard(
    scores: ScoreFiles,
    *,
    by: str = "system_id",
    ratings: str | Path | None = None,
    dimensions: Sequence[str] | None = None,
    baseline: str | None = None,
    report: str | Path | None = None,
    stress: str | Path | None = None,
) -> Leaderboard:
    """Compare systems by their responses to the same contexts.

    Args:
        scores: Files that `score --out` wrote, or tables with ``pair_id``, ``group_id`` (the context), `by`, and a
            column for each dimension. A mapping, or a text ``NAME=FILE``, names the system of a whole file.
        by: The column that names the system of each response.
        ratings: A pair dataset, or a table with ``pair_id, rater_id, dimension, score`` or in another layout of
            `data_modules.layouts`, of some of the responses. They must have been chosen without looking at the
            responses, such as at random.
        dimensions: Dimensions to compare on (None = all that the files have).
        baseline: The system that others are compared with (None = the best one).
        report: Folder that `evaluate` wrote: how well this judge agrees with people.
        stress: Folder that `stress` wrote: what raises this judge's scores and should not.

    Raises:
        UserError: If a file cannot be read, a column is missing, a response stands twice, files are of different
            judges, people rated on another scale, there is only one system, no response was rated, the report is of
            another judge, a report is of other dimensions, or there is no such dimension or baseline.
    """
    answers = read_answers(scores, by, dimensions, ratings is not None)
    systems = sorted(answers.rows["system"].unique())
    if len(systems) < 2:
        raise UserError(f"{answers.files[0][0]}: one system, {shown(systems[0])}; expected two or more")
    if baseline is not None and baseline not in systems:
        raise UserError(f"baseline {shown(baseline)}: no such system; expected {names_shown(systems)}")
    people = None if ratings is None else read_ratings(ratings, answers)
    measured = {} if report is None else _measured(Path(report), answers)
    raising = {} if stress is None else _raising(Path(stress), answers)
    boards = [
        board_of(answers, name, people, baseline, measured.get(name), raising.get(name, ())) for name in answers.scales
    ]
    # Files by their content: two boards with one signature were made of the same scores and ratings
    marks = [f"scores:{identified(name, mark)}" for name, mark in answers.files]
    marks += [] if people is None else [f"ratings:{identified(*people.source)}"]
    judge = identified("judge", dict(answers.judge)) if answers.judge else "judge:unknown"
    signature = "|".join(["leaderboard", judge, *marks, f"by:{by}", f"version:{__version__}"])
    made = LeaderboardReport(schema_version=SCHEMA_VERSION, signature=signature, by=by, boards=tuple(boards))
    return Leaderboard(made, answers, people)


def failures(report: LeaderboardReport, margin: float) -> list[str]:
    """Why systems do not pass beside the baseline, a line each: worse at the 5 % level and, in the estimate, by more
    than `margin` rating points, or not to be told. Empty = all pass."""
    lines = []
    for board in report.boards:
        for row in board.against:
            lead = (row.difference.value or 0.0) * (1 if board.higher_is_better else -1)
            if row.verdict == "cannot be told":
                why = board.refused or row.difference.reason or "no interval"
                lines.append(
                    f"{board.dimension}: whether {row.system} is worse than {board.baseline} is not told: {why}"
                )
            elif row.verdict == "worse" and -lead > margin:
                lines.append(
                    f"{board.dimension}: {row.system} is worse than {board.baseline} by {-lead:.2f}, "
                    f"more than {margin:g}"
                )
    return lines


def _measured(folder: Path, answers: Answers) -> dict[str, Measured]:
    """What a report of `evaluate` says of the judge, by dimension.

    Raises:
        UserError: If it cannot be read, or is of a judge with other weights.
    """
    path = folder / REPORT_FILE if folder.is_dir() else folder
    report = read_report(path, Report)
    # Only a calibrated judge names its weights; where one side names none, the user's word is taken
    theirs = (report.provenance.get("calibration") or {}).get("weights")
    if theirs and answers.facts.weights not in (None, theirs):
        raise UserError(f"{path}: measures another judge, {report.judge}; expected the one that made the scores")
    _check_shared(path, report.dimensions, answers)
    return {
        name: Measured(
            dataset=report.dataset.name,
            synthetic=report.dataset.synthetic,
            spearman=own.spearman,
            n_systems=0 if own.system_level is None else own.system_level.n_systems,
            pairwise_accuracy=None if own.system_level is None else own.system_level.pairwise_accuracy,
        )
        for name, own in report.dimensions.items()
    }


def _raising(folder: Path, answers: Answers) -> dict[str, tuple[str, ...]]:
    """What raises the scores of a dimension, by what `stress` wrote.

    Raises:
        UserError: If it cannot be read, or is of other dimensions.
    """
    path = folder / "stress.json" if folder.is_dir() else folder
    found = read_report(path, StressReport)
    _check_shared(path, found.dimensions, answers)
    return {
        name: tuple(check for check, result in checks.items() if result.verdict == "rises")
        for name, checks in found.dimensions.items()
    }


def _check_shared(path: Path, dimensions: Mapping[str, object], answers: Answers) -> None:
    # Else the report would be ignored without a word
    if not set(dimensions) & set(answers.scales):
        raise UserError(f"{path}: measures {names_shown(dimensions)}; expected {names_shown(answers.scales)}")
