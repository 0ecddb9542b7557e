"""Two public challenges: AEQ-Bench (choose the right response) and EchoMind (matched against crossed voices).

**AEQ-Bench** (HumOmni track 1, EmpathyEval). A question offers two or more responses to the same user turn, one of
which is right; the judge answers with the one it scores highest. Questions with the same words and another context or
tone are a group. The score is (right questions + groups with all questions right) / (questions + groups), per source
and over all.

**EchoMind.** Does the response to a voice outrank, in its context, the response to another voice? The same script is
spoken in several voices, and a system answers each. If matched responses are scored above crossed ones no more than
half of the time, the judge does not hear which voice is answered. A judge that reads words alone is at 0.5 as far as
the responses have the same words; where they differ, words help.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..core.errors import DataError, counted
from ..data_modules.folds import group_of
from ..data_modules.schema import Pair, PairDataset
from .checks.pairs import context_keys
from .dimension_report import MISSING, status_counts
from .evaluate import scored, shared_dimensions
from .judges import OK, Judge
from .prompted_report import Answers, prompting_report
from .report.base import SCHEMA_VERSION
from .report.dataset import Prompting
from .report.others import ALL_SOURCES, ChallengeReport, ChallengeScore
from .results import signature_on
from .statistics.agreement import Statistic
from .statistics.bootstrap import Resamples, estimate_share, exact_end, with_interval

Challenge = Literal["aeq-bench", "echomind"]


def challenge(
    name: Challenge,
    judge: Judge,
    dataset: PairDataset,
    *,
    split: str | None,
    resamples: int,
    seed: int,
    provenance: Mapping[str, Any] | None = None,
) -> ChallengeReport:
    """What a judge reaches in a challenge.

    Args:
        name: Name of the challenge.
        judge: The judge; it chooses the response that it scores highest.
        dataset: For AEQ-Bench as made by `import empathy-eval`: ratings say which response is right. For EchoMind as
            made by `import echomind`, without ratings.
        split: Which pairs; None = all.
        resamples: Resamples of whole groups (EchoMind's scripts), for the intervals.
        seed: Seed of the resamples.
        provenance: What else is known of the judge.

    Returns:
        For AEQ-Bench the result of a dimension is that of `challenge_scores`, for EchoMind of `matched_accuracy`.

    Raises:
        DataError: If judge and dataset share no dimension, or there is no question.
        ValueError: If the judge breaks the protocol.
    """
    pairs = dataset.subset(split).pairs
    lower = {d.name for d in dataset.card.dimensions if not d.higher_is_better}
    signs = pd.Series({dimension: -1.0 if dimension in lower else 1.0 for dimension in judge.dimensions})
    if name == "aeq-bench":
        shared, means = shared_dimensions(judge, dataset), dataset.subset(split).mean_scores()
        scores, failed, prompting = _scores(judge, pairs)
        table = scores * signs
        frames = {
            d.name: pd.DataFrame({"human_mean": means[d.name] * signs[d.name], "score": table[d.name]}) for d in shared
        }
        results: Any = {
            dimension: challenge_scores(pairs, frame, resamples, seed) for dimension, frame in frames.items()
        }
    else:
        crossed = crossings(pairs)
        if not crossed:
            raise DataError(
                f"of {counted(len(pairs), 'pair')} none can be crossed: no system answers two voices (settings) of a "
                "group"
            )
        scores, failed, prompting = _scores(judge, [*pairs, *(pair for _, pair in crossed)])
        scores = scores * signs
        groups = np.array([group_of(pair) for _, pair in crossed])
        matched_scores, crossed_scores = (
            scores.loc[[pair_id for pair_id, _ in crossed]],
            scores.loc[[pair.pair_id for _, pair in crossed]],
        )
        results = {
            dimension: matched_accuracy(
                matched_scores[dimension].to_numpy(), crossed_scores[dimension].to_numpy(), groups, resamples, seed
            )
            for dimension in judge.dimensions
        }
    drawn = {"cluster": "group_id", "interval": "percentile", "resamples": resamples, "seed": seed}
    signature = signature_on(judge, dataset, split, provenance, ceiling="none", **drawn)
    return ChallengeReport(
        schema_version=SCHEMA_VERSION, signature=signature, dimensions=results, without_score=failed or None,
        prompting=prompting,
    )  # fmt: skip


def _scores(judge: Judge, pairs: Sequence[Pair]) -> tuple[pd.DataFrame, dict[str, int], Prompting | None]:
    """Score by pair id and dimension, NaN = none; status -> pairs without one; what prompting took."""
    table = scored(judge, pairs)
    wide = table.pivot(index="pair_id", columns="dimension", values="score")
    wide = wide.reindex(index=[pair.pair_id for pair in pairs], columns=list(judge.dimensions))
    statuses = table.loc[table["status"] != OK].drop_duplicates("pair_id").set_index("pair_id")["status"].to_dict()
    without = wide.index[wide.isna().any(axis=1)]
    answers = Answers.of(table, pairs)
    prompting = None if answers is None else prompting_report(answers, [])
    return wide, status_counts(statuses.get(pair_id, MISSING) for pair_id in without), prompting


def challenge_scores(
    pairs: Sequence[Pair], items: pd.DataFrame, resamples: int = 1000, seed: int = 0
) -> dict[str, ChallengeScore]:
    """The AEQ-Bench score of a judge on pairs whose ratings say which option is right.

    The options of a question are the pairs of a group and setting with the same context (audio and situation); the
    right one is that with the highest mean rating, as `import empathy-eval` gives it. Items have by pair id a
    ``human_mean`` and a ``score`` (NaN = none).

    Returns:
        Source (setting), and `ALL_SOURCES` -> the statistics of `grouped_score`, and ``chance``: expected accuracy of a
        judge that guesses, the mean of 1 / options. Questions of which no single option is rated best are left out,
        since nobody knows their answer.

    Raises:
        DataError: If no question has two options or more of which one is rated best, or a setting is `ALL_SOURCES`.
    """
    if any(pair.setting == ALL_SOURCES for pair in pairs):
        raise DataError(f"setting {ALL_SOURCES!r}: expected another name; the result over all settings has this one")
    rows = items.reindex([pair.pair_id for pair in pairs])
    human, score = rows["human_mean"].to_numpy(np.float64), rows["score"].to_numpy(np.float64)
    sources = np.array([pair.setting or ALL_SOURCES for pair in pairs], dtype=object)
    keys = [repr((group_of(p), p.setting, key)) for p, key in zip(pairs, context_keys(pairs), strict=True)]
    _, questions = np.unique(keys, return_inverse=True)
    best = np.full(len(pairs), -np.inf)
    with np.errstate(invalid="ignore"):
        np.maximum.at(best, questions, human)  # NaN, if one of the options is not rated
    correct = human == best[questions]
    has_answer = (np.bincount(questions, weights=correct) == 1) & (np.bincount(questions) >= 2)
    answerable = np.flatnonzero(has_answer[questions])
    if len(answerable) == 0:
        raise DataError(
            f"{counted(len(pairs), 'pair holds', 'pairs hold')} no question: expected two rated responses or more to "
            "the same context, of which one is rated best"
        )
    groups = np.array([f"{source} / {group_of(pair)}" for source, pair in zip(sources, pairs, strict=True)])
    # A tie for the highest score is no answer: a constant judge gets 0, not the share that guessing would get. If an
    # option has no score, the question is not answered either, and every question of a challenge counts.
    correct_scores = np.full(len(has_answer), np.nan)
    correct_scores[questions[correct]] = score[correct]
    rivals = ~correct & ~(score < correct_scores[questions])
    right = ~np.isnan(correct_scores) & (np.bincount(questions, weights=rivals) == 0)

    def of(chosen: np.ndarray) -> ChallengeScore:
        asked, first = np.unique(questions[chosen], return_index=True)
        chance = float((1 / np.bincount(questions)[asked]).mean())
        return ChallengeScore(**grouped_score(right[asked], groups[chosen[first]], resamples, seed), chance=chance)

    names = sorted(set(sources[answerable]) - {ALL_SOURCES})
    return {name: of(answerable[sources[answerable] == name]) for name in names} | {ALL_SOURCES: of(answerable)}


def grouped_score(right: np.ndarray, groups: np.ndarray, resamples: int = 1000, seed: int = 0) -> dict[str, Statistic]:
    """The score of AEQ-Bench, from whether each question is right and the group of each, both of shape (m,).

    Returns:
        ``score``: (right questions + groups with all right) / (questions + groups); ``accuracy``: right questions /
        questions; ``group_accuracy``: groups with all questions right / groups, whose `n` counts groups. Undefined
        without questions; without an interval for fewer than five groups.
    """
    draws = Resamples.sample(groups, resamples, seed)
    sizes = np.bincount(draws.codes, minlength=draws.counts.shape[1]).astype(np.float64)
    wins = np.bincount(draws.codes, weights=right, minlength=len(sizes))
    all_right = (wins == sizes).astype(np.float64)
    if len(right) == 0:
        return dict.fromkeys(("score", "accuracy", "group_accuracy"), Statistic(None, reason="0 questions"))

    def ratio(above: np.ndarray, below: np.ndarray, n: int) -> Statistic:
        point = Statistic(float(above.sum() / below.sum()), n=n)
        return exact_end(with_interval(point, (draws.counts @ above) / (draws.counts @ below), draws), draws)

    return {
        "score": ratio(wins + all_right, sizes + 1, len(right)),
        "accuracy": ratio(wins, sizes, len(right)),
        "group_accuracy": ratio(all_right, np.ones_like(sizes), len(sizes)),
    }


# ---------------------------------------------------------------- EchoMind


def crossings(pairs: Sequence[Pair]) -> list[tuple[str, Pair]]:
    """Cross every pair with each response of its system to the other voices of its group, in the context of the pair.

    Pairs are as made by `import echomind`: the group is the script, the setting names the voice, and there is one pair
    per voice, system and recording. Returns the id of each pair with its copy that has the other response.
    """
    answers: dict[tuple[str, str | None], list[Pair]] = defaultdict(list)
    for pair in pairs:
        answers[group_of(pair), pair.system_id].append(pair)
    crossed_pairs = []
    for members in answers.values():
        for matched, other in permutations(members, 2):
            if matched.setting != other.setting:
                crossed = dataclasses.replace(
                    matched,
                    pair_id=f"{matched.pair_id} x {other.pair_id}",
                    response=other.response,
                    response_text=other.response_text,
                    response_speaker=other.response_speaker,
                )
                crossed_pairs.append((matched.pair_id, crossed))
    return crossed_pairs


def matched_accuracy(
    matched: np.ndarray, crossed: np.ndarray, groups: np.ndarray, resamples: int = 1000, seed: int = 0
) -> Statistic:
    """How often a matched response outranks a crossed one; ties count half, chance is 0.5.

    Each of n comparisons has the score of the response to the voice of its context, that of a response to another voice
    of the script in the same context, and the script, which is drawn as a whole. Comparisons without both scores are
    dropped and counted; it is undefined without any.
    """
    wins = 0.5 * (1 + np.sign(matched - crossed))
    compared = ~np.isnan(wins)
    dropped = int((~compared).sum())
    if not compared.any():
        return Statistic(None, dropped=dropped, reason="0 comparisons" + (f", {dropped} dropped" if dropped else ""))
    draws = Resamples.sample(groups[compared], resamples, seed)
    return dataclasses.replace(estimate_share(wins[compared], draws), dropped=dropped)
