"""Servers that are not to be trusted: every pair has a score or a named failure, and the budget is not passed."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from empathy_judge.data_modules.errors import UserError
from empathy_judge.eval.judges import OK

from .conftest import GOOD, OPENAI_PRICE, RUNNER
from .servers import Response, answer, gemini_error, in_turn, openai_error, serve

VENDORS = ("openai", "gemini")


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """An answer in which one field, named by its path, has another value."""
    body = json.loads(json.dumps(body))
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    inner: Any = body
    for step in way:
        inner = inner[step]
    inner[last] = value
    return body


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
    if status == 200 and vendor == "gemini":  # answers without a candidate
        expected |= {"an empty object": "empty answer", "a long number": found["a long number"]}
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


def test_a_packed_answer_is_not_unpacked(scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    packed = Response(gzip.compress(bytes(50_000_000)), headers={"Content-Encoding": "gzip"})
    found = scored("openai", packed)
    assert found.row["status"] == "malformed response"
    assert found.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_redirection_gets_neither_key_nor_audio(vendor, scored):
    with serve(in_turn([Response(answer("openai", GOOD))])) as other:
        away = Response(b"", 307, {"Location": f"{other.url}/v1/chat/completions"})
        row = scored(vendor, away).row
    assert (row["status"], other.requests) == ("HTTP 307", [])


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (Response(answer("openai", GOOD), drip=0.1), "timeout"),  # each byte in time, the whole never
        (Response(answer("openai", GOOD), cut=True), "connection failed"),
        (Response(b'{"id": "x", "choi'), "malformed response"),
    ],
)
def test_answers_that_do_not_arrive_count_for_the_budget(response, kind, scored, make_pairs, monkeypatch):
    """The vendor may want money for them: what a request may cost at most is counted each time."""
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    settings = ["samples=1", "timeout=0.5", OPENAI_PRICE, "concurrency=4"]
    table, requests, judge = scored("openai", response, pairs=30, settings=settings, budget=0.05)
    most = judge.session.budget.estimate(judge.tasks(make_pairs(1))[0].build(), likely=False)
    assert set(table["status"]) == {kind, "not asked: the budget is used up"}
    assert len(requests) == int(0.05 / most)
    assert 0.05 - most < judge.session.budget.spent <= 0.05


@pytest.mark.parametrize(
    ("budget", "concurrency", "pairs", "fewest", "most"),
    [(1e3, 8, 30, 6, 7), (None, 4, 30, 24, 28), (None, 1, 30, 10, 10), (1e3, 8, 3, 6, 9)],
)
def test_a_server_that_never_answers_ends_the_run_after_the_time_of_one_question(
    budget, concurrency, pairs, fewest, most, make_judge, make_pairs, monkeypatch
):
    """With a budget requests run one by one until the first answer: not each shall be repeated until it is given up."""
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    settings = ["samples=1", "timeout=0.3", OPENAI_PRICE, f"concurrency={concurrency}"]
    with serve(lambda request: Response(answer("openai", GOOD), delay=0.6)) as server:
        judge = make_judge("openai", server.url, settings, budget)
        if pairs < 5:
            assert set(judge.score(make_pairs(pairs))["status"]) == {"timeout"}
        else:
            with pytest.raises(UserError, match=r"the first \d+ .* timeout: no answer within 0.3 s"):
                judge.score(make_pairs(pairs))
        assert fewest <= len(server.requests) <= most


def test_a_gateway_that_waits_for_nothing_ends_the_run_too(make_judge, make_pairs, monkeypatch):
    """These requests are not billed."""
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    with serve(lambda request: openai_error(504, "nobody there")._replace(delay=0.3)) as server:
        judge = make_judge("openai", server.url, ["samples=1", "timeout=0.6", OPENAI_PRICE], 1e3)
        with pytest.raises(
            UserError, match=r"no answer to the first \d+ requests, the last with server error: HTTP 504"
        ):
            judge.score(make_pairs(30))
        assert len(server.requests) <= 13


def test_a_server_that_fails_at_once_is_given_time_to_start(make_judge, make_pairs, monkeypatch):
    """Also with a budget, where requests run one by one until the first answer."""
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    starting = [*[openai_error(503, "starting")] * 19, Response(answer("openai", GOOD))]
    with serve(in_turn(starting)) as server:
        judge = make_judge("openai", server.url, ["samples=1", "timeout=30", "concurrency=2", OPENAI_PRICE], 1e3)
        assert (judge.score(make_pairs(30))["status"] == OK).sum() == 11


def test_a_server_that_is_slow_to_start_ends_no_run(make_judge, make_pairs, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    started = [*[Response(answer("openai", GOOD), delay=0.6)] * 5, Response(answer("openai", GOOD))]
    with serve(in_turn(started)) as server:
        judge = make_judge("openai", server.url, ["samples=1", "timeout=0.3", OPENAI_PRICE], 1e3)
        assert set(judge.score(make_pairs(30))["status"]) == {OK}


def test_answers_that_are_all_malformed_end_the_run(scored, capsys, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    with pytest.raises(UserError, match=r"the first 5 questions failed, the last with malformed response"):
        scored("openai", Response(b"[]"), pairs=30, settings=["samples=1", OPENAI_PRICE, "concurrency=1"])
    told = capsys.readouterr().err
    assert "openai:a-model: requests without an answer may be billed: 30 x malformed response, at most $0." in told


@pytest.mark.parametrize(
    ("vendor", "down"), [("openai", openai_error(503, "busy")), ("gemini", gemini_error(502, "UNAVAILABLE", "busy"))]
)
def test_a_server_that_answers_nobody_any_more_ends_the_run(vendor, down, make_judge, make_pairs, monkeypatch):
    """An answer begins the count anew, and those that came are not asked for again."""
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    good = Response(answer(vendor, GOOD))
    later, last = down._replace(delay=0.05), good._replace(delay=0.2)  # so that answers are read in their order
    with serve(in_turn([*[down] * 19, good, *[later] * 20, last, good])) as server:
        judge = make_judge(vendor, server.url, ["samples=1", "concurrency=2"])
        told = (
            f"no answer to 2[01] questions in a row, the last with server error: HTTP {down.status} busy; answers are"
        )
        with pytest.raises(UserError, match=f"a-model: {told} kept; the same command goes on from there"):
            judge.score(make_pairs(60))
        assert 40 <= (asked := len(server.requests)) <= 41  # one may be under way
        assert (judge.score(make_pairs(60))["status"] == OK).all()
        assert 58 <= len(server.requests) - asked <= 59


def test_a_pair_that_a_server_cannot_answer_ends_no_run(make_judge, make_pairs, monkeypatch):
    """However many samples of it are asked for."""
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    good = Response(answer("openai", GOOD))
    with serve(in_turn([*[good] * 12, *[openai_error(500, "cannot")] * 12, good])) as server:
        table = make_judge("openai", server.url, ["samples=12", "concurrency=1"]).score(make_pairs(3))
    assert table["status"].tolist() == [OK, "server error", OK]


def test_a_key_that_the_model_repeats_is_kept_nowhere(scored, monkeypatch):
    monkeypatch.setenv("EMPATHY_JUDGE_API_KEY", key := "a-key-of-no-vendor")
    body = answer("openai", GOOD | {"reason": f"it is {key}"}, model=f"m-{key}")
    found = scored("openai", body)
    assert found.row["score"] == 4
    assert found.row["meta"]["versions"] == ["m-[key]"]
    kept = found.judge.session.answers._base.execute("SELECT reply FROM answers").fetchall()
    assert key not in str(kept)
    assert "it is [key]" in str(kept)


def test_answers_that_hide_their_tokens_count_for_the_budget(scored):
    hidden = answer("openai", GOOD, usage=None)
    table, requests, judge = scored("openai", hidden, pairs=30, settings=["samples=1", OPENAI_PRICE], budget=0.05)
    assert {meta["cost"] for meta in table["meta"]} == {None}
    assert 0 < len(requests) == (table["status"] == OK).sum() < 30
    assert judge.session.budget.spent <= 0.05
