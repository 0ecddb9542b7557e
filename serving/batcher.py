"""The micro-batcher: pairs that wait together are scored together, first come, first served."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..data_modules.errors import AudioError
from ..data_modules.schema import Pair
from ..models.assessment import Assessment
from ..models.scoring import lost_device
from ..scorer import Scorer

LONG_TEXT = 1_000
"""Bytes of a situation beyond which a pair is scored alone: others would be padded to its length."""
LONG_AUDIO = 60.0
"""Seconds that are read for a pair beyond which it is scored alone: others would wait for all of them."""
_OLD_SHARE = 0.8  # weight of the old value in the running mean of seconds for a unit of work


def work_of(windows: int, situation: str) -> int:
    """Work of a pair: its windows, each with the whole text; 1 = a pair of short clips and a short text."""
    return windows * (1 + len(situation.encode()) // LONG_TEXT)


@dataclass(eq=False)
class QueuedPair:
    """A pair that waits."""

    pair: Pair  # what is scored
    level: float  # of its intervals
    windows: int = 1  # in how many it is read
    seconds: float = 0.0  # of audio that is read; a clip is read again for each window of the other clips
    clipped: bool = False  # its response is (`data_modules.audio.is_clipped`)
    # its assessment, or what is wrong with its audio; cancelled = nobody wants it any more
    future: Future[Assessment | AudioError] = field(default_factory=Future)
    entered: float = field(default_factory=time.monotonic)  # when it began to wait (`time.monotonic`)
    batch: int = 0  # pairs that were scored together with it, itself included; 0 = not yet
    waited: float = 0.0  # seconds before its batch began

    @property
    def work(self) -> int:
        """See `work_of`."""
        return work_of(self.windows, self.pair.situation or "")

    @property
    def is_long(self) -> bool:
        """Whether it is scored alone."""
        return self.seconds > LONG_AUDIO or self.work > self.windows


class Full(Exception):
    """There is no place left."""


@dataclass
class _Pace:
    """Seconds for a unit of work, a running mean."""

    seconds: float
    old_share: float  # weight of the old value in the next mean

    def measured(self, seconds: float) -> None:
        self.seconds += (1 - self.old_share) * (seconds - self.seconds)
        self.old_share = _OLD_SHARE


class Batcher:
    """A bounded queue and the one thread that calls the judge.

    It takes what came first, at most a batch of the scorer's. Pairs of long texts or of much audio are scored one by
    one; those behind such a pair may join the batch before it. As long as others are on their way (`announce`) it waits
    a moment for them, but never longer than `max_wait`: a client that is alone never waits.

    Args:
        scorer: The judge.
        max_queue: Work that may wait, see `work_of`.
        max_wait: Seconds.
        on_batch: Told how many pairs were scored together, and in how many seconds.
        on_lost: Told the error of a GPU that this process cannot use any more.
        patience: Seconds; nothing is let in while a pair would have to wait for longer, and no pair that is scored
            alone while it would have to wait for longer than half of them.
    """

    def __init__(
        self,
        scorer: Scorer,
        max_queue: int,
        max_wait: float,
        on_batch: Callable[[int, float], None],
        on_lost: Callable[[Exception], None],
        patience: float = float("inf"),
    ) -> None:
        self._scorer, self._max_queue, self._max_wait, self._patience = scorer, max_queue, max_wait, patience
        self._on_batch, self._on_lost = on_batch, on_lost
        self.jobs: list[QueuedPair] = []  # that wait, the first that came first
        # few long pairs are let in until the first was scored: a judge may take half a second for each window
        self._short, self._long = _Pace(0.05, _OLD_SHARE), _Pace(0.5, 0.0)
        self._changed = threading.Condition()
        self._coming = 0
        self._closed = False
        self._begun: Sequence[QueuedPair] = ()
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self._thread.start()

    def _pace_of(self, job: QueuedPair) -> _Pace:
        return self._long if job.is_long else self._short

    def seconds(self) -> float:
        """How long it takes until what waits now is scored."""
        return sum(self._pace_of(job).seconds * job.work for job in (*self.jobs, *self._begun))

    def has_place(self, work: int = 1, long: bool = False) -> bool:
        """Whether so much more work may wait; `long` = of pairs that are scored alone."""
        # a few long pairs would otherwise fill the time in which many short ones are scored
        patience = self._patience / 2 if long else self._patience
        return sum(job.work for job in self.jobs) + work <= self._max_queue and self.seconds() <= patience

    def announce(self, change: int) -> None:
        """Note that so many more (or fewer) pairs are on their way."""
        with self._changed:
            self._coming += change
            self._changed.notify()

    def submit(self, jobs: Sequence[QueuedPair]) -> None:
        """Let jobs wait, all of them or none.

        Raises:
            Full: If there are not so many places.
        """
        with self._changed:
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
            # A batch is either one long pair or short ones alone
            self._pace_of(jobs[0]).measured(seconds / sum(job.work for job in jobs))
            self._begun = ()
            self._on_batch(len(jobs), seconds)

    def _next(self) -> list[QueuedPair]:
        """The next batch; empty = closed."""
        size = self._scorer.batch_size
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.jobs or self._closed)
                if waiting := self.jobs:
                    # Waits for others that are on their way, but no longer than the first one may wait
                    left = min(job.entered for job in waiting) + self._max_wait - time.monotonic()
                    self._changed.wait_for(
                        lambda: len(self.jobs) >= size or not self._coming or self._closed, max(0.0, left)
                    )
                taken, closed = self._take(size), self._closed
            # From here on a job cannot be cancelled any more; those that were are left out
            jobs = [job for job in taken if job.future.set_running_or_notify_cancel()]
            if jobs or (closed and not taken):
                return jobs

    def _take(self, size: int) -> list[QueuedPair]:
        # The first decides, so that a long pair is not passed over for ever
        batch = self.jobs[:1]
        if batch and not batch[0].is_long:
            batch = [job for job in self.jobs if not job.is_long][:size]
        taken = set(batch)
        self.jobs = [job for job in self.jobs if job not in taken]
        return batch
