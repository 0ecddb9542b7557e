"""Google's decisions API: the request that google-genai 3.6.1 sends, and answers of status 200 that are none."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from empathy_judge.eval.judges import OK

from .servers import SHARES, Response, answer, in_turn, level_answers, serve

VENDOR = "gemini-decision"
GIVEN = {"vocal_empathy": SHARES}


def test_both_clips_and_words_between_them(scored, make_pairs):
    (pair,) = make_pairs(1)
    (request,) = scored(VENDOR, answer(VENDOR, GIVEN)).requests
    assert request.path == "/v1beta/decisions"
    assert set(request.body) == {"model", "input", "questions"}
    assert request.body["model"] == "a-model"
    parts = request.body["input"]
    assert [part["type"] for part in parts] == ["text", "text", "audio", "text", "audio"]
    assert parts[0]["text"].startswith("You hear what a person says")
    assert [part["text"] for part in parts[1::2]] == ["Context (audio):", "Response (audio):"]
    for part in parts[2::2]:
        assert set(part) == {"type", "data", "mime_type"}
        assert part["mime_type"] == "audio/wav"
        assert base64.b64decode(part["data"], validate=True).startswith(b"RIFF")
    (question,) = request.body["questions"].values()
    assert set(question) == {"type", "instructions", "criteria"}
    assert (question["type"], len(question["criteria"])) == ("score", 5)
    assert question["criteria"][0].startswith("1: the voice contradicts")
    assert pair.pair_id not in str(parts[0::2][0])


def test_googles_own_client_sends_the_same(make_judge, make_pairs):
    """google-genai 3.4.0 (`google.genai.decisions`; 3.6.1 did, too), told the version: by itself it asks v1."""
    from google import genai
    from google.genai import types

    judge = make_judge(VENDOR, "http://127.0.0.1:9")
    body = judge.session.provider.request(judge.tasks(make_pairs(1))[0].build())
    with serve(in_turn([Response(answer(VENDOR, GIVEN))])) as server:
        options = types.HttpOptions(base_url=server.url, api_version="v1beta")
        client = genai.Client(api_key="a-key", http_options=options)
        given: Any = client.decisions.create(model=body["model"], input=body["input"], questions=body["questions"])
        (request,) = server.requests
    assert (request.path, request.body) == ("/v1beta/decisions", body)
    assert [*request.body["questions"]] == [*body["questions"]]
    assert given.answers["vocal_empathy"].probabilities == {str(number): share for number, share in enumerate(SHARES)}


@pytest.mark.parametrize(
    "body",
    [
        {
            "prompt_feedback": {"block_reason": "SAFETY", "block_reason_message": "no"},
            "usage": {"total_input_tokens": 9},
        },
        {"usage": {"total_input_tokens": 9}},
        {"answers": level_answers(GIVEN), "prompt_feedback": {"block_reason": "OTHER"}},
    ],
)
def test_a_blocked_input_has_status_200(body, scored):
    found = scored(VENDOR, body, settings=["samples=1", "price=1e6:1e6:0"], budget=1e9)
    assert (found.row["status"], len(found.requests)) == ("blocked by safety filter", 1)


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        ({"usage": {"total_input_tokens": 420, "input_tokens_by_modality": []}}, 420),
        ({"usage": {"total_input_tokens": 420}}, 420),
        ({"usage": {"totalInputTokens": 420}}, None),  # camelCase is another API's
        ({"usage": None}, None),
        ({}, 420),
    ],
)
def test_tokens_are_charged_and_nothing_for_output(usage, dollars, scored):
    found = scored(VENDOR, answer(VENDOR, GIVEN, **usage), settings=["samples=1", "price=1:1:1"], budget=1)
    assert found.row["status"] == OK
    assert found.row["meta"]["cost"] == (None if dollars is None else pytest.approx(dollars / 1e6))
    assert found.judge.session.budget.spent > 0


def test_audio_has_a_price_of_its_own_where_the_vendor_says_so(scored):
    found = scored(VENDOR, answer(VENDOR, GIVEN), settings=["samples=1", "price=1:2:0"], budget=1)
    assert found.row["meta"]["cost"] == pytest.approx((100 + 2 * 320) / 1e6)
