"""Scores as people write them, and words of scales."""

from __future__ import annotations

import math

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.rating_words import SERIES, as_score, numbers_of, parse_choices
from empathy_judge.data_modules.ratings import Dimension


@pytest.mark.parametrize(
    ("value", "comma", "score"),
    [
        ("3", False, 3.0), ("3,5", True, 3.5), ("3,5", False, "3,5"), ("1.234,5", True, "1.234,5"),
        ("4 - agree", False, 4.0), ("1 = not at all", False, 1.0), ("5 (excellent)", False, 5.0),
        ("03. Mai", False, "03. Mai"), ("3-May-26", False, "3-May-26"), ("1 - marginal", False, 1.0),
        ("3-5", False, "3-5"), ("3 s", False, "3 s"), ("agree", False, "agree"), ("Good ", False, 4.5),
        (" N/A", False, math.nan), (None, False, math.nan), (2, False, 2), ([1], False, [1]),
    ],
)  # fmt: skip
def test_scores_as_people_write_them(value, comma, score):
    given = as_score(value, parse_choices(["good=4.5"]), comma)
    assert given == score or (math.isnan(given) and math.isnan(score))


def test_words_of_usual_scales():
    assert numbers_of(["Strongly  agree", "disagree"], None) == {}  # 5 and 2, or 7 and 2
    assert numbers_of(["strongly agree", "disagree"], Dimension("d", 1, 5, 1)) == {
        "strongly agree": 5.0,
        "disagree": 2.0,
    }
    assert numbers_of(["good", "bad"], Dimension("d", 0, 4, 1)) == {}  # two scales of five words
    assert numbers_of(["excellent", "bad"], Dimension("d", 0, 4, 1)) == {"excellent": 4.0, "bad": 0.0}
    assert numbers_of(["excellent", "bad"], Dimension("d", 0, 100)) == {}
    assert numbers_of(["warm", "cold"], None) == {}
    six = [word for word in SERIES[6] if "neither" not in word]  # a scale of six words, or of seven
    assert numbers_of(six, None) == {}
    assert [*numbers_of(six, Dimension("d", 1, 7, 1)).values()] == [1, 2, 3, 5, 6, 7]
    assert numbers_of(["slightly agree", "agree", "neither agree nor disagree"], None) == {
        "slightly agree": 5.0, "agree": 6.0, "neither agree nor disagree": 4.0,
    }  # fmt: skip


def test_choices_of_the_command_line():
    with pytest.raises(UserError, match="--choice 'good=x': expected WORD=NUMBER, such as good=4"):
        parse_choices(["good=x"])
    assert math.isnan(parse_choices(["unsure=NA"])["unsure"])
    assert math.isnan(as_score("k. A.", {}, True))
