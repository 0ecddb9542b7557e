"""Who waits, for how long, and who is refused: queue, work, what was scored already, the judge while it is loaded."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from empathy_judge.core.errors import AudioError, TextError, UserError
from empathy_judge.serving.records import JsonLines

from ..conftest import until
from .services import FakeScorer, InProcess, counter, error_of, in_process, numbers, reward, wav

QUEUE = "empathy_judge_queue_pairs"


class Crowd:
    """A service whose judge is at work on one pair until `release`: what is sent meanwhile waits."""

    def __init__(self, service: InProcess, scorer: FakeScorer, pool: ThreadPoolExecutor) -> None:
        self.service, self.scorer, self._pool = service, scorer, pool
        self._sent: list[Future[Any]] = []
        scorer.open.clear()
        self.send(wav(0.1), level="0.5")
        until(lambda: len(scorer.heard) == 1)

    def send(self, *clips: bytes, waiting: int | None = None, **form: Any) -> None:
        """A request; return when so many pairs wait."""
        self._sent.append(self._pool.submit(self.service.score, *clips, **form))
        if waiting is not None:
            until(lambda: counter(self.service, QUEUE) == waiting)

    def release(self) -> list[Any]:
        """All answers, in the order in which they were asked for."""
        self.scorer.open.set()
        return [future.result(30) for future in self._sent]


@contextmanager
def crowd(scorer: FakeScorer, **settings: Any) -> Iterator[Crowd]:
    with in_process(scorer, **settings) as service, ThreadPoolExecutor(16) as pool:
        yield Crowd(service, scorer, pool)


def statuses(answers: list[Any]) -> set[int]:
    return {answer.status_code for answer in answers}


def test_a_judge_that_cannot_score_the_trial_never_becomes_ready():
    scorer = FakeScorer()
    scorer.fails = lambda pair: AudioError("too long for the memory of cuda", "too large for the memory")
    with pytest.raises(AudioError, match="too long for the memory of cuda"), in_process(scorer):
        pytest.fail("it is ready")


def test_while_the_judge_is_loaded_requests_are_told_to_come_back():
    scorer, go = FakeScorer(), threading.Event()

    def load() -> Any:
        assert go.wait(30)
        return scorer

    with in_process(load) as service:
        for method, path in (("GET", "/readyz"), ("GET", "/v1/judge"), ("POST", "/v1/score")):
            answer = service(method, path, files={"response": wav()} if method == "POST" else None)
            said = "the judge is still being loaded; ask again in 5 s, or wait until GET /readyz answers 200"
            assert error_of(answer) == (503, "loading", said)
            assert int(answer.headers["retry-after"]) >= 1
        assert service("GET", "/healthz").json() == {"status": "ok"}
        assert service("GET", "/").status_code == 200
        go.set()
        until(lambda: service("GET", "/readyz").status_code == 200)
        assert service.score(wav()).status_code == 200


def test_what_is_wrong_with_one_pair_is_no_fault_of_those_scored_with_it(scorer, caplog):
    errors = {"user": UserError("pair: no"), "text": TextError("situation: no"), "audio": AudioError("r: no")}
    scorer.fails = lambda pair: {"bug": ValueError("secret words"), **errors}.get(pair.situation or "")
    caplog.set_level(logging.INFO)
    with crowd(scorer) as own:
        for waiting, word in enumerate(("bug", "user", "text", "audio", "fine"), start=1):
            own.send(wav(), waiting=waiting, situation=word, level="0.5")
        answers = own.release()
    assert [answer.status_code for answer in answers] == [200, 500, 422, 422, 422, 200]
    assert [error_of(answer)[1] for answer in answers[1:5]] == ["internal", "invalid", "invalid", "bad_audio"]
    assert scorer.sizes()[:2] == [1, 4]
    lines = [JsonLines().format(record) for record in caplog.records if record.name == "empathy_judge.serving"]
    assert not any("secret words" in line for line in lines)
    (bug,) = [json.loads(line) for line in lines if json.loads(line)["event"] == "bug"]
    assert bug["error"] == "ValueError"
    assert any("batcher.py" in place for place in bug["where"])


def test_a_full_queue_refuses_and_loses_nobody(scorer):
    with crowd(scorer, max_queue=3) as own:
        for waiting in range(1, 4):
            own.send(wav(), waiting=waiting)
        refused = own.service.score(wav())
        assert error_of(refused)[:2] == (429, "busy")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert statuses(own.release()) == {200}
        assert own.service.score(wav()).status_code == 200
        # more responses than there are places are refused as a whole, and not to ask again
        status, code, message = error_of(own.service.score(*[wav()] * 4, path="/v1/rank"))
        assert (status, code) == (422, "bad_audio")
        assert message == "the responses make 4 windows of 10 s; expected at most 3"
        assert counter(own.service, 'empathy_judge_refused_total{code="busy"}') == 1
    assert len(scorer.heard) == 5


def test_what_is_not_scored_in_time_is_answered_and_dropped(scorer):
    with crowd(scorer, request_seconds=0.3) as own:
        late = own.service.score(wav())
        assert error_of(late) == (504, "timeout", "no score within 0.3 s; ask again when the service is less busy")
        until(lambda: counter(own.service, QUEUE) == 0)
        assert statuses(own.release()) == {504}
        assert own.service.score(wav()).status_code == 200
    assert len(scorer.heard) == 2  # the late one was never begun


def test_requests_that_wait_are_scored_together_and_levels_apart(scorer):
    with crowd(scorer) as own:
        for n in range(1, 10):
            own.send(wav(0.05 * n), waiting=n, level="0.5" if n < 6 else "0.95")
        bodies = [answer.json() for answer in own.release()]
        assert counter(own.service, 'empathy_judge_batch_pairs_bucket{le="4.0"}') == 5  # with the trial
        assert counter(own.service, "empathy_judge_batch_pairs_sum") == 11
    assert [body["scores"]["empathy"]["score"] for body in bodies[1:]] == pytest.approx(
        [1 + 0.2 * n for n in range(1, 10)], abs=1e-3
    )
    for body in bodies:
        score = body["scores"]["empathy"]
        assert score["high"] - score["low"] == pytest.approx(2 * body["level"])
    assert sum(scorer.sizes()) == 10
    assert max(scorer.sizes()) <= 4
    assert all(len({pair.pair_id for pair in pairs}) == len(pairs) for pairs, _ in scorer.batches)


def test_work_of_a_request_is_bounded(scorer):
    scorer.windows = True
    turns, text = [wav(0.1, 15.0, rate=4_000)] * 5, "x" * 3_000
    with in_process(scorer) as service:
        found = [
            service.score(wav(), context=turns),  # refused before the response is looked at
            service.score(wav(0.1, 55.0, rate=4_000), situation=text),
            service.score(*[turns[0]] * 9, context=turns[:2], path="/v1/rank", situation=text),
            service.score(*[turns[0]] * 9, context=turns[:3], path="/v1/rank"),
        ]
        assert not scorer.heard
        assert service.score(wav(0.1, 50.0, rate=4_000), situation=text).status_code == 200
    assert [error_of(answer)[2] for answer in found] == [
        "context and response make 32 windows of 10 s; expected at most 20",
        "context and response make 6 windows of 10 s; expected at most 5 beside a situation of this length",
        "context and response make 8 windows of 10 s; expected at most 5 beside a situation of this length",
        "the responses make 80 windows of 10 s; expected at most 64",
    ]


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


def test_what_is_sent_twice_is_heard_once(scorer):
    """In one request, after one another, and while the first request waits; and whoever hangs up takes nothing away."""
    with in_process(scorer) as service, ThreadPoolExecutor() as pool:
        assert numbers(reward(service, wav(0.5), wav(0.25), wav(0.5))) == pytest.approx([0.5, 0.25, 0.5], abs=1e-3)
        assert len(scorer.heard) == 2
        scorer.open.clear()
        first = pool.submit(reward, service, wav(0.75), wav(0.5))
        until(lambda: len(scorer.heard) == 3)
        second = pool.submit(reward, service, wav(0.75), wav(0.125))
        with pytest.raises(TimeoutError):
            second.result(0.2)
        scorer.open.set()
        assert numbers(first.result(20)) == pytest.approx([0.75, 0.5], abs=1e-3)
        assert numbers(second.result(20)) == pytest.approx([0.75, 0.125], abs=1e-3)
    assert len(scorer.heard) == 4


def test_what_failed_is_asked_again(scorer):
    with in_process(scorer) as service:
        scorer.fails = lambda pair: AudioError("too long for the memory", "too large for the memory")
        failed = reward(service, wav(0.5)).json()["rewards"][0]
        scorer.fails = lambda pair: RuntimeError("a bug")
        assert reward(service, wav(0.5)).status_code == 500
        scorer.fails = lambda pair: None
        assert numbers(reward(service, wav(0.5))) == [pytest.approx(0.5, abs=1e-3)]
    assert (failed["reward"], failed["reason"]["code"]) == (None, "too large for the memory")
