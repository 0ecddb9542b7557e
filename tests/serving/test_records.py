"""What is written down of requests, and what never is."""

from __future__ import annotations

import json
import logging

import pytest
from empathy_judge.serving.records import JsonLines, log_json

from .services import FakeScorer, counter, in_process, wav


def test_a_request_is_written_down_without_what_was_said(shared, caplog):
    service, scorer = shared
    caplog.set_level(logging.INFO)
    name = "../../etc/passwd\x00.wav"
    files = [("response", (name, wav(0.5, 0.5))), ("context", ("C:\\secret.wav", wav(0.5, 0.25)))]
    headers = {"X-Request-ID": "my-id.1"}
    answer = service("POST", "/v1/score?q=secret", files=files, data={"situation": "secret grief"}, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "my-id.1"
    service("GET", "/secret/path", headers={"X-Request-ID": "not sensible\t{}"})
    records = [record for record in caplog.records if record.name == "empathy_judge.serving"]
    scored, missing = [json.loads(JsonLines().format(record)) for record in records]
    assert scored.pop("ms") >= scored["decode_ms"] + scored["score_ms"]
    assert scored.items() >= {
        "event": "request", "id": "my-id.1", "method": "POST", "route": "/v1/score", "status": 200,
        "audio_seconds": 0.75, "batch": 1,
    }.items()  # fmt: skip
    assert scored["bytes"] > 24_000
    assert (missing["route"], missing["status"], missing["code"]) == ("other", 404, "not_found")
    assert len(missing["id"]) == 32
    for word in ("secret", "passwd", "grief"):
        assert word not in json.dumps([scored, missing])
    assert scorer.heard[-1].response.name == "response"  # whatever the client called it


def test_counters_add_up():
    with in_process(FakeScorer()) as service:
        service.score(wav(0.5, 0.5), context=[wav(0.5, 0.25)])
        service.score(wav(0.5, 1.0))
        service.score(b"no sound")
        service("GET", "/nowhere")
        expected = {
            'empathy_judge_requests_total{route="/v1/score",status="200"}': 2,
            'empathy_judge_requests_total{route="/v1/score",status="422"}': 1,
            'empathy_judge_requests_total{route="other",status="404"}': 1,
            'empathy_judge_request_seconds_count{route="/v1/score"}': 3,
            'empathy_judge_stage_seconds_count{stage="decode"}': 2,
            'empathy_judge_refused_total{code="bad_audio"}': 1,
            "empathy_judge_accepted_total": 3,
            "empathy_judge_audio_seconds_total": 1.75,
            "empathy_judge_batch_pairs_sum": 3,
            "empathy_judge_queue_pairs": 0,
            "empathy_judge_uploads": 0,
            "empathy_judge_decoder_restarts_total": 0,
        }
        assert {line: counter(service, line) for line in expected} == pytest.approx(expected)
        assert service("GET", "/metrics").headers["content-type"].startswith("text/plain; version=")


def test_what_libraries_say_of_a_request_is_not_in_the_log(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_json()
    logging.captureWarnings(False)
    for name in ("uvicorn.error", "python_multipart.multipart"):
        logging.getLogger(name).warning("No supported WebSocket library detected; pip install 'uvicorn[standard]'")
    logging.getLogger("uvicorn.error").error("Exception in ASGI application")
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events == ["Exception in ASGI application"]
