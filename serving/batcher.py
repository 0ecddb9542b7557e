"""The micro-batcher: pairs that wait together are scored together, and clients take turns."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import attrgetter

from ..data_modules.errors import AudioError
from ..data_modules.schema import Pair
from ..models.assessment import Assessment
from ..models.clip_encoder import lost_device
from ..scorer import Scorer

LONG_TEXT = 1_000
"""Bytes of a situation beyond which a pair is scored alone: others would be padded to its length."""
LONG_AUDIO = 60.0
"""Seconds that are read for a pair beyond which it is scored alone: others would wait for all of them."""
_OLD_SHARE = 0.8  # weight of the old value in the running mean of seconds for a unit of work


def work_of(windows: int, situation: str) -> int:
    """Work of a pair: its windows, each with the whole text; 1 = a pair of short clips and a short text."""
    return windows * (1 + len(situation.encode()) // LONG_TEXT)


def has_place(held: Mapping[str, int], client: str, more: int, total: int) -> bool:
    """Whether a client may hold more of the places that all share.

    A client that holds none gets in while there are any. With `n` others, no client gets more than one in `n + 2` of
    them, so that a place is left for the next one.

    Args:
        held: Places by client.
        client: The client that wants more.
        more: Number of places that it wants.
        total: Number of all places.
    """
    holds = held.get(client, 0)
    others = len(held) - (holds > 0)
    return sum(held.values()) + more <= total and (holds == 0 or holds + more <= total // (others + 2))


@dataclass(eq=False)
class QueuedPair:
    """A pair that waits."""

    pair: Pair  # what is scored
    level: float  # of its intervals
    client: str = ""  # who wants it
    windows: int = 1  # in how many it is read
    seconds: float = 0.0  # of audio that is read; a clip is read again for each window of the other clips
    clipped: bool = False  # its response is (`data_modules.audio.is_clipped`)
    # its assessment, or what is wrong with its audio; cancelled = nobody wants it any more
    future: Future[Assessment | AudioError] = field(default_factory=Future)
    entered: float = field(default_factory=time.monotonic)  # when it began to wait (`time.monotonic`)
    turn: int = 0  # its place in the order: the work that its client had been given when it came (`_Lane`)
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


def work_by_lane(jobs: Collection[QueuedPair]) -> dict[bool, int]:
    """Work of all pairs that are scored alone (True) and of all others (False)."""
    return {long: sum(job.work for job in jobs if job.is_long == long) for long in (False, True)}


class Full(Exception):
    """There is no place left."""


class _Lane:
    """Jobs of one kind, in the order in which clients take turns: start-time fair queueing (Goyal et al., 1996)."""

    def __init__(self, seconds_per_work: float, old_share: float) -> None:
        self.jobs: list[QueuedPair] = []  # that wait, next one first
        self.seconds_per_work = seconds_per_work  # seconds for a unit of work, a running mean
        self.old_share = old_share  # weight of the old value in the next mean
        self._now, self._given = 0, Counter[str]()

    def add(self, job: QueuedPair) -> None:
        job.turn = max(self._now, self._given[job.client])
        self._given[job.client] = job.turn + job.work
        insort(self.jobs, job, key=attrgetter("turn"))

    def take(self, count: int) -> list[QueuedPair]:
        batch, self.jobs = self.jobs[:count], self.jobs[count:]
        self._now = batch[0].turn
        self._given = Counter({client: turn for client, turn in self._given.items() if turn > self._now})
        return batch


class Batcher:
    """A bounded queue and the one thread that calls the judge.

    It takes what waits, at most a batch of the scorer's. Pairs of long texts or of much audio are scored one by one
    and get at most half of the time while others wait, so that no other pair waits for all of them. As long as others
    are on their way (`announce`) it waits a moment for them, but never longer than `max_wait`: a client that is alone
    never waits.

    Args:
        scorer: The judge.
        max_queue: Work that may wait, see `work_of`: of pairs that are scored alone, and of all others.
        max_wait: Seconds.
        on_batch: Told how many pairs were scored together, and in how many seconds.
        on_lost: Told the error of a GPU that this process cannot use any more.
        patience: Seconds; nothing is let in while a pair would have to wait for longer.
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
        # few long pairs are let in until the first was scored: a judge may take half a second for each window
        self._short, self._long = _Lane(0.05, _OLD_SHARE), _Lane(0.5, 0.0)
        self._owed = 0.0  # seconds for short pairs before the next long one
        self._changed = threading.Condition()
        self._coming = 0
        self._closed = False
        self._begun: Sequence[QueuedPair] = ()
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self._thread.start()

    def _lane_of(self, job: QueuedPair) -> _Lane:
        return self._long if job.is_long else self._short

    @property
    def jobs(self) -> list[QueuedPair]:
        """The jobs that wait."""
        return self._short.jobs + self._long.jobs

    def seconds(self, long: bool = False) -> float:
        """How long it takes until what waits now is scored: the pairs that are scored alone, or all others."""
        lane = self._long if long else self._short
        share = 2 if long or self._long.jobs else 1  # half of the time is the other lane's; short pairs always come
        waiting = share * lane.seconds_per_work * sum(job.work for job in lane.jobs)
        return waiting + sum(self._lane_of(job).seconds_per_work * job.work for job in self._begun)

    def has_place(self, client: str, work: int = 1, long: bool = False) -> bool:
        """Whether a client may let so much work wait, of pairs that are scored alone or of others."""
        lane, held, waited = self._long if long else self._short, Counter[str](), 0.0
        for job in lane.jobs:
            held[job.client] += job.work
        if long and lane.jobs:  # new pairs may overtake the one that waits for longest, but not for ever
            waited = time.monotonic() - min(job.entered for job in lane.jobs)
        return has_place(held, client, work, self._max_queue) and waited + self.seconds(long) <= self._patience

    def announce(self, change: int) -> None:
        """Note that so many more (or fewer) pairs are on their way."""
        with self._changed:
            self._coming += change
            self._changed.notify()

    def submit(self, jobs: Sequence[QueuedPair]) -> None:
        """Let jobs of a client wait, all of them or none.

        Raises:
            Full: If there are not so many places.
        """
        with self._changed:
            for long, work in work_by_lane(jobs).items():
                if work and not self.has_place(jobs[0].client, work, long):
                    raise Full
            for job in jobs:
                self._lane_of(job).add(job)
            self._changed.notify()

    def drop(self, jobs: Iterable[QueuedPair]) -> None:
        """Drop jobs that nobody wants any more: those that have not begun are never scored."""
        with self._changed:
            for job in jobs:
                job.future.cancel()
            for lane in (self._short, self._long):
                lane.jobs = [job for job in lane.jobs if not job.future.cancelled()]

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
            self._owed = seconds if jobs[0].is_long else max(0.0, self._owed - seconds)
            lane = self._lane_of(jobs[0])
            measured = seconds / sum(job.work for job in jobs)
            lane.seconds_per_work += (1 - lane.old_share) * (measured - lane.seconds_per_work)
            lane.old_share = _OLD_SHARE
            self._begun = ()
            self._on_batch(len(jobs), seconds)

    def _next(self) -> list[QueuedPair]:
        """The next batch; empty = closed."""
        size = self._scorer.batch_size
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.jobs or self._closed)
                if waiting := self.jobs:
                    left = min(job.entered for job in waiting) + self._max_wait - time.monotonic()
                    self._changed.wait_for(
                        lambda: len(self.jobs) >= size or not self._coming or self._closed, max(0.0, left)
                    )
                taken, closed = self._take(size), self._closed
            jobs = [job for job in taken if job.future.set_running_or_notify_cancel()]
            if jobs or (closed and not taken):
                return jobs

    def _take(self, size: int) -> list[QueuedPair]:
        short, long = self._short, self._long
        if long.jobs and (self._owed <= 0 or not short.jobs):
            return long.take(1)
        return short.take(size) if short.jobs else []
