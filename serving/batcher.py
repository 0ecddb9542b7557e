"""The micro-batcher: pairs that wait together are scored together, first come, first served."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..core.errors import AudioError
from ..data_modules.schema import Pair
from ..scoring.assessment import Assessment
from ..scoring.batches import lost_device
from ..scoring.scorer import Scorer

LONG_TEXT = 1_000
"""Bytes of a situation that are as much work as one more window, and beyond which a pair is scored alone: others would
be padded to its length."""
LONG_AUDIO = 60.0
"""Seconds that are read for a pair beyond which it is scored alone: others would wait for all of them."""
_FIRST_PACE = 0.02  # seconds for a second of audio, until it was measured
_OLD_SHARE = 0.8  # weight of the old value in a running mean of batches
_LEAST_SECONDS = 5.0  # of audio, as which a pair counts however short it is


def work_of(windows: int, situation: str) -> int:
    """Work of a pair: its windows, each with the whole text; 1 = a pair of short clips and a short text."""
    return windows * (1 + len(situation.encode()) // LONG_TEXT)


@dataclass(eq=False)
class QueuedPair:
    """A pair that waits."""

    pair: Pair  # what is scored
    level: float  # of its intervals
    work: int = 1  # see `work_of`
    seconds: float = 0.0  # of audio that is read; a clip is read again for each window of the other clips
    clipped: bool = False  # its response is (`audio.decode.is_clipped`)
    # its assessment, or what is wrong with its audio; cancelled = nobody wants it any more
    future: Future[Assessment | AudioError] = field(default_factory=Future)
    entered: float = field(default_factory=time.monotonic)  # when it began to wait (`time.monotonic`)
    batch: int = 0  # pairs that were scored together with it, itself included; 0 = not yet
    waited: float = 0.0  # seconds before its batch began

    @property
    def is_long(self) -> bool:
        """Whether it is scored alone."""
        return self.seconds > LONG_AUDIO or work_of(1, self.pair.situation or "") > 1

    @property
    def cost(self) -> float:
        """What its time is proportional to: seconds of audio, each window with the whole text."""
        return max(self.seconds, _LEAST_SECONDS) * work_of(1, self.pair.situation or "")


class Full(Exception):
    """There is no place left."""


class Batcher:
    """A bounded queue and the one thread that calls the judge.

    As soon as the judge is free it takes what came first, at most a batch of the scorer's. Pairs of long texts or of
    much audio are scored one by one; those behind such a pair may join the batch before it.

    Args:
        scorer: The judge.
        max_queue: Work that may wait, see `work_of`.
        on_batch: Called with the number of pairs that were scored together, and the seconds that it took.
        on_lost: Called with the error of a GPU that this process cannot use any more.
        patience: Seconds; nothing is let in while a pair would have to wait for longer, and no pair that is scored
            alone while it would have to wait for longer than half of them.
    """

    def __init__(
        self,
        scorer: Scorer,
        max_queue: int,
        on_batch: Callable[[int, float], None],
        on_lost: Callable[[Exception], None],
        patience: float = float("inf"),
    ) -> None:
        self._scorer, self._max_queue, self._patience = scorer, max_queue, patience
        self._on_batch, self._on_lost = on_batch, on_lost
        self.jobs: list[QueuedPair] = []  # that wait, the first that came first
        self.pace = _FIRST_PACE  # seconds for a unit of cost
        self._mean_seconds, self._mean_cost = _FIRST_PACE * _LEAST_SECONDS, _LEAST_SECONDS  # of a batch
        self._changed = threading.Condition()
        self._closed = False
        self._begun: Sequence[QueuedPair] = ()
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """How long it takes until what waits now is scored."""
        return self.pace * sum(job.cost for job in (*self.jobs, *self._begun))

    def has_place(self, work: int = 1, long: bool = False) -> bool:
        """Whether so much more work may wait; `long` = of pairs that are scored alone."""
        # A few long pairs would otherwise fill the time in which many short ones are scored
        patience = self._patience / 2 if long else self._patience
        return sum(job.work for job in self.jobs) + work <= self._max_queue and self.seconds() <= patience

    def submit(self, jobs: Sequence[QueuedPair]) -> None:
        """Let jobs wait, all of them or none; raises `Full` if there are not so many places."""
        with self._changed:
            # All or none, since half a ranking is no answer
            if not self.has_place(sum(job.work for job in jobs), any(job.is_long for job in jobs)):
                raise Full
            # Replaced and never changed in place: `seconds` and the metrics read it without the lock
            self.jobs = [*self.jobs, *jobs]
            self._changed.notify()

    def drop(self, jobs: Iterable[QueuedPair]) -> None:
        """Drop jobs that nobody wants any more: those that have not begun are never scored."""
        with self._changed:
            for job in jobs:
                job.future.cancel()
            self.jobs = [job for job in self.jobs if not job.future.cancelled()]

    def close(self, seconds: float | None = None) -> None:
        """Score what waits, then end the thread; wait so many seconds for it, None = until it has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while jobs := self._next():
            start, self._begun = time.monotonic(), jobs
            for job in jobs:
                job.batch, job.waited = len(jobs), start - job.entered
            # A call of the judge has one level of intervals
            groups = [[job for job in jobs if job.level == level] for level in sorted({job.level for job in jobs})]
            while groups:
                group = groups.pop(0)
                try:
                    assessments = list(self._scorer.assess_pairs([job.pair for job in group], group[0].level))
                except Exception as error:
                    # After such an error each further call fails, too: another process has to take over
                    if lost_device(error):
                        self._on_lost(error)
                    if len(group) == 1:
                        group[0].future.set_exception(error)
                    else:  # one pair may be at fault: score each alone
                        groups = [*([job] for job in group), *groups]
                    continue
                for job, outcome in zip(group, assessments, strict=True):
                    job.future.set_result(outcome)
            seconds = time.monotonic() - start
            # A ratio of means: the mean of ratios would follow small batches, which are slow for their cost
            self._mean_seconds += (1 - _OLD_SHARE) * (seconds - self._mean_seconds)
            self._mean_cost += (1 - _OLD_SHARE) * (sum(job.cost for job in jobs) - self._mean_cost)
            self.pace = self._mean_seconds / self._mean_cost
            self._begun = ()
            self._on_batch(len(jobs), seconds)

    def _next(self) -> list[QueuedPair]:
        """The next batch; empty = closed."""
        size = self._scorer.batch_size
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.jobs or self._closed)
                # The first decides, so that a long pair is not passed over for ever
                taken, closed = self.jobs[:1], self._closed
                if taken and not taken[0].is_long:
                    taken = [job for job in self.jobs if not job.is_long][:size]
                self.jobs = [job for job in self.jobs if job not in taken]
            # From here on a job cannot be cancelled any more; those that were are left out
            jobs = [job for job in taken if job.future.set_running_or_notify_cancel()]
            if jobs or (closed and not taken):
                return jobs
