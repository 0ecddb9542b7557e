"""Asks many questions: limits, retries, budget, and answers that are kept as they come."""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ....data_modules.errors import ASKED_TO_STOP, AudioError, UserError
from .answers_store import Answer, AnswersStore
from .asking import Asking
from .pace import Pace
from .prices import Bill
from .provider import Provider, Question, Reply, Trouble

ATTEMPTS = 6
"""Of one request, where the server fails; refusals for want of speed are not counted, up to `_LIMITED_ATTEMPTS`."""
_LIMITED_ATTEMPTS = 60
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0  # seconds
_HOPELESS = 5  # so many requests in a row that are bad in themselves, and none good, end the run
BUDGET = "not asked: the budget is used up"
STOPPED = "not asked: stopped"


@dataclass(frozen=True)
class Job:
    """A question that can be asked.

    Attributes:
        build: Makes it; the clips are read again each time, so that waiting ones take no memory.
        sample: How many times it is asked beside this one.
    """

    build: Callable[[], Question]
    sample: int


@dataclass(frozen=True)
class Outcome:
    """An answer, or the reason why there is none."""

    answer: Answer | None
    failure: str = ""
    kept: bool = False  # it was paid for before


def key_of(provider: Provider, question: Question, sample: int) -> str:
    """What an answer is kept under: who is asked, what, with which clips and parameters, and which sample it is."""
    content = [provider.name, provider.place, provider.model, question.fingerprint(), str(sample)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


class Runner:
    """Asks a provider: one pass over some jobs.

    Args:
        provider: Who is asked.
        asking: Limits.
        store: Where answers are kept.
        bill: Prices and the budget.
    """

    def __init__(self, provider: Provider, asking: Asking, store: AnswersStore, bill: Bill) -> None:
        self._provider, self._asking, self._store, self._bill = provider, asking, store, bill
        self._stop = threading.Event()
        self._pace = Pace(asking.rpm)
        self._good = self._bad = 0

    def ask(self, jobs: Sequence[Job], title: str) -> list[Outcome]:
        """Asks whatever has no answer yet.

        Returns:
            An outcome for each job, in order.

        Raises:
            UserError: If nobody can be asked this way: a wrong key, an unknown model, requests that are always bad.
            KeyboardInterrupt: If the program was interrupted. Answers under way were waited for and kept.
            SystemExit: With `ASKED_TO_STOP`, if it was asked to stop by SIGTERM. The same holds.
        """
        with _stopped_by_signals(self._stop) as number:
            outcomes = _in_a_loop(lambda: self._run(jobs, title))
        if number:
            print("stopped: the answers so far are kept; the same command goes on from there", file=sys.stderr)
            raise KeyboardInterrupt if number == [signal.SIGINT] else SystemExit(ASKED_TO_STOP)
        return outcomes

    async def _run(self, jobs: Sequence[Job], title: str) -> list[Outcome]:
        outcomes: list[Outcome] = [Outcome(None, STOPPED)] * len(jobs)
        waiting = iter(enumerate(jobs))
        with _progress(title, len(jobs)) as advance:

            async def work() -> None:
                for position, job in waiting:
                    if self._stop.is_set():
                        return
                    try:
                        outcomes[position] = await self._outcome(job)
                    except BaseException:  # ends all, once answers under way are kept
                        self._stop.set()
                        raise
                    advance(self._bill.spent_in_words())

            workers = [work() for _ in range(min(self._asking.concurrency, len(jobs)))]
            ends = await asyncio.gather(*workers, return_exceptions=True)
            await self._provider.close()
        for end in ends:
            if end is not None:
                raise end
        return outcomes

    async def _outcome(self, job: Job) -> Outcome:
        try:
            question = await asyncio.to_thread(job.build)
        except AudioError as error:
            return Outcome(None, str(error))
        key = key_of(self._provider, question, job.sample)
        kept = self._store.get(key)
        if kept is not None:
            return Outcome(kept, kept=True)
        reserved = await self._bill.reserve(question)
        if reserved is None:
            return Outcome(None, BUDGET)
        begun, attempts = time.monotonic(), 0
        try:
            while True:
                attempts += 1
                reply = await self._attempt(question, attempts)
                if isinstance(reply, Reply):
                    break
                if isinstance(reply, Outcome):
                    return reply
        finally:
            self._bill.release(reserved)
        answer = Answer(reply, self._bill.charge(reply.usage, question), time.monotonic() - begun, attempts)
        self._store.put(key, f"{self._provider.name}:{self._provider.model}", job.sample, answer)
        return Outcome(answer)

    async def _attempt(self, question: Question, attempts: int) -> Reply | Outcome | None:
        """The reply; an outcome without one; None = ask again."""
        started = await self._pace.turn()
        if self._stop.is_set():
            return Outcome(None, STOPPED)
        try:
            async with asyncio.timeout(self._asking.timeout):
                reply = await self._provider.ask(question)
        except TimeoutError:
            trouble = Trouble("timeout", f"no answer within {self._asking.timeout:g} s", again=True)
        except Trouble as error:
            trouble = error
        else:
            self._pace.answered()
            self._good += 1
            return reply
        if trouble.final:
            raise UserError(f"{self._provider.name}:{self._provider.model}: {trouble.kind}: {trouble}")
        delay = _delay(attempts) if trouble.wait is None else trouble.wait * random.uniform(1.0, 1.1)
        if trouble.limited:
            self._pace.limited(started, delay)
        most = _LIMITED_ATTEMPTS if trouble.limited else ATTEMPTS
        if not trouble.again or attempts >= most or self._stop.is_set():
            self._despair(trouble)
            return Outcome(None, trouble.kind)
        if not trouble.limited:
            await asyncio.sleep(delay)
        return None

    def _despair(self, trouble: Trouble) -> None:
        """Where the first requests are all bad in themselves, the others will be."""
        if not trouble.again:
            self._bad += 1
            if self._bad >= _HOPELESS and not self._good:
                raise UserError(
                    f"{self._provider.name}:{self._provider.model}: the first {self._bad} requests failed, the last "
                    f"with {trouble.kind}: {trouble}"
                )


def _delay(attempts: int) -> float:
    """Exponential with full jitter (Brooker, 2015)."""
    return random.uniform(0.1, 1.0) * min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (attempts - 1))


def _in_a_loop(make: Callable[[], Any]) -> Any:
    """Runs a coroutine in a thread of its own, so that it works in notebooks."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(asyncio.run(make()))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, name="asking", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)  # in pieces, so that signals are handled meanwhile
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[list[int]]:
    """The first signal lets what is under way end, the second ends the program. Yields the first one's number."""
    got: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield got
        return
    before: dict[signal.Signals, Any] = {}

    def ask(number: int, frame: object) -> None:
        got.append(number)
        stop.set()
        for name, handler in before.items():
            signal.signal(name, handler)

    before |= {name: signal.signal(name, ask) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield got
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar with time left and what was spent; quiet where nobody looks."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[spent]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total, spent="")
        yield lambda spent: bar.update(task, advance=1, spent=spent)
