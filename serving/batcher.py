"""The micro-batcher: requests that wait together are scored together."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..data_modules.audio import Clip
from ..data_modules.errors import AudioError
from ..data_modules.schema import Pair
from ..models.assessment import Assessment
from ..scorer import Scorer

LONG_TEXT = 1_000
"""Bytes of a situation beyond which a pair is scored alone: others would be padded to its length."""
MANY_WINDOWS = 4
"""Windows of a pair beyond which it is scored alone: others would wait for as many pairs as it has windows."""
_OLD_SHARE = 0.8  # of what was known before in the running mean of seconds per pair


@dataclass(eq=False)
class Job:
    """A pair that waits.

    Attributes:
        pair: What is scored.
        level: Of its intervals.
        windows: In how many it is read.
        future: Its assessment, or what is wrong with its audio; cancelled = nobody wants it any more.
        entered: When it began to wait (`time.monotonic`).
        batch: Pairs that were scored together with it, itself included; 0 = not yet.
        waited: Seconds before its batch began.
    """

    pair: Pair
    level: float
    windows: int = 1
    future: Future[Assessment | AudioError] = field(default_factory=Future)
    entered: float = field(default_factory=time.monotonic)
    batch: int = 0
    waited: float = 0.0

    @property
    def is_long(self) -> bool:
        """It is scored alone."""
        return self.windows > MANY_WINDOWS or len((self.pair.situation or "").encode()) > LONG_TEXT


class Full(Exception):
    """There is no place left."""


class Batcher:
    """A bounded queue and the one thread that calls the judge.

    It takes what waits, at most a batch of the scorer's, by turns with single pairs of long texts or of many windows,
    so that nobody waits for all of those. As long as others are on their way (`announce`) it waits a moment for them,
    but never longer than `max_wait`: a client that is alone never waits.

    Args:
        scorer: The judge.
        max_queue: Pairs that may wait.
        max_wait: Seconds.
        on_batch: Told how many pairs were scored together, and in how many seconds.
    """

    def __init__(self, scorer: Scorer, max_queue: int, max_wait: float, on_batch: Callable[[int, float], None]) -> None:
        self._scorer, self._max_queue, self._max_wait, self._on_batch = scorer, max_queue, max_wait, on_batch
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._coming = 0
        self._takes_long = False
        self._closed = False
        self._seconds_per_pair = 0.05
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Pairs in the queue."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """No place is left."""
        return len(self._waiting) >= self._max_queue

    def retry_after(self) -> int:
        """Seconds after which what waits now should be done, 1 to 60."""
        return int(min(60, max(1, self.waiting * self._seconds_per_pair + 0.5)))

    def announce(self, change: int) -> None:
        """So many pairs more (or fewer) are on their way."""
        with self._changed:
            self._coming += change
            self._changed.notify()

    def submit(self, pairs: Sequence[Pair], level: float) -> list[Job]:
        """Let pairs wait, all of them or none.

        Raises:
            Full: If there are not so many places.
        """
        with self._changed:
            if len(self._waiting) + len(pairs) > self._max_queue:
                raise Full
            jobs = [Job(pair, level, self.windows(pair)) for pair in pairs]
            self._waiting.extend(jobs)
            self._changed.notify()
        return jobs

    def windows(self, pair: Pair) -> int:
        """In how many windows a pair of decoded clips is read."""
        clips = [turn.audio for turn in pair.context] + [pair.response]
        hears = self._scorer.max_seconds
        return math.prod(math.ceil(len(clip.samples) / (clip.rate * hears)) for clip in clips if isinstance(clip, Clip))

    def drop(self, jobs: Iterable[Job]) -> None:
        """Nobody wants these any more: what was not begun never will be."""
        with self._changed:
            for job in jobs:
                job.future.cancel()
            self._waiting = deque(job for job in self._waiting if not job.future.cancelled())

    def close(self) -> None:
        """Score what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._next():
            begun = time.monotonic()
            for job in jobs:
                job.batch, job.waited = len(jobs), begun - job.entered
            waiting = [[job for job in jobs if job.level == level] for level in sorted({job.level for job in jobs})]
            while waiting:
                some = waiting.pop(0)
                try:
                    found = list(self._scorer.assess_pairs([job.pair for job in some], some[0].level))
                except Exception as error:
                    if len(some) == 1:
                        some[0].future.set_exception(error)
                    else:  # what is wrong with one is no fault of the others
                        waiting = [*([job] for job in some), *waiting]
                    continue
                for job, outcome in zip(some, found, strict=True):
                    job.future.set_result(outcome)
            seconds = time.monotonic() - begun
            self._seconds_per_pair += (1 - _OLD_SHARE) * (seconds / len(jobs) - self._seconds_per_pair)
            self._on_batch(len(jobs), seconds)

    def _next(self) -> list[Job]:
        """The next batch; empty = closed."""
        size = self._scorer.batch_size
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._waiting:
                    left = self._waiting[0].entered + self._max_wait - time.monotonic()
                    self._changed.wait_for(
                        lambda: len(self._waiting) >= size or not self._coming or self._closed, max(0.0, left)
                    )
                taken, closed = self._take(size), self._closed
            jobs = [job for job in taken if job.future.set_running_or_notify_cancel()]
            if jobs or (closed and not taken):
                return jobs

    def _take(self, size: int) -> list[Job]:
        kinds = {job.is_long for job in self._waiting}
        self._takes_long = kinds == {True} or (len(kinds) == 2 and not self._takes_long)
        some = [job for job in self._waiting if job.is_long == self._takes_long][: 1 if self._takes_long else size]
        self._waiting = deque(job for job in self._waiting if job not in some)
        return some
