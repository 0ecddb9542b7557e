"""What goes over the wire, field by field against the vendors' own types, and what comes back."""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
import soundfile
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.openai import OpenAIProvider
from empathy_judge.eval.judges.prompted.runner import ATTEMPTS
from empathy_judge.eval.judges.prompted.settings import parse_settings
from pydantic import TypeAdapter

from .conftest import OPENAI_PRICE, RUNNER, same_sound
from .servers import (
    DECIDING,
    GOOD,
    Request,
    Response,
    answer,
    gemini_answer,
    gemini_error,
    in_turn,
    openai_answer,
    openai_error,
    serve,
)

VENDORS = ("openai", "gemini")


@pytest.fixture
def openai_types() -> Any:
    """Of the vendor's own client, which takes seconds to import."""
    from openai.types.chat import completion_create_params

    return completion_create_params


# ---------------------------------------------------------------- what is sent


def test_openai_gets_both_clips_labelled_in_text(scored, make_pairs, openai_types):
    (pair,) = make_pairs(1)
    (request,) = scored("openai", answer("openai", GOOD), settings=["samples=1", "answers=function"]).requests
    assert request.path == "/v1/chat/completions"
    sent = TypeAdapter(openai_types.CompletionCreateParamsNonStreaming).validate_python(request.body)
    assert set(request.body) == {"model", "messages", "temperature", "max_tokens", "tools", "tool_choice"}
    assert (sent["model"], sent["temperature"]) == ("a-model", 0)
    system, user = request.body["messages"]
    assert system["role"] == "system"
    assert "1 = the voice contradicts" in system["content"]
    kinds = [part["type"] for part in user["content"]]
    assert kinds == ["text", "input_audio", "text", "input_audio", "text"]
    assert [user["content"][place]["text"] for place in (0, 2)] == ["Context (audio):", "Response (audio):"]
    for place, source in ((1, pair.context[0].audio), (3, pair.response)):
        audio = user["content"][place]["input_audio"]
        assert audio["format"] == "wav"
        same_sound(base64.b64decode(audio["data"], validate=True), source)
    schema = request.body["tools"][0]["function"]["parameters"]
    assert schema["required"] == ["reason", "vocal_empathy"]
    assert schema["properties"]["vocal_empathy"]["type"] == "integer"
    for secret in ('"p0"', pair.group_id, "a system", "I lost my job"):
        assert secret not in json.dumps(request.body)


def test_openai_audio_models_get_no_schema_and_always_a_clip(make_judge, make_pairs, openai_types):
    provider = OpenAIProvider("gpt-audio-1.5", parse_settings(["hears=transcript"], "x"))
    assert provider.modes[0] == "function"
    assert provider.host == "api.openai.com"
    judge = make_judge("openai", "http://127.0.0.1:9", ["hears=transcript", "samples=1"])
    body = provider.request(judge.tasks(make_pairs(1))[0].build())
    TypeAdapter(openai_types.CompletionCreateParamsNonStreaming).validate_python(body)
    assert body["modalities"] == ["text"]
    assert "max_completion_tokens" in body
    content = body["messages"][-1]["content"]
    assert "Context (transcript): I lost my job." in [part.get("text") for part in content]
    samples, _ = soundfile.read(io.BytesIO(base64.b64decode(content[-1]["input_audio"]["data"])))
    assert not samples.any()


@pytest.mark.parametrize("vendor", VENDORS)
def test_turns_situation_and_samples(vendor, scored, make_pairs):
    (pair,) = make_pairs(1)
    turns = (Turn("user", pair.response), Turn("assistant", pair.response), *pair.context)
    pair = Pair("p", pair.response, turns, situation="After a funeral.", group_id="g")
    found = scored(vendor, answer(vendor, GOOD), pairs=[pair], settings=["samples=3"])
    assert len(found.requests) == 3
    assert found.row["meta"]["samples"] == {"vocal_empathy": [4, 4, 4]}
    body = found.requests[0].body
    for said in ("Situation: After a funeral.", "Context, user (audio):", "Context, assistant (audio):"):
        assert said in json.dumps(body)
    assert body.get("generationConfig", body)["temperature"] == 1
    blank = scored(vendor, answer(vendor, GOOD), pairs=[replace(pair, situation=" ")]).requests[0].body
    assert "Situation" not in json.dumps(blank)


# ---------------------------------------------------------------- what comes back

