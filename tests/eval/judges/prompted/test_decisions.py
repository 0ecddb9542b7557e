"""Decision models, whoever serves them: one request for all dimensions, and a distribution for each."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.cache import cache_key
from empathy_judge.eval.judges.prompted.questions import score_question
from empathy_judge.eval.judges.prompted.settings import parse_settings

from ...conftest import dataset_of
from .conftest import EMPATHY, RUNNER
from .servers import DECIDING, SHARES, Response, answer

SPEC = "gemini-decision:m,base_url=http://h"
CALM, HALVES = Dimension("calm", 0, 3, 1), Dimension("half", 1, 5, 0.5)


@pytest.mark.parametrize("vendor", DECIDING)
def test_the_score_is_the_mean_of_the_distribution_and_the_distribution_is_kept(vendor, scored):
    shares = {
        "vocal_empathy": [0.1, 0.1, 0.2, 0.3, 0.3],
        "calm": [0.5, 0, 0, 0.5],
        "half": [0] * 5 + [0.25, 0.75, 0, 0],
    }
    found = scored(vendor, answer(vendor, shares), pairs=2, dimensions=[EMPATHY, CALM, HALVES])
    assert len(found.requests) == 2  # all dimensions of a pair in one
    scores = {"vocal_empathy": 3.6, "calm": 1.5, "half": 3.875}
    assert found.table["score"].tolist() == pytest.approx([*scores.values()] * 2)
    for meta in found.table["meta"]:
        assert meta["levels"] == {name: pytest.approx(given) for name, given in shares.items()}
        assert meta["samples"] == {name: [pytest.approx(value)] for name, value in scores.items()}
    assert found.table["uncertainty"].isna().all()
    kept = found.judge.session.answers._base.execute("SELECT reply FROM answers").fetchall()
    assert all("[0.5, 0.0, 0.0, 0.5]" in reply for (reply,) in kept)


def rounded(number: float) -> list[float]:
    return [number, *SHARES[1:]]


@pytest.mark.parametrize(
    ("shares", "status"),
    [
        (rounded(0.0099), OK),  # servers round
        ([0.125, 0.125, 0.375, 0.365, 0], OK),
        (rounded(0.0101), "probabilities do not sum to 1"),
        ([0.125, 0.125, 0.375, 0.36, 0], "probabilities do not sum to 1"),
        ([0] * 5, "probabilities do not sum to 1"),
        ([math.nan, *SHARES[1:]], "probabilities do not sum to 1"),
        ([math.inf, *SHARES[1:]], "probabilities do not sum to 1"),
        ([-0.5, 0.625, *SHARES[2:]], "probabilities do not sum to 1"),
        (["0", *SHARES[1:]], "probabilities do not sum to 1"),
        ([True, 0, 0, 0, 0], "probabilities do not sum to 1"),
        ([0.25] * 4, "levels missing or foreign"),
        ([*SHARES, 0], "levels missing or foreign"),
        ([], "levels missing or foreign"),
    ],
)
def test_what_is_no_distribution_over_the_scale_is_no_score(shares, status, scored):
    found = scored("gemini-decision", answer("gemini-decision", {"vocal_empathy": shares}))
    assert found.row["status"] == status
    assert len(found.requests) == 1  # it was paid for, and says the same again
    if status == OK:
        assert sum(found.row["meta"]["levels"]["vocal_empathy"]) == pytest.approx(1, abs=1e-12)
        assert 1 <= found.row["score"] <= 5
    else:
        assert found.row["meta"]["levels"] == {}


@pytest.mark.parametrize(
    "names", [["1", "2", "3", "4", "5"], ["0", "1", "2", "3", "04"], ["0", "1", "2", "3", "\u0664"], list("abcde")]
)
def test_levels_of_other_names_are_not_guessed_at(names, scored):
    body: Any = answer("gemini-decision", {"vocal_empathy": SHARES})
    body["answers"]["vocal_empathy"]["probabilities"] = dict(zip(names, SHARES, strict=True))
    assert scored("gemini-decision", body).row["status"] == "levels missing or foreign"


def test_of_a_level_that_is_named_twice_neither_counts(scored):
    body = json.dumps(answer("systemone", {"vocal_empathy": SHARES, "foreign": SHARES}))
    levels = f'"0": {SHARES[0]}'
    twice = f'"0": 0.5, {levels}'
    settings = ["samples=1", "rubric=plain"]
    found = scored("systemone", Response(body.replace(levels, twice, 1).encode()), settings=settings)
    assert (found.row["status"], len(found.requests)) == ("levels missing or foreign", 1)
    other = scored("systemone", Response(twice.join(body.rsplit(levels, 1)).encode()), settings=settings)
    assert (other.row["status"], other.row["score"]) == (OK, 4)
    assert body.count(levels) == 2


def test_a_question_without_an_answer_leaves_no_score(scored):
    body = answer("gemini-decision", {"vocal_empathy": SHARES, "foreign": SHARES})
    table = scored("gemini-decision", body, dimensions=[EMPATHY, CALM]).table
    assert table["status"].tolist() == ["levels missing or foreign"] * 2


ODD = [None, "no", [], 3, {"probabilities": [*SHARES]}, {"probabilities": "x"}, {"type": "refusal"}]


@pytest.mark.parametrize(
    ("vendor", "odd"), [*(("systemone", odd) for odd in ODD), *((name, None) for name in DECIDING)]
)
def test_an_answer_that_is_none_is_paid_once_and_spoils_no_other(vendor, odd, scored, make_pairs):
    body = answer(vendor, {"vocal_empathy": SHARES})
    both = {**body, "answers": {**body["answers"], "foreign": odd}}
    foreign = scored(vendor, both, settings=["samples=1", "rubric=plain"])
    assert (foreign.row["status"], foreign.row["score"], len(foreign.requests)) == (OK, 4, 1)
    own = scored(vendor, {**body, "answers": {"vocal_empathy": odd}})
    assert (own.row["status"], len(own.requests)) == ("levels missing or foreign", 1)
    (row,) = own.judge.score(make_pairs(1)).to_dict("records")  # the server is gone: the answer was kept
    assert (row["status"], row["meta"]["kept"]) == ("levels missing or foreign", 1)


def test_a_key_that_a_server_repeats_is_kept_nowhere(scored, monkeypatch):
    monkeypatch.setenv("EMPATHY_JUDGE_API_KEY", key := "a-key-of-no-vendor")
    body: Any = answer("systemone", {"vocal_empathy": SHARES, key: SHARES}, model=f"m-{key}")
    body["answers"]["vocal_empathy"]["legend"]["0"] = key
    found = scored("systemone", body)
    assert (found.row["score"], found.row["meta"]["versions"]) == (4, ["m-[key]"])
    (kept,) = found.judge.session.answers._base.execute("SELECT reply FROM answers").fetchone()
    assert key not in kept + str(found.row["meta"])
    assert "[key]" in kept


@pytest.mark.parametrize("status", [400, 422])
def test_a_request_that_is_bad_is_told_in_one_line(status, scored):
    error = Response({"error": {"message": "question 'x':\n  too\tfew levels", "code": status}}, status)
    with pytest.raises(UserError, match=f"the last with HTTP {status}: question 'x': too few levels$"):
        scored("gemini-decision", error, pairs=9, settings=["samples=1", "concurrency=1"])


def test_a_model_that_decides_nothing_ends_the_run(scored):
    error = Response({"error": {"message": "not a decision\nmodel", "code": 501}}, 501)
    with pytest.raises(UserError, match=r"^gemini-decision:a-model: HTTP 501: not a decision model$"):
        scored("gemini-decision", error, pairs=9)


@pytest.mark.parametrize("vendor", DECIDING)
def test_no_payment_method_ends_the_run(vendor, scored):
    with pytest.raises(UserError, match=f"^{vendor}:[a-z-]+: HTTP 402: no payment method$"):
        scored(vendor, Response({"message": "no payment method"}, 402), pairs=9)


@pytest.mark.parametrize("vendor", DECIDING)
def test_an_answer_that_drips_ends_in_time(vendor, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    slow = Response(answer(vendor, {"vocal_empathy": SHARES}), drip=0.05)
    assert scored(vendor, slow, settings=["samples=1", "timeout=0.3"]).row["status"] == "timeout"


@pytest.mark.parametrize("vendor", DECIDING)
@pytest.mark.parametrize("usage", [{}, None, {"total_input_tokens": -1, "input_tokens": "9"}, {"input_tokens": None}])
def test_an_answer_without_tokens_counts_with_what_was_reserved(vendor, usage, scored, make_pairs):
    body = answer(vendor, {"vocal_empathy": SHARES}, usage=usage, received=usage)
    found = scored(vendor, body, settings=["samples=1", "price=1:1:0"], budget=1)
    assert (found.row["status"], found.row["score"]) == (OK, 4)
    assert found.row["meta"]["cost"] is None
    expected = found.judge.session.budget.estimate(found.judge.tasks(make_pairs(1))[0].build())
    assert found.judge.session.budget.spent == pytest.approx(expected)


def test_the_key_of_an_answer_holds_all_questions_in_their_order(opened, make_pairs):
    judge = opened(SPEC, dataset_of([], [], EMPATHY))
    settings = judge.session.settings

    def key(*dimensions: Dimension) -> str:
        return cache_key(judge.session.provider, score_question(make_pairs(1)[0], dimensions, settings, 0), 0)

    keys = {key(EMPATHY), key(EMPATHY, CALM), key(CALM, EMPATHY), key(Dimension("vocal_empathy", 1, 7, 1))}
    assert len(keys) == 4
    assert key(EMPATHY) in keys


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("samples=3", "samples=3 is for models that write; gemini-decision answers once, with probabilities"),
        ("temperature=0.5", "temperature=0.5 is for models that write"),
        ("examples=2", "examples=2 is for models that write"),
        ("answers=schema", "answers=schema; expected one of levels"),
    ],
)
def test_settings_of_models_that_write_are_refused(setting, told, opened):
    with pytest.raises(UserError, match=told):
        opened(f"{SPEC},{setting}", dataset_of([], [], EMPATHY))


def test_the_name_of_a_judge_has_no_setting_that_it_cannot_change(opened):
    names = [opened(f"{SPEC}{more}", dataset_of([], [], EMPATHY)).name for more in ("", ",samples=1", ",rubric=plain")]
    assert names == ["gemini-decision:m@h", "gemini-decision:m@h", "gemini-decision:m@h,rubric=plain"]


@pytest.mark.parametrize(
    ("dimension", "told"),
    [
        (Dimension("slider", 0, 1), "slider of 0 to 1; gemini-decision takes scales of 2 to 255 steps"),
        (Dimension("slider", 0, 100, 0.25), "in steps of 0.25, 401 steps; gemini-decision takes scales of 2 to 255"),
    ],
)
def test_scales_of_too_many_steps_are_refused(dimension, told, opened):
    with pytest.raises(UserError, match=told):
        opened(SPEC, dataset_of([], [], dimension))


PAIRWISE = ["mode=pairwise", "samples=1", "opponents=0", "concurrency=1"]


def choosing(vendor: str, **shares: Any) -> dict[str, Any]:
    """What a vendor answers a question of type ``choice``."""
    chosen = {"type": "choice", "choice": "first", "confidence": 0.1, "probabilities": shares}
    return {**answer(vendor, {}), "answers": {"vocal_empathy": chosen}}


def rivals(make_pairs) -> list[Pair]:
    first, second = make_pairs(2)
    return [first, replace(second, context=first.context, group_id=first.group_id)]


@pytest.mark.parametrize("vendor", DECIDING)
def test_two_responses_are_a_choice_in_both_orders(vendor, scored, make_pairs):
    replies = choosing(vendor, first=0.9, second=0.1), choosing(vendor, second=0.8, first=0.2)
    found = scored(vendor, *replies, pairs=rivals(make_pairs), settings=PAIRWISE)
    assert found.table["score"].tolist() == pytest.approx([3 + 2 * 0.7, 3 - 2 * 0.7])
    (seen,) = found.row["meta"]["orders"]["vocal_empathy"]
    assert seen == pytest.approx([0.8, -0.6])
    assert len(found.requests) == 2
    for request in found.requests:
        body = request.body["request"] if vendor == "hume" else request.body
        (asked,) = body["questions"].values()
        assert (asked["type"], [*asked["criteria"]]) == ("choice", ["first", "second"])
        assert "1 to 5" in asked["instructions"]
        assert json.dumps(body).index("First response") < json.dumps(body).index("Second response")


@pytest.mark.parametrize(
    ("shares", "status"),
    [
        ({"first": 1}, "levels missing or foreign"),
        ({"first": 0.5, "third": 0.5}, "levels missing or foreign"),
        ({"first": 0.4, "second": 0.4, "tie": 0.2}, "levels missing or foreign"),
        ({"0": 0.5, "1": 0.2}, "probabilities do not sum to 1"),
        ({"first": 0.5, "second": None}, "probabilities do not sum to 1"),
    ],
)
def test_what_is_no_choice_is_no_verdict(shares, status, scored, make_pairs):
    body = choosing("systemone", **shares)
    found = scored("systemone", body, pairs=rivals(make_pairs), settings=PAIRWISE)
    assert (found.row["status"], len(found.requests)) == (status, 2)


def test_a_choice_needs_no_steps(opened):
    judge = opened(f"{SPEC},mode=pairwise", dataset_of([], [], Dimension("slider", 0, 1)))
    assert judge.name == "gemini-decision:m@h,mode=pairwise"


def test_only_a_decision_model_answers_with_levels():
    assert parse_settings(["answers=levels"], "x").answers == "levels"
