"""A thousand questions, servers that fail and limit, programs that are killed: nothing is lost or paid twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import selectors
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.cache import AnswerCache
from empathy_judge.eval.judges.prompted.costs import disclosure, planned
from empathy_judge.eval.judges.prompted.runner import RateLimit

from .conftest import GOOD, OPENAI_PRICE, RUNNER
from .servers import Request, Response, answer, gemini_error, openai_answer, openai_error, serve


def asked_about(request: Request) -> str:
    """What stands for the question: its audio."""
    return hashlib.sha256(json.dumps(request.body.get("messages") or request.body.get("contents")).encode()).hexdigest()


FAULTS = [openai_error(500, "oops"), openai_error(503, "busy"), Response(answer("openai", GOOD), cut=True)]


class LimitedServer:
    """Lets `rate` requests a second through (a bucket of one second), and fails a fifth of those, each question once.

    Attributes:
        charged: Question -> answers with a bill.
    """

    def __init__(self, rate: float = 1e9, hints: bool = True) -> None:
        self.rate, self.hints = rate, hints
        self.charged: Counter[str] = Counter()
        self.begun: float | None = None
        self.refused = 0
        self._tokens, self._filled = rate, time.monotonic()
        self._random = random.Random(0)
        self._failed: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Response:
        with self._lock:
            now = time.monotonic()
            self.begun = self.begun or now
            self._tokens = min(self.rate, self._tokens + self.rate * (now - self._filled))
            self._filled = now
            if self._tokens < 1:
                self.refused += 1
                headers = {"retry-after-ms": f"{1000 * (1 - self._tokens) / self.rate:.0f}"} if self.hints else {}
                return openai_error(429, "slow down", "rate_limit_exceeded", headers)
            self._tokens -= 1
            key = asked_about(request)
            if key not in self._failed and self._random.random() < 0.2:
                self._failed.add(key)
                return self._random.choice(FAULTS)
            self.charged[key] += 1
        return Response(answer("openai", GOOD), delay=0.05)


def check_each_was_paid_once(table: pd.DataFrame, limited: LimitedServer, count: int) -> None:
    assert (table["status"] == OK).all()
    assert len(table) == count
    assert len(limited.charged) == count
    assert set(limited.charged.values()) == {1}
    assert 0.12 < len(limited._failed) / count < 0.28


@pytest.mark.slow
@pytest.mark.parametrize("hints", [True, False])
def test_hundreds_of_pairs_at_the_limit_with_a_fifth_failing(hints, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.1)
    limited = LimitedServer(60.0, hints)
    table = scored("openai", limited, pairs=200, settings=["samples=1", "concurrency=32"]).table
    check_each_was_paid_once(table, limited, 200)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time of all that waits, of servers too: whatever the machine does meanwhile takes none of it."""
    now, select = [1.0], selectors.DefaultSelector.select

    def jump(selector: selectors.DefaultSelector, timeout: float | None = None) -> list[Any]:
        ready = select(selector, timeout and 0)
        now[0] += 0.0 if ready else timeout or 0.0
        return ready

    async def at_once(function: Callable[[], Any]) -> Any:
        return function()

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(selectors.DefaultSelector, "select", jump)
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    return now


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hints", "count"), [pytest.param(True, 1000, marks=pytest.mark.long), (False, 300), (True, 300)]
)
def test_a_thousand_pairs_at_the_limit_take_as_long_as_it_says(
    hints, count, clock, make_judge, make_pairs, monkeypatch
):
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.1)
    rate = 60.0
    limited = LimitedServer(rate, hints)

    async def answered(transport: httpx.AsyncHTTPTransport, sent: httpx.Request) -> httpx.Response:
        response = limited(Request(sent.url.path, sent.headers, json.loads(sent.content)))
        await asyncio.sleep(response.delay)
        if response.cut:
            raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")
        stream = httpx.ByteStream(json.dumps(response.body).encode())
        return httpx.Response(response.status, headers=dict(response.headers), stream=stream)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", answered)
    judge = make_judge("openai", "http://127.0.0.1:9", ["samples=1", "concurrency=32"])
    check_each_was_paid_once(judge.score(make_pairs(count)), limited, count)
    # every request that is let through takes one turn; the bucket begins full
    bound = (count + len(limited._failed) - rate) / rate
    assert bound <= clock[0] - limited.begun < 1.3 * bound, (bound, limited.refused)


