"""Comparisons: what people preferred, and what is made of ratings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.ratings import PREFERENCE_COLUMNS, RATING_COLUMNS
from empathy_judge.data_modules.schema import DatasetCard, Dimension, Pair, PairDataset, Turn
from empathy_judge.data_modules.training_items import (
    MOST_PER_PAIR,
    ComparedPair,
    counterfactuals,
    directions,
    human_comparisons,
)

CALM, NOISE = Dimension("calm", 1, 5, 1), Dimension("noise", 0, 10, higher_is_better=False)


def dataset(
    pairs: Sequence[tuple[str, str]],
    ratings: Mapping[int, Mapping[str, Sequence[float]]] | None = None,
    preferences: Sequence[tuple[str, str, str, str, float]] | None = None,
) -> PairDataset:
    """Pairs p0, p1, ... of one group from the names of their context ("" = none) and response."""
    made = tuple(
        Pair(
            f"p{n}", response.encode(), (Turn("user", context.encode()),) if context else (), group_id="g",
            response_text=f"words of {response}", response_speaker=f"voice of {response}",
        )
        for n, (context, response) in enumerate(pairs)
    )  # fmt: skip
    rows = [
        (f"p{n}", f"r{rater}", name, score)
        for n, own in (ratings or {}).items()
        for name, scores in own.items()
        for rater, score in enumerate(scores)
    ]
    return PairDataset(
        Path("made"),
        DatasetCard("made", (CALM, NOISE), "test", "CC0-1.0", True),
        made,
        pd.DataFrame(rows, columns=list(RATING_COLUMNS)),
        None if preferences is None else pd.DataFrame(preferences, columns=list(PREFERENCE_COLUMNS)),
        {f"p{n}": (context, response) if context else (response,) for n, (context, response) in enumerate(pairs)},
    )


def plain(comparisons: Sequence[ComparedPair]) -> list[tuple[str, str, list[float | None]]]:
    """Ids and strengths, None for NaN."""
    return [
        (c.chosen.pair_id, c.rejected.pair_id, [None if math.isnan(x) else x for x in c.strength.tolist()])
        for c in comparisons
    ]


def test_one_item_holds_all_that_a_rater_said_the_same_way_round():
    said = [
        ("p1", "p0", "r1", "noise", 1.0),
        ("p0", "p1", "r2", "calm", 2.0),
        ("p0", "p1", "r1", "calm", 1.0),  # r1 finds p0 calmer and p1 less noisy
        ("p0", "p1", "r2", "noise", 0.0),
    ]
    found = human_comparisons(dataset([("c", "a"), ("c", "b")], preferences=said))
    assert plain(found) == [("p0", "p1", [1.0, None]), ("p0", "p1", [2.0, 0.0]), ("p1", "p0", [None, 1.0])]


def test_directions_point_to_the_better_end():
    assert directions((CALM, NOISE)).tolist() == [1.0, -1.0]


def test_a_liked_response_is_set_against_those_to_other_contexts():
    good = {"calm": [5, 4], "noise": [1]}  # shares of the scale: 0.875 and 0.9
    pairs = [("c1", "a"), ("c2", "b"), ("c1", "d")]
    found = counterfactuals(dataset(pairs, {0: good, 1: {"calm": [2]}, 2: {"noise": [9]}}), 0.8)
    assert plain(found) == [("p0", "cf:p0:p1", [1.0, 1.0])]  # d answers the same context
    rejected = found[0].rejected
    assert (rejected.context[0].audio, rejected.response) == (b"c1", b"b")
    assert (rejected.response_text, rejected.response_speaker) == ("words of b", "voice of b")


def test_the_score_that_a_chosen_pair_needs_is_a_share_towards_the_better_end():
    made = dataset([("c1", "a"), ("c2", "b")], {0: {"calm": [4], "noise": [2.5]}, 1: {"calm": [5], "noise": [10]}})
    assert plain(counterfactuals(made, 0.75)) == [("p0", "cf:p0:p1", [1.0, 1.0]), ("p1", "cf:p1:p0", [1.0, None])]
    assert plain(counterfactuals(made, 0.76)) == [("p1", "cf:p1:p0", [1.0, None])]
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match=r"min_score .*; expected 0 to 1"):
            counterfactuals(made, share)


def test_what_people_judged_is_not_invented_again():
    pairs = [("c1", "a"), ("c2", "b"), ("c1", "b")]
    first = {0: {"calm": [5]}}
    assert [c.rejected.pair_id for c in counterfactuals(dataset(pairs, first), 0.5)] == ["cf:p0:p1"]  # p2: unrated
    assert counterfactuals(dataset(pairs, {**first, 2: {"noise": [9]}}), 0.5) == []
    assert counterfactuals(dataset(pairs, first, [("p0", "p2", "r", "calm", 1.0)]), 0.5) == []


def test_only_within_group_and_system_and_only_with_a_context():
    made = dataset([("c1", "a"), ("c2", "b"), ("c3", "d"), ("", "e")], {n: {"calm": [5]} for n in range(4)})
    systems = ("s", None, "s", "s")
    apart = tuple(dataclasses.replace(pair, system_id=s) for pair, s in zip(made.pairs, systems, strict=True))
    found = counterfactuals(dataclasses.replace(made, pairs=apart), 0.5)
    assert [c.rejected.pair_id for c in found] == ["cf:p0:p2", "cf:p2:p0"]
    lonely = tuple(dataclasses.replace(pair, group_id=pair.pair_id) for pair in made.pairs)
    assert counterfactuals(dataclasses.replace(made, pairs=lonely), 0.5) == []


def test_the_same_clip_after_another_situation_is_another_context():
    made = dataset([("c", "a"), ("c", "b")], {0: {"calm": [5]}})
    assert counterfactuals(made, 0.5) == []
    told = dataclasses.replace(made.pairs[1], situation="after a loss")
    found = counterfactuals(dataclasses.replace(made, pairs=(made.pairs[0], told)), 0.5)
    assert [(c.rejected.pair_id, c.rejected.situation) for c in found] == [("cf:p0:p1", None)]
    blank = dataclasses.replace(made.pairs[1], situation=" ")
    assert counterfactuals(dataclasses.replace(made, pairs=(made.pairs[0], blank)), 0.5) == []


def test_a_large_group_gives_few_each_and_uses_all_responses_alike():
    count = 30
    made = dataset([(f"c{n}", f"a{n // 2}") for n in range(count)], {n: {"calm": [5]} for n in range(count)})
    found = counterfactuals(made, 0.5)
    assert [c.chosen.pair_id for c in found] == [f"p{n}" for n in range(count) for _ in range(MOST_PER_PAIR)]
    for n in range(count):
        responses = [c.rejected.response for c in found if c.chosen.pair_id == f"p{n}"]
        assert len(set(responses)) == MOST_PER_PAIR  # a clip that answers two contexts counts once
        assert made.pairs[n].response not in responses
    used = pd.Series([c.rejected.response for c in found]).value_counts()
    assert set(used) == {2 * MOST_PER_PAIR}
