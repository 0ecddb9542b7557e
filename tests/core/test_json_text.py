"""JSON as the standard has it."""

from __future__ import annotations

import json
import re

import pytest
from empathy_judge.core.json_text import parse_json


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, -0.0, true, null, "x"], "b": {"a": {}}}', b"[]", "1e308", '"NaN"'])
def test_what_the_standard_has_is_read(text):
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 1}', "the name 'a' stands twice in an object"),
        ('{"x": [{"b": {"a": 1, "c": 2, "a": 3}}]}', "the name 'a' stands twice in an object"),
        ('{"x": [1, {"b": NaN}]}', "x.1.b nan; expected a finite number"),
        ('{"x": Infinity}', "x inf; expected a finite number"),
        ('{"x": -1e999}', "x -inf; expected a finite number"),
        ("NaN", "nan; expected a finite number"),
        (f'{{"x": 1{"0" * 400}}}', "x 1000000"),
        (f"[{'9' * 5_000}]", "Exceeds the limit"),
        ('{"x": 1', "Expecting"),
        ("", "Expecting value"),
    ],
)
def test_what_it_has_not_is_refused_and_named(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_json(text)


def test_text_that_is_nested_deep_is_read_or_refused():
    assert parse_json("[" * 100 + "]" * 100)
    with pytest.raises(RecursionError):
        parse_json("[" * 100_000)
