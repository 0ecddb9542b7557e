"""What the service answers: scores, rankings, errors of one form, and what it writes about them."""

from __future__ import annotations

import io
import json
import logging
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.assessment import Caution
from empathy_judge.scorer import Scorer
from empathy_judge.serving.records import JsonLines

from ..conftest import encoded
from .services import FakeScorer, counter, error_of, in_process, wav

LEVELS = "0.5, 0.8, 0.9, 0.95"
UNKNOWN = "a part of the form is not known; expected response, context, situation"
PART = b'--a\r\nContent-Disposition: form-data; name="response"\r\n\r\n'
CLIP = ("a", wav())
FORM = {"Content-Type": "multipart/form-data; boundary=a"}


# ---------------------------------------------------------------- scores


def test_a_score_comes_with_all_that_is_known_of_it(shared):
    service, _ = shared
    answer = service.score(wav(0.5, 0.5), context=[wav(0.1, 0.75)], level="0.8", situation="A dog ran away.")
    assert answer.status_code == 200
    body = answer.json()
    score = body["scores"]["empathy"]
    assert score["score"] == pytest.approx(3.0, abs=1e-3)
    assert score["high"] - score["low"] == pytest.approx(1.6)  # the fake judge's intervals are as wide as the level
    assert (score["standard_error"], score["abstained"], score["label"]) == (0.5, False, "fair")
    assert score["scale"] == {"minimum": 1.0, "maximum": 5.0, "higher_is_better": True}
    assert body["seconds"] == {"context": [0.75], "responses": [0.5]}
    assert body["level"] == 0.8
    assert body["warnings"] == []
    assert body["judge"]["name"] == "judge"
    assert len(body["judge"]["version"]) == 16


def test_the_judge_gets_the_turns_of_a_conversation_with_who_speaks(shared):
    service, scorer = shared
    clips = [wav(0.1, 0.2), wav(0.2, 0.3), wav(0.3, 0.4)]
    assert service.score(wav(), context=clips, situation="At the vet.").status_code == 200
    pair = scorer.heard[-1]
    turns = [(turn.role, turn.audio.seconds) for turn in pair.context]
    assert turns == [("user", 0.2), ("assistant", 0.3), ("user", 0.4)]
    assert pair.situation == "At the vet."
    assert pair.response.rate == 16_000


@pytest.mark.parametrize("field", ["situation=At%20the%20vet.", "level=0.8", "response=a", "trace=1&context="])
def test_a_field_in_the_address_is_refused_not_passed_over(field, shared):
    service, scorer = shared
    before = len(scorer.heard)
    answer = service("POST", f"/v1/score?{field}", files=[("response", CLIP)])
    name = field.split("&")[-1].split("=")[0]
    message = f"{name}: stands in the address, where it is not read; expected a part of the form"
    assert (answer.status_code, answer.json()["error"]) == (422, {"code": "invalid", "message": message})
    assert len(scorer.heard) == before
    assert service("POST", "/v1/score?trace=1", files=[("response", CLIP)]).status_code == 200


def test_warnings_are_passed_on():
    scorer = FakeScorer()
    scorer.warnings = (Caution("short", "response: lasts 0.2 s", "response"),)
    with in_process(scorer) as service:
        warnings = service.score(wav()).json()["warnings"]
    assert warnings == [{"code": "short", "about": "response", "text": "response: lasts 0.2 s"}]


