"""A judge that serves many clients: how it starts, how it answers a request (`Service.answer`), how it ends."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

import numpy as np
from fastapi import FastAPI, Request

from ..audio.decode import AudioSource, Clip
from ..core.errors import AudioError, UserError
from ..core.processes import in_daemon_thread
from ..data_modules.schema import Pair, Turn
from ..scoring.assessment import Assessment
from ..scoring.calibration import DEFAULT_LEVEL
from ..scoring.scorer import Scorer
from .batcher import Batcher, Full, QueuedPair, work_of
from .decoding import Decoders
from .forms import Form, FormT, IntervalForm, RankForm, RewardForm, check_head, receive, too_large
from .records import LOGGER, Metrics, RequestRecord, record_of
from .schemas import ClientGone, JudgeId, Problem, Seconds
from .settings import ServiceSettings
from .systemone import DecisionForm, receive_decision

LOADING = "loading"
"""Name of the thread that loads the judge."""
_WINDOWS = 10
"""Longest clip, in windows of the judge, unless the settings say otherwise."""
_WORK_OF_A_PAIR, _WORK_OF_A_REQUEST = 2 * _WINDOWS, 64
"""Most windows of a pair and of a request, a product over clips (`batcher.work_of`): each window is as much work as a
short pair, and other requests wait meanwhile."""
_OUTCOMES_KEPT = 10_000  # of reward requests
_UPLOADS_IN_MEMORY = 16
"""Bodies of the largest size that are received at once; while there are more, only small ones go on."""


class Outcome(NamedTuple):
    """What the judge says of a response, or what is wrong with it; and whether its file is clipped."""

    found: Assessment | AudioError
    clipped: bool = False


class Outcomes:
    """The latest outcomes of reward requests, by the content of what was sent (`RewardForm.keys`).

    Errors are not kept: it may be the service that failed, and the client asks again.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Outcome] = OrderedDict()
        self._under_way: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def of(self, form: Form) -> AsyncGenerator[dict[str, Outcome], None]:
        """The known outcomes of a form by key; the caller adds the others. What is scored for another request is waited
        for, whether that one succeeds or not."""
        if not isinstance(form, RewardForm):
            yield {}
            return
        keys = form.keys
        # After the wait, a third request may have claimed some of them
        # Two requests with the same response would score it twice, with rewards that may differ in their last digits
        while others := {self._under_way[key] for key in keys if key in self._under_way}:
            await asyncio.wait(others)
        by_key = {key: self._known[key] for key in keys if key in self._known}
        future = asyncio.get_running_loop().create_future()
        claimed = dict.fromkeys((key for key in keys if key not in by_key), future)
        self._under_way |= claimed
        try:
            yield by_key
        finally:
            for key in claimed:
                del self._under_way[key]
                if key in by_key and isinstance(by_key[key].found, Assessment):
                    self._known[key] = by_key[key]
            while len(self._known) > _OUTCOMES_KEPT:
                self._known.popitem(last=False)
            future.set_result(None)


