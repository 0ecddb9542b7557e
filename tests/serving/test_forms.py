"""Forms: what is wrong with one is said, before any clip of it is decoded."""

from __future__ import annotations

import pytest

from .services import FakeScorer, counter, error_of, in_process, wav

LEVELS = "0.5, 0.8, 0.9, 0.95"


UNKNOWN = "a part of the form is not known; expected response, context, situation"


PART = b'--a\r\nContent-Disposition: form-data; name="response"\r\n\r\n'


CLIP = ("a", wav())


FORM = {"Content-Type": "multipart/form-data; boundary=a"}


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