SCORE = '{{"reason": "", "vocal_empathy": {}}}'
THOUGHTS = [{"text": '{"vocal_empathy": 1}', "thought": True}, {"text": json.dumps(GOOD)}]
ANSWERS: dict[str, list[tuple[str, Any, str]]] = {
    "openai": [
        ("normal", openai_answer(json.dumps(GOOD)), OK),
        ("function", openai_answer(calls=GOOD), OK),
        ("prose and a fence", openai_answer(f"I hear warmth.\n```json\n{json.dumps(GOOD)}\n```\nDone."), OK),
        ("a brace before", openai_answer(f"{{sigh}} {json.dumps(GOOD)}"), OK),
        ("a number as text", openai_answer(SCORE.format('"4"')), OK),
        ("too high", openai_answer(SCORE.format(7)), "score out of range"),
        ("too low", openai_answer(SCORE.format(0)), "score out of range"),
        ("not finite", openai_answer(SCORE.format("NaN")), "unreadable answer"),
        ("true", openai_answer(SCORE.format("true")), "unreadable answer"),
        ("no score", openai_answer('{"reason": "warm"}'), "unreadable answer"),
        ("cut JSON", openai_answer('{"reason": "warm", "vocal_em'), "unreadable answer"),
        ("prose alone", openai_answer("A warm voice, I would say four."), "unreadable answer"),
        ("deep JSON", openai_answer("[" * 50_000 + "{" * 50_000), "unreadable answer"),
        ("refusal", openai_answer(refusal="I can't judge people."), "refused"),
        ("refusal in words", openai_answer("I'm sorry, but I can't rate voices."), "refused"),
        ("empty", openai_answer(""), "empty answer"),
        ("no content", openai_answer(None), "empty answer"),
        ("no choice", openai_answer("") | {"choices": []}, "empty answer"),
        ("filtered", openai_answer("", finish_reason="content_filter"), "blocked by safety filter"),
        ("cut off", openai_answer('{"reason": "a very', finish_reason="length"), "cut off"),
        ("cut off after the score", openai_answer(json.dumps(GOOD) + " and", finish_reason="length"), OK),
        ("bad request", openai_error(400, "audio is too long"), "HTTP 400"),
    ],
    "gemini": [
        ("normal", gemini_answer(json.dumps(GOOD)), OK),
        ("thoughts first", gemini_answer(candidate={"content": {"role": "model", "parts": THOUGHTS}}), OK),
        ("too high", gemini_answer(SCORE.format(5.5)), "score out of range"),
        ("prose", gemini_answer("Fine."), "unreadable answer"),
        ("blocked prompt", {"promptFeedback": {"blockReason": "SAFETY"}}, "blocked by safety filter"),
        ("blocked answer", gemini_answer(None, finish_reason="SAFETY"), "blocked by safety filter"),
        ("recitation", gemini_answer(None, finish_reason="RECITATION"), "blocked by safety filter"),
        ("all thought", gemini_answer(None, finish_reason="MAX_TOKENS"), "cut off"),
        ("no candidate", gemini_answer("") | {"candidates": []}, "empty answer"),
        ("no text", gemini_answer(None), "empty answer"),
        ("bad request", gemini_error(400, "INVALID_ARGUMENT", "unsupported audio"), "HTTP 400"),
    ],
}


@pytest.mark.parametrize(
    ("vendor", "response", "status"),
    [pytest.param(vendor, *own, id=f"{vendor}-{name}") for vendor in ANSWERS for name, *own in ANSWERS[vendor]],
)
def test_answers(vendor, response, status, scored):
    found = scored(vendor, response)
    assert found.row["status"] == status
    assert (found.row["score"] == 4) if status == OK else math.isnan(found.row["score"])
    assert found.row["meta"]["failures"] == ({} if status == OK else {status: 1})
    assert len(found.requests) == 1  # none of these is worth asking again


RETRY_INFO = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.2s"}]
FAULTS: dict[str, dict[str, Response]] = {
    "openai": {
        "rate limit with a hint": openai_error(429, "slow down", "rate_limit_exceeded", {"retry-after-ms": "200"}),
        "rate limit": openai_error(429, "slow down", "rate_limit_exceeded"),
        "server error": openai_error(500, "oops"),
        "overloaded": openai_error(503, "busy", headers={"retry-after": "0.2"}),
        "told to try again": openai_error(400, "odd", headers={"x-should-retry": "true"}),
        "malformed JSON": Response(b'{"id": "x", "choi'),
        "a page of HTML": Response(b"<html>Bad gateway</html>", 502),
    },
    "gemini": {
        "rate limit with a hint": gemini_error(429, "RESOURCE_EXHAUSTED", "slow down", RETRY_INFO),
        "rate limit": gemini_error(429, "RESOURCE_EXHAUSTED", "slow down"),
        "server error": gemini_error(500, "INTERNAL", "oops"),
        "overloaded": gemini_error(503, "UNAVAILABLE", "busy"),
        "malformed JSON": Response(b'{"candidates": ['),
    },
}
for _vendor, _faults in FAULTS.items():
    _faults["cut connection"] = Response(answer(_vendor, GOOD), cut=True)
    _faults["slow"] = Response(answer(_vendor, GOOD), delay=1.5)


