"""The service on a socket: slow, silent, greedy and vanishing clients, and an end that loses nobody."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import httpx
import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.serving import connections
from empathy_judge.serving.app import create_app
from empathy_judge.serving.running import run
from empathy_judge.serving.settings import listen

from ..conftest import until
from .services import PART, FakeScorer, Live, get, live, metric, post, wav


def head(length: int | None, path: str = "/v1/score") -> bytes:
    """Of a request."""
    size = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
    kind = b"Content-Type: multipart/form-data; boundary=b"
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n%s\r\n\r\n" % (path.encode(), kind, size)


def answer_on(connection: socket.socket) -> tuple[int, str]:
    """Status and code of the error that comes, after which the connection is closed; (0, "") = closed without."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            received += chunk
    if not received:
        return 0, ""
    first, _, rest = received.partition(b"\r\n")
    return int(first.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.fixture(scope="module")
def hasty() -> Iterator[Live]:
    """A service with short limits of time and small ones of size."""
    with live(FakeScorer(), idle_seconds=0.4, body_seconds=0.8, max_bytes=200_000) as service:
        yield service


@pytest.mark.parametrize("drips", [False, True])
def test_a_client_that_falls_silent_or_drips_is_cut_off_and_learns_why(hasty, drips):
    begun = time.monotonic()
    with hasty.raw(head(100_000) + PART) as connection:
        with contextlib.suppress(OSError):
            while drips and time.monotonic() - begun < 6 and not _readable(connection):
                connection.sendall(b"x")
                time.sleep(0.1)
        assert answer_on(connection) == (408, "body_timeout")
    assert 0.3 < time.monotonic() - begun < 8


def _readable(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.setblocking(True)
        connection.settimeout(10)


def test_a_connection_without_the_head_of_a_request_is_closed(hasty):
    with hasty.raw() as connection:
        assert answer_on(connection) == (0, "")
    with hasty.raw(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n") as connection:
        assert answer_on(connection) == (0, "")


def test_a_client_that_sends_too_much_can_read_why(hasty):
    chunk = b"10000\r\n" + bytes(2**16) + b"\r\n"
    with hasty.raw(head(None) + b"%x\r\n" % len(PART) + PART + b"\r\n") as connection:
        with contextlib.suppress(OSError):
            for _ in range(40):  # ten times the limit
                connection.sendall(chunk)
        assert answer_on(connection) == (413, "too_large")


def test_who_hangs_up_is_not_scored():
    scorer = FakeScorer()
    with live(scorer) as service, ThreadPoolExecutor() as pool:
        scorer.open.clear()
        first = pool.submit(post, service, wav(0.25))
        until(lambda: len(scorer.heard) == 1)
        body = PART + wav(0.75) + b"\r\n--b--\r\n"
        with service.raw(head(len(body)) + body):
            until(lambda: metric(service, "empathy_judge_queue_pairs") == 1)
        until(lambda: metric(service, "empathy_judge_queue_pairs") == 0)
        scorer.open.set()
        assert first.result().status_code == 200
        assert post(service, wav(0.5)).status_code == 200
        assert metric(service, 'empathy_judge_requests_total{route="/v1/score",status="499"}') == 1
    assert [round(4 * float(pair.response.samples.max())) for pair in scorer.heard] == [1, 2]


def test_uploads_beyond_the_limit_are_refused_until_one_ends():
    with live(FakeScorer(), concurrency=1) as service:
        with service.raw(head(100_000) + PART):
            until(lambda: metric(service, "empathy_judge_uploads") == 1)
            answer = post(service, wav())
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "busy")
        until(lambda: metric(service, "empathy_judge_uploads") == 0)
        assert post(service, wav()).status_code == 200


def test_at_the_end_nobody_new_is_let_in_and_everybody_else_is_answered():
    scorer = FakeScorer()
    with live(scorer) as service, ThreadPoolExecutor(16) as pool:
        scorer.open.clear()
        body = PART + wav() + b"\r\n--b--\r\n"
        sending = service.raw(head(len(body)) + body[:1000])  # in the middle of its upload
        sent = [pool.submit(post, service, wav()) for _ in range(9)]
        until(lambda: metric(service, "empathy_judge_queue_pairs") == 9 - len(scorer.heard) and scorer.heard)
        until(lambda: metric(service, "empathy_judge_uploads") == 1)
        service.stop()
        until(lambda: get(service, "/readyz").status_code == 503)
        refused = post(service, wav())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
        assert refused.headers["retry-after"] == "5"
        alive = get(service, "/healthz")
        assert (alive.status_code, alive.headers["connection"]) == (200, "close")
        sending.sendall(body[1000:])
        scorer.open.set()
        assert [future.result().status_code for future in sent] == [200] * 9
        assert sending.recv(12) == b"HTTP/1.1 200"
        sending.close()
        service.thread.join(30)
        assert not service.thread.is_alive()
    assert len(scorer.heard) == 10


def test_a_client_that_does_not_read_is_cut_off_and_holds_up_nobody(hasty):
    def ask(connection: socket.socket) -> None:
        end = time.monotonic() + 10  # until what is answered fills the buffers of both sides
        while time.monotonic() < end:
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            time.sleep(0.02)

    with hasty.raw() as connection, pytest.raises(OSError, match=r"reset|[Bb]roken"):
        ask(connection)


def test_the_end_comes_within_the_grace_whatever_the_judge_and_clients_do():
    scorer = FakeScorer()
    with live(scorer, grace_seconds=0.5) as service, ThreadPoolExecutor() as pool:
        scorer.open.clear()
        stuck = pool.submit(post, service, wav())
        until(lambda: scorer.heard)
        silent = service.raw(head(100_000) + PART)  # was let in, sends no more
        until(lambda: metric(service, "empathy_judge_uploads") == 1)
        begun = time.monotonic()
        service.stop()
        service.thread.join(20)
        assert not service.thread.is_alive()
        assert 0.25 < time.monotonic() - begun < 10  # what remains of the grace is for the last answers to be taken
        assert service.app.state.service.lost == 2
        assert isinstance(stuck.exception(), httpx.TransportError)
        scorer.open.set()
        silent.close()


def test_a_service_that_lost_its_gpu_ends_with_its_error(monkeypatch):
    """Every later request would fail: whoever watches over it starts another."""
    scorer, lost, raised = FakeScorer(), torch.AcceleratorError("CUDA error: an illegal memory access"), []
    monkeypatch.setattr(threading, "excepthook", lambda of_thread: raised.append(of_thread.exc_value))
    with live(scorer) as service:
        monkeypatch.setattr(scorer, "assess_pairs", mock.Mock(side_effect=lost))
        assert post(service, wav()).status_code == 500
        service.thread.join(20)
        assert not service.thread.is_alive()
    assert raised == [lost]


def test_a_second_signal_ends_the_process_at_once(monkeypatch):
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    with live(FakeScorer()) as service:
        service.stop()
        assert codes == []
        service.stop()
        assert codes == [143]


def test_the_end_while_the_judge_is_being_loaded(monkeypatch):
    """Python's own end would abort the process: a thread is importing torch."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    ended = threading.Event()

    def load() -> FakeScorer:
        app.state.server.handle_exit(signal.SIGTERM, None)
        ended.wait(20)
        raise UserError("nobody waits for it")

    app = create_app(load)
    run(app, listen("127.0.0.1", 0))
    ended.set()
    assert codes == [0]


def test_beyond_the_limit_of_connections_the_silent_ones_go(monkeypatch, caplog):
    monkeypatch.setattr(connections, "most_connections", lambda: 4)
    with live(FakeScorer()) as service, contextlib.ExitStack() as stack:
        sending = stack.enter_context(service.raw(head(100_000) + PART))
        until(lambda: metric(service, "empathy_judge_uploads") == 1)
        silent = [stack.enter_context(service.raw()) for _ in range(12)]
        assert get(service, "/healthz").status_code == 200
        assert all(answer_on(connection) == (0, "") for connection in silent[:8])
        assert not _readable(sending)
        assert len(service.app.state.server.server_state.connections) <= 5
    assert {record.getMessage() for record in caplog.records if record.levelname == "WARNING"} == {
        "too many connections"
    }


def test_a_judge_that_cannot_be_loaded_ends_the_service():
    def load():
        raise UserError("judge: no such folder")

    with pytest.raises(UserError, match=r"^judge: no such folder$"):
        run(create_app(load), listen("127.0.0.1", 0))


BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "service.py"


@pytest.mark.long
def test_under_load_nothing_is_lost_and_everything_is_answered_as_it_should(judge_folder):
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), str(judge_folder), "--seconds", "12", "--clients", "24"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["problems"] == {"unexpected": {}, "bugs": 0, "lost": 0, "exit_code": 0}
    assert found["let_in"] > 100
    assert found["after_sigterm"].get("503", 0) > 0
    assert found["statuses"]["good"]["200"] > 50