def test_a_real_judge_scores_over_http_as_it_does_in_python(judge_folder, make_tone):
    def clip(seconds: float, hertz: float, rate: int, kind: str) -> bytes:
        return encoded(make_tone(seconds, hertz, 0.4, 0.2, rate), rate, kind)

    contexts = [clip(0.6, 150, 16_000, "WAV"), clip(0.8, 180, 44_100, "FLAC"), clip(0.5, 200, 8_000, "WAV")]
    answers = [clip(0.7, 300, 22_050, "OGG"), clip(0.9, 250, 16_000, "WAV"), clip(0.4, 350, 48_000, "FLAC")]
    scorer = Scorer.from_pretrained(judge_folder, device="cpu", batch_size=2)
    expected = scorer.score(contexts, answers, situation=["Late.", None, None])
    with in_process(Scorer.from_pretrained(judge_folder, device="cpu", batch_size=2), processes=True) as service:
        assert service("GET", "/v1/judge").json()["calibrated"] is False
        texts: list[dict[str, str]] = [{"situation": "Late."}, {}, {}]
        with ThreadPoolExecutor() as pool:
            sent = [
                pool.submit(service.score, own, context=[before], **text)
                for own, before, text in zip(answers, contexts, texts, strict=True)
            ]
        got = [future.result().json()["scores"] for future in sent]
        special = service.score(answers[0], situation="<|AUDIO|>")
        unknown = service.score(answers[0], level="0.9")
        cut, long = (service.score(clip(seconds, 200, 8_000, "WAV")) for seconds in (31.0, 101.0))
    for wanted, found in zip(expected, got, strict=True):
        assert {name: own["score"] for name, own in found.items()} == pytest.approx(wanted, abs=1e-5)
        assert found["empathy"]["standard_error"] is None
    assert error_of(special)[:2] == error_of(unknown)[:2] == (422, "invalid")
    assert "level: this judge is not calibrated" in error_of(unknown)[2]
    assert [answer.json()["windows"] for answer in (sent[0].result(), cut)] == [1, 4]
    assert error_of(long) == (422, "bad_audio", "response: lasts 101.0 s; expected at most 100 s")


# ---------------------------------------------------------------- rankings


def test_the_best_response_comes_first(shared):
    service, _ = shared
    answer = service.score(wav(0.2), wav(0.9), wav(0.5), context=[wav(0.1)], path="/v1/rank").json()
    assert [own["response"] for own in answer["ranking"]] == [2, 3, 1]
    assert answer["dimension"] == "empathy"
    assert answer["ranking"][0]["scores"]["empathy"]["score"] == pytest.approx(4.6, abs=1e-3)


def test_ranking_needs_a_dimension_where_there_are_several_and_knows_which_end_is_good():
    scorer = FakeScorer()
    scorer.dimensions = (Dimension("warmth", 1, 5), Dimension("harshness", 1, 5, higher_is_better=False))
    with in_process(scorer) as service:
        clips = (wav(0.2), wav(0.9))
        status, code, message = error_of(service.score(*clips, path="/v1/rank"))
        assert (status, code, message) == (422, "invalid", "dimension; expected warmth, harshness")
        worst = service.score(*clips, path="/v1/rank", dimension="harshness").json()
        best = service.score(*clips, path="/v1/rank", dimension="warmth").json()
    assert [own["response"] for own in worst["ranking"]] == [1, 2]
    assert [own["response"] for own in best["ranking"]] == [2, 1]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"files": [("context", CLIP)]}, "response: missing"),
        ({"data": {"url": "http://a/b.wav"}}, UNKNOWN),
        ({"data": {"dimension": "empathy"}}, UNKNOWN),
        ({"data": {"level": "0.7"}}, f"level: expected {LEVELS} (default: 0.9)"),
        ({"data": {"level": ["0.5", "0.5"]}}, "level: sent 2 times; expected once"),
        ({"data": {"situation": "x" * 4001}}, "situation: expected at most 4000 characters"),
        ({"data": {"situation": "\N{BOUQUET}" * 1001}}, "situation: 4004 bytes in UTF-8; expected at most 4000"),
        ({"data": {"situation": "x" * 10**6}}, "situation: expected at most 4000 characters"),
        ({"files": [("response", CLIP), ("situation", ("a", b"\xff"))]}, "situation: not UTF-8; expected text"),
        ({"files": [("response", CLIP)] * 2}, "response: sent 2 times; expected once, or several at /v1/rank"),
        ({"files": [("response", CLIP), *[("context", CLIP)] * 9]}, "context: expected at most 8 items after valid"),
    ],
)
def test_a_form_that_is_wrong_is_told_what_is_expected(shared, fields, message):
    service, _ = shared
    sent = {"files": [("response", CLIP)], **fields}
    status, code, found = error_of(service("POST", "/v1/score", **sent))
    assert (status, code) == (422, "invalid")
    assert found.startswith(message)