@pytest.mark.parametrize(("vendor", "case"), [(vendor, case) for vendor, cases in FAULTS.items() for case in cases])
def test_passing_fault_is_tried_again(vendor, case, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    found = scored(vendor, FAULTS[vendor][case], answer(vendor, GOOD), settings=["samples=1", "timeout=1"])
    assert (found.row["status"], found.row["score"]) == (OK, 4)
    assert len(found.requests) == 2
    if "hint" in case:
        assert found.row["meta"]["seconds"] >= 0.2


@pytest.mark.parametrize("vendor", VENDORS)
def test_lasting_fault_is_a_named_failure(vendor, make_judge, make_pairs, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    with serve(in_turn([FAULTS[vendor]["server error"]])) as server:
        judge = make_judge(vendor, server.url)
        for times in (1, 2):  # not an answer: the next run asks again
            assert judge.score(make_pairs(1)).iloc[0]["status"] == "server error"
            assert len(server.requests) == times * ATTEMPTS
    nobody = make_judge(vendor, "http://127.0.0.1:9").score(make_pairs(1)).iloc[0]
    assert nobody["status"] == "connection failed"


PER_DAY = [{"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]
FINAL = {
    "openai": [
        openai_error(401, "Incorrect API key provided: sk-pl****ted."),
        openai_error(404, "The model does not exist", "model_not_found"),
        openai_error(429, "You exceeded your current quota", "insufficient_quota"),
    ],
    "gemini": [
        gemini_error(400, "INVALID_ARGUMENT", "API key not valid.", [{"reason": "API_KEY_INVALID"}]),
        gemini_error(404, "NOT_FOUND", "models/a-model is not found"),
        gemini_error(429, "RESOURCE_EXHAUSTED", "quota", PER_DAY),
    ],
}


@pytest.mark.parametrize(("vendor", "number"), [(vendor, number) for vendor in FINAL for number in range(3)])
def test_what_no_request_can_mend_ends_the_run(vendor, number, make_judge, make_pairs):
    told = pytest.raises(UserError, match=f"{vendor}:a-model: ")
    with serve(in_turn([FINAL[vendor][number]])) as server, told:
        make_judge(vendor, server.url, ["samples=1", "concurrency=2"]).score(make_pairs(20))
    assert len(server.requests) <= 2


def test_a_key_that_was_not_sent_is_named(make_judge, make_pairs, monkeypatch):
    """The vendor's own is not sent to another address."""
    monkeypatch.delenv("EMPATHY_JUDGE_API_KEY", raising=False)
    told = pytest.raises(UserError, match="no key was sent: the variable EMPATHY_JUDGE_API_KEY is not set")
    with serve(in_turn([FINAL["openai"][0]])) as server, told:
        make_judge("openai", server.url, ["samples=1"]).score(make_pairs(1))


# ---------------------------------------------------------------- probabilities, cost and versions

PROBABILITIES = ["samples=1", "answers=logprobs"]


def test_expected_score_from_log_probabilities(scored):
    chances = {"4": 0.5, "5": 0.2, " 5": 0.1, " 3": 0.1, "Four": 0.04, "9": 0.05, "4.5": 0.01}
    tops = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in chances.items()]
    logprobs = {"content": [{**tops[0], "top_logprobs": tops}], "refusal": None}
    found = scored("openai", openai_answer("4", logprobs=logprobs), settings=PROBABILITIES)
    assert found.row["score"] == pytest.approx((4 * 0.5 + 5 * 0.3 + 3 * 0.1) / 0.9)
    assert (found.requests[0].body["logprobs"], found.requests[0].body["top_logprobs"]) == (True, 20)

    first = [{"token": token, "logProbability": math.log(p)} for token, p in chances.items()]
    response = gemini_answer("4", candidate={"logprobsResult": {"topCandidates": [{"candidates": first}]}})
    found = scored("gemini", response, settings=PROBABILITIES)
    assert found.row["score"] == pytest.approx((4 * 0.5 + 5 * 0.3 + 3 * 0.1) / 0.9)


@pytest.mark.parametrize(
    ("tops", "score"),
    [
        ([], 4),  # without probabilities the number itself counts
        ([{"token": "x", "logprob": 0.0}], 4),
        ([{"token": "4", "logprob": 1e9}, {"token": "2", "logprob": 0.0}], 3),  # a probability above one is one
    ],
)
def test_probabilities_that_a_server_does_not_give_or_makes_up(tops, score, scored):
    logprobs = {"content": [{"token": "4", "logprob": 1e9, "top_logprobs": tops}]} if tops else None
    assert scored("openai", openai_answer("4", logprobs=logprobs), settings=PROBABILITIES).row["score"] == score


def test_each_dimension_is_asked_alone_for_its_probabilities(scored):
    dimensions = [Dimension("warmth", 1, 5, 1), Dimension("flatness", 1, 5, 1, higher_is_better=False)]
    numbers = {"warmth": "5", "flatness": "2"}

    def behave(request: Request) -> Response:
        (asked,) = [number for name, number in numbers.items() if name in request.body["messages"][0]["content"]]
        return Response(openai_answer(asked))

    table = scored("openai", behave, pairs=2, settings=PROBABILITIES, dimensions=dimensions).table
    assert table["dimension"].tolist() == ["warmth", "flatness"] * 2
    assert table["score"].tolist() == [5, 2] * 2


def test_a_cost_of_some_answers_is_no_cost_of_the_pair(scored):
    answers = [openai_answer(json.dumps(GOOD), **changes) for changes in ({"usage": None}, {})]
    found = scored("openai", *answers, settings=["samples=2", "concurrency=1", OPENAI_PRICE])
    assert (found.row["meta"]["requests"], found.row["meta"]["cost"]) == (2, None)


NO_KINDS = {"prompt_tokens": 350, "completion_tokens": 25}
IN_ALL = {"promptTokenCount": 420, "totalTokenCount": 640}


@pytest.mark.parametrize(
    ("vendor", "usage", "price", "dollars"),
    [
        ("openai", {}, "2.5:32:10", 250 * 2.5 + 100 * 32 + 25 * 10),
        ("gemini", {}, "2:1:12", 100 * 2 + 320 * 1 + 220 * 12),
        ("openai", {"usage": NO_KINDS}, "2.5:32:10", None),
        ("openai", {"usage": NO_KINDS}, "2:2:10", 350 * 2 + 25 * 10),
        ("gemini", {"usageMetadata": {"promptTokenCount": 420}}, "2:2:12", None),
        ("gemini", {"usageMetadata": IN_ALL}, "2:2:12", 420 * 2 + 220 * 12),
        ("gemini", {"usageMetadata": IN_ALL}, "2:1:12", None),
    ],
)
def test_tokens_are_charged_by_kind_and_unknown_kinds_with_the_most(vendor, usage, price, dollars, scored, make_pairs):
    found = scored(vendor, answer(vendor, GOOD, **usage), settings=["samples=1", f"price={price}"])
    budget = found.judge.session.budget
    most = budget.estimate(found.judge.tasks(make_pairs(1))[0].build(), likely=False)
    assert found.row["meta"]["cost"] == (None if dollars is None else pytest.approx(dollars / 1e6))
    assert budget.spent == pytest.approx(most if dollars is None else dollars / 1e6)


def test_versions_are_recorded(scored):
    changing = [answer("openai", GOOD, model=f"m-{number}") for number in (1, 2)]
    found = scored("openai", *changing, settings=["samples=3", "concurrency=1"])
    assert found.row["meta"]["versions"] == ["m-1", "m-2"]


def test_a_packed_answer_is_not_unpacked(scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    packed = Response(gzip.compress(bytes(50_000_000)), headers={"Content-Encoding": "gzip"})
    found = scored("openai", packed)
    assert found.row["status"] == "malformed response"
    assert found.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("vendor", [*VENDORS, *DECIDING])
def test_a_redirection_gets_neither_key_nor_audio(vendor, scored):
    with serve(in_turn([Response(answer("openai", GOOD))])) as other:
        away = Response(b"", 307, {"Location": f"{other.url}/v1/chat/completions"})
        row = scored(vendor, away).row
    assert (row["status"], other.requests) == ("HTTP 307", [])


def test_a_key_that_the_model_repeats_is_kept_nowhere(scored, monkeypatch):
    monkeypatch.setenv("EMPATHY_JUDGE_API_KEY", key := "a-key-of-no-vendor")
    body = answer("openai", GOOD | {"reason": f"it is {key}"}, model=f"m-{key}")
    found = scored("openai", body)
    assert found.row["score"] == 4
    assert found.row["meta"]["versions"] == ["m-[key]"]
    kept = found.judge.session.answers._base.execute("SELECT reply FROM answers").fetchall()
    assert key not in str(kept)
    assert "it is [key]" in str(kept)
