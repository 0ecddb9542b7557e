"""A thousand questions, servers that fail and limit, programs that are killed: nothing is lost or paid twice."""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pandas as pd
import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.costs import disclosure, planned
from empathy_judge.eval.judges.prompted.runner import RateLimit

from .conftest import OPENAI_PRICE, RUNNER
from .servers import (
    GOOD,
    LimitedServer,
    Request,
    Response,
    answer,
    asked_about,
    gemini_error,
    in_turn,
    openai_answer,
    openai_error,
    serve,
)


def check_each_was_paid_once(table: pd.DataFrame, limited: LimitedServer, count: int) -> None:
    assert (table["status"] == OK).all()
    assert len(table) == count
    assert len(limited.charged) == count
    assert set(limited.charged.values()) == {1}
    assert 0.12 < len(limited._failed) / count < 0.28


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
    assert ", 3 equal to another and asked once; " in disclosure(judge, plan, 1)
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


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -1.0])
def test_a_budget_that_is_no_limit_is_refused(budget, make_judge):
    with pytest.raises(UserError, match="expected dollars, 0 or more"):
        make_judge("openai", "http://127.0.0.1:9", budget=budget)


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
