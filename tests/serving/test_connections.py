"""HTTP itself on a socket: pieces, heads and framing that would harm others, and errors of one form for all of them."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ..conftest import until
from .services import PART, FakeScorer, Live, get, live, metric, post, wav

HOST = b"Host: localhost\r\n"
FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
END = b"\r\n--b--\r\n"


@pytest.fixture(scope="module")
def service() -> Iterator[Live]:
    """With the usual limits."""
    with live(FakeScorer()) as own:
        yield own


def request(headers: bytes = b"", body: bytes = b"", line: bytes = b"POST /v1/score HTTP/1.1") -> bytes:
    return line + b"\r\n" + headers + b"\r\n" + body


def chunked(body: bytes, size: int) -> bytes:
    """A body in chunks of so many bytes."""
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def answers_to(service: Live, sent: bytes, pause: float = 1.0) -> list[tuple[int, dict[str, str], bytes]]:
    """Status, headers and body of each answer, until the connection is closed or nothing more comes."""
    received = b""
    with service.raw() as connection:
        with contextlib.suppress(OSError):  # it is refused before all of it is sent
            connection.sendall(sent)
        connection.settimeout(pause)
        with contextlib.suppress(TimeoutError):
            while piece := connection.recv(65536):
                received += piece
    answers = []
    for answer in re.split(rb"HTTP/1\.1 (?=\d{3} )", received)[1:]:
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().splitlines()[1:]]
        answers.append((int(head[:3]), {name.lower(): value for name, value in lines}, body))
    return answers


def error_to(service: Live, sent: bytes) -> tuple[int, str, str]:
    """The only answer, which is an error in the one form that all errors have."""
    ((status, headers, body),) = answers_to(service, sent)
    error = json.loads(body)
    assert list(error) == ["error"]
    assert list(error["error"]) == ["code", "message"]
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert len(headers["x-request-id"]) == 32
    return status, error["error"]["code"], error["error"]["message"]


# ---------------------------------------------------------------- small pieces


def test_a_body_in_small_pieces_is_refused_and_holds_up_nobody(service):
    """One client with a megabyte in chunks of one byte held all others up for six seconds."""
    sent = request(HOST + FORM + CHUNKED, chunked(PART + bytes(10**6) + END, 1))
    post(service, wav())
    end, found = threading.Event(), list[tuple[int, str, str]]()

    def attack() -> None:
        while not end.is_set():
            found.append(error_to(service, sent))

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        until(lambda: found)
        slowest = 0.0
        for _ in range(20):
            begun = time.monotonic()
            assert get(service, "/healthz").status_code == 200
            slowest = max(slowest, time.monotonic() - begun)
    finally:
        end.set()
        attacker.join(30)
    message = "the body comes in many small pieces; expected 256 bytes in each"
    assert set(found) == {(400, "bad_request", message)}
    assert slowest < 1.0


def test_a_refused_body_is_counted_by_its_code_and_not_as_a_client_that_is_gone():
    with live(FakeScorer()) as service:
        assert error_to(service, request(HOST + FORM + CHUNKED, chunked(bytes(10_000), 1)))[0] == 400
        assert error_to(service, request(HOST + FORM + CHUNKED, b"no chunk\r\n"))[0] == 400
        assert metric(service, 'empathy_judge_requests_total{route="/v1/score",status="400"}') == 2
        until(lambda: metric(service, "empathy_judge_uploads") == 0)


@pytest.mark.parametrize(("seconds", "size"), [(0.1, 16), (9.0, 300), (9.0, 4096), (9.0, 10**6)])
def test_few_small_pieces_or_pieces_of_some_size_are_welcome(service, seconds, size):
    clip = wav(0.5, seconds, rate=48_000 if seconds > 1 else 4_000)
    ((status, _, _),) = answers_to(service, request(HOST + FORM + CHUNKED, chunked(PART + clip + END, size)))
    assert status == 200


def test_time_is_over_while_bytes_lie_ready():
    """The client is never silent, and never slow enough for a timer."""
    with (
        live(FakeScorer(), body_seconds=0.5, idle_seconds=0.5, max_bytes=2**30) as service,
        service.raw() as connection,
    ):
        connection.sendall(request(HOST + FORM + CHUNKED) + b"%x\r\n%s\r\n" % (len(PART), PART))
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - begun < 8:
                connection.sendall(b"1000\r\n" + bytes(4096) + b"\r\n")
        assert time.monotonic() - begun < 8
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


# ---------------------------------------------------------------- what is no HTTP


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"hello\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),  # TLS
        (request(b"", line=b"GET /healthz HTTP/1.1"), 400, "bad_request"),
        (request(HOST + b"X: a\x00b\r\n"), 400, "bad_request"),
        (request(HOST, line=b"GET /" + b"a" * 17_000 + b" HTTP/1.1"), 431, "head_too_large"),
        (request(HOST, line=b"GET /" + b"a" * 300_000 + b" HTTP/1.1"), 431, "head_too_large"),
        (request(HOST + b"X: " + b"a" * 17_000 + b"\r\n"), 431, "head_too_large"),
        (request(HOST + b"a: b\r\n" * 50_000), 431, "head_too_large"),
        (request(HOST + FORM + CHUNKED, b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 50_000), 431, "head_too_large"),
        # two lengths: who stands before the service might see another end of the body
        (request(HOST + FORM + CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n"), 400, "bad_request"),
        (request(HOST + FORM + CHUNKED, b"0\r\n\r\n", b"POST /v1/score HTTP/1.0"), 400, "bad_request"),
        (request(HOST + FORM + b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello"), 400, "bad_request"),
        (request(HOST + FORM + b"Transfer-Encoding: gzip, chunked\r\n"), 400, "bad_request"),
        (request(HOST + FORM + CHUNKED, b"5\r\nhelloXX\r\n"), 400, "bad_request"),
        (request(HOST, line=b"GET /docs HTTP/1.1"), 404, "not_found"),
        (request(HOST, line=b"POST /v1/score/ HTTP/1.1"), 404, "not_found"),
        (request(HOST, line=b"OPTIONS /v1/score HTTP/1.1"), 405, "method_not_allowed"),
        (request(HOST, line=b"BREW / HTTP/1.1"), 405, "method_not_allowed"),
        (request(HOST + FORM + b"Content-Length: 99999999999\r\n"), 413, "too_large"),
        (request(HOST + FORM + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n"), 413, "too_large"),
        (request(b"Host: evil.example\r\n", line=b"GET /healthz HTTP/1.1"), 421, "wrong_host"),
        (request(HOST, line=b"GET http://evil.example/healthz HTTP/1.1"), 404, "not_found"),
        (
            request(HOST + b"Connection: upgrade\r\nUpgrade: websocket\r\n", line=b"GET /v1/score HTTP/1.1"),
            405, "method_not_allowed",
        ),
    ],
)  # fmt: skip
def test_errors_of_http_have_the_form_of_all_errors(service, sent, status, code):
    found = error_to(service, sent)
    assert found[:2] == (status, code)
    assert "\n" not in found[2]
    if status == 400:
        assert "expected" in found[2]
    assert get(service, "/healthz").status_code == 200


def test_what_a_client_sent_is_not_in_the_answer_or_the_log(service, caplog):
    assert "secret" not in error_to(service, b"GET /secret\x01 HTTP/1.1\r\n" + HOST + b"\r\n")[2]
    (record,) = [record for record in caplog.records if record.getMessage() == "no request"]
    assert set(record.facts) == {"id", "status", "code"}


def test_requests_behind_each_other_are_answered_in_turn_up_to_the_first_that_is_none(service):
    ok = request(HOST, line=b"GET /healthz HTTP/1.1")
    body = PART + wav() + END
    scored = request(HOST + FORM + b"Content-Length: %d\r\n" % len(body), body)
    found = answers_to(service, ok * 3 + scored + ok + b"hello\r\n\r\n" + ok)
    assert [status for status, _, _ in found] == [200, 200, 200, 200, 200, 400]


def test_a_client_that_waits_for_leave_to_send_gets_it(service):
    body = PART + wav() + END
    with service.raw(
        request(HOST + FORM + b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(body))
    ) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_what_follows_an_answer_ends_the_connection_without_a_second_one(service):
    """The answer comes before the end of the body, and the rest of it is no HTTP."""
    with service.raw(request(HOST + b"Content-Type: text/plain\r\n" + CHUNKED, b"1\r\nx\r\n")) as connection:
        received = connection.recv(65536)
        connection.sendall(b"no chunk\r\n")
        with contextlib.suppress(OSError):
            while piece := connection.recv(65536):
                received += piece
    assert received.startswith(b"HTTP/1.1 415 ")
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("host", "token", "warned"), [("0.0.0.0", None, 1), ("0.0.0.0", "t", 0), ("127.0.0.1", None, 0)]
)
def test_a_service_that_is_open_to_all_says_so(host, token, warned, caplog, monkeypatch):
    real = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda address: real((host, address[1])))
    with live(FakeScorer(), token=token) as service:
        assert service.address[0] == host
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    said = "open to whoever reaches this machine; set EMPATHY_JUDGE_TOKEN, or listen on --host 127.0.0.1"
    assert lines == [said] * warned
