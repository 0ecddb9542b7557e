"""Any answer ends in a score or a named failure; an error of status 200 is handled as the code in it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.questions import NO_DISTRIBUTION, WRONG_LEVELS
from empathy_judge.eval.judges.prompted.replies import error_in, page_in_words, status_in

from .conftest import OPENAI_PRICE, RUNNER
from .servers import DECIDING, GOOD, Response, answer, gemini_answer, gemini_error, openai_answer, openai_error

KEY = "sk-planted-QzXwVkJqZz"
LOGIN = b"<!doctype html><html><head><title>Sign in\n to the network</title></head><body>x</body></html>"


def in_choice(code: int, content: str | None = None) -> dict[str, Any]:
    """As OpenRouter tells of an error of the server behind it."""
    body = openai_answer(content, usage=None, finish_reason="error")
    body["choices"][0]["error"] = {"code": code, "message": "provider says no"}
    return body


# vendor, body, what ends the run
FINAL = [
    ("openai", {"error": {"message": f"bad key {KEY}", "code": 401}}, r"HTTP 401: bad key \[key\]"),
    ("openai", {"error": {"message": "bad key", "code": "invalid_api_key"}}, "HTTP 401: bad key"),
    ("openai", {"error": {"message": "bad key", "type": "authentication_error"}, "choices": []}, "HTTP 401: bad key"),
    ("openai", {"error": {"message": "out of credit", "code": 402}}, "HTTP 402: out of credit"),
    ("openai", {"error": {"message": "no quota", "code": "insufficient_quota"}}, "HTTP 429: no quota"),
    ("openai", in_choice(401), "HTTP 401: provider says no"),
    ("openai", [{"error": {"message": "bad key", "code": 403}}], "HTTP 403: bad key"),
    ("gemini", {"error": {"code": 403, "message": "denied", "status": "PERMISSION_DENIED"}}, "HTTP 403: denied"),
    ("gemini", [{"error": {"message": "denied", "status": "UNAUTHENTICATED"}}], "HTTP 401: denied"),
]


@pytest.mark.parametrize(("vendor", "body", "told"), FINAL)
def test_what_no_request_can_mend_ends_the_run_and_costs_nothing(vendor, body, told, scored, capsys, monkeypatch):
    monkeypatch.setenv("EMPATHY_JUDGE_API_KEY", KEY)  # without one a refusal says that none was sent
    with pytest.raises(UserError, match=f"^{vendor}:a-model: {told}$") as error:
        scored(vendor, body, pairs=20, settings=["samples=1", "concurrency=1", OPENAI_PRICE], budget=1)
    assert KEY not in str(error.value)
    assert "billed" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("vendor", "body", "kind", "words"),
    [
        ("openai", {"error": {"message": "bad key"}}, "error in place of an answer", "bad key"),
        ("openai", {"error": {"message": "bad key"}, "choices": []}, "error in place of an answer", "bad key"),
        ("openai", {"error": "bad key"}, "error in place of an answer", "bad key"),
        ("openai", {"detail": "Not authenticated"}, "error in place of an answer", "Not authenticated"),
        (
            "openai",
            {"detail": [7, {"loc": ["body"], "msg": "No state"}]},
            "error in place of an answer",
            "body: No state",
        ),
        ("openai", {"errors": [{"code": 7003, "message": "No route"}]}, "error in place of an answer", "No route"),
        ("openai", {"error": {"message": "odd audio", "code": 400}}, "HTTP 400", "odd audio"),
        ("openai", {"object": "error", "message": "odd audio", "code": 400}, "HTTP 400", "odd audio"),
        ("openai", in_choice(400), "HTTP 400", "provider says no"),
        ("gemini", {"error": {"message": "odd audio", "status": "INVALID_ARGUMENT"}}, "HTTP 400", "odd audio"),
    ],
)
def test_what_is_wrong_with_a_request_is_not_asked_again(vendor, body, kind, words, scored, capsys):
    settings = ["samples=1", "concurrency=1", OPENAI_PRICE]
    one = scored(vendor, body, settings=settings, budget=1)
    assert (one.row["status"], len(one.requests)) == (kind, 1)
    assert one.judge.session.budget.spent == 0
    with pytest.raises(UserError, match=f"the first 5 requests failed, the last with {kind}: {words}$"):
        scored(vendor, body, pairs=20, settings=settings, budget=1)
    assert "billed" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("vendor", "body"),
    [
        ("openai", {"error": {"message": "slow down", "code": 429}}),
        ("openai", {"error": {"message": "slow down", "code": "429"}}),
        ("openai", {"error": {"message": "slow down", "type": "rate_limit_error"}}),
        ("openai", {"error": {"message": "oops", "code": 502}}),
        ("openai", in_choice(503)),
        ("gemini", {"error": {"message": "busy", "status": "UNAVAILABLE"}}),
        ("gemini", [{"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}]),
        ("openai", LOGIN),
    ],
)
def test_what_passes_is_asked_again_and_costs_nothing(vendor, body, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    settings = ["samples=1", OPENAI_PRICE]
    found = scored(vendor, Response(body), answer(vendor, GOOD), settings=settings, budget=1)
    assert (found.row["status"], len(found.requests)) == (OK, 2)
    assert found.judge.session.budget.lost == 0


@pytest.mark.parametrize("status", [201, 500])
def test_an_answer_under_another_status_is_no_score_and_may_be_billed(status, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    body = answer("openai", GOOD)  # with its tokens
    found = scored("openai", Response(body, status), settings=["samples=1", OPENAI_PRICE], budget=1)
    assert found.row["status"] == ("server error" if status == 500 else "HTTP 201")
    assert found.judge.session.budget.lost == found.judge.session.budget.spent > 0


def test_a_page_that_stays_ends_the_run_in_its_words(scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    told = r"no answer to 10 questions in a row, the last with malformed response: a web page in place of an answer: "
    with pytest.raises(UserError, match=f"{told}Sign in to the network; answers are kept"):
        scored("openai", Response(LOGIN), pairs=30, settings=["samples=1", "concurrency=1", OPENAI_PRICE], budget=1)


@pytest.mark.parametrize(
    "body", [in_choice(502, json.dumps(GOOD)), {"error": {"message": "oops", "code": 500}, **openai_answer("")}]
)
def test_an_error_beside_what_a_model_wrote_is_no_score_and_may_be_billed(body, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    found = scored("openai", body, settings=["samples=1", OPENAI_PRICE], budget=1)
    assert found.row["status"] == "server error"
    assert found.judge.session.budget.lost == found.judge.session.budget.spent > 0


@pytest.mark.parametrize(
    "body",
    [
        openai_answer(json.dumps(GOOD), error=None),
        openai_answer(json.dumps(GOOD), error={}),
        openai_answer(json.dumps(GOOD), error=""),
        openai_answer(json.dumps(GOOD), error={"code": 0, "message": ""}),
        openai_answer(json.dumps(GOOD), message="ok"),
    ],
)
def test_a_field_without_an_error_is_none(body, scored):
    assert scored("openai", body).row["score"] == 4


def test_what_is_malformed_is_quoted(scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    monkeypatch.setattr(f"{RUNNER}._HOPELESS", 1)
    with pytest.raises(UserError, match=r'choices: absent: \{"success": false, "msg": "bad key"\}'):
        scored("openai", {"success": False, "msg": "bad key"})


@pytest.mark.parametrize("body", [None, 7, "error", [], [[]], {}, {"error": []}, {"error": 7}, gemini_answer("4")])
def test_bodies_without_an_error(body):
    assert error_in(body) is None


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"code": 200}, None),
        ({"code": True}, None),
        ({"code": 10**400}, None),
        ({"code": ["x"], "status": "unavailable"}, 503),
        ({"code": None, "type": "invalid_request_error"}, 400),
        ({"code": "529"}, 529),
        ({"code": "４２９"}, None),
        ({"message": "401"}, None),
    ],
)
def test_statuses(fields, status):
    assert status_in(fields) == status


def test_pages_in_words():
    assert page_in_words("<html><body><h1>Bad\n gateway</h1> nginx</body") == "Bad gateway nginx"


VENDORS = ("openai", "gemini", *DECIDING)


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """An answer in which one field, named by its path, has another value."""
    body = json.loads(json.dumps(body))
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    inner: Any = body
    for step in way:
        inner = inner[step]
    inner[last] = value
    return body


LEVELS = (
    "answers", "answers.vocal_empathy", "answers.vocal_empathy.probabilities", "answers.vocal_empathy.probabilities.4",
    "answers.vocal_empathy.score", "answers.vocal_empathy.confidence", "answers.vocal_empathy.legend",
    "answers.vocal_empathy.type",
)  # fmt: skip
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
    "gemini-decision": (
        *LEVELS, "prompt_feedback", "usage", "usage.total_input_tokens", "usage.input_tokens_by_modality",
        "usage.input_tokens_by_modality.0", "usage.input_tokens_by_modality.0.tokens", "id", "model", "x",
    ),
    "systemone": (*LEVELS, "id", "model", "usage", "usage.input_tokens", "usage.output_tokens", "diagnostics"),
    "hume": (*LEVELS, "run_id", "received", "received.input_tokens", "model"),
}  # fmt: skip


VALUES = (None, True, -1, 10**400, 1e308, "text", "\ud800\x00", [], [1, [2]], {}, {"a": {"b": []}})


NAMED = {
    OK, "malformed response", "unreadable answer", "empty answer", "refused", "blocked by safety filter", "cut off",
    "score out of range", WRONG_LEVELS, NO_DISTRIBUTION,
}  # fmt: skip


@pytest.mark.parametrize("vendor", VENDORS)
def test_any_field_of_an_answer_may_be_of_any_type(vendor, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    monkeypatch.setattr(f"{RUNNER}._HOPELESS", 999)
    bodies = [changed(answer(vendor, GOOD), path, value) for path in FIELDS[vendor] for value in VALUES]
    found = scored(vendor, *bodies, pairs=len(bodies), settings=["samples=1", "price=0.1:0.1:0.1"], budget=1e9)
    assert len(found.requests) == len(bodies)
    assert set(found.table["status"]) <= NAMED
    assert (found.table["status"] == OK).sum() > len(bodies) / 4
    assert found.table["score"].dropna().between(1, 5).all()
    assert min(meta["cost"] for meta in found.table["meta"] if meta["cost"] is not None) >= 0


HOSTILE = {
    "null": b"null", "a number": b"7", "a list": b"[]", "an empty object": b"{}", "nothing": b"",
    "no text": b"\xff\xfe\x00", "deep lists": b"[" * 1_000_000,
    "deep objects": b'{"choices":' * 200_000 + b"1" + b"}" * 200_000,
    "deep in a field": b'{"choices": [], "usage": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "huge": b'{"choices": [{"message": {"content": "' + b"x" * 30_000_000 + b'"}}]}',
    "a long number": b'{"choices": [{"index": ' + b"9" * 1_000_000 + b"}]}",
}  # fmt: skip


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("vendor", VENDORS)
def test_any_body_ends_in_a_named_failure(vendor, status, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    monkeypatch.setattr(f"{RUNNER}._HOPELESS", 99)
    monkeypatch.setattr(f"{RUNNER}._SILENT_ROUNDS", 99)
    responses = [Response(body, status) for body in HOSTILE.values()]
    table = scored(vendor, *responses, pairs=len(HOSTILE), settings=["samples=1", "concurrency=1"]).table
    told = {200: "malformed response", 400: "HTTP 400", 500: "server error"}[status]
    found = dict(zip(HOSTILE, table["status"], strict=True))
    expected = dict.fromkeys(HOSTILE, told) | {"huge": "malformed response"}
    if status == 200 and vendor != "openai":  # answers without a candidate, or without answers
        empty = "blocked by safety filter" if vendor == "gemini-decision" else "empty answer"
        expected |= {"an empty object": empty, "a long number": found["a long number"]}
        if vendor in DECIDING:
            expected["deep in a field"] = found["deep in a field"]
    assert found == expected


@pytest.mark.parametrize(
    ("vendor", "error"),
    [
        ("openai", openai_error(404, "no\nsuch \x1b[31mmodel " * 10_000)),
        ("gemini", gemini_error(404, "NOT_FOUND", "no such model " * 10_000, [{"x": []}])),
        ("openai", Response(b"<html>" * 100_000, 404)),
        ("openai", Response({"error": {"message": {"deep": []}, "code": ["insufficient_quota"]}}, 401)),
    ],
)
def test_what_is_long_in_an_error_stays_out_of_ours(vendor, error, scored):
    with pytest.raises(UserError, match="a-model: HTTP 40") as told:
        scored(vendor, error)
    assert len(str(told.value)) < 600
    assert "\n" not in str(told.value)
