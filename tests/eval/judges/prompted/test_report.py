"""Judges that ask local servers, through `evaluate`: what they tell of their answers arrives in the report."""

from __future__ import annotations

import itertools
import json

import pytest
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.rendering import sentences

from ...conftest import dataset_of
from .conftest import EMPATHY, OPENAI_PRICE
from .servers import Request, Response, openai_answer, serve


def rated(pairs: list[Pair]) -> PairDataset:
    """Pairs that two people rated from 1 to 5 in turn."""
    rows = [
        (pair.pair_id, rater, EMPATHY.name, 1 + (number + late) % 5)
        for number, pair in enumerate(pairs)
        for late, rater in enumerate(("ann", "bob"))
    ]
    return dataset_of(pairs, rows, EMPATHY)


def test_a_model_that_is_exchanged_while_it_is_asked(make_judge, make_pairs):
    """Two of three answers by the old version, the third one a point higher by the new one; every fourth is refused."""
    numbers = itertools.count()

    def behave(request: Request) -> Response:
        number = next(numbers)
        if number % 4 == 3:
            return Response(openai_answer(refusal="I cannot.", model="m-1"))
        new = number % 3 == 2
        score = {"reason": "warm", EMPATHY.name: 3 + int(new)}
        return Response(openai_answer(json.dumps(score), model="m-2" if new else "m-1"))

    settings = ["samples=3", "concurrency=1", OPENAI_PRICE]
    with serve(behave) as server:
        judge = make_judge("openai", server.url, settings)
        report = evaluate(judge, rated(make_pairs(8)), split=None, probes=(), resamples=50).report
        again = evaluate(judge, rated(make_pairs(8)), split=None, probes=(), resamples=50).report
    asking, asked = report["asking"], report["dimensions"][EMPATHY.name]["asked"]
    assert asked is not None
    assert (asking["questions"], asking["requests"], asking["kept"], asking["scored"]) == (24, 24, 0, 8)
    assert asking["failures"] == {"refused": {"count": 6, "rate": 0.25}}
    each = (250 * 2.5 + 100 * 32 + 25 * 10) / 1e6
    assert asking["cost_per_1000_pairs"] == pytest.approx(3000 * each)
    assert report["effort"]["measured"] == "requests"
    assert asking["version_changed"]
    (drift,) = asked["drift"]
    assert (drift["first"], drift["second"]) == ("m-1", "m-2")
    assert (drift["difference"]["value"], drift["difference"]["n"]) == (1.0, 6)
    assert asked["repeats"]["within_sd"]["n"] == 8
    said = " ".join(sentences("prompted", report=report))
    assert "24 questions about 8 pairs; 6 failed (25 %: 6 x refused); every pair has a score." in said
    assert "From m-1 to m-2 scores moved by +1.00 (+1.00 to +1.00) on 6 pairs." in said
    assert again["asking"]["kept"] == 24
    assert {**again["asking"], "kept": 0} == asking
