"""The budget holds by the books of the server, whatever it counts and however many requests are under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.budget import HEADROOM, Budget, RequestSize
from empathy_judge.eval.judges.prompted.prices import Price
from empathy_judge.eval.judges.prompted.replies import Usage

from .conftest import EMPATHY, OPENAI_PRICE, RUNNER
from .servers import GOOD, Request, Response, answer, asked_about, openai_answer, serve

PRICE = Price(2.5, 32.0, 10.0)
SKIPPED = "not asked: the budget is used up"
AUDIO = 4  # tokens that the estimate expects of both clips of a pair, 0.4 s at 10 a second


class Books:
    """A server that writes down what it charges.

    Attributes:
        charged: Dollars of each answer, in order.
    """

    def __init__(self, audio: Callable[[int], int]) -> None:
        self.charged: list[float] = []
        self._audio, self._lock = audio, threading.Lock()

    def __call__(self, request: Request) -> Response:
        with self._lock:
            audio = self._audio(len(self.charged))
            self.charged.append((300 * PRICE.text_in + audio * PRICE.audio_in + 25 * PRICE.out) / 1e6)
        return Response(answer("openai", GOOD, usage=counts(300 + audio, audio, 25)), delay=0.01)


def counts(prompt: Any, audio: Any, written: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "prompt_tokens_details": {"audio_tokens": audio},
    }


SERVERS: dict[str, Callable[[int], int]] = {
    "as expected": lambda number: AUDIO,
    "3 times": lambda number: 3 * AUDIO,
    "9,000 times": lambda number: 9_000 * AUDIO,
    "one more each": lambda number: AUDIO + 40 * number,
    "twice the last": lambda number: AUDIO * 2**number,
    "dear in between": lambda number: 9_000 * AUDIO if number % 5 == 4 else AUDIO,
}


@pytest.mark.parametrize("concurrency", [1, 4, 50])
@pytest.mark.parametrize("name", SERVERS)
def test_no_server_takes_more_than_one_question_above_the_budget(name, concurrency, scored):
    books = Books(SERVERS[name])
    settings = ["samples=1", OPENAI_PRICE, f"concurrency={concurrency}"]
    table, requests, judge = scored("openai", books, pairs=60, settings=settings, budget=0.04)
    spent, dearest = sum(books.charged), max(books.charged)
    assert judge.session.budget.spent == pytest.approx(spent)
    assert sum(meta["cost"] or 0 for meta in table["meta"]) == pytest.approx(spent)
    assert set(table["status"]) == {OK, SKIPPED}
    assert len(requests) == (table["status"] == OK).sum() < 60
    expected = name in ("as expected", "3 times")
    assert spent <= (0.04 if expected else 0.04 + dearest)
    if expected:  # it is used, too
        assert spent > 0.03
    if name == "9,000 times" or (name == "twice the last" and concurrency > 1):
        assert len(requests) <= 10


def test_a_budget_that_is_large_enough_slows_nothing_down(scored):
    """As many requests are under way as may be, once answers have confirmed the price."""
    under_way, most, lock = 0, 0, threading.Lock()

    def behave(request: Request) -> Response:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        threading.Event().wait(0.05)
        with lock:
            under_way -= 1
        return Response(answer("openai", GOOD))

    table = scored("openai", behave, pairs=60, settings=["samples=1", OPENAI_PRICE, "concurrency=8"], budget=20).table
    assert (table["status"] == OK).all()
    assert most >= 6


NO_COUNTS = {
    "zero": counts(0, 0, 0),
    "zero in a total": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "missing": None,
    "negative": counts(-350, -100, -25),
    "NaN": counts(float("nan"), float("nan"), float("nan")),
    "infinite": counts(float("inf"), float("inf"), float("inf")),
    "text": counts("350", "100", "25"),
    "true": counts(True, True, True),
    "lists": counts([350], {}, []),
    "nothing written": counts(350, 100, 0),
    "no text read": counts(0, 100, 25),
    "a clip of no tokens": counts(350, 0, 25),
}


@pytest.mark.parametrize("concurrency", [1, 50])
@pytest.mark.parametrize("name", NO_COUNTS)
def test_what_cannot_be_a_count_counts_as_the_most_expected(name, concurrency, scored, make_pairs):
    body = answer("openai", GOOD, usage=NO_COUNTS[name])
    settings = ["samples=1", OPENAI_PRICE, f"concurrency={concurrency}"]
    table, requests, judge = scored("openai", body, pairs=40, settings=settings, budget=0.05)
    budget = judge.session.budget
    most = budget.estimate(judge.tasks(make_pairs(1))[0].build(), likely=False)
    assert {meta["cost"] for meta in table["meta"]} == {None}
    assert 0 < len(requests) == (table["status"] == OK).sum() < 40
    assert 0.05 - most < budget.spent <= 0.05
    assert budget.spent >= len(requests) * 0.004  # 400 tokens written


@pytest.mark.parametrize("huge", [10**10, 10**18, 10**400, 1e300, 9e6])
@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens", "audio_tokens"])
def test_a_huge_count_ends_the_run_at_once(field, huge, scored):
    usage = counts(350, 100, 25)
    (usage["prompt_tokens_details"] if field == "audio_tokens" else usage)[field] = huge
    settings = ["samples=1", OPENAI_PRICE, "concurrency=50"]
    table, requests, judge = scored(
        "openai", answer("openai", GOOD, usage=usage), pairs=20, settings=settings, budget=1
    )
    assert len(requests) == 1
    assert sorted(table["status"]) == sorted([OK, *[SKIPPED] * 19])
    assert judge.session.budget.spent > 1


def test_a_huge_prompt_is_charged_where_nobody_says_how_much_of_it_is_audio(scored):
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 25}
    settings = ["samples=1", OPENAI_PRICE, "concurrency=50"]
    found = scored("openai", answer("openai", GOOD, usage=usage), pairs=20, settings=settings, budget=1)
    assert len(found.requests) == 1
    assert found.judge.session.budget.spent == pytest.approx(32, rel=0.05)
    assert {meta["cost"] for meta in found.table["meta"]} == {None}


@pytest.mark.parametrize(
    ("counted", "dollars"),
    [
        ({"promptTokenCount": 900_000}, 1.8 + 8192 * 12e-6),  # and the longest answer, as nothing is said of it
        ({"promptTokenCount": 420, "candidatesTokenCount": "x", "totalTokenCount": 900_420}, 10.8),
        ({"promptTokenCount": 420, "candidatesTokenCount": 20, "thoughtsTokenCount": 900_000}, 10.8),
    ],
)
def test_gemini_is_held_by_its_counts_too(counted, dollars, scored):
    settings = ["samples=1", "price=2:2:12", "concurrency=50"]
    body = answer("gemini", GOOD, usageMetadata=counted)
    found = scored("gemini", body, pairs=20, settings=settings, budget=1)
    assert len(found.requests) == 1
    assert found.judge.session.budget.spent == pytest.approx(dollars, rel=0.01)


@pytest.mark.parametrize("total", [350, 1_000_375])
def test_thoughts_that_stand_in_the_total_alone_are_paid(total, scored):
    usage = counts(350, 100, 25) | {"total_tokens": total}
    row = scored("openai", answer("openai", GOOD, usage=usage), settings=["samples=1", OPENAI_PRICE]).row
    written = max(25, total - 350)
    assert row["meta"]["cost"] == pytest.approx((250 * 2.5 + 100 * 32 + written * 10) / 1e6)


@pytest.mark.parametrize("concurrency", [1, 50])
def test_attempts_without_an_answer_count_and_confirm_nothing(concurrency, scored, monkeypatch):
    """Each question is cut off once, which may be billed, before a dear answer."""
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    books, cut = Books(SERVERS["9,000 times"]), set()

    def behave(request: Request) -> Response:
        key = asked_about(request)
        if key in cut:
            return books(request)
        cut.add(key)
        return Response(b'{"choices": [', delay=0.01)

    settings = ["samples=1", OPENAI_PRICE, f"concurrency={concurrency}"]
    _, _, judge = scored("openai", behave, pairs=60, settings=settings, budget=1)
    assert len(books.charged) == 1
    assert 0 < judge.session.budget.lost < 1
    assert judge.session.budget.spent == pytest.approx(books.charged[0] + judge.session.budget.lost)


@pytest.mark.parametrize("usage", [None, counts(0, 0, 0), counts(350, 100, 25)])
def test_what_is_free_costs_nothing_whatever_it_counts(usage, scored):
    body = answer("openai", GOOD, usage=usage)
    table, _, judge = scored("openai", body, pairs=3, settings=["samples=1", "price=0:0:0"], budget=0.0)
    assert (set(table["status"]), {meta["cost"] for meta in table["meta"]}) == ({OK}, {0.0})
    assert judge.session.budget.spent == 0


def test_two_dimensions_asked_one_by_one(scored):
    books = Books(SERVERS["9,000 times"])
    dimensions = [EMPATHY, Dimension("warmth", 1, 5, 1)]

    def behave(request: Request) -> Response:
        usage = books(request).body["usage"]
        return Response(openai_answer("4", usage=usage))

    settings = ["samples=1", "answers=logprobs", OPENAI_PRICE, "concurrency=50"]
    table = scored("openai", behave, pairs=10, settings=settings, budget=1, dimensions=dimensions).table
    assert len(books.charged) == 1
    assert (table["status"] != OK).sum() >= 19


def test_a_run_that_goes_on_pays_no_answer_twice(make_judge, make_pairs):
    books = Books(SERVERS["3 times"])
    with serve(books) as server:
        first = make_judge("openai", server.url, ["samples=1", OPENAI_PRICE], budget=0.03)
        before = (first.score(make_pairs(30))["status"] == OK).sum()
        assert 0 < before < 30
        second = make_judge("openai", server.url, ["samples=1", OPENAI_PRICE], budget=1.0)
        table = second.score(make_pairs(30))
    assert (table["status"] == OK).all()
    assert len(books.charged) == 30
    assert second.session.budget.spent == pytest.approx(sum(books.charged[before:]))
    assert sum(meta["cost"] for meta in table["meta"]) == pytest.approx(sum(books.charged))


def test_equal_questions_cost_once(make_judge, make_pairs):
    books = Books(SERVERS["as expected"])
    with serve(books) as server:
        judge = make_judge("openai", server.url, ["samples=1", OPENAI_PRICE], budget=1.0)
        for _ in range(2):  # asked, then kept
            table = judge.score([*make_pairs(2), *make_pairs(2)])
            assert sum(meta["cost"] for meta in table["meta"]) == pytest.approx(sum(books.charged))
    assert len(books.charged) == 2


# ---------------------------------------------------------------- before the first question


# ---------------------------------------------------------------- without a server


class Told:
    """What a budget asks a provider."""

    audio_tokens_per_second, likely_tokens = 10.0, 60


SIZE = RequestSize(text=1050, seconds=10.0, out=100)
USUAL = Usage(300, 100, 20)
COST = (300 * 2.5 + 100 * 32 + 20 * 10) / 1e6


async def started(budget: Budget, wanted: int) -> int:
    """How many of so many requests start before any of them ends."""
    tasks = [asyncio.create_task(budget.reserve(SIZE)) for _ in range(wanted)]
    await asyncio.sleep(0)
    done = sum(task.done() and task.result() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


def answered(budget: Budget, *usages: Usage) -> None:
    for usage in usages:
        budget.charge(usage, SIZE)
        budget.release(SIZE)


def test_as_many_start_as_answers_confirmed():
    async def run() -> None:
        budget = Budget(Told(), PRICE, 100.0)  # type: ignore[arg-type]
        for expected in (1, 2, 4, 8):
            assert await started(budget, 50) == expected
            answered(budget, *[USUAL] * expected)
        assert await started(budget, 50) == 16
        answered(budget, Usage(300, 9_000, 20), *[USUAL] * 15)  # above its reservation
        assert await started(budget, 50) == 16  # one, and those 15 that were answered after it as expected

    asyncio.run(run())


def test_requests_side_by_side_leave_room_for_dearer_ones():
    async def run() -> None:
        read = (300 * 2.5 + 100 * 32) / 1e6
        for several in (1, 2, 5):
            budget = Budget(Told(), PRICE, several * (HEADROOM * read + 100 * 10 / 1e6) + 1e-9)  # type: ignore[arg-type]
            budget._confirmed = 100
            assert await started(budget, 50) == several
            answered(budget, *[Usage(HEADROOM * 300, HEADROOM * 100, 100)] * several)
            assert budget.spent <= budget.limit
            assert not await budget.reserve(SIZE)

    asyncio.run(run())


def test_the_last_dollars_are_spent_one_by_one():
    async def run() -> None:
        budget = Budget(Told(), PRICE, 10 * COST)  # type: ignore[arg-type]
        budget._confirmed = 100
        asked = 0
        while await budget.reserve(SIZE):
            asked += 1
            answered(budget, USUAL)
        assert asked == 9  # the tenth might cost more than is left
        assert budget.spent == pytest.approx(9 * COST)

    asyncio.run(run())


def test_without_a_limit_or_a_price_nothing_waits():
    async def run() -> None:
        for price, limit in ((PRICE, None), (Price(0, 0, 0), 1.0), (None, None)):
            assert await started(Budget(Told(), price, limit), 50) == 50  # type: ignore[arg-type]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (Response(answer("openai", GOOD), drip=0.1), "timeout"),  # each byte in time, the whole never
        (Response(answer("openai", GOOD), cut=True), "connection failed"),
        (Response(b'{"id": "x", "choi'), "malformed response"),
    ],
)
def test_answers_that_do_not_arrive_count_for_the_budget(response, kind, scored, make_pairs, monkeypatch):
    """The vendor may want money for them: what a request may cost at most is counted each time."""
    monkeypatch.setattr(f"{RUNNER}._FIRST_DELAY", 0.01)
    settings = ["samples=1", "timeout=0.5", OPENAI_PRICE, "concurrency=4"]
    table, requests, judge = scored("openai", response, pairs=30, settings=settings, budget=0.05)
    most = judge.session.budget.estimate(judge.tasks(make_pairs(1))[0].build(), likely=False)
    assert set(table["status"]) == {kind, "not asked: the budget is used up"}
    assert len(requests) == int(0.05 / most)
    assert 0.05 - most < judge.session.budget.spent <= 0.05