@dataclass(frozen=True)
class ServedJudge:
    """A judge at work."""

    scorer: Scorer  # the judge
    id: JudgeId  # as answers name it
    max_seconds: float  # longest clip
    max_queue: int  # work that may wait
    decoders: Decoders  # make samples
    batcher: Batcher  # calls the judge

    def windows(self, *seconds: float) -> int:
        """Number of windows for clips of these durations: each window of one is read with each window of the others."""
        return math.prod(math.ceil(duration / self.scorer.max_seconds) for duration in seconds)

    def check_work(self, form: Form, clips: str, windows: int, most: int) -> None:
        """Raise `AudioError` if clips make more windows than are `most` units of work, or than may ever wait."""
        of_text = work_of(1, form.situation)
        # A clip of the longest length is accepted whatever that is
        limit = min(max(most, self.windows(self.max_seconds)), self.max_queue) // of_text
        if windows > limit:
            beside = " beside a situation of this length" if of_text > 1 else ""
            found = f"{clips} make {windows} windows of {self.scorer.max_seconds:g} s"
            raise AudioError(f"{found}; expected at most {limit}{beside}", "too long")

    def busy(self) -> Problem:
        """The refusal of a service that is full, or in which a pair would wait for too long."""
        wait = f"{min(60, max(1, self.batcher.seconds())):.0f}"
        return Problem("busy", f"too many requests wait; ask again in {wait} s", {"Retry-After": wait})

    def dimensions_of(self, form: Form) -> list[str]:
        """The dimensions that a form asks for: the one to rank by; else one that it names, or all. A form that asks for
        what the judge does not have is refused."""
        names, ranks = [dimension.name for dimension in self.scorer.dimensions], isinstance(form, RankForm)
        if self.scorer.calibration is None:
            if "level" in form.model_fields_set:
                raise Problem("invalid", "level: this judge is not calibrated, it has no intervals; expected no level")
            if isinstance(form, RewardForm) and form.deviations:
                raise Problem("invalid", "deviations: this judge is not calibrated; expected 0")
        if isinstance(form, DecisionForm):
            return [dimension.name for dimension in form.asked(self.scorer.dimensions).values()]
        named = form.dimension if isinstance(form, RankForm | RewardForm) else ""
        if named not in names and (named or (ranks and len(names) > 1)):
            none = "" if ranks else ", or none: then all count"
            raise Problem("invalid", f"dimension; expected {', '.join(names)}{none}")
        dimensions = [named] if named else names
        if isinstance(form, RankForm) and form.max_error is not None:
            self.scorer.compared_on(dimensions)
        return dimensions


@dataclass(frozen=True)
class Judged(Generic[FormT]):
    """What became of a request."""

    judge: ServedJudge  # who judged
    form: FormT  # what was sent
    dimensions: list[str]  # see `ServedJudge.dimensions_of`
    outcomes: Sequence[Outcome]  # of each response; only rewards have errors among them
    seconds: Seconds  # durations of the clips that were read now

    @property
    def assessments(self) -> list[Assessment]:
        """Assessments of the responses that were scored."""
        return [outcome.found for outcome in self.outcomes if isinstance(outcome.found, Assessment)]


