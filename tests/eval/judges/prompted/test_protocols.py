"""What goes over the wire, field by field against the vendors' own types, and all the ways in which answers are bad."""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.openai import OpenAIProvider
from empathy_judge.eval.judges.prompted.runner import ATTEMPTS
from empathy_judge.eval.judges.prompted.settings import parse_settings
from google.genai import types as gemini
from openai.types.chat import completion_create_params as openai_types
from pydantic import TypeAdapter

from .servers import (
    Request,
    Response,
    gemini_answer,
    gemini_error,
    openai_answer,
    openai_error,
    serve,
)

GOOD = {"reason": "a warm voice", "vocal_empathy": 4}
Make = Callable[..., Any]
Pairs = Callable[[int], list[Pair]]


def always(response: Response) -> Callable[[Request], Response]:
    return lambda request: response


def in_turn(responses: Sequence[Response]) -> Callable[[Request], Response]:
    """One after the other, the last one for ever."""
    left = list(responses)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


# ---------------------------------------------------------------- what is sent


def test_openai_gets_both_clips_labelled_in_text(make_judge: Make, make_pairs: Pairs) -> None:
    (pair,) = make_pairs(1)
    with serve(always(Response(openai_answer(json.dumps(GOOD))))) as server:
        make_judge("openai", server.url, ["samples=1", "answers=function"]).score([pair])
    (request,) = server.requests
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
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(audio["data"], validate=True)))
        assert isinstance(source, Clip)
        assert rate == source.rate
        np.testing.assert_allclose(samples, source.samples, atol=1 / 32_000)
    schema = request.body["tools"][0]["function"]["parameters"]
    assert schema["required"] == ["reason", "vocal_empathy"]
    assert schema["properties"]["vocal_empathy"]["type"] == "integer"
    for secret in ('"p0"', pair.group_id, "a system", "I lost my job"):
        assert secret not in json.dumps(request.body)


