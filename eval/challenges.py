"""The score of the AEQ-Bench challenge (HumOmni track 1, EmpathyEval).

A question offers two or more responses to the same user turn, one of which is right; the judge answers with the one it
scores highest. Questions with the same words and another context or tone are a group. The challenge's score is (right
questions + groups with all questions right) / (questions + groups), per source and over all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..data_modules.errors import DataError
from ..data_modules.schema import Pair
from .probes.pairs import context_keys, group_of
from .statistics.agreement import Statistic
from .statistics.bootstrap import Resamples, with_interval

ALL_SOURCES = "all"
"""Key of the result over all sources."""


@dataclass(frozen=True)
class ChallengeScore:
    """The challenge's score and what it is made of.

    Attributes:
        score: (right questions + groups with all right) / (questions + groups); `n` counts questions.
        accuracy: Right questions / questions.
        group_accuracy: Groups with all questions right / groups; `n` counts groups.
        chance: Expected accuracy of a judge that guesses: the mean of 1 / options.
    """

    score: Statistic
    accuracy: Statistic
    group_accuracy: Statistic
    chance: float | None


def right_questions(scores: np.ndarray, correct: np.ndarray, questions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether the correct option of each question has the highest score.

    A tie for the highest score is no answer, so the question is wrong: a constant judge gets 0, not the share that
    guessing would. So is a question with an option without a score (NaN): in a challenge every question is answered.

    Args:
        scores: Shape (n,), the judge's scores of all options of all questions.
        correct: Shape (n,), bool; exactly one option of each question.
        questions: Shape (n,), what tells the questions apart.

    Returns:
        The distinct questions (m,), sorted, and which of them are right (m,), bool.

    Raises:
        ValueError: If a question has not exactly one correct option, or fewer than two options.
    """
    names, codes = np.unique(questions, return_inverse=True)
    options, rights = (
        np.bincount(codes, minlength=len(names)),
        np.bincount(codes, weights=correct, minlength=len(names)),
    )
    for wrong in np.flatnonzero((rights != 1) | (options < 2))[:1]:
        raise ValueError(
            f"question {names[wrong]}: {options[wrong]} options, {rights[wrong]:.0f} of them correct; expected two "
            "options or more, one of them correct"
        )
    values = np.asarray(scores, dtype=np.float64)
    of_correct = np.full(len(names), np.nan)
    of_correct[codes[correct]] = values[correct]
    beaten = ~(values < of_correct[codes]) & ~correct
    right = ~np.isnan(of_correct) & (np.bincount(codes, weights=beaten, minlength=len(names)) == 0)
    return names, right


def grouped_score(right: np.ndarray, groups: np.ndarray, resamples: int = 1000, seed: int = 0) -> ChallengeScore:
    """The challenge's score from right and wrong questions.

    Args:
        right: Shape (m,), bool.
        groups: Shape (m,), the group of each question.
        resamples: Of whole groups, for the intervals.
        seed: Of the resamples.

    Returns:
        Without `chance`. Undefined without questions; without an interval for fewer than five groups.
    """
    seen = Resamples.draw(groups, resamples, seed)
    m, codes = len(right), seen.codes
    sizes = np.bincount(codes, minlength=seen.counts.shape[1]).astype(np.float64)
    wins = np.bincount(codes, weights=right, minlength=len(sizes))
    whole = (wins == sizes).astype(np.float64)
    if m == 0:
        nothing = Statistic(None, reason="0 questions")
        return ChallengeScore(nothing, nothing, nothing, None)

    def ratio(above: np.ndarray, below: np.ndarray, n: int) -> Statistic:
        point = Statistic(float(above.sum() / below.sum()), n=n)
        return with_interval(point, (seen.counts @ above) / (seen.counts @ below), seen)

    return ChallengeScore(
        score=ratio(wins + whole, sizes + 1, m),
        accuracy=ratio(wins, sizes, m),
        group_accuracy=ratio(whole, np.ones_like(sizes), len(sizes)),
        chance=None,
    )


def challenge_scores(
    pairs: Sequence[Pair],
    items: pd.DataFrame,
    dimension: str,
    *,
    source_of: Callable[[Pair], str] = lambda pair: pair.setting or ALL_SOURCES,
    resamples: int = 1000,
    seed: int = 0,
) -> Mapping[str, ChallengeScore]:
    """The AEQ-Bench score of a judge on pairs whose ratings say which option is right.

    The options of a question are the pairs of a group and setting with the same context (audio and situation); the
    right one is that with the highest mean rating, as `import empathy-eval` gives it.

    Args:
        pairs: The pairs that were scored.
        items: `evaluate.Evaluation.items`: ``pair_id``, ``dimension``, ``human_mean``, ``score``.
        dimension: Which dimension.
        source_of: The source of a pair; the challenge counts each by itself and all together.
        resamples: Of whole groups, for the intervals.
        seed: Of the resamples.

    Returns:
        Source -> result, and `ALL_SOURCES`. Questions of which no single option is rated best are left out, since
        nobody knows their answer.

    Raises:
        DataError: If no question has two options or more of which one is rated best.
    """
    ids = [pair.pair_id for pair in pairs]
    rows = items[items["dimension"] == dimension].set_index("pair_id").reindex(ids)
    human, score = rows["human_mean"].to_numpy(np.float64), rows["score"].to_numpy(np.float64)
    sources = np.array([source_of(pair) for pair in pairs], dtype=object)
    keys = [repr((group_of(p), p.setting, key)) for p, key in zip(pairs, context_keys(pairs), strict=True)]
    _, questions = np.unique(keys, return_inverse=True)
    best = np.full(len(pairs), -np.inf)
    with np.errstate(invalid="ignore"):
        np.maximum.at(best, questions, human)  # NaN, if one of the options is not rated
    correct = human == best[questions]
    known = (np.bincount(questions, weights=correct) == 1) & (np.bincount(questions) >= 2)
    answerable = np.flatnonzero(known[questions])
    if len(answerable) == 0:
        raise DataError(
            f"{len(pairs)} pairs hold no question: expected two rated responses or more to the same context, of "
            "which one is rated best"
        )
    groups = np.array([f"{source} / {group_of(pair)}" for source, pair in zip(sources, pairs, strict=True)])

    def of(chosen: np.ndarray) -> ChallengeScore:
        names, right = right_questions(score[chosen], correct[chosen], questions[chosen])
        first = chosen[np.unique(questions[chosen], return_index=True)[1]]
        chance = float((1 / np.bincount(questions)[names]).mean())
        return dataclasses.replace(grouped_score(right, groups[first], resamples, seed), chance=chance)

    named = sorted(set(sources[answerable]) - {ALL_SOURCES})
    return {name: of(answerable[sources[answerable] == name]) for name in named} | {ALL_SOURCES: of(answerable)}
