"""Hume's Audio Decisions: a form of two parts, one recording; its limits, and errors of the gateway."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from empathy_judge.core.errors import UserError
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.costs import disclosure, example_request, planned

from ...conftest import dataset_of
from .conftest import EMPATHY, clip
from .servers import SHARES, Response, answer

VENDOR = "hume"
GIVEN = {"vocal_empathy": SHARES}
PRICE = "price=1:1:0"


def recording(parts) -> tuple[np.ndarray, int]:
    return soundfile.read(io.BytesIO(parts["file"]))


def test_context_and_response_are_joined_with_a_pause(scored, make_pairs):
    (pair,) = make_pairs(1)
    pair = replace(pair, situation="After a funeral.")
    (request,) = scored(VENDOR, answer(VENDOR, GIVEN), pairs=[pair]).requests
    assert request.path == "/v0/decisions/file"
    assert [*request.body] == ["request", "file"]  # this order is demanded
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers["content-type"].startswith("multipart/form-data; boundary=")
    assert headers["x-hume-api-key"] == "none"
    asked = request.body["request"]
    assert set(asked) == {"context", "questions"}
    assert asked["questions"]["vocal_empathy"]["type"] == "score"
    assert asked["context"].splitlines()[1:] == [
        "In the recording, with a pause between them: Context, then Response.",
        "Situation: After a funeral.",
    ]
    samples, rate = recording(request.body)
    assert (rate, samples.shape) == (16_000, (3_200 + 16_000 + 3_200,))
    assert np.abs(samples[3_300:19_100]).max() == 0
    assert min(np.std(samples[:3_200]), np.std(samples[-3_200:])) > 0.05


def test_the_response_alone_with_the_situation_in_words(scored, make_pairs):
    (pair,) = make_pairs(1)
    pair = replace(pair, situation="After a funeral.", response=clip(200, 1.5))
    settings = ["samples=1", "clips=response", "hears=both"]
    (request,) = scored(VENDOR, answer(VENDOR, GIVEN), pairs=[pair], settings=settings).requests
    assert request.body["request"]["context"].splitlines() == [
        "You hear a spoken response to what a person said (the context).",
        "Situation: After a funeral.",
        "Context (transcript): I lost my job.",
        "Response (transcript): Oh no.",
    ]
    assert recording(request.body)[0].shape == (24_000,)


def test_the_disclosure_says_how_clips_are_sent(opened, make_pairs):
    said = {}
    for more in ("", ",clips=response"):
        judge = opened(f"hume:decisions,{PRICE}{more}", dataset_of([], [], EMPATHY), dry_run=True)
        plan = planned(judge, make_pairs(2))
        said[judge.name] = disclosure(judge, plan, 1).splitlines()[1].removeprefix("  leaves this machine: ")
        assert "characters of base64>" in example_request(judge, plan)
    assert said == {
        "hume:decisions": "2 clips for each question (WAV), joined into one with a pause of 1 s, our instructions",
        "hume:decisions,clips=response": "1 clip for each question (WAV), our instructions",
    }


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("hume:octave", "expected hume:decisions"),
        ("hume:", "hume:decisions: the variable HUME_API_KEY is not set"),
        ("hume:,base_url=http://h,hears=transcript", "each request has a recording"),
    ],
)
def test_what_cannot_be_asked_is_told(spec, told, opened):
    with pytest.raises(UserError, match=told):
        opened(spec, dataset_of([], [], EMPATHY))


@pytest.mark.parametrize(
    ("length", "situation", "status"),
    [(0.5, None, "clips too short"), (301, None, "clips too long"), (1.0, None, OK), (1.0, "x" * 950, "text too long")],
)
def test_what_the_service_refuses_is_not_sent(length, situation, status, scored, make_pairs):
    pair = replace(make_pairs(1)[0], response=clip(200, length, 4_000), situation=situation)
    found = scored(VENDOR, answer(VENDOR, GIVEN), pairs=[pair], settings=["samples=1", "clips=response"])
    assert found.row["status"] == status
    assert len(found.requests) == (status == OK)


def test_tokens_are_those_that_were_received(scored):
    found = scored(VENDOR, answer(VENDOR, GIVEN), settings=["samples=1", PRICE], budget=1)
    assert found.row["meta"]["cost"] == pytest.approx(420e-6)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, {"message": "Invalid authentication credentials"}, "HTTP 401: Invalid authentication credentials"),
        (404, {"message": "no Route matched with those values"}, "HTTP 404: no Route matched"),
        (
            400,
            {"type": "error", "code": "question_invalid", "message": "No\nlevels", "param": "/questions"},
            "HTTP 400: No levels",
        ),
    ],
)
def test_errors_of_the_gateway_and_of_the_service(status, body, told, scored):
    with pytest.raises(UserError, match=told):
        scored(VENDOR, Response(body, status), pairs=9, settings=["samples=1", "concurrency=1"])