def test_openai_audio_models_get_no_schema_and_always_a_clip(
    monkeypatch: pytest.MonkeyPatch, make_judge: Make, make_pairs: Pairs
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    settings = parse_settings(["hears=transcript"], "x")
    provider = OpenAIProvider("gpt-audio-1.5", settings)
    assert provider.modes[0] == "function"
    assert provider.place == "api.openai.com"
    with serve(always(Response(openai_answer(json.dumps(GOOD))))) as server:
        judge = make_judge("openai", server.url, ["hears=transcript", "samples=1"])
    body = provider.request(judge.tasks(make_pairs(1))[0].build())
    TypeAdapter(openai_types.CompletionCreateParamsNonStreaming).validate_python(body)
    assert body["modalities"] == ["text"]
    assert "max_completion_tokens" in body
    content = body["messages"][-1]["content"]
    assert "Context (transcript): I lost my job." in [part.get("text") for part in content]
    samples, _ = soundfile.read(io.BytesIO(base64.b64decode(content[-1]["input_audio"]["data"])))
    assert not samples.any()


def test_gemini_gets_both_clips_and_a_schema(make_judge: Make, make_pairs: Pairs) -> None:
    (pair,) = make_pairs(1)
    with serve(always(Response(gemini_answer(json.dumps(GOOD))))) as server:
        table = make_judge("gemini", server.url).score([pair])
    assert table["score"].tolist() == [4]
    (request,) = server.requests
    assert request.path.endswith("/models/a-model:generateContent")
    (content,) = [gemini.Content.model_validate(one) for one in request.body["contents"]]
    parts = content.parts or []
    assert [bool(part.text) for part in parts] == [True, False, True, False, True]
    for place, source in ((1, pair.context[0].audio), (3, pair.response)):
        blob = parts[place].inline_data
        assert blob is not None
        assert blob.data is not None
        assert blob.mime_type == "audio/wav"
        samples, _ = soundfile.read(io.BytesIO(blob.data))
        assert isinstance(source, Clip)
        np.testing.assert_allclose(samples, source.samples, atol=1 / 32_000)
    config = request.body["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"]["required"] == ["reason", "vocal_empathy"]
    assert config["temperature"] == 0
    instruction = gemini.Content.model_validate(request.body["systemInstruction"])
    assert instruction.parts
    assert "careful rater" in (instruction.parts[0].text or "")


@pytest.mark.parametrize("vendor", ["openai", "gemini"])
def test_turns_situation_and_samples(vendor: str, make_judge: Make, make_pairs: Pairs) -> None:
    (pair,) = make_pairs(1)
    turns = (Turn("user", pair.response), Turn("assistant", pair.response), *pair.context)
    pair = Pair("p", pair.response, turns, situation="After a funeral.", group_id="g")
    answer = openai_answer(json.dumps(GOOD)) if vendor == "openai" else gemini_answer(json.dumps(GOOD))
    with serve(always(Response(answer))) as server:
        judge = make_judge(vendor, server.url, ["samples=3"])
        table = judge.score([pair])
    assert len(server.requests) == 3
    assert table["meta"].iloc[0]["samples"] == {"vocal_empathy": [4, 4, 4]}
    text = json.dumps(server.requests[0].body)
    for said in ("Situation: After a funeral.", "Context, user (audio):", "Context, assistant (audio):"):
        assert said in text
    heat = server.requests[0].body
    assert (heat["temperature"] if vendor == "openai" else heat["generationConfig"]["temperature"]) == 1


# ---------------------------------------------------------------- what comes back


OPENAI_ANSWERS = {
    "normal": (Response(openai_answer(json.dumps(GOOD))), OK),
    "function": (Response(openai_answer(calls=GOOD)), OK),
    "prose and a fence": (Response(openai_answer(f"I hear warmth.\n```json\n{json.dumps(GOOD)}\n```\nDone.")), OK),
    "a brace before": (Response(openai_answer(f"{{sigh}} {json.dumps(GOOD)}")), OK),
    "a number as text": (Response(openai_answer('{"reason": "", "vocal_empathy": "4"}')), OK),
    "too high": (Response(openai_answer('{"reason": "", "vocal_empathy": 7}')), "score out of range"),
    "too low": (Response(openai_answer('{"reason": "", "vocal_empathy": 0}')), "score out of range"),
    "not finite": (Response(openai_answer('{"reason": "", "vocal_empathy": NaN}')), "unreadable answer"),
    "true": (Response(openai_answer('{"reason": "", "vocal_empathy": true}')), "unreadable answer"),
    "no score": (Response(openai_answer('{"reason": "warm"}')), "unreadable answer"),
    "cut JSON": (Response(openai_answer('{"reason": "warm", "vocal_em')), "unreadable answer"),
    "prose alone": (Response(openai_answer("A warm voice, I would say four.")), "unreadable answer"),
    "deep JSON": (Response(openai_answer("[" * 50_000 + "{" * 50_000)), "unreadable answer"),
    "refusal": (Response(openai_answer(refusal="I can't judge people.")), "refused"),
    "refusal in words": (Response(openai_answer("I'm sorry, but I can't rate voices.")), "refused"),
    "empty": (Response(openai_answer("")), "empty answer"),
    "no content": (Response(openai_answer(None)), "empty answer"),
    "no choice": (Response(openai_answer("") | {"choices": []}), "empty answer"),
    "filtered": (Response(openai_answer("", finish_reason="content_filter")), "blocked by safety filter"),
    "cut off": (Response(openai_answer('{"reason": "a very', finish_reason="length")), "cut off"),
    "cut off after the score": (Response(openai_answer(json.dumps(GOOD) + " and", finish_reason="length")), OK),
    "bad request": (openai_error(400, "audio is too long"), "HTTP 400"),
}


@pytest.mark.parametrize("case", OPENAI_ANSWERS)
def test_openai_answers(case: str, make_judge: Make, make_pairs: Pairs) -> None:
    response, status = OPENAI_ANSWERS[case]
    with serve(always(response)) as server:
        row = make_judge("openai", server.url).score(make_pairs(1)).iloc[0]
    assert row["status"] == status
    assert (row["score"] == 4) if status == OK else math.isnan(row["score"])
    assert row["meta"]["failures"] == ({} if status == OK else {status: 1})
    assert len(server.requests) == 1  # none of these is worth asking again


GEMINI_ANSWERS = {
    "normal": (Response(gemini_answer(json.dumps(GOOD))), OK),
    "thoughts first": (
        Response(
            gemini_answer(
                candidate={
                    "content": {
                        "role": "model",
                        "parts": [{"text": '{"vocal_empathy": 1}', "thought": True}, {"text": json.dumps(GOOD)}],
                    }
                }
            )
        ),
        OK,
    ),
    "too high": (Response(gemini_answer('{"reason": "", "vocal_empathy": 5.5}')), "score out of range"),
    "prose": (Response(gemini_answer("Fine.")), "unreadable answer"),
    "blocked prompt": (
        Response({"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "m"}),
        "blocked by safety filter",
    ),
    "blocked answer": (Response(gemini_answer(None, finish_reason="SAFETY")), "blocked by safety filter"),
    "recitation": (Response(gemini_answer(None, finish_reason="RECITATION")), "blocked by safety filter"),
    "all thought": (Response(gemini_answer(None, finish_reason="MAX_TOKENS")), "cut off"),
    "no candidate": (Response(gemini_answer("") | {"candidates": []}), "empty answer"),
    "no text": (Response(gemini_answer(None)), "empty answer"),
    "bad request": (gemini_error(400, "INVALID_ARGUMENT", "unsupported audio"), "HTTP 400"),
}


@pytest.mark.parametrize("case", GEMINI_ANSWERS)
def test_gemini_answers(case: str, make_judge: Make, make_pairs: Pairs) -> None:
    response, status = GEMINI_ANSWERS[case]
    with serve(always(response)) as server:
        row = make_judge("gemini", server.url).score(make_pairs(1)).iloc[0]
    assert row["status"] == status
    assert (row["score"] == 4) if status == OK else math.isnan(row["score"])
    assert len(server.requests) == 1


RETRY_INFO = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.2s"}]
FAULTS = {
    "openai": {
        "rate limit with a hint": openai_error(429, "slow down", "rate_limit_exceeded", {"retry-after-ms": "200"}),
        "rate limit": openai_error(429, "slow down", "rate_limit_exceeded"),
        "server error": openai_error(500, "oops"),
        "overloaded": openai_error(503, "busy", headers={"retry-after": "0.2"}),
        "told to try again": openai_error(400, "odd", headers={"x-should-retry": "true"}),
        "cut connection": Response(openai_answer(json.dumps(GOOD)), cut=True),
        "slow": Response(openai_answer(json.dumps(GOOD)), delay=1.5),
        "malformed JSON": Response(b'{"id": "x", "choi'),
        "a page of HTML": Response(b"<html>Bad gateway</html>", 502),
    },
    "gemini": {
        "rate limit with a hint": gemini_error(429, "RESOURCE_EXHAUSTED", "slow down", RETRY_INFO),
        "rate limit": gemini_error(429, "RESOURCE_EXHAUSTED", "slow down"),
        "server error": gemini_error(500, "INTERNAL", "oops"),
        "overloaded": gemini_error(503, "UNAVAILABLE", "busy"),
        "cut connection": Response(gemini_answer(json.dumps(GOOD)), cut=True),
        "slow": Response(gemini_answer(json.dumps(GOOD)), delay=1.5),
        "malformed JSON": Response(b'{"candidates": ['),
        "a page of HTML": Response(b"<html>Bad gateway</html>", 502),
    },
}


@pytest.mark.parametrize(("vendor", "case"), [(vendor, case) for vendor, cases in FAULTS.items() for case in cases])
def test_passing_fault_is_tried_again(vendor: str, case: str, make_judge: Make, make_pairs: Pairs) -> None:
    good = Response(openai_answer(json.dumps(GOOD)) if vendor == "openai" else gemini_answer(json.dumps(GOOD)))
    with serve(in_turn([FAULTS[vendor][case], good])) as server:
        row = make_judge(vendor, server.url, ["samples=1", "timeout=1"]).score(make_pairs(1)).iloc[0]
    assert (row["status"], row["score"]) == (OK, 4)
    assert len(server.requests) == 2
    if "hint" in case:
        assert row["meta"]["seconds"] >= 0.2


@pytest.mark.parametrize("vendor", ["openai", "gemini"])
def test_lasting_fault_is_a_named_failure(
    vendor: str, make_judge: Make, make_pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("empathy_judge.eval.judges.prompted.runner._FIRST_DELAY", 0.01)
    with serve(always(FAULTS[vendor]["server error"])) as server:
        judge = make_judge(vendor, server.url)
        row = judge.score(make_pairs(1)).iloc[0]
        assert row["status"] == "server error"
        assert len(server.requests) == ATTEMPTS
        judge.score(make_pairs(1))  # not an answer: the next run asks again
        assert len(server.requests) == 2 * ATTEMPTS


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
def test_what_no_request_can_mend_ends_the_run(vendor: str, number: int, make_judge: Make, make_pairs: Pairs) -> None:
    with serve(always(FINAL[vendor][number])) as server:
        judge = make_judge(vendor, server.url, ["samples=1", "concurrency=2"])
        with pytest.raises(UserError, match=f"{vendor}:a-model: "):
            judge.score(make_pairs(20))
    assert len(server.requests) <= 2


def test_requests_that_are_all_bad_end_the_run(make_judge: Make, make_pairs: Pairs) -> None:
    told = pytest.raises(UserError, match=r"first 5 requests failed.*response_format is not supported")
    with serve(always(openai_error(400, "response_format is not supported"))) as server, told:
        make_judge("openai", server.url, ["samples=1", "concurrency=1"]).score(make_pairs(50))
    assert len(server.requests) == 5


def test_nobody_there(make_judge: Make, make_pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("empathy_judge.eval.judges.prompted.runner._FIRST_DELAY", 0.01)
    for vendor in ("openai", "gemini"):
        row = make_judge(vendor, "http://127.0.0.1:9").score(make_pairs(1)).iloc[0]
        assert row["status"] == "connection failed"


# ---------------------------------------------------------------- probabilities


def test_expected_score_from_log_probabilities(make_judge: Make, make_pairs: Pairs) -> None:
    chances = {"4": 0.5, "5": 0.3, " 3": 0.1, "Four": 0.05, "9": 0.05}
    tops = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in chances.items()]
    logprobs = {"content": [{**tops[0], "top_logprobs": tops}], "refusal": None}
    with serve(always(Response(openai_answer("4", logprobs=logprobs)))) as server:
        table = make_judge("openai", server.url, ["samples=1", "answers=logprobs"]).score(make_pairs(1))
    assert table["score"].iloc[0] == pytest.approx((4 * 0.5 + 5 * 0.3 + 3 * 0.1) / 0.9)
    assert server.requests[0].body["logprobs"] is True
    assert server.requests[0].body["top_logprobs"] == 20

    first = [{"token": token, "logProbability": math.log(p)} for token, p in chances.items()]
    answer = gemini_answer("4", candidate={"logprobsResult": {"topCandidates": [{"candidates": first}]}})
    with serve(always(Response(answer))) as server:
        table = make_judge("gemini", server.url, ["samples=1", "answers=logprobs"]).score(make_pairs(1))
    assert table["score"].iloc[0] == pytest.approx((4 * 0.5 + 5 * 0.3 + 3 * 0.1) / 0.9)


def test_without_log_probabilities_the_number_itself_counts(make_judge: Make, make_pairs: Pairs) -> None:
    with serve(always(Response(openai_answer("4")))) as server:
        table = make_judge("openai", server.url, ["samples=1", "answers=logprobs"]).score(make_pairs(1))
    assert table["score"].tolist() == [4]


def test_each_dimension_is_asked_alone_for_its_probabilities(make_judge: Make, make_pairs: Pairs) -> None:
    dimensions = [Dimension("warmth", 1, 5, 1), Dimension("flatness", 1, 5, 1, higher_is_better=False)]
    numbers = {"warmth": "5", "flatness": "2"}

    def behave(request: Request) -> Response:
        system = request.body["messages"][0]["content"]
        assert sum(name in system for name in numbers) == 1
        return Response(openai_answer(next(number for name, number in numbers.items() if name in system)))

    with serve(behave) as server:
        judge = make_judge("openai", server.url, ["samples=1", "answers=logprobs"], None, dimensions)
        table = judge.score(make_pairs(2))
    assert table[["pair_id", "dimension", "score"]].to_numpy().tolist() == [
        ["p0", "warmth", 5],
        ["p0", "flatness", 2],
        ["p1", "warmth", 5],
        ["p1", "flatness", 2],
    ]


# ---------------------------------------------------------------- cost and versions


def test_tokens_are_charged_by_kind(make_judge: Make, make_pairs: Pairs) -> None:
    with serve(always(Response(openai_answer(json.dumps(GOOD))))) as server:
        meta = make_judge("openai", server.url, ["samples=1", "price=2.5:32:10"]).score(make_pairs(1))["meta"].iloc[0]
    assert meta["cost"] == pytest.approx((250 * 2.5 + 100 * 32 + 25 * 10) / 1e6)
    with serve(always(Response(gemini_answer(json.dumps(GOOD))))) as server:
        meta = make_judge("gemini", server.url, ["samples=1", "price=2:1:12"]).score(make_pairs(1))["meta"].iloc[0]
    assert meta["cost"] == pytest.approx((100 * 2 + 320 * 1 + 220 * 12) / 1e6)


def test_versions_are_recorded(make_judge: Make, make_pairs: Pairs) -> None:
    changing = in_turn([Response(openai_answer(json.dumps(GOOD), model=f"m-{number}")) for number in (1, 2)])
    with serve(changing) as server:
        meta = make_judge("openai", server.url, ["samples=3", "concurrency=1"]).score(make_pairs(1))["meta"].iloc[0]
    assert meta["versions"] == ["m-1", "m-2"]


# ---------------------------------------------------------------- answers of a hostile server


def changed(answer: dict[str, Any], path: str, value: Any) -> Response:
    """An answer in which one field, named by its path, has another value."""
    body = json.loads(json.dumps(answer))
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    inner = body
    for step in way:
        inner = inner[step]
    inner[last] = value
    return Response(body)


FIELDS = {
    "openai": (
        "id", "choices", "choices.0", "choices.0.message", "choices.0.message.content", "choices.0.message.tool_calls",
        "choices.0.message.refusal", "choices.0.finish_reason", "choices.0.logprobs", "model", "usage",
        "usage.prompt_tokens", "usage.completion_tokens", "usage.prompt_tokens_details",
        "usage.prompt_tokens_details.audio_tokens",
    ),
    "gemini": (
        "candidates", "candidates.0", "candidates.0.content", "candidates.0.content.parts",
        "candidates.0.content.parts.0", "candidates.0.content.parts.0.text", "candidates.0.finishReason",
        "candidates.0.logprobsResult", "promptFeedback", "modelVersion", "usageMetadata",
        "usageMetadata.promptTokenCount", "usageMetadata.candidatesTokenCount", "usageMetadata.promptTokensDetails",
        "usageMetadata.promptTokensDetails.1", "usageMetadata.promptTokensDetails.1.tokenCount",
    ),
}  # fmt: skip
VALUES = (None, True, -1, 10**400, 1e308, "text", "\ud800\x00", [], [1, [2]], {}, {"a": {"b": []}})
NAMED = {
    OK, "malformed response", "unreadable answer", "empty answer", "refused", "blocked by safety filter", "cut off",
    "score out of range",
}  # fmt: skip


@pytest.mark.parametrize("vendor", ["openai", "gemini"])
def test_any_field_of_an_answer_may_be_of_any_type(
    vendor: str, make_judge: Make, make_pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair has a score or a named failure, and the budget is not passed, whatever tokens an answer claims."""
    monkeypatch.setattr("empathy_judge.eval.judges.prompted.runner.ATTEMPTS", 1)
    answer = openai_answer(json.dumps(GOOD)) if vendor == "openai" else gemini_answer(json.dumps(GOOD))
    responses = [changed(answer, path, value) for path in FIELDS[vendor] for value in VALUES]
    pairs = make_pairs(len(responses))
    with serve(in_turn(responses)) as server:
        judge = make_judge(vendor, server.url, ["samples=1", "price=0.1:0.1:0.1"], 1e9)
        table = judge.score(pairs)
    assert len(server.requests) == len(responses)
    assert set(table["status"]) <= NAMED
    assert (table["status"] == OK).sum() > len(responses) / 4
    assert table["score"].dropna().between(1, 5).all()
    costs = [meta["cost"] for meta in table["meta"] if meta["cost"] is not None]
    assert min(costs) >= 0


HOSTILE = {
    "null": b"null",
    "a number": b"7",
    "a list": b"[]",
    "an empty object": b"{}",
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "deep lists": b"[" * 1_000_000,
    "deep objects": b'{"choices":' * 200_000 + b"1" + b"}" * 200_000,
    "deep in a field": b'{"choices": [], "usage": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "huge": b'{"choices": [{"message": {"content": "' + b"x" * 30_000_000 + b'"}}]}',
    "a long number": b'{"choices": [{"index": ' + b"9" * 1_000_000 + b"}]}",
}


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("vendor", ["openai", "gemini"])
def test_any_body_ends_in_a_named_failure(
    vendor: str, status: int, make_judge: Make, make_pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("empathy_judge.eval.judges.prompted.runner.ATTEMPTS", 1)
    monkeypatch.setattr("empathy_judge.eval.judges.prompted.runner._HOPELESS", 99)
    with serve(in_turn([Response(body, status) for body in HOSTILE.values()])) as server:
        table = make_judge(vendor, server.url, ["samples=1", "concurrency=1"]).score(make_pairs(len(HOSTILE)))
    told = {200: "malformed response", 400: "HTTP 400", 500: "server error"}[status]
    found = dict(zip(HOSTILE, table["status"], strict=True))
    expected = dict.fromkeys(HOSTILE, told) | {"huge": "malformed response"}
    if status == 200 and vendor == "gemini":  # answers without a candidate
        expected |= {"an empty object": "empty answer", "a long number": found["a long number"]}
    assert found == expected


def test_what_is_long_in_an_error_stays_out_of_ours(make_judge: Make, make_pairs: Pairs) -> None:
    for vendor, error in (
        ("openai", openai_error(404, "no\nsuch \x1b[31mmodel " * 10_000)),
        ("gemini", gemini_error(404, "NOT_FOUND", "no such model " * 10_000, [{"x": []}])),
        ("openai", Response(b"<html>" * 100_000, 404)),
        ("openai", Response({"error": {"message": {"deep": []}, "code": ["insufficient_quota"]}}, 401)),
    ):
        with serve(always(error)) as server, pytest.raises(UserError, match="a-model: HTTP 40") as told:
            make_judge(vendor, server.url).score(make_pairs(1))
        assert len(str(told.value)) < 600
        assert "\n" not in str(told.value)


def test_a_packed_answer_is_not_unpacked(make_judge: Make, make_pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("empathy_judge.eval.judges.prompted.runner.ATTEMPTS", 1)
    packed = Response(gzip.compress(bytes(50_000_000)), headers={"Content-Encoding": "gzip"})
    with serve(always(packed)) as server:
        row = make_judge("openai", server.url).score(make_pairs(1)).iloc[0]
    assert row["status"] == "malformed response"
    assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("vendor", ["openai", "gemini"])
def test_a_redirection_gets_neither_key_nor_audio(
    vendor: str, make_judge: Make, make_pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(always(Response(openai_answer(json.dumps(GOOD))))) as other:
        away = Response(b"", 307, {"Location": f"{other.url}/v1/chat/completions"})
        with serve(always(away)) as server:
            row = make_judge(vendor, server.url).score(make_pairs(1)).iloc[0]
    assert (row["status"], other.requests) == ("HTTP 307", [])


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (Response(openai_answer(json.dumps(GOOD)), drip=0.1), "timeout"),  # each byte in time, the whole never
        (Response(openai_answer(json.dumps(GOOD)), cut=True), "connection failed"),
        (Response(b'{"id": "x", "choi'), "malformed response"),
    ],
)
def test_answers_that_do_not_arrive_count_for_the_budget(
    response: Response, kind: str, make_judge: Make, make_pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor may want money for them: what a request may cost at most is counted each time."""
    monkeypatch.setattr("empathy_judge.eval.judges.prompted.runner._FIRST_DELAY", 0.01)
    settings = ["samples=1", "timeout=0.5", "price=2.5:32:10", "concurrency=4"]
    with serve(always(response)) as server:
        judge = make_judge("openai", server.url, settings, 0.05)
        most = judge.session.budget.estimate(judge.tasks(make_pairs(1))[0].build(), likely=False)
        table = judge.score(make_pairs(30))
    assert set(table["status"]) == {kind, "not asked: the budget is used up"}
    assert len(server.requests) == int(0.05 / most)
    assert 0.05 - most < judge.session.budget.spent <= 0.05


def test_answers_that_hide_their_tokens_count_for_the_budget(make_judge: Make, make_pairs: Pairs) -> None:
    with serve(always(Response(openai_answer(json.dumps(GOOD), usage=None)))) as server:
        judge = make_judge("openai", server.url, ["samples=1", "price=2.5:32:10"], 0.05)
        table = judge.score(make_pairs(30))
    assert {meta["cost"] for meta in table["meta"]} == {None}
    assert 0 < len(server.requests) == (table["status"] == OK).sum() < 30
    assert judge.session.budget.spent <= 0.05


def test_a_probability_above_one_is_one(make_judge: Make, make_pairs: Pairs) -> None:
    tops = [{"token": "4", "logprob": 1e9}, {"token": "2", "logprob": 0.0}]
    logprobs = {"content": [{"token": "4", "logprob": 1e9, "top_logprobs": tops}]}
    with serve(always(Response(openai_answer("4", logprobs=logprobs)))) as server:
        table = make_judge("openai", server.url, ["samples=1", "answers=logprobs"]).score(make_pairs(1))
    assert table["score"].tolist() == [3]
