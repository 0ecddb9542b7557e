"""The challenge's score by hand, and from a dataset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval import challenges
from empathy_judge.eval.statistics.bootstrap import Resamples


def clip(level: float) -> Clip:
    return Clip(np.full(500, level, dtype=np.float32), 8000)


def value(statistic: Any) -> float:
    assert statistic.value is not None, statistic.reason
    return statistic.value


def test_right_questions_ties_and_missing_scores() -> None:
    nan = np.nan
    questions = {  # scores of the options, the first one correct
        "a": [3.0, 2.0], "b": [2.0, 3.0], "c": [2.0, 2.0], "d": [3.0, 1.0, 2.9], "e": [3.0, 1.0, 3.0],
        "f": [nan, 1.0], "g": [3.0, nan], "h": [3.0, 1.0, 1.0],
    }  # fmt: skip
    names = np.array([name for name, scores in questions.items() for _ in scores])
    scores = np.array([score for one in questions.values() for score in one])
    correct = np.array([place == 0 for one in questions.values() for place in range(len(one))])
    shuffled = np.random.default_rng(0).permutation(len(names))
    found, right = challenges.right_questions(scores[shuffled], correct[shuffled], names[shuffled])
    assert found.tolist() == list("abcdefgh")
    assert dict(zip(found.tolist(), right.tolist(), strict=True)) == {
        "a": True, "b": False, "c": False, "d": True, "e": False, "f": False, "g": False, "h": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("correct", "message"),
    [
        ([True, True, True, False], "question x: 2 options, 2 of them correct"),
        ([False, False, True, False], "question x: 2 options, 0 of them correct"),
    ],
)
def test_a_question_has_one_right_answer(correct: list[bool], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        challenges.right_questions(np.arange(4.0), np.array(correct), np.array(list("xxyy")))
    with pytest.raises(ValueError, match="question z: 1 options, 1 of them correct"):
        challenges.right_questions(np.arange(1.0), np.array([True]), np.array(["z"]))


def test_the_score_by_hand() -> None:
    """Five questions right of seven; of three groups one is all right: (5 + 1) / (7 + 3)."""
    right = np.array([True, True, True, False, True, False, True])
    groups = np.array(["a", "a", "b", "b", "b", "c", "c"])
    found = challenges.grouped_score(right, groups)
    assert value(found.score) == pytest.approx(6 / 10, abs=1e-12)
    assert value(found.accuracy) == pytest.approx(5 / 7, abs=1e-12)
    assert value(found.group_accuracy) == pytest.approx(1 / 3, abs=1e-12)
    assert (found.score.n, found.group_accuracy.n) == (7, 3)
    assert found.score.reason == "no interval: 3 groups, at least 5 needed"
    assert challenges.grouped_score(np.zeros(0, bool), np.zeros(0, str)).score.reason == "0 questions"


def test_the_interval_is_that_of_groups_drawn_again() -> None:
    rng = np.random.default_rng(1)
    right, groups = rng.random(60) < 0.7, rng.integers(12, size=60).astype(str)
    found = challenges.grouped_score(right, groups, resamples=300, seed=4)
    names = np.unique(groups)
    scores = []
    for drawn in Resamples.draw(groups, 300, seed=4).counts:
        above = below = 0
        for name, times in zip(names, drawn, strict=True):
            own = right[groups == name]
            above += times * (own.sum() + own.all())
            below += times * (len(own) + 1)
        scores.append(above / below)
    assert (found.score.low, found.score.high) == pytest.approx(np.percentile(scores, [2.5, 97.5]), abs=1e-12)


def contest_data() -> tuple[list[Pair], pd.DataFrame]:
    """Two sources, groups of two questions each, of two or three options; the first option is right."""
    pairs, rows = [], []
    for setting, options in (("context_variant", 3), ("tone_variant", 2)):
        for group in range(6):
            for question in range(2):
                # A context variant has the same clip and another situation, a tone variant another clip
                tone = question if setting == "tone_variant" else 0
                for option in range(options):
                    pair = Pair(
                        f"{setting}-{group}-{question}-{option}", clip(len(pairs) / 1000),
                        (Turn("user", clip(-(group + tone / 10) / 10)),),
                        f"situation {question}" if setting == "context_variant" else None,
                        f"script {group}", setting=setting,
                    )  # fmt: skip
                    pairs.append(pair)
                    wrong = group < 2 and question == 0  # the first question of groups 0 and 1
                    rows.append((pair.pair_id, "e", float(option == 0), float(option if wrong else -option)))
    return pairs, pd.DataFrame(rows, columns=["pair_id", "dimension", "human_mean", "score"])


def test_questions_are_found_in_a_dataset() -> None:
    pairs, items = contest_data()
    found = challenges.challenge_scores(pairs, items.sample(frac=1, random_state=0), "e")
    assert list(found) == ["context_variant", "tone_variant", "all"]
    for name, questions, groups, chance in (
        ("context_variant", 12, 6, 1 / 3), ("tone_variant", 12, 6, 1 / 2), ("all", 24, 12, 5 / 12),
    ):  # fmt: skip
        one = found[name]
        assert (one.score.n, one.group_accuracy.n) == (questions, groups)
        assert value(one.accuracy) == pytest.approx(10 / 12, abs=1e-12)
        assert value(one.score) == pytest.approx((10 + 4) / 18, abs=1e-12)
        assert one.chance == pytest.approx(chance, abs=1e-12)
        assert one.score.low is not None
    constant = challenges.challenge_scores(pairs, items.assign(score=3.0), "e")["all"]
    assert value(constant.score) == 0.0
    by_script = challenges.challenge_scores(pairs, items, "e", source_of=lambda pair: pair.group_id)
    assert len(by_script) == 7


def test_questions_without_a_known_answer_are_left_out() -> None:
    pairs, items = contest_data()
    unrated = items["pair_id"].str.startswith("tone_variant-3-1")
    tied = items["pair_id"].str.startswith("context_variant-4-0")
    changed = items.assign(human_mean=items["human_mean"].mask(unrated & items["pair_id"].str.endswith("1")))
    changed.loc[tied, "human_mean"] = 1.0
    found = challenges.challenge_scores(pairs, changed, "e")
    assert (found["tone_variant"].score.n, found["context_variant"].score.n, found["all"].score.n) == (11, 11, 22)
    alone = [replace(pair, group_id=pair.pair_id) for pair in pairs]
    with pytest.raises(DataError, match="60 pairs hold no question"):
        challenges.challenge_scores(alone, items, "e")
    with pytest.raises(DataError, match="0 pairs hold no question"):
        challenges.challenge_scores([], items, "e")
