"""The page of a leaderboard: systems with their intervals and clusters, all differences, and responses to listen to.

The texts are in ``templates/leaderboard.html.j2``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.patches import Rectangle

from ...core.errors import DataError, UserError
from ...core.files import resolve_inside
from ...data_modules.schema import Pair, PairDataset, Turn
from ...data_modules.tables import TableRow, read_table
from ..rendering import number, read, render
from ..report.leaderboard import Board, BoardDifference, LeaderboardReport
from .charts import ACCENT, GRID, INK, MUTED, plot, shortened, svg
from .report import PAGE_FILE as PAGE_FILE
from .sound import EMBEDDED_RULE, embedded, pair_view

EXAMPLES = 3
"""Contexts, and responses, that a board lets hear."""
_MATRIX = 12
"""Most systems whose differences are shown as a matrix; it stays in ``differences.csv``."""
FindPair = Callable[[str], Pair | None]
"""A pair by its id; None = it is not there."""


def read_clips(source: str | Path) -> FindPair:
    """The pairs of a manifest, whose paths are relative to it and stay in its folder, or of a pair dataset.

    Raises:
        UserError: If it cannot be read.
    """
    path = Path(source)
    if path.is_dir():
        return {pair.pair_id: pair for pair in PairDataset.load(path).pairs}.get
    table = read_table(path)
    for column in ("pair_id", "response_audio"):
        if column not in table.columns:
            raise DataError(f"{path}: no column {column!r}; expected the manifest that was scored")
    records = {record.name("pair_id"): record for record in table.records()}
    return lambda pair_id: _pair(path, records[pair_id]) if pair_id in records else None


def _pair(manifest: Path, record: TableRow) -> Pair | None:
    """The pair of a row; None where a clip is not there, or stands in the table."""
    clips = [record.values.get(name) for name in ("response_audio", "context_audio")]
    if not isinstance(clips[0], str) or not isinstance(clips[1], str | None):
        return None
    # A page without this player is worth more than none: clips may have been moved since they were scored
    try:
        response, *context = [
            resolve_inside(manifest.parent.resolve(), clip, f"{manifest}: ") for clip in clips if clip is not None
        ]
    except UserError:
        return None
    pair_id = record.name("pair_id")
    turns = tuple(Turn("user", clip) for clip in context)
    return Pair(pair_id, response, turns, situation=record.text("situation"), group_id=pair_id)


def render_board(
    report: LeaderboardReport, rows: pd.DataFrame, ratings: pd.DataFrame | None, find: FindPair | None
) -> str:
    """The page as HTML that needs no other file and no network.

    Args:
        report: The boards.
        rows: `system_scores.Answers.rows`.
        ratings: `system_scores.Ratings.rows`; None = nobody rated.
        find: Finds pairs to play; None = the page has no players.
    """
    boards = [
        {
            "board": board,
            "against": {row.system: row for row in board.against},
            "chart": _chart(board),
            "matrix": list(_matrix(board)) if len(board.systems) <= _MATRIX else [],
            "apart": [] if find is None else list(islice(_apart(board, rows, find), EXAMPLES)),
            "disagreeing": []
            if find is None or ratings is None
            else list(islice(_disagreeing(board, rows, ratings, find), EXAMPLES)),
        }
        for board in report.boards
    ]
    played = any(own["apart"] or own["disagreeing"] for own in boards)
    return render(
        "leaderboard",
        read("sound.css") + read("leaderboard.css"),
        report=report,
        boards=boards,
        audio_rule=EMBEDDED_RULE if played else "",
    )


def _chart(board: Board) -> Markup:
    """A dot with its interval for each system, best first; bands are clusters."""
    rows = board.systems
    known = [row.mean.value for row in rows if row.mean.value is not None]
    ends = [end for row in rows for end in (row.mean.low, row.mean.high) if end is not None]
    left, right = min([*known, *ends]), max([*known, *ends])
    # All means are equal and no interval is known: an axis without width cannot be drawn
    margin = 0.06 * (right - left) or 0.5
    left, right = left - margin, right + margin
    with plot(4.4, 0.9 + 0.42 * len(rows)) as (figure, axes):
        axes.set_xlim(left, right)
        # From the last to the first: the best stands at the top
        axes.set_ylim(len(rows) - 0.45, -0.55)
        for cluster in {row.cluster for row in rows if row.cluster is not None}:
            members = [place for place, row in enumerate(rows) if row.cluster == cluster]
            band = Rectangle((left, members[0] - 0.5), right - left, len(members), color=GRID, linewidth=0)
            band.set_alpha(0.75 if cluster % 2 else 0.3)
            axes.add_patch(band)
        for place, row in enumerate(rows):
            if row.mean.value is None:
                axes.text(left + margin, place, row.mean.reason or "unknown", va="center", color=MUTED)
                continue
            if row.mean.low is not None and row.mean.high is not None:
                axes.plot((row.mean.low, row.mean.high), (place, place), color=ACCENT, linewidth=1.8)
            axes.plot(row.mean.value, place, "o", color=ACCENT, markersize=7)
            # A judge that is off by a constant would stretch the axis until the intervals of people cannot be read
            if board.source != "judge" and row.judge.value is not None and left <= row.judge.value <= right:
                axes.plot(row.judge.value, place, "o", color=MUTED, markersize=6, markerfacecolor="none")
            beside = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
            axes.annotate(number(row.mean.value), (1.0, place), (10, 0), fontweight="bold", color=INK, **beside)
        axes.set_yticks(range(len(rows)), [shortened(row.system) for row in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("mean, rating points")
        words = "; ".join(f"{row.system} {number(row.mean.value)}" for row in rows)
        return svg(figure, f"{board.dimension}, means of systems: {words}")


def _matrix(board: Board) -> Iterator[tuple[str, list[dict[str, Any] | None]]]:
    """Each system with a cell for each system: its mean less theirs; None = itself."""
    names = [row.system for row in board.systems]
    found: Mapping[frozenset[str], BoardDifference] = {frozenset((d.first, d.second)): d for d in board.differences}
    for row in names:
        cells: list[dict[str, Any] | None] = []
        for column in names:
            if row == column:
                cells.append(None)
                continue
            own = found[frozenset((row, column))]
            turn = 1 if own.first == row else -1
            value = None if own.difference.value is None else turn * own.difference.value
            tone = "" if not own.better else "higher" if turn > 0 else "lower"
            cells.append({"value": value, "tone": tone})
        yield row, cells


def _apart(board: Board, rows: pd.DataFrame, find: FindPair) -> Iterator[dict[str, Any]]:
    """The contexts with both responses to play, first where the judge sets the two leading systems farthest apart."""
    names = [row.system for row in board.systems[:2]]
    # Of several responses of a system to one context the first is heard: a merge would make every couple of them
    first, second = (
        rows.loc[(rows["system"] == name) & rows[board.dimension].notna()].drop_duplicates("group_id") for name in names
    )
    both = first.merge(second, on="group_id", suffixes=("_1", "_2"))
    lead = both[f"{board.dimension}_1"] - both[f"{board.dimension}_2"]
    for position in lead.abs().sort_values(ascending=False, kind="stable").index:
        row = both.loc[position]
        pairs = [find(row[f"pair_id_{side}"]) for side in (1, 2)]
        if None in pairs:
            continue
        scores = [row[f"{board.dimension}_{side}"] for side in (1, 2)]
        views = [pair_view(pair, embedded) for pair in pairs if pair is not None]
        yield {"group": row["group_id"], "lead": lead[position], "sides": list(zip(names, scores, views, strict=True))}


def _disagreeing(board: Board, rows: pd.DataFrame, ratings: pd.DataFrame, find: FindPair) -> Iterator[dict[str, Any]]:
    """The responses to play, first those on which judge and people disagree most."""
    own = ratings.loc[ratings["dimension"] == board.dimension].groupby("pair_id")["score"].agg(["mean", "count"])
    both = rows.loc[rows[board.dimension].notna()].merge(own, left_on="pair_id", right_index=True)
    apart = (both[board.dimension] - both["mean"]).abs().sort_values(ascending=False, kind="stable")
    for position in apart.index:
        row = both.loc[position]
        pair = find(row["pair_id"])
        if pair is None:
            continue
        yield {"system": row["system"], "judge": row[board.dimension], "people": row["mean"],
               "raters": int(row["count"]), "view": pair_view(pair, embedded)}  # fmt: skip
