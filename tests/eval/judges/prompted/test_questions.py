"""Rubrics, forms of an answer and questions, without anybody being asked."""

from __future__ import annotations

import json

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval.judges.prompted.questions import AnswerForm, Unread, describe, score_question
from empathy_judge.eval.judges.prompted.settings import parse_settings

from .conftest import EMPATHY, clip


def test_anchors_stand_at_their_points():
    five = describe("vocal", [EMPATHY])
    assert [line.strip()[:5] for line in five.splitlines()[-5:]] == ["1 = t", "2 = t", "3 = c", "4 = w", "5 = i"]
    hundred = describe("vocal", [Dimension("empathy", 0, 100)])
    assert [line.split(" = ")[0].strip() for line in hundred.splitlines()[-5:]] == ["0", "25", "50", "75", "100"]
    two = describe("plain", [Dimension("empathy", 0, 1, 1)])
    assert two.splitlines()[-2:] == ["  0 = very poor", "  1 = excellent"]
    three = describe("plain", [Dimension("empathy", 0, 2, 1)])
    assert three.splitlines()[-3:] == ["  0 = very poor", "  1 = fair", "  2 = excellent"]
    bad = describe("plain", [Dimension("noise", 1, 5, 1, higher_is_better=False)])
    assert bad.splitlines()[-5] == "  1 = excellent"


def test_what_a_form_describes_it_reads():
    form = AnswerForm((EMPATHY, Dimension("warmth", 0, 10)))
    assert form.schema()["required"] == ["reason", "vocal_empathy", "warmth"]
    assert form.read('{"reason": "x", "vocal_empathy": 4, "warmth": 7.5}') == {"vocal_empathy": 4, "warmth": 7.5}
    with pytest.raises(Unread, match="unreadable answer"):
        form.read('{"vocal_empathy": 4}')
    preferred = AnswerForm((EMPATHY,), "verdicts")
    assert preferred.schema()["properties"]["vocal_empathy"]["enum"] == ["first", "tie", "second"]
    assert preferred.read('{"reason": "", "vocal_empathy": "Second "}') == {"vocal_empathy": -1}
    with pytest.raises(Unread, match="unreadable answer"):
        preferred.read('{"reason": "", "vocal_empathy": "both"}')
    twice = 'First {"vocal_empathy": 2}, but rather {"vocal_empathy": 3}'
    assert AnswerForm((EMPATHY,)).read(twice) == {"vocal_empathy": 3}  # the last object counts


@pytest.mark.parametrize(
    ("written", "in_object", "alone"),
    [
        ("4", 4, 4),
        (" 4.5 ", 4.5, 4.5),
        ("+4", 4, 4),
        ("\uff14", 4, 4),  # a full-width digit
        ("4.", None, 4),
        ("**Score:** 4", None, 4),
        ("vocal_empathy = 4", None, 4),
        *[
            (words, None, None)
            for words in (
                "1_0", "4/5", "4 out of 5", "four of 5", "4,5", ".5", "4\u00bd", "\u22124", "1e0", "NaN", "4 or 5"
            )
        ],
    ],
)  # fmt: skip
def test_a_number_is_one_number_or_none(written, in_object, alone):
    """Python reads 1_0 as 10; a digit among words may be the end of the scale."""
    scale = Dimension("vocal_empathy", 0, 10, 1)
    told = json.dumps({"vocal_empathy": written})
    for form, text, expected in (("scores", told, in_object), ("number", written, alone)):
        if expected is None:
            with pytest.raises(Unread, match="unreadable answer"):
                AnswerForm((scale,), form).read(text)
        else:
            assert AnswerForm((scale,), form).read(text) == {"vocal_empathy": expected}


def test_a_number_outside_the_scale_is_none():
    for form, text in (("scores", '{"vocal_empathy": "11"}'), ("number", "-4"), ("number", "11")):
        with pytest.raises(Unread, match="score out of range"):
            AnswerForm((Dimension("vocal_empathy", 0, 10, 1),), form).read(text)


def test_transcripts_alone_hold_no_sound(make_pairs):
    (pair,) = make_pairs(1)
    for hears, sounds, words in (("audio", 2, 0), ("both", 2, 2), ("transcript", 0, 2)):
        question = score_question(pair, [EMPATHY], parse_settings([f"hears={hears}", "answers=schema"], "x"), 9)
        texts = [part for part in question.messages[-1].parts if isinstance(part, str)]
        assert len(question.sounds) == sounds
        assert sum("transcript" in text for text in texts) == words
    assert "You read" in question.system
    silent = Pair("s", clip(300), group_id="g")
    with pytest.raises(UserError, match="'s' has no response_text"):
        score_question(silent, [EMPATHY], parse_settings(["hears=transcript", "answers=schema"], "x"), 9)