def test_refusals_for_want_of_speed_do_not_use_up_the_attempts(scored, monkeypatch):
    """A request that was refused more often than a failing one is repeated still has all of its repetitions."""
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", attempts := 3)  # each refusal doubles the pause: few are enough
    slow_down = openai_error(429, "slow down", "rate_limit_exceeded", {"retry-after-ms": "10"})
    answers = [slow_down] * (attempts + 1) + [openai_error(500, "oops")] * (attempts - 1)
    found = scored("openai", *answers, answer("openai", GOOD))
    assert found.row["status"] == OK
    assert len(found.requests) == 2 * attempts + 1


def test_a_known_limit_is_never_met(scored):
    limited = LimitedServer(30.0)
    limited._tokens = 1.0
    scored("openai", limited, pairs=40, settings=["samples=1", "rpm=1200"])
    assert limited.refused == 0


def test_the_pace_follows_what_the_server_asks(monkeypatch):
    clock = [0.0]

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(f"{RUNNER}.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(f"{RUNNER}.asyncio.sleep", sleep)

    def turn(limit: RateLimit) -> float:
        try:
            limit.acquire().send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("still waiting")

    limit = RateLimit()
    assert [turn(limit) for _ in range(3)] == [0, 0, 0]  # nothing waits
    for moment in (1.0, 2.0, 3.0, 4.0):
        clock[0] = moment
        limit.answered()
    limit.limited(started=3.5, wait=2.0)
    assert turn(limit) == pytest.approx(6.0)  # as it asked
    assert turn(limit) - 6.0 == pytest.approx(3 / 4)  # then as answers came: four in the three seconds since the first
    limit.limited(started=3.6, wait=0.0)  # one that was under way then: not slower for it
    assert turn(limit) - clock[0] == pytest.approx(0.0)
    assert turn(RateLimit(rpm=60)) == clock[0]


def test_refusals_in_a_row_do_not_slow_down_what_comes_after(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(f"{RUNNER}.time.monotonic", lambda: clock[0])
    limit = RateLimit()
    for _ in range(12):
        clock[0] += 60
        limit.limited(started=clock[0], wait=1.0)
    assert limit._gap == 2.0
    gaps = 0.0
    for _ in range(100):
        limit.answered()
        gaps += limit._gap
    assert gaps < 60


@pytest.mark.parametrize("refusal", [429, 503])
def test_the_first_signal_stops_those_who_wait_for_the_server(refusal, make_judge, make_pairs, capsys):
    busy = openai_error(refusal, "busy", headers={"retry-after": "300"})
    with serve(lambda request: busy) as server:
        judge = make_judge("openai", server.url, ["samples=1", "concurrency=4"])
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            judge.score(make_pairs(20))
    assert time.monotonic() - begun < 15
    assert 1 <= len(server.requests) <= 4
    assert capsys.readouterr().err.count("the server asks to wait 300 s") == 1


def test_the_budget_is_never_passed(scored):
    # each answer costs 0.425 cents, and might cost at most some more
    good = Response(answer("openai", GOOD), delay=0.02)
    table, requests, _ = scored("openai", good, pairs=60, settings=["samples=1", OPENAI_PRICE], budget=0.1)
    spent = sum(meta["cost"] or 0 for meta in table["meta"])
    each = (250 * 2.5 + 100 * 32 + 25 * 10) / 1e6
    assert spent == pytest.approx(each * (table["status"] == OK).sum())
    assert 0.1 - 4 * each < spent <= 0.1
    assert set(table["status"]) == {OK, "not asked: the budget is used up"}
    assert len(requests) == (table["status"] == OK).sum()


def test_answers_under_way_are_kept_where_the_run_ends(make_judge, make_pairs):
    """The credit ends at the fifth request; those before it are answered later than it is refused."""
    lock, seen = threading.Lock(), []

    def behave(request: Request) -> Response:
        with lock:
            seen.append(asked_about(request))
            last = len(seen) > 4
        if last:
            return openai_error(429, "You exceeded your current quota", "insufficient_quota")
        return Response(answer("openai", GOOD), delay=0.5)

    with serve(behave) as server:
        judge = make_judge("openai", server.url, ["samples=1", "concurrency=6"])
        with pytest.raises(UserError, match="exceeded your current quota"):
            judge.score(make_pairs(30))
        assert len(seen) < 30
        with pytest.raises(UserError, match="exceeded your current quota"):
            judge.score(make_pairs(30))
    assert all(seen.count(key) == 1 for key in seen[:4])


def test_failures_are_results_that_are_paid_once(make_judge, make_pairs):
    with serve(lambda request: Response(openai_answer(refusal="No."))) as server:
        judge = make_judge("openai", server.url)
        for kept in (0, 1):
            row = judge.score(make_pairs(1)).iloc[0]
            assert (row["status"], row["meta"]["kept"]) == ("refused", kept)
        assert len(server.requests) == 1


def test_equal_questions_under_way_are_paid_once(make_judge, make_pairs):
    pairs = [replace(pair, pair_id=f"{pair.pair_id} {copy}") for pair in make_pairs(3) for copy in "ab"]
    with serve(lambda request: Response(answer("openai", GOOD), delay=0.3)) as server:
        judge = make_judge("openai", server.url)
        plan = planned(judge, pairs)
        table = judge.score(pairs)
    assert (plan.questions, plan.requests, plan.equal) == (6, 3, 3)
    assert "3 questions are the same as others and are asked once" in disclosure(judge, plan, 1)
    assert (len(server.requests), set(table["status"])) == (3, {OK})
    assert sum(meta["kept"] for meta in table["meta"]) == 3


def test_other_questions_are_other_answers(make_judge, make_pairs):
    """The key has the model, the words, the parameters, the clips and the sample."""
    with serve(lambda request: Response(answer("openai", GOOD))) as server:
        for settings in (
            ["samples=1"],
            ["samples=2", "temperature=0"],
            ["samples=1", "temperature=0.5"],
            ["samples=1", "rubric=attunement"],
            ["samples=1", "hears=both"],
            ["samples=1", "answers=schema"],
        ):
            judge = make_judge("openai", server.url, settings)
            judge.score(make_pairs(2))
            judge.score(make_pairs(2))
        assert len(server.requests) == 12  # the second one asks for one more sample, the others for both pairs


def test_a_clip_that_cannot_be_read_costs_its_pair_alone(scored, make_pairs, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"no audio")
    pairs = [*make_pairs(1), Pair("bad", tmp_path / "bad.wav", group_id="g")]
    good, bad = scored("openai", answer("openai", GOOD), pairs=pairs).table["status"]
    assert good == OK
    assert "bad.wav" in bad


# ---------------------------------------------------------------- whole programs


def command(url: str, data: Path, answers: Path, *more: str) -> list[str]:
    spec = f"openai:m,base_url={url}/v1,samples=2,concurrency=4,price=2.5:32:10"
    words = ["compare", spec, "constant", "--data", str(data), "--answers", str(answers), "--budget", "5"]
    return [sys.executable, "-m", "empathy_judge.cli", *words, "--checks", "none", "--resamples", "50", *more]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_twice_and_resumed_nothing_is_paid_twice(number, rated_folder, tmp_path, capsys):
    """Killed without warning, at most what was under way is lost."""
    limited = LimitedServer()
    charged = limited.charged
    with serve(limited) as server:
        arguments = command(server.url, rated_folder, tmp_path / "answers.sqlite")
        for wanted in (40, 110):
            process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while sum(charged.values()) < wanted and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            if number == signal.SIGTERM:
                assert process.returncode == 75, told
                assert "the same command goes on" in told
        assert main([*arguments[3:], "--json"]) == 0
    assert '"n_items": 100' in capsys.readouterr().out
    if number == signal.SIGTERM:
        assert len(charged) == 100
        assert set(charged.values()) == {2}  # two samples of each pair, none asked a third time
    assert 200 <= sum(charged.values()) <= 200 + 2 * 4


def test_a_comparison_in_which_a_judge_scores_nothing_is_not_well(rated_folder, tmp_path, capsys):
    with serve(lambda request: Response(answer("openai", GOOD | {"vocal_empathy": 9}))) as server:
        assert main(command(server.url, rated_folder, tmp_path / "answers.sqlite", "--split", "train")[3:]) == 1
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].endswith(": no pair has a score")
    assert "40 failed (100 %: 40 x score out of range); 20 pairs without a score." in shown.out


KEY = "sk-planted-QzXwVkJqZz"


@pytest.mark.slow
def test_no_key_and_no_audio_in_anything_that_is_written(rated_folder, tmp_path, monkeypatch, capsys):
    """A key is planted; the server repeats it in its errors."""

    def behave(request: Request) -> Response:
        to_openai = "authorization" in request.headers
        sent = request.headers["authorization" if to_openai else "x-goog-api-key"]
        assert KEY in sent
        if random.random() < 0.3:
            told = f"failed with {sent} of {KEY}"
            return openai_error(500, told) if to_openai else gemini_error(500, "INTERNAL", told)
        if random.random() < 0.1:
            told = f"bad request with {sent}"
            return openai_error(400, told) if to_openai else gemini_error(400, "INVALID_ARGUMENT", told)
        return Response(answer("openai", GOOD) if to_openai else answer("gemini", GOOD))

    environment = os.environ | {"EMPATHY_JUDGE_API_KEY": KEY, "OPENAI_LOG": "debug"}
    with serve(behave) as server:
        out = tmp_path / "out"
        gemini = f"gemini:m,base_url={server.url},samples=1,price=2:2:12"
        more = ["--out", str(out), "--split", "train"]
        arguments = command(server.url, rated_folder, tmp_path / "answers.sqlite", *more)
        arguments.insert(arguments.index("constant"), gemini)
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        assert {"authorization", "x-goog-api-key"} <= {name for one in server.requests for name in one.headers}
        audio = server.requests[0].body["messages"][-1]["content"][1]["input_audio"]["data"]
        asked = len(server.requests)
        monkeypatch.setenv("EMPATHY_JUDGE_API_KEY", KEY)
        assert main([*arguments[3:], "--dry-run"]) == 0
        assert len(server.requests) == asked

        def refuse(request: Request) -> Response:
            return openai_error(401, f"Incorrect API key provided: {KEY[:6]}*****{KEY[-4:]} ({KEY})")

    with serve(refuse) as server:
        assert main(command(server.url, rated_folder, tmp_path / "other.sqlite")[3:]) == 2
    shown = capsys.readouterr()
    assert '"model": "m"' in shown.out
    assert shown.err.strip().splitlines()[-1].startswith("error: openai:m: HTTP 401: ")
    written = [done.stdout, done.stderr, shown.out, shown.err]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) >= 4
    everything = "\n".join(written).encode() + b"".join(file.read_bytes() for file in files)
    for secret in (KEY, KEY[-4:], "Bearer", audio[200:240]):
        assert secret.encode() not in everything, secret
    assert asked > 50


