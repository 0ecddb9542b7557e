"""What may be said of a board of systems, in sentences; the most important first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..core.errors import counted
from .rendering import number, percent, ranged
from .report.leaderboard import Board
from .system_scores import Answers, Ratings


def sentences_of(board: Board, answers: Answers, people: Ratings | None, scale_is_known: bool) -> Iterator[str]:
    """What the board rests on, what is told apart, and what else a reader must know."""
    yield from _of_judge(board) if board.source == "judge" else _of_people(board)
    if people is not None and people.synthetic:
        yield "The ratings are simulated: nobody gave them."
    yield from _order(board)
    first, second = board.systems[:2]
    missing = int(np.isnan(answers.rows[board.dimension].to_numpy(float)).sum())
    if missing:
        yield f"{counted(missing, 'response')} of {len(answers.rows):,} had no score and did not count."
    if board.n_shared < board.n_contexts:
        yield (
            f"Not all systems answer all {board.n_contexts:,} contexts: differences are over those that two share, "
            f"{board.n_shared:,} or more."
        )
    if board.raised_by:
        raised = ", ".join(board.raised_by)
        yield f"These raise the judge's scores and should not: {raised}. Listen whether a leader does that."
    # The board holds shares: times their number they are whole again but for rounding
    unlike = sum(round(row.unlike_training * row.n_pairs) for row in board.systems)
    if unlike:
        scored = sum(row.n_pairs for row in board.systems)
        verb = "is" if unlike == 1 else "are"
        yield f"{counted(unlike, 'response')} of {scored:,} {verb} unlike what the judge was calibrated on."
    # As a set: over the contexts that both answer, the one with the lower mean may be ahead
    top = next((row for row in board.differences if {row.first, row.second} == {first.system, second.system}), None)
    if top is not None and top.better and top.by_length is not None and top.difference.value:
        share = top.by_length / top.difference.value
        # Negative where the leader leads in spite of its length
        if share >= 0.1:
            yield (
                f"By the judge's slope on their length alone, {top.first} would lead {top.second} by "
                f"{number(abs(top.by_length))}, {percent(share)} of the difference: listen whether longer is better."
            )
    if people is not None and (others := people.others[board.dimension]):
        yield f"{counted(others, 'rating')} of other responses, of ones without a score, or left empty did not count."
    if not answers.judge:
        yield "The files do not all say which judge made the scores: they may be of different ones."
    if not scale_is_known:
        yield "The files do not say which end of the scale is good: a high score is taken as good."


def _of_judge(board: Board) -> Iterator[str]:
    if board.refused:
        yield f"No order is stated: this judge cannot carry one, as {board.refused}. Let people rate some responses."
        return
    yield (
        "This is the opinion of the judge. Its own bias for or against a system is in no interval: a difference here "
        "is not yet one that people hear. Ratings of some responses (--ratings) make it one."
    )
    own = board.measured
    if own is None:
        yield "Nothing here says how well this judge orders systems: name the report of `evaluate` by --report."
        return
    whose = "simulated raters" if own.synthetic else "people"
    text = f"On {own.dataset} its Spearman with {whose} is {ranged(own.spearman)}"
    order = own.pairwise_accuracy
    if order is None or order.value is None:
        yield f"{text}; how well it orders systems was not measured there."
        return
    text += f"; of the pairs of its {own.n_systems} systems it ordered {ranged(order, percent)} as they did"
    # Half of the pairs is what guessing orders right; without an interval that is not excluded
    chance = order.low is None or order.low <= 0.5
    yield f"{text}{', which is not told apart from chance' if chance else ''}."


def _of_people(board: Board) -> Iterator[str]:
    yield (
        f"Means and differences are those of people, by {counted(board.n_ratings, 'rating')} of "
        f"{counted(sum(row.n_rated for row in board.systems), 'response')}. The judge only narrows the intervals: they "
        "hold however bad it is, if the contexts that were rated are a random part."
    )
    saved = board.ratings_worth
    if saved is not None and round(board.n_ratings * saved) >= 1.05 * board.n_ratings:
        needed = f"{round(board.n_ratings * saved):,}"
        yield f"Without the judge intervals as wide as these would have needed {needed} ratings."
    elif saved is not None:
        yield "The judge adds nothing to the means here: their intervals are those of the ratings alone."
    if unrated := [row.system for row in board.systems if not row.n_rated]:
        yield f"Nobody rated {', '.join(unrated)}: the ratings say nothing of {'it' if len(unrated) == 1 else 'them'}."


def _order(board: Board) -> Iterator[str]:
    if board.refused:
        return
    if all(row.p is None for row in board.differences):
        reasons = {row.difference.reason for row in board.differences if row.difference.reason}
        yield f"No order can be stated: {'; '.join(sorted(reasons)) or 'no interval'}."
        return
    # Of equal means the first on the board is first by its name alone, and no leader
    if all(row.difference.value == 0 for row in board.differences):
        yield "All means are equal: nothing tells the systems apart."
        return
    leader, *others = (row.system for row in board.systems)
    better = {row.second for row in board.differences if row.better and row.first == leader}
    behind, level = ([name for name in others if (name in better) == told] for told in (True, False))
    by = "By this judge, " if board.source == "judge" else ""
    if behind:
        rest = f"; it is not told apart from {_listed(level)}" if level else ""
        yield f"{by}{leader} is better than {_listed(behind)}{rest}."
    else:
        yield f"{by}{leader} has the best mean, and is not told apart from {_listed(level)}."
    told = sum(row.better for row in board.differences)
    verb = "differs" if told == 1 else "differ"
    yield (
        f"{told} of {counted(len(board.differences), 'pair')} of systems {verb} at the 5 % level, corrected for all "
        "pairs (Holm)."
    )


def _listed(names: Sequence[str], most: int = 4) -> str:
    """A few names, and how many others there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
