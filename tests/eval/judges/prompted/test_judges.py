"""Comparisons in both orders: who wins, how often the orders disagree, and who is compared with whom."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.judges import ALONE, matches

from .conftest import clip
from .servers import Request, Response, openai_answer

DIMENSIONS = (Dimension("warmth", 1, 5, 1), Dimension("noise", 0, 100, higher_is_better=False))
PAIRWISE = ["mode=pairwise", "samples=1", "opponents=0"]


def responses(count: int, contexts: int = 1) -> list[Pair]:
    """So many responses to each of several contexts; the response's length tells its place (0.1 s, 0.2 s, ...)."""
    heard = [clip(1_000 + 10 * number) for number in range(contexts)]
    return [
        Pair(f"c{number}r{place}", clip(300, 0.1 * (place + 1)), (Turn("user", context),), group_id="g")
        for number, context in enumerate(heard)
        for place in range(count)
    ]


def lengths(request: Request) -> list[int]:
    """Of the base64 of the two responses."""
    parts = request.body["messages"][-1]["content"]
    return [len(part["input_audio"]["data"]) for part in parts if part["type"] == "input_audio"][1:]


def verdict(**words: str) -> Response:
    return Response(openai_answer(json.dumps({"reason": "", **words})))


def test_the_longer_response_always_wins(scored):
    def behave(request: Request) -> Response:
        first, second = lengths(request)
        longer = "first" if first > second else "second"
        return verdict(warmth=longer, noise="tie")

    table, requests, _ = scored("openai", behave, pairs=responses(3), settings=PAIRWISE, dimensions=DIMENSIONS)
    assert len(requests) == 6  # three comparisons, two orders
    warmth, noise = (table.loc[table["dimension"] == d.name, "score"].tolist() for d in DIMENSIONS)
    assert warmth == [1, 3, 5]  # loses both, one each, wins both
    assert noise == [50, 50, 50]
    assert [meta["orders"]["warmth"] for meta in table["meta"][::2]] == [[[-1, 1], [-1, 1]], [[-1, 1]], []]
    assert sum(meta["requests"] for meta in table["meta"][::2]) == 6


def test_a_judge_that_prefers_the_first_place_learns_nothing_and_it_shows(scored):
    always = verdict(warmth="first", noise="second")
    table = scored("openai", always, pairs=responses(4), settings=PAIRWISE, dimensions=DIMENSIONS).table
    assert table["score"].tolist() == [3, 50] * 4
    orders = [both for meta in table["meta"][::2] for both in meta["orders"]["warmth"]]
    assert orders == [[1, 1]] * 6


def test_failed_comparisons_leave_the_others(scored):
    """Only comparisons of the shortest response are answered; one order alone does not count."""

    def behave(request: Request) -> Response:
        short = min(lengths(request))
        if short > 3_000 or lengths(request)[0] > 8_000:
            return Response(openai_answer(refusal="No."))
        return verdict(warmth="first" if lengths(request)[0] == short else "second", noise="tie")

    found = scored("openai", behave, pairs=responses(4), settings=PAIRWISE, dimensions=DIMENSIONS[:1])
    rows = found.table.set_index("pair_id")
    assert rows.loc["c0r0", "score"] == 5
    assert rows.loc["c0r1", "score"] == 1
    assert rows.loc["c0r3", "status"] == "refused"
    assert rows.loc["c0r3", "meta"]["failures"] == {}  # counted with the response that comes first in the data
    assert rows.loc["c0r0", "meta"]["failures"] == {"refused": 1}


def test_a_response_without_a_rival_has_no_score(scored):
    found = scored("openai", verdict(warmth="first"), pairs=responses(1, contexts=3), settings=PAIRWISE)
    assert set(found.table["status"]) == {ALONE} != {OK}
    assert not found.requests


@pytest.mark.parametrize(
    ("count", "opponents", "each"), [(5, 0, 4), (5, 4, 4), (9, 4, 4), (9, 2, 2), (10, 2, 2), (2, 4, 1)]
)
def test_everybody_meets_as_many(count, opponents, each):
    pairs = responses(count, contexts=2)
    played = matches(pairs, opponents)
    assert len(set(played)) == len(played)
    met = Counter(position for two in played for position in two)
    assert set(met.values()) == {each}
    assert len(met) == 2 * count
    assert all(first < second and first // count == second // count for first, second in played)
    assert sorted(played) == sorted(matches(list(pairs), opponents))


def test_equal_contexts_in_other_clips_are_one_context():
    context = clip(500)
    copy = Clip(context.samples.copy(), context.rate)
    pairs = [Pair("a", clip(300), (Turn("user", context),)), Pair("b", clip(400), (Turn("user", copy),))]
    assert matches(pairs, 0) == [(0, 1)]