def test_a_store_of_something_else_is_refused(tmp_path):
    (tmp_path / "text.sqlite").write_text("hello " * 100)
    with pytest.raises(UserError, match="not a file of answers"):
        AnswerCache(tmp_path / "text.sqlite")
    base = sqlite3.connect(tmp_path / "other.sqlite")
    base.execute("PRAGMA user_version=7")
    base.close()
    with pytest.raises(UserError, match="another version"):
        AnswerCache(tmp_path / "other.sqlite")


@pytest.mark.parametrize("reply", ["", "[]", '{"kind": 7}', '{"kind": "answered", "usage": []}', "[" * 100_000])
def test_a_damaged_answer_is_not_paid_again(reply, make_judge, make_pairs, store):
    refuses(f"UPDATE answers SET reply = '{reply}'", make_judge, make_pairs, store)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE answers SET reply = replace(reply, '4', '2')",
        "UPDATE answers SET cost = 'much'",
        "UPDATE answers SET attempts = attempts + 1",
        "UPDATE answers SET sha256 = ''",
    ],
)
def test_an_answer_that_is_not_what_was_stored_is_not_believed(change, make_judge, make_pairs, store):
    refuses(change, make_judge, make_pairs, store)


def refuses(change: str, make_judge, make_pairs, store) -> None:
    """Whether a judge stops at an answer that was changed in its file, and asks nobody."""
    with serve(lambda request: Response(answer("openai", GOOD))) as server:
        judge = make_judge("openai", server.url)
        judge.score(make_pairs(1))
        store._base.execute(change)
        with pytest.raises(UserError, match=r"answers.sqlite: is damaged \(a row is not what was stored\)"):
            judge.score(make_pairs(1))
        assert len(server.requests) == 1


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -1.0])
def test_a_budget_that_is_no_limit_is_refused(budget, make_judge):
    with pytest.raises(UserError, match="expected dollars, 0 or more"):
        make_judge("openai", "http://127.0.0.1:9", budget=budget)
