"""What `benchmarks/dimension_words.py` asks and fits; the programs import their neighbours from their folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from empathy_judge.data_modules.schema import Pair


@pytest.fixture
def words(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return __import__("dimension_words")


def test_the_question_of_a_dimension_comes_last_and_is_no_situation(words):
    asked, plain = (words.asked_last(Pair("a", b"", situation=text)) for text in ("How loud?", None))
    pieces = [piece.get("text", "clip") for piece in asked[0]["content"]]
    assert pieces == ["Response: ", "clip", "\nHow loud?"]
    assert plain[0]["content"][-1]["text"].endswith("fit the context?")


def test_a_dimension_that_is_left_out_is_met_in_the_test_pairs_alone(words):
    pairs = [Pair(f"{group}~{name}", b"", group_id=group) for group in "abcdefghij" for name in ("loud", "fast")]
    parts = words.parts_of(SimpleNamespace(pairs=pairs), "fast", seed=1)
    split = words.splits_of(list("abcdefghij"), seed=1)
    assert sorted(split.values()) == ["test"] * 3 + ["train"] * 5 + ["validation"] * 2
    for pair, part in zip(pairs, parts, strict=True):
        unseen = pair.pair_id.endswith("fast") and split[pair.group_id] != "test"
        assert part == (None if unseen else split[pair.group_id])
