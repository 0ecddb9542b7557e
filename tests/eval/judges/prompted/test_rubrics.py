"""Rubrics in words: a question of a decision model has words for every step, none twice, from the lowest on."""

from __future__ import annotations

import pytest
from empathy_judge.data_modules.ratings import LABELS, Dimension
from empathy_judge.eval.judges.prompted.rubrics import level_questions


@pytest.mark.parametrize(
    ("scale", "points"),
    [
        ((1, 5, 1), ["1", "2", "3", "4", "5"]),
        ((1, 5, 0.5), ["1", "1.5", "2", "2.5", "3", "3.5", "4", "4.5", "5"]),
        ((0, 3, 1), ["0", "1", "2", "3"]),
        ((0, 1, 1), ["0", "1"]),
        ((0, 100, 1), [str(number) for number in range(101)]),
        ((0, 1, 0.1), ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1"]),
    ],
)
@pytest.mark.parametrize("rubric", ["vocal", "attunement", "support", "plain"])
def test_every_step_has_words_of_its_own(scale, points, rubric):
    question = level_questions(rubric, [Dimension("warmth", *scale)])["warmth"]
    assert [level.partition(": ")[0] for level in question["criteria"]] == points
    words = [level.partition(": ")[2] for level in question["criteria"]]
    assert all(words)
    assert "None" not in str(words)
    assert len(set(question["criteria"])) == len(points)


def test_a_step_between_two_anchors_says_both_and_the_worst_comes_last_where_lower_is_better():
    dimensions = [Dimension("noise", 1, 5, 0.5, higher_is_better=False), Dimension("ease_of_listening", 1, 5, 1)]
    noise, ease = level_questions("plain", dimensions).values()
    assert noise["criteria"][:3] == ["1: excellent", '1.5: between "excellent" and "good"', "2: good"]
    assert noise["criteria"][-1] == "5: very poor"
    assert noise["instructions"].endswith("noise, 1 to 5 in steps of 0.5. A higher level is worse.")
    assert ease["criteria"] == [f"{number + 1}: {label}" for number, label in enumerate(LABELS)]
    assert ease["instructions"].endswith("Rate the response: ease of listening, 1 to 5 in steps of 1.")
    assert noise["type"] == ease["type"] == "score"