def zipped() -> bytes:
    """A bomb: 30 MB of zeros in 30 kB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.wav", bytes(30_000_000))
    return file.getvalue()


def lying_wav(declared: int) -> bytes:
    """A WAV file of half a second that says it has so many bytes of samples."""
    head, mark, rest = wav().partition(b"data")
    return head + mark + declared.to_bytes(4, "little") + rest[4:]


NO_SOUND = "response: not a sound file; expected wav, flac, ogg, mp3, aiff, au"


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        (b"", "response: the file is empty (0 bytes)"),
        (zipped(), NO_SOUND),
        (wav(0.5, 10.5), "response: lasts 10.5 s; expected at most 10 s"),
        (wav(0.5, 11.0, kind="FLAC"), "response: lasts 11.0 s; expected at most 10 s"),
        (wav(0.5, 0.02), "response: lasts 0.020 s; expected at least 0.05 s"),
        (wav(0.5, 1.0)[:-1000], "response: the file is cut off, its last 1000 bytes are missing"),
        (lying_wav(691_200_000), "response: the file is cut off"),
        (wav(0.5, 0.5, channels=9), "response: 9 channels; expected at most 8"),
        (b"RIFF\xff\xff\xff\xffWAVE", "response: "),
        (b"fLaC" + bytes(100), "response: "),
        (b"\xff\xfb" + bytes(1000), "response: "),
    ],
)
def test_a_clip_that_cannot_be_used_is_told_why(shared, clip, message):
    service, scorer = shared
    before = len(scorer.heard)
    status, code, found = error_of(service.score(clip))
    assert (status, code) == (422, "bad_audio")
    assert found.startswith(message)
    assert len(scorer.heard) == before


def test_a_bad_turn_is_named(shared):
    service, _ = shared
    assert error_of(service.score(wav(), context=[wav(), b"no"]))[2].startswith("context 2: not a sound file")


def test_a_header_of_a_program_that_does_not_know_the_length_is_no_lie(shared):
    service, _ = shared
    assert service.score(lying_wav(2**32 - 1)).json()["seconds"]["responses"] == [0.5]


def test_a_clip_needs_no_file_name(shared):
    service, _ = shared
    answer = service("POST", "/v1/score", content=PART + wav() + b"\r\n--a--\r\n", headers=FORM)
    assert answer.json()["seconds"] == {"context": [], "responses": [0.5]}


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"json": {}}, 415, "not_multipart"),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 415, "not_multipart"),
        ({"content": b"x", "headers": {**FORM, "Content-Encoding": "gzip"}}, 415, "not_multipart"),
        ({"content": b"x", "headers": FORM}, 400, "bad_request"),
        ({"content": PART + b"x", "headers": FORM}, 400, "bad_request"),
        ({"content": b"--a\r\nA: " + b"x" * 9000, "headers": FORM}, 400, "bad_request"),
        ({"content": b"--a\r\n\r\nx\r\n--a--\r\n", "headers": FORM}, 400, "bad_request"),
        ({"files": [("context", CLIP)] * 29}, 400, "bad_request"),
        ({"content": b"", "headers": {**FORM, "Content-Length": "999999999"}}, 413, "too_large"),
        ({"files": {"response": ("r", bytes(2**25 + 1))}}, 413, "too_large"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_form_is_refused(shared, request_, status, code):
    service, _ = shared
    assert error_of(service("POST", "/v1/score", **request_))[:2] == (status, code)


def test_size_is_counted_where_the_client_does_not_say_it(shared):
    service, _ = shared
    sent = 0

    async def chunks():
        nonlocal sent
        yield b'--b\r\nContent-Disposition: form-data; name="response"; filename="r"\r\n\r\n'
        for _ in range(1600):  # 100 MiB
            sent += 2**16
            yield bytes(2**16)

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = service("POST", "/v1/score", content=chunks(), headers=headers)
    assert error_of(answer)[:2] == (413, "too_large")


def test_pages_and_methods_that_are_not_there(shared):
    service, _ = shared
    assert error_of(service("GET", "/docs")) == (404, "not_found", "no such page")
    assert error_of(service("POST", "/v1/score/"))[:2] == (404, "not_found")
    answer = service("GET", "/v1/score")
    assert error_of(answer)[:2] == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <|AUDIO|>", "situation text may not contain <|AUDIO|>"),
        # tokens of a judge are at most as many as bytes: 1,500 emoji are 6,000 of them
        ("\N{BOUQUET}" * 1500, "situation: 6000 bytes in UTF-8; expected at most 4000"),
    ],
)
def test_a_text_that_the_judge_cannot_read_is_refused_before_any_work(text, message):
    with in_process(scorer := FakeScorer()) as service:
        answer = service.score(b"no sound", situation=text)  # nobody looked at the sound
        assert error_of(answer) == (422, "invalid", message)
        assert counter(service, "empathy_judge_accepted_total") == 1
        assert 'stage="decode"' not in service("GET", "/metrics").text
        assert service.score(wav(), situation="x" * 4000).status_code == 200
    assert len(scorer.heard) == 1


# ---------------------------------------------------------------- access and records


def test_who_has_no_token_gets_no_score(caplog):
    caplog.set_level(logging.DEBUG)
    with in_process(FakeScorer(), token="open sesame") as service:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic open sesame"}):
            for request in ("POST /v1/score", "POST /v1/rank", "GET /v1/judge", "GET /metrics"):
                answer = service(*request.split(), headers=headers)
                assert error_of(answer)[:2] == (401, "unauthorized")
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer open sesame"}
        assert service("POST", "/v1/score", files={"response": wav()}, headers=right).status_code == 200
        assert service("GET", "/metrics", headers=right).status_code == 200
        for path in ("/healthz", "/readyz", "/", "/openapi.json"):
            assert service("GET", path).status_code == 200
        for path in ("/healthz", "/readyz", "/"):
            assert (service("HEAD", path).status_code, service("HEAD", path).content) == (200, b"")
        assert "sesame" not in service("GET", "/").text
        schemes = service("GET", "/openapi.json").json()["components"]["securitySchemes"]
        assert schemes["HTTPBearer"]["scheme"] == "bearer"
        assert "sesame" not in repr(service.app.state.service.settings)
    assert not any("sesame" in JsonLines().format(record) for record in caplog.records)
    with in_process(FakeScorer(), token="open sesame", open_metrics=True) as service:
        assert service("GET", "/metrics").status_code == 200


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


def test_the_judge_and_the_limits_can_be_asked_for(shared):
    service, _ = shared
    body = service("GET", "/v1/judge").json()
    assert body["dimensions"] == [
        {"name": "empathy", "scale": {"minimum": 1.0, "maximum": 5.0, "higher_is_better": True}}
    ]
    assert (body["max_seconds"], body["max_bytes"], body["calibrated"]) == (10.0, 2**25, True)


def test_a_limit_beyond_what_the_judge_hears_is_refused():
    with (
        pytest.raises(UserError, match=r"--max-seconds 20; expected at most 10"),
        in_process(FakeScorer(), max_seconds=20.0),
    ):
        pass
    scorer = FakeScorer()
    scorer.windows = True
    with in_process(scorer) as service:
        assert service("GET", "/v1/judge").json()["max_seconds"] == 100.0
        assert service.score(wav(0.5, 20.0, rate=8000)).status_code == 200
