"""The life of the service, and the way of a request through it: let in, received, decoded, queued, scored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..assessment import Assessment
from ..audio_inputs import make_pair
from ..data_modules.audio import Clip
from ..data_modules.errors import AudioError
from ..data_modules.schema import Pair, Turn
from ..models.calibration import DEFAULT_LEVEL
from ..scorer import Scorer
from .batching import Full, Job
from .loaded import Loaded, load_in_thread
from .metrics import Metrics
from .problems import Problem
from .records import LOGGER, Record
from .settings import Settings
from .uploads import Upload

State = Literal["loading", "ready", "stopping"]


@dataclass(frozen=True)
class Heard:
    """What became of a request.

    Attributes:
        assessments: Of each response.
        context_seconds: Duration of each turn.
        response_seconds: Of each response.
        level: Of the intervals.
    """

    assessments: tuple[Assessment, ...]
    context_seconds: tuple[float, ...]
    response_seconds: tuple[float, ...]
    level: float


class Service:
    """A judge that is loaded, asked by many at once, and stopped without losing a request.

    Args:
        source: The judge, or what loads it: then requests are answered with 503 until it is there.
        settings: Limits.

    Attributes:
        settings: Limits.
        metrics: Counters.
        starting: `start`, as the application runs it.
        let_in: Requests so far.
    """

    def __init__(self, source: Scorer | Callable[[], Scorer], settings: Settings) -> None:
        self._source, self.settings = source, settings
        self.metrics = Metrics(lambda: self._loaded.batcher.waiting if self._loaded else 0)
        self.starting: asyncio.Task[None] | None = None
        self._loaded: Loaded | None = None
        self._is_stopping = False
        self.let_in = 0
        self._admitted = 0
        self._uploads = 0

    @property
    def state(self) -> State:
        """Where it is in its life."""
        if self._is_stopping:
            return "stopping"
        return "ready" if self._loaded else "loading"

    @property
    def is_stopping(self) -> bool:
        """New requests are not let in any more."""
        return self._is_stopping

    @property
    def judge(self) -> Loaded:
        """The judge at work.

        Raises:
            Problem: If it is not loaded yet, or is stopping.
        """
        if self._is_stopping:
            raise Problem("stopping", "the service is stopping; ask another one", {"Retry-After": "5"})
        if self._loaded is None:
            raise Problem("loading", "the judge is being loaded; ask again soon", {"Retry-After": "5"})
        return self._loaded

    async def begin(self) -> None:
        """Start; where the judge is still to be loaded, meanwhile return."""
        self.starting = asyncio.create_task(self.start())
        if isinstance(self._source, Scorer) or not callable(self._source):
            await self.starting

    async def start(self) -> None:
        """Load the judge and try it on half a second of noise.

        Raises:
            UserError: If it cannot be loaded.
        """
        begun = time.monotonic()
        scorer = self._source
        if not isinstance(scorer, Scorer) and callable(scorer):
            scorer = await load_in_thread(scorer)
        loaded = Loaded(scorer, self.settings, self.metrics)
        await loaded.decoders.start()
        samples = 0.01 * np.random.default_rng(0).normal(size=loaded.rate // 2)
        trial = make_pair("trial", None, Clip(samples.astype(np.float32), loaded.rate))
        for job in loaded.batcher.submit([trial], DEFAULT_LEVEL):
            await asyncio.wrap_future(job.future)
        self._loaded = loaded
        LOGGER.info("ready", extra={"facts": {"seconds": round(time.monotonic() - begun, 1), "judge": loaded.version}})

    def stop_admitting(self) -> None:
        """From now on no request is let in; those that were will be answered."""
        self._is_stopping = True

    @property
    def under_way(self) -> int:
        """Requests that were let in and have no answer yet."""
        return self._admitted

    async def finish(self) -> None:
        """Wait until every request that was let in has its answer."""
        while self._admitted:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End threads and processes."""
        self._is_stopping = True
        if self.starting is not None:
            self.starting.cancel()
        if self._loaded is not None:
            await asyncio.to_thread(self._loaded.batcher.close)
            await self._loaded.decoders.stop()

    def finished(self, record: Record) -> None:
        """The answer of a request was sent, or its client is gone."""
        self._admitted -= record.admitted
        self.metrics.answered(record.route, record.status, record.code, record.seconds)
        record.write()

    def admit(self, record: Record) -> Loaded:
        """Let a request in, if there is a place for it.

        Raises:
            Problem: If there is none.
        """
        judge = self.judge
        if judge.batcher.is_full or self._uploads >= self.settings.concurrency:
            raise self.busy(judge)
        record.admitted = True
        self._admitted += 1
        self.let_in += 1
        self.metrics.accepted()
        return judge

    def busy(self, judge: Loaded) -> Problem:
        """The refusal of a full service."""
        wait = str(judge.batcher.retry_after())
        return Problem("busy", f"too many requests wait; ask again in {wait} s", {"Retry-After": wait})

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Holds a place among the requests that are received and decoded."""
        self._uploads += 1
        self.metrics.uploads.inc()
        try:
            yield
        finally:
            self._uploads -= 1
            self.metrics.uploads.dec()

    async def decode(self, judge: Loaded, upload: Upload, record: Record) -> list[tuple[Clip, float]]:
        """The clips of a request, context first, each with its seconds.

        Raises:
            AudioError: If one cannot be used.
        """
        begun = time.monotonic()
        named = [(data, _name("context", n, upload.context)) for n, data in enumerate(upload.context, start=1)]
        named += [(data, _name("response", n, upload.responses)) for n, data in enumerate(upload.responses, start=1)]
        judge.batcher.announce(len(upload.responses))
        try:
            clips = [await judge.decoders.decode(data, name) for data, name in named]
        finally:
            judge.batcher.announce(-len(upload.responses))
        took = time.monotonic() - begun
        self.metrics.stage("decode", took)
        record.facts |= {"decode_ms": _ms(took), "audio_seconds": round(sum(seconds for _, seconds in clips), 3)}
        return clips

    async def score(self, judge: Loaded, upload: Upload, clips: Sequence[tuple[Clip, float]], record: Record) -> Heard:
        """Wait for a place in a batch and for the scores.

        Raises:
            Problem: If the queue is full.
            AudioError: If the judge cannot use a clip.
        """
        level = upload.level or DEFAULT_LEVEL
        context, responses = clips[: len(upload.context)], clips[len(upload.context) :]
        turns = _turns([clip for clip, _ in context])
        pairs = [Pair(record.id, clip, turns, situation=upload.situation, group_id=record.id) for clip, _ in responses]
        try:
            jobs = judge.batcher.submit(pairs, level)
        except Full:
            raise self.busy(judge) from None
        try:
            found = [await asyncio.wrap_future(job.future) for job in jobs]
        finally:
            judge.batcher.drop(jobs)  # does nothing to those that are done
        assessments = []
        for outcome in found:
            if isinstance(outcome, AudioError):
                raise outcome
            assessments.append(outcome)
        self._note(jobs, record)
        self.metrics.heard(sum(seconds for _, seconds in clips))
        return Heard(tuple(assessments), _seconds(context), _seconds(responses), level)

    def _note(self, jobs: Sequence[Job], record: Record) -> None:
        waited = max(job.waited for job in jobs)
        scored = max(time.monotonic() - job.entered - job.waited for job in jobs)
        self.metrics.stage("wait", waited)
        self.metrics.stage("score", scored)
        batch = max(job.batch for job in jobs)
        record.facts |= {"wait_ms": _ms(waited), "score_ms": _ms(scored), "batch": batch}


def _turns(clips: Sequence[Clip]) -> tuple[Turn, ...]:
    """Turns of a conversation whose last one is the user's and in which speakers alternate."""
    last = len(clips) - 1
    return tuple(Turn("assistant" if (last - n) % 2 else "user", clip) for n, clip in enumerate(clips))


def _name(kind: str, number: int, clips: Sequence[bytes]) -> str:
    return kind if len(clips) == 1 else f"{kind} {number}"


def _seconds(clips: Sequence[tuple[Clip, float]]) -> tuple[float, ...]:
    return tuple(round(seconds, 3) for _, seconds in clips)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