class Service:
    """Loads a judge, lets many clients ask it at once, and stops without losing a request. While the judge is being
    loaded, requests are answered with 503."""

    def __init__(self, load: Callable[[], Scorer], settings: ServiceSettings) -> None:
        self._load, self.settings = load, settings
        self.metrics = Metrics(
            waiting=lambda: len(self._judge.batcher.jobs) if self._judge else 0, uploads=lambda: len(self._uploads)
        )
        self.starting: asyncio.Task[None] | None = None  # `_start`, as the application runs it
        self.must_stop = asyncio.Event()  # a signal came, or the GPU is lost
        self.lost_device: Exception | None = None  # error of a GPU on which nothing can be scored any more
        self._judge: ServedJudge | None = None
        self.is_stopping = False  # new requests are not let in any more
        # Numbers of requests: let in so far, without an answer yet, and without an answer when the service ended
        self.let_in = self.under_way = self.lost = 0
        self._uploads = set[RequestRecord]()  # that are received and decoded
        self._outcomes = Outcomes()

    @property
    def is_ready(self) -> bool:
        """Whether requests are let in."""
        return self._judge is not None and not self.is_stopping

    @property
    def judge(self) -> ServedJudge:
        """The judge at work; a `Problem` while it is loaded or the service is stopping."""
        if self.is_stopping:
            raise Problem("stopping", headers={"Retry-After": "5"})
        if self._judge is None:
            raise Problem("loading", headers={"Retry-After": "5"})
        return self._judge

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncGenerator[None, None]:
        """Start while requests are answered already; at the end stop threads and processes."""
        self.starting = asyncio.create_task(self._start())
        yield
        self.is_stopping = True
        self.starting.cancel()
        if self._judge is not None:
            self._judge.batcher.close(0 if self.lost else None)
            await self._judge.decoders.stop()

    async def _start(self) -> None:
        """Load the judge and try it on half a second of noise."""
        start, settings, loop = time.monotonic(), self.settings, asyncio.get_running_loop()

        def lost(error: Exception) -> None:
            self.lost_device = error
            loop.call_soon_threadsafe(self.must_stop.set)

        scorer = await asyncio.wrap_future(in_daemon_thread(self._load, LOADING))
        max_seconds, rate = longest_clip(scorer, settings), scorer.sampling_rate
        # Of the whole description, so that a client sees a new calibration as well as new weights
        version = hashlib.sha256(json.dumps(scorer.description, sort_keys=True).encode()).hexdigest()[:16]
        patience = min(settings.request_seconds, settings.grace_seconds) / 2  # so that all let in get an answer
        judge = ServedJudge(
            scorer,
            JudgeId(name=settings.name, version=version),
            max_seconds,
            settings.max_queue,
            Decoders(settings.decoders, rate, max_seconds, settings.decode_seconds, self.metrics.restarts.inc),
            Batcher(scorer, settings.max_queue, self.metrics.scored, lost, patience),
        )
        await judge.decoders.start()
        # The first pass allocates and compiles: here it is nobody's request that waits, and a judge that fails is
        # never ready
        samples = 0.01 * np.random.default_rng(0).normal(size=rate // 2)
        trial = QueuedPair(Pair("trial", Clip(samples.astype(np.float32), rate)), DEFAULT_LEVEL)
        judge.batcher.submit([trial])
        outcome = await asyncio.wrap_future(trial.future)
        if isinstance(outcome, AudioError):  # nothing is wrong with this clip
            raise outcome
        self._judge = judge
        LOGGER.info("ready", extra={"facts": {"seconds": round(time.monotonic() - start, 1), "judge": version}})

    async def answer(self, request: Request, kind: type[FormT]) -> Judged[FormT]:
        """The way of a request: head checked, let in, received, decoded, queued, scored.

        Raises:
            Problem: If it is not what is expected, there is no place for it, or time is over.
            AudioError: If a clip cannot be used; of a reward, if it is of the context.
            ClientGone: If the client hung up.
        """
        record, settings = record_of(request.scope), self.settings
        check_head(request, kind, settings)
        judge = self._admit(record)
        read: Any = receive_decision if issubclass(kind, DecisionForm) else receive
        form: FormT = await read(request, kind, settings, functools.partial(self._received, record))
        self._stage(record, "receive", record.seconds)
        dimensions = judge.dimensions_of(form)
        # The last check before any work
        judge.scorer.check_text(_pair(record, form, form.context, form.responses[0]))
        async with _patient(request, settings.request_seconds), self._outcomes.of(form) as by_key:
            jobs, seconds = await self._decode(judge, form, record, by_key)
            # The bytes have become samples: another request may be received in their place
            self._uploads.discard(record)
            try:
                judge.batcher.submit([*jobs.values()])
                for key, job in jobs.items():
                    by_key[key] = Outcome(await asyncio.wrap_future(job.future), job.clipped)
            except Full:
                raise judge.busy() from None
            finally:
                judge.batcher.drop(jobs.values())  # does nothing to those that are done
        outcomes = [by_key[key] for key in form.keys]
        for outcome in outcomes:
            if isinstance(outcome.found, AudioError) and not isinstance(form, RewardForm):
                raise outcome.found
        if jobs:
            self._stage(record, "wait", max(job.waited for job in jobs.values()))
            scoring = max(time.monotonic() - job.entered - job.waited for job in jobs.values())
            self._stage(record, "score", scoring)
        record.facts["batch"] = max((job.batch for job in jobs.values()), default=0)
        self.metrics.audio_seconds.inc(sum(seconds.context + seconds.responses))
        return Judged(judge, form, dimensions, outcomes, seconds)

    def _admit(self, record: RequestRecord) -> ServedJudge:
        """Let a request in, if there is a place for it."""
        judge = self.judge
        # Before the body: a service that is full must not receive megabytes only to say so
        if len(self._uploads) >= self.settings.concurrency or not judge.batcher.has_place():
            raise judge.busy()
        record.admitted = True
        self._uploads.add(record)
        self.under_way += 1
        self.let_in += 1
        self.metrics.accepted.inc()
        return judge

    def _received(self, record: RequestRecord, count: int) -> None:
        """Count further bytes of a request, and refuse what is too large, by itself or together with the others."""
        record.bytes += count
        if record.bytes > self.settings.max_bytes:
            raise too_large(self.settings)
        limit = _UPLOADS_IN_MEMORY * self.settings.max_bytes
        # Small requests still pass: they are not what fills the memory
        if sum(other.bytes for other in self._uploads) > limit and record.bytes > limit / self.settings.concurrency:
            raise self.judge.busy()

    async def _decode(
        self, judge: ServedJudge, form: Form, record: RequestRecord, found: dict[str, Outcome]
    ) -> tuple[dict[str, QueuedPair], Seconds]:
        """A job for each response without an outcome in `found`, by its key, and the durations of all clips.

        A response of a reward that cannot be used gets its error as outcome.
        """
        start, clips, together = time.monotonic(), list[Clip](), 0
        jobs: dict[str, QueuedPair] = {}
        seconds = Seconds(context=[], responses=[])
        missing = {key: number for number, key in enumerate(form.keys) if key not in found}
        level = form.level if isinstance(form, IntervalForm) else DEFAULT_LEVEL
        for number, data in enumerate(form.context if missing else (), start=1):
            name = "context" if len(form.context) == 1 else f"context {number}"
            clip, lasts, _ = await judge.decoders.decode(data, name)
            clips.append(clip)
            seconds.context.append(round(lasts, 3))
            windows = judge.windows(*(each.seconds for each in clips))
            judge.check_work(form, "context and response", windows, _WORK_OF_A_PAIR)
        for key, number in missing.items():
            name = "response" if len(form.responses) == 1 else f"response {number + 1}"
            try:
                clip, lasts, clipped = await judge.decoders.decode(form.responses[number], name)
                windows = judge.windows(*(each.seconds for each in (*clips, clip)))
                judge.check_work(form, "context and response", windows, _WORK_OF_A_PAIR)
            except AudioError as error:
                if not isinstance(form, RewardForm):
                    raise
                # No bytes are no clip: it was not sent, which is different from a policy that stays silent
                sent = bool(form.responses[number])
                found[key] = Outcome(error if sent else AudioError(str(error), "not a clip"))
                continue
            together += windows
            judge.check_work(form, "the responses", together, _WORK_OF_A_REQUEST)
            seconds.responses.append(round(lasts, 3))
            work = work_of(windows, form.situation)
            read = sum(each.seconds * windows / judge.windows(each.seconds) for each in (*clips, clip))
            jobs[key] = QueuedPair(_pair(record, form, clips, clip), level, work, read, clipped)
        self._stage(record, "decode", time.monotonic() - start)
        record.facts["audio_seconds"] = round(sum(seconds.context + seconds.responses), 3)
        return jobs, seconds

    def _stage(self, record: RequestRecord, name: str, seconds: float) -> None:
        self.metrics.stages.labels(name).observe(seconds)
        record.facts[f"{name}_ms"] = round(1000 * seconds, 1)

    def finished(self, record: RequestRecord) -> None:
        """The answer of a request was sent, or its client is gone."""
        self._uploads.discard(record)
        self.under_way -= record.admitted
        self.metrics.answered(record)
        record.write()


def longest_clip(scorer: Scorer, settings: ServiceSettings) -> float:
    """Longest clip that is accepted, in seconds.

    Raises:
        UserError: If the settings allow clips that the judge refuses.
    """
    hears, wanted = scorer.max_seconds, settings.max_seconds
    if wanted is None:
        return hears * _WINDOWS if scorer.windows else hears
    if wanted > hears and not scorer.windows:
        raise UserError(f"--max-seconds {wanted:g}; expected at most {hears:g}, which the judge hears at once")
    return wanted


@asynccontextmanager
async def _patient(request: Request, seconds: float) -> AsyncGenerator[None, None]:
    """Work that is given up when the client hangs up or time is over."""
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone = True
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(seconds) as limit:
            watching = asyncio.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
    except TimeoutError:
        if gone:
            raise ClientGone from None
        message = f"no score within {seconds:g} s; ask again when the service is less busy"
        raise Problem("timeout", message) from None


def _pair(record: RequestRecord, form: Form, context: Sequence[AudioSource], response: AudioSource) -> Pair:
    """A pair of a request. The last turn of the context is the user's, and speakers alternate."""
    count = len(context)
    turns = tuple(Turn("assistant" if (count - n) % 2 == 0 else "user", clip) for n, clip in enumerate(context))
    return Pair(record.id, response, turns, situation=form.situation or None, group_id=record.id)
