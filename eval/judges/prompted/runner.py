"""Asks many questions: rate limit, retries, budget, and a cache to which answers are written at once."""

from __future__ import annotations

import asyncio
import math
import random
import re
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ....core.errors import ASKED_TO_STOP, AudioError, UserError
from ....core.processes import ProgressBar, in_daemon_thread, listen, restore
from ...report.dataset import OVER_BUDGET
from .budget import Budget
from .cache import AnswerCache, CachedAnswer, cache_key
from .prices import PRICES
from .provider import Provider
from .questions import AnswerForm, Question, Unread
from .replies import ANSWERED, CUT_OFF, REFUSED, Reply, RequestError
from .settings import PromptedSettings

ATTEMPTS = 6
"""Most attempts of a request where the server fails. Rate limit errors count separately, up to `_LIMITED_ATTEMPTS`."""
_LIMITED_ATTEMPTS = 60
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0  # seconds
# The run ends without a single answer after so many questions that are invalid or bring only bills; questions that wait
# for nothing until the time is up are counted at their first failure, once the time of all `ATTEMPTS` of one has passed
_HOPELESS = 5
# And after so many questions in a row without an answer, for each request under way. With the delays above these rounds
# take a minute and a half: a server that is started again answers before
_SILENT_ROUNDS = 10
_WINDOW = 10.0  # seconds over which the rate of answers is measured
_RISE = 1.05  # factor of the rate with each answer after a limit was hit, to find out when the limit is lifted
_LEAST_GAP = 1e-4  # seconds between requests; a shorter gap is none
_WIDEST_GUESS = 2.0  # seconds between requests, where there are no answers to measure the rate of
_LOOK = 0.2  # seconds at most until whoever waits sees that the run stops
_LONG_WAIT = 10.0  # seconds; a server that asks for more is named
STOPPED = "not asked: stopped"
# Refusals in the text, where a model has no field for them; only searched where no score can be read
_REFUSAL = re.compile(
    r"\b(?:I(?:'m| am) (?:sorry|unable|not able)|I (?:cannot|can['’]t|won['’]t)|"
    r"(?:cannot|can['’]t) (?:help|assist|judge|rate))",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class QueuedQuestion:
    """A question that can be asked."""

    build: Callable[[], Question]  # makes it; the clips are read again each time, so that waiting ones take no memory
    sample: int  # which of the answers to it


@dataclass(frozen=True)
class AskedOutcome:
    """The outcome of a task."""

    answer: CachedAnswer | None = None  # None where there is none
    values: Mapping[str, float] = field(default_factory=dict)  # numbers by name that the answer holds
    failure: str = ""  # why there are none; never guessed at
    cached: bool = False  # it was paid for before
    repeated: bool = False  # its answer is also that of an earlier task of this run, and is paid once
    reserve: float = 0.0  # dollars that must be free before it is asked, where the budget left no room for it


def values_in(reply: Reply, form: AnswerForm) -> dict[str, float]:
    """The numbers of a reply; raises `Unread` with what is wrong with it."""
    if reply.kind not in (ANSWERED, CUT_OFF):
        raise Unread(reply.kind)
    try:
        return form.read(reply.content, reply.alternatives, reply.levels)
    except Unread as error:
        if reply.kind == CUT_OFF:
            raise Unread(CUT_OFF) from None
        raise Unread(REFUSED if _REFUSAL.search(reply.content) else str(error)) from None


class RateLimit:
    """Decides when the next request may start.

    Without `rpm` (requests a minute), nothing waits until the server objects (HTTP 429). Then all requests wait for as
    long as the server asks, and afterwards start at the rate at which answers came, a little faster with every answer.
    `stop` ends all waiting.
    """

    def __init__(self, rpm: float | None = None, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()
        self._least = self._gap = 60.0 / rpm if rpm else 0.0
        self._next = 0.0  # no request starts before
        self._answers: deque[float] = deque()
        self._slowed = 0.0  # when the gap was last widened

    async def acquire(self) -> float:
        """Waits until a request may start, or the run stops; returns when that was, for `limited`."""
        while (now := time.monotonic()) < self._next and not self._stop.is_set():
            await asyncio.sleep(min(self._next - now, _LOOK))
        # From the time that was planned and not from now, or each delay would add to the gap
        self._next = max(now, self._next) + self._gap
        return now

    async def pause(self, seconds: float) -> None:
        """Waits so long, or until the run stops."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end and not self._stop.is_set():
            await asyncio.sleep(min(end - now, _LOOK))

    def answered(self) -> None:
        """Records that an answer came."""
        now = time.monotonic()
        self._answers.append(now)
        while self._answers[0] < now - _WINDOW:
            self._answers.popleft()
        self._gap = max(self._least, self._gap / _RISE if self._gap > _LEAST_GAP else 0.0)

    def limited(self, started: float, wait: float) -> None:
        """Records that the server refused a request that started at `started` and asks to wait (seconds)."""
        now = time.monotonic()
        self._next = max(self._next, now + wait)
        if started < self._slowed:
            return  # this request was already under way when the server first objected
        self._slowed = now
        # The rate at which answers came is what the server grants, whatever its headers say
        recent = [moment for moment in self._answers if moment > now - _WINDOW]
        gap = (now - recent[0]) / len(recent) if len(recent) >= 2 else min(max(2 * self._gap, 0.05), _WIDEST_GUESS)
        self._gap = max(self._least, gap)


class Session:
    """Asks one model in one way, within a budget in dollars (None = no limit).

    Raises:
        UserError: If the model does not support answers of that form, or the budget is negative or not finite.
    """

    def __init__(
        self, provider: Provider, settings: PromptedSettings, answers: AnswerCache, budget: float | None = None
    ) -> None:
        if budget is not None and not 0 <= budget < math.inf:
            raise UserError(f"budget {budget}; expected dollars, 0 or more")
        self._name = f"{provider.name}:{provider.model}"
        mode = provider.modes[0] if settings.answers == "auto" else settings.answers
        if mode not in provider.modes:
            raise UserError(f"{self._name}: answers={mode}; expected one of {', '.join(provider.modes)}")
        self.provider, self.settings = provider, settings.model_copy(update={"answers": mode})
        price = settings.price or (None if provider.elsewhere else PRICES.get(provider.listed))
        self.budget = Budget(provider, price, budget)
        self.answers = answers

    def ask(self, tasks: Sequence[QueuedQuestion], title: str) -> list[AskedOutcome]:
        """Asks all questions without an answer in the cache; an outcome for each task, in order.

        Raises:
            UserError: If nobody can be asked this way (a wrong key, an unknown model, requests that are always bad), or
                nobody answers any more.
            KeyboardInterrupt: If the program was interrupted. Answers under way were waited for and kept.
            SystemExit: With `ASKED_TO_STOP`, if it was asked to stop by SIGTERM. The same holds.
        """
        self._stop = threading.Event()
        self._rate = RateLimit(self.settings.rpm, self._stop)
        self._workers = min(self.settings.concurrency, len(tasks))
        self._good = self._bad = 0  # answers, and questions that are invalid or bring only bills
        self._vain = self._failed = 0  # questions with a request that failed, and such requests
        self._waited = 0.0  # seconds that they took
        self._silent = set[str]()  # questions in a row, whatever the samples of each, that nobody answered
        self._lost, lost_before = Counter[str](), self.budget.lost
        self._under_way: dict[str, asyncio.Task[CachedAnswer]] = {}
        self._seen = set[str]()  # keys of the questions of this run
        self._named_until = 0.0  # the end of the long wait that was named last
        try:
            with _stopped_by_signals(self._stop) as received:
                # In a thread: a notebook runs an event loop already, and the main thread must be free for signals
                outcomes = in_daemon_thread(lambda: asyncio.run(self._run(tasks, title)), "asking").result()
        finally:
            if self._lost:
                kinds = "; ".join(f"{count:,} x {kind}" for kind, count in self._lost.most_common())
                dollars = self.budget.lost - lost_before
                most = f", at most ${dollars:.2f} in all" if self.budget.price is not None else ""
                print(f"{self._name}: requests without an answer may be billed: {kinds}{most}", file=sys.stderr)
        if received:
            print("stopped: the answers so far are kept; the same command goes on from there", file=sys.stderr)
            raise KeyboardInterrupt if received == [signal.SIGINT] else SystemExit(ASKED_TO_STOP)
        return outcomes

    async def _run(self, tasks: Sequence[QueuedQuestion], title: str) -> list[AskedOutcome]:
        # Questions that are not reached before a stop have a status, too: none is silently without an answer
        outcomes = [AskedOutcome(failure=STOPPED)] * len(tasks)
        waiting = iter(enumerate(tasks))
        done = 0
        with ProgressBar(title, len(tasks)) as bar:

            async def work() -> None:
                nonlocal done
                for position, task in waiting:
                    if self._stop.is_set():
                        return
                    try:
                        outcomes[position] = await self._outcome(task)
                    # The other workers finish their requests, whose answers are stored, and begin no more
                    except BaseException:
                        self._stop.set()
                        raise
                    done += 1
                    bar.update(done, self.budget.spent_in_words())

            workers = [work() for _ in range(self._workers)]
            errors = await asyncio.gather(*workers, return_exceptions=True)
            await self.provider.close()
        for error in errors:
            if error is not None:
                raise error
        return outcomes

    async def _outcome(self, task: QueuedQuestion) -> AskedOutcome:
        try:
            # Clips are decoded in a thread: requests under way go on meanwhile
            question = await asyncio.to_thread(task.build)
        except AudioError as error:
            return AskedOutcome(failure=str(error))
        try:
            key = cache_key(self.provider, question, task.sample)
            answer = self.answers.get(key)
            cached = answer is not None or key in self._under_way
            repeated = key in self._seen
            self._seen.add(key)
            if answer is None:
                if key not in self._under_way:  # equal questions are paid once
                    self._under_way[key] = asyncio.create_task(self._asked(question, key, task.sample))
                answer = await self._under_way[key]
        except RequestError as error:
            reserve = self.budget.estimate(question, likely=False) if error.kind == OVER_BUDGET else 0.0
            return AskedOutcome(failure=error.kind, reserve=reserve)
        try:
            return AskedOutcome(answer, values_in(answer.reply, question.form), cached=cached, repeated=repeated)
        except Unread as error:
            return AskedOutcome(answer, failure=str(error), cached=cached, repeated=repeated)

    async def _asked(self, question: Question, key: str, sample: int) -> CachedAnswer:
        """The answer, written to the cache; raises `RequestError` with the reason where there is none."""
        size = self.budget.size(question)
        started = begun = time.monotonic()
        error = RequestError(OVER_BUDGET)
        tries = Counter[bool]()  # failed attempts; True counts rate limit errors, False all others
        try:
            while await self.budget.reserve(size):
                try:
                    begun = await self._rate.acquire()
                    if self._stop.is_set():
                        raise RequestError(STOPPED)
                    reply = await self._reply(question)
                    cost = self.budget.charge(reply.usage, size)
                    answer = CachedAnswer(reply, cost, time.monotonic() - started, 1 + tries.total())
                    self.answers.put(key, self._name, sample, answer)
                    return answer
                except RequestError as raised:
                    if raised.billed:
                        self.budget.lose(size)
                    error = raised
                finally:
                    self.budget.release(size)
                await self._wait_to_retry(error, question, tries, begun)
            raise error  # the budget is used up
        finally:
            del self._under_way[key]

    async def _reply(self, question: Question) -> Reply:
        """Asks once; raises `RequestError` if no answer came."""
        try:
            # Over the whole answer: a server that sends a byte a minute never meets a limit of each read
            async with asyncio.timeout(self.settings.timeout):
                reply = await self.provider.ask(question)
        except TimeoutError:
            message = f"no answer within {self.settings.timeout:g} s"
            raise RequestError("timeout", message, retry=True, billed=True) from None
        self._rate.answered()
        self._good += 1
        self._silent.clear()
        return reply

    async def _wait_to_retry(self, error: RequestError, question: Question, tries: Counter[bool], begun: float) -> None:
        """Waits until an attempt that began at `begun` may be repeated; raises `error` where it may not."""
        if error.kind == STOPPED:
            raise error
        if error.final:
            raise UserError(f"{self._name}: {error.kind}: {error}")
        self._lost.update([error.kind] if error.billed else [])
        self._vain += not tries.total()
        self._failed += 1
        self._waited += time.monotonic() - begun
        tries[error.limited] += 1
        # Exponential backoff with full jitter (Brooker, 2015), in the number of failures of this kind: requests that
        # failed together must not come back together
        delay = random.uniform(0.1, 1.0) * min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (tries[error.limited] - 1))
        if error.wait is not None:
            delay = error.wait * random.uniform(1.0, 1.1)
            self._name_long_wait(error.kind, error.wait)
        if error.limited:
            self._rate.limited(begun, delay)
        # Nobody answers: without a single answer, so much time has passed as all attempts of those under way may take
        at_once = 1 if self.budget.one_by_one else self._workers
        mute = not self._good and self._waited >= ATTEMPTS * at_once * self.settings.timeout
        exhausted = mute or tries[False] >= ATTEMPTS or tries[True] >= _LIMITED_ATTEMPTS
        if error.retry and not exhausted and not self._stop.is_set():
            if not error.limited:  # all requests wait for the rate limit, and start with `acquire`
                await self._rate.pause(delay)
            return
        self._bad += not error.retry or (exhausted and error.billed)
        if error.retry and exhausted:
            self._silent.add(question.fingerprint())
        self._end_if_hopeless(error, mute)
        raise error

    def _end_if_hopeless(self, error: RequestError, mute: bool) -> None:
        """Ends the run where all other questions would fail, too, at the user's expense."""
        last = f"the last with {error.kind}: {error}"
        if mute and self._vain >= _HOPELESS:
            raise UserError(f"{self._name}: no answer to the first {self._failed} requests, {last}")
        if self._bad >= _HOPELESS and not self._good:
            what = "questions" if error.retry else "requests"
            raise UserError(f"{self._name}: the first {self._bad} {what} failed, {last}")
        if len(self._silent) >= _SILENT_ROUNDS * self.settings.concurrency:
            reason = f"no answer to {len(self._silent)} questions in a row, {last}"
            raise UserError(f"{self._name}: {reason}; answers are kept; the same command goes on from there")

    def _name_long_wait(self, kind: str, wait: float) -> None:
        """Says on standard error, once for all requests that wait, that the server asks for a long wait."""
        now = time.monotonic()
        if wait > _LONG_WAIT and now >= self._named_until:
            self._named_until = now + wait
            print(f"{self._name}: {kind}: the server asks to wait {wait:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[list[int]]:
    """The first signal lets requests under way end, the second ends the program. Yields a list of received signals."""
    received: list[int] = []

    def ask_to_stop(number: int, frame: object) -> None:
        received.append(number)
        stop.set()
        restore(before)

    before = listen(ask_to_stop, (signal.SIGINT, signal.SIGTERM))
    try:
        yield received
    finally:
        restore(before)
