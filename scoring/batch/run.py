"""Score a manifest into a file, from the first row to the last, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

from ...core.errors import ASKED_TO_STOP, UserError
from ...core.files import file_hash, replace_text
from ...core.processes import ALONE, SCHEDULER_SIGNALS, Launch, ProgressBar, listen, restore
from .claim import Claim
from .job import Chunk, DamagedError, Job, Parts, audio_mark
from .manifest import Manifest, ManifestRow, Row
from .scores import windows_in_words
from .tally import in_words
from .workers import run_workers, worker_devices

_STOPS = (*SCHEDULER_SIGNALS, signal.SIGINT)
_THREADS = 16  # that look at files
_LOOK = 1.0  # seconds between two looks at what all processes have done


@dataclass(frozen=True)
class Summary:
    """What became of a manifest; written next to the scores, in `OUT.summary.json`."""

    rows: int
    scored: int  # rows that have scores
    failed: dict[str, int]  # how many have none, by kind
    seconds: float  # time of the process that put the file together, loading included
    pairs_per_second: float  # rate of the rows that were scored in this time, by all processes
    done_before: int  # rows that an earlier run had finished
    identity: dict[str, str]  # what the scores depend on
    out: dict[str, str | int] = field(default_factory=dict)  # the file, as it was written: size in bytes and SHA-256
    windowed: int = 0  # how many were read in several windows
    minutes: float = 0.0  # of all responses with scores
    # system (empty = rows that name none) -> dimension -> rows, mean, lowest and highest score
    systems: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)  # code -> rows
    audio: str = ""  # a hash over the audio files' marks (`Parts.join`)
    # of `judge.json`: dimensions with their scales, and what calibration says of preferences; of a run folder nothing
    judge: dict[str, Any] = field(default_factory=dict)

    def in_words(self) -> str:
        """Lines about rows, systems, warnings and failures."""
        before = f" ({self.done_before:,} of them before)" if self.done_before else ""
        lines = [
            f"rows: {self.rows:,}{before}, with scores: {self.scored:,}, in {self.seconds:,.1f} s: "
            f"{self.pairs_per_second:,.1f} pairs per second"
        ]
        lines += in_words(self.rows, self.minutes * 60, self.systems, self.warnings)
        lines += [windows_in_words(self.windowed)] if self.windowed else []
        return "\n".join([*lines, *(f"without scores: {count:,} ({kind})" for kind, count in self.failed.items())])


Result = TypeVar("Result")
Look = Callable[[], int]
"""Shows how far a job is, if it is time to; returns how many chunks were done at the last look."""
Engine = Callable[[Parts, Look], None]
"""Scores what is missing of a job that was planned, looking again and again; returns when every part is there."""


def make_engine(name: Literal["local", "ray"], launch: Launch, device: str | None, workers: int | None) -> Engine:
    """The engine that does the work: worker processes on this machine, or a Ray cluster. Device and workers are as the
    user gave them.

    Raises:
        UserError: If workers would be in each other's way, or Ray is not installed.
    """
    if name == "ray":
        from .ray_data import run_ray

        return lambda parts, look: run_ray(parts, look, workers, device)
    devices = worker_devices(launch, device, workers)
    return lambda parts, look: run_workers(parts, launch, devices, look)


def score_manifest(
    job: Job, engine: Engine, launch: Launch = ALONE, restart: bool = False, overwrite: bool = False
) -> Summary | None:
    """Score a manifest, or go on with a manifest that was begun.

    Every row of the manifest becomes a row of `job.out`, in the same order, with scores or with a status that says why
    there are none. What is done stays in `OUT.parts` until all is; the same call goes on after any end. Several
    processes that see the folder share the work by their ranks, and rank 0 puts the parts together. Parts that are
    damaged or were made of audio files that changed since are scored again. SIGTERM, SIGUSR1 and Ctrl-C end the program
    with exit code `ASKED_TO_STOP`, workers first.

    Args:
        job: What to score with what.
        engine: Does the work.
        launch: This process. Several processes do nothing where `job.out` is complete; a single one begins anew.
        restart: Delete what is done.
        overwrite: Replace a file that this program did not write.

    Returns:
        What became of the job; None for a rank other than 0, which leaves when every part is there.

    Raises:
        UserError: If the manifest or the judge cannot be read, something else was begun in the folder, or `job.out` is
            not ours to replace.
    """
    if restart and launch.world > 1:
        raise UserError(f"--restart in several processes; expected {job.out}.parts to be deleted beforehand")
    start, parts = time.monotonic(), Parts(job)
    before: int | None = None
    with _stopped_by_signals(parts), closing(Claim(parts)) as claim:
        # This runs once, unless a part turns out to be damaged at the end: then it is scored again
        while True:
            # A job that was begun here and got nothing done leaves no folder behind
            fresh = not parts.under_way()
            finished = _begin(parts, claim, launch, restart, overwrite, again=before is not None)
            if finished is not None:
                return finished
            done, restart = sum(chunk.rows for chunk in parts.done()), False
            # Of the first round: what a later one finds was scored by this call
            before = done if before is None else before
            try:
                if done < parts.rows:
                    with _progress(parts, done, quiet=launch.rank > 0) as look:
                        engine(parts, look)
            except BaseException:
                if fresh and launch.world == 1 and not parts.entries():
                    parts.remove()
                raise
            if launch.rank > 0:
                return None
            # What is missing is scored, unless another process was faster
            with suppress(DamagedError):
                return _finish(parts, start, before, overwrite)


def done_before(job: Job, restart: bool, overwrite: bool) -> int:
    """How many rows `score_manifest` would find done. Nothing is written.

    Raises:
        UserError: If something else was begun in the folder, or `job.out` is not ours to replace.
    """
    parts = Parts(job)
    plan = parts.own_plan()
    _earlier(job, plan, overwrite)
    if plan is None:
        if not restart:
            Claim(parts).refuse_another()
        return 0
    parts.rows = plan["rows"]
    return 0 if restart else sum(chunk.rows for chunk in parts.done())


def _begin(parts: Parts, claim: Claim, launch: Launch, restart: bool, overwrite: bool, again: bool) -> Summary | None:
    """Plan the job if it is not planned yet; returns its summary if there is nothing to do."""
    job, manifest = parts.job, Manifest(parts.job.manifest)
    plan = parts.own_plan()
    # Nothing of this job is under way: the manifest is read once before the plan says how many rows it has
    parts.rows = manifest.check() if plan is None else plan["rows"]
    earlier = _earlier(job, plan, overwrite)
    # Of this very job, with audio files that are still the same: several processes leave it, a single one begins anew
    if (
        earlier is not None
        and earlier.identity == parts.identity
        and (again or launch.world > 1)
        and (again or manifest.embeds or earlier.audio == _audio_now(parts, manifest))
    ):
        return earlier
    claim.take(parts.rows, _facts(job.out) if plan is None else plan["replaces"], restart)
    if launch.rank == 0:  # rank 0 puts the parts together
        _drop_outdated(parts, manifest)
    return None


def _drop_outdated(parts: Parts, manifest: Manifest) -> None:
    """Delete parts that are damaged, or of audio files that changed since, or that could not be used and now can."""

    def look(chunk: Chunk, rows: list[Row]) -> None:
        part = parts.read(chunk)
        if part is None or (rows and part.audio != audio_mark(rows, parts.job.checksums)):
            parts.path(chunk).unlink(missing_ok=True)

    for _ in _in_threads(parts, manifest, parts.done(), look):
        pass


def _audio_now(parts: Parts, manifest: Manifest) -> str:
    """What `Parts.join` would say of the audio files as they are now."""
    digest = hashlib.sha256()
    for mark in _in_threads(parts, manifest, parts.chunks(), lambda _, rows: audio_mark(rows, parts.job.checksums)):
        digest.update(mark.encode())
    return digest.hexdigest()


def _in_threads(
    parts: Parts, manifest: Manifest, chunks: Sequence[Chunk], look: Callable[[Chunk, list[Row]], Result]
) -> Iterator[Result]:
    """What `look` returns for each chunk and its rows, in order; for no rows where the manifest holds the clips, which
    are known by its hash. In threads, since a network file system takes long to answer."""
    reader = parts.job.reader()

    def call(chunk: Chunk, records: Sequence[ManifestRow]) -> Result:
        return look(chunk, [reader.of_record(record, manifest.path) for record in records])

    with ThreadPoolExecutor(_THREADS) as threads:
        for first in range(0, len(chunks), _THREADS):
            batch = chunks[first : first + _THREADS]
            # The manifest has one reader, this thread; the others look at audio files
            records = [[] if manifest.embeds else list(manifest.read(chunk.first, chunk.rows)) for chunk in batch]
            yield from threads.map(call, batch, records)


def _earlier(job: Job, plan: Mapping[str, Any] | None, overwrite: bool) -> Summary | None:
    """The summary of scores that an earlier job has left whole in `job.out`, unless this one is under way by its plan.

    Raises:
        UserError: If what stands there is not ours to replace.
    """
    earlier = _known(job) if plan is None else None
    if earlier is None and not overwrite:
        _check_replaceable(job, *(() if plan is None else (plan["replaces"], plan["writes"])))
    return earlier


def _check_replaceable(job: Job, *known: Mapping[str, str | int] | None) -> None:
    """Check that nothing stands where the scores and their summary go but scores of these `_facts`, and a summary.

    Raises:
        UserError: If a file of somebody else does, or a symbolic link, which would be lost.
    """
    summary = _summary_file(job)
    for path in (job.out, summary):
        # A link that leads nowhere is somebody's, too
        if not os.path.lexists(path):
            continue
        ours = _read_summary(job) is not None if path == summary else (facts := _facts(path)) and facts in known
        if path.is_symlink() or not ours:
            raise UserError(
                f"{path}: exists, and is not what this command wrote there; expected another --out, or --overwrite"
            )


def _finish(parts: Parts, start: float, before: int, overwrite: bool) -> Summary:
    """Put the parts together.

    Raises:
        DamagedError: If one is missing or damaged.
        UserError: If somebody has put a file there meanwhile.
    """
    job, plan = parts.job, parts.begun()

    def check(scores: Path) -> None:
        if plan is None:
            return
        # Another process with the same command may have been faster
        if not overwrite:
            _check_replaceable(job, plan["replaces"], plan["writes"], _facts(scores))
        # A process that is killed before the summary is written leaves scores that the next one must know
        parts.plan(parts.rows, plan["replaces"], _facts(scores))

    from ..calibration import JudgeFacts, to_json  # which takes a second to import

    failed, tally, audio = parts.join(check)
    facts = JudgeFacts.read(job.judge)
    seconds = time.monotonic() - start
    summary = Summary(
        rows=parts.rows,
        scored=parts.rows - failed.total(),
        failed=dict(failed.most_common()),
        seconds=round(seconds, 3),
        pairs_per_second=round((parts.rows - before) / seconds, 3),
        done_before=before,
        identity=parts.identity,
        out=_facts(job.out) or {},
        windowed=tally.windowed,
        minutes=round(tally.seconds / 60, 3),
        systems=tally.systems,
        warnings=dict(tally.warnings.most_common()),
        audio=audio,
        judge={} if facts is None else to_json(facts),
    )
    text = json.dumps(asdict(summary), indent=2, ensure_ascii=False)
    replace_text(_summary_file(job), f"{text}\n")
    parts.remove()
    return summary


def _known(job: Job) -> Summary | None:
    """The summary of the scores in `job.out`, if this program wrote them and nobody has changed them since."""
    summary = None if job.out.is_symlink() else _read_summary(job)
    return summary if summary is not None and summary.out == _facts(job.out) else None


def _read_summary(job: Job) -> Summary | None:
    """What stands in `OUT.summary.json`; None = nothing, or no summary."""
    try:
        return Summary(**json.loads(_summary_file(job).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _facts(path: Path) -> dict[str, str | int] | None:
    """What a file is known by; None = there is none, or it is no plain file."""
    if not path.is_file():
        return None
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def _summary_file(job: Job) -> Path:
    return job.out.with_name(f"{job.out.name}.summary.json")


@contextmanager
def _progress(parts: Parts, done: int, quiet: bool) -> Iterator[Look]:
    """Show on standard error how far a job is, of which so many rows were done before, whoever works on it."""
    chunks, looked = parts.done(), time.monotonic()

    def look() -> int:
        nonlocal chunks, looked
        if time.monotonic() - looked >= _LOOK:
            # It lists a folder, which a network file system answers slowly
            now, looked = parts.done(), time.monotonic()
            chunks = max(chunks, now, key=len)  # whoever joins the parts deletes them
            bar.update(sum(chunk.rows for chunk in chunks))
        return len(chunks)

    with ProgressBar("scoring", parts.rows, done, quiet) as bar:
        yield look
        # The last look came up to a second before the end
        looked = 0.0
        look()


@contextmanager
def _stopped_by_signals(parts: Parts) -> Iterator[None]:
    """Within it, signals end the program with `ASKED_TO_STOP`, and a line says how to go on."""

    def stop(number: int, frame: FrameType | None) -> None:
        # The program ends now: a further signal would only interrupt that
        for each in _STOPS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(ASKED_TO_STOP)

    handlers = listen(stop, _STOPS)
    try:
        yield
    except SystemExit:
        if parts.under_way():
            done = f"{len(parts.done())} of {len(parts.chunks())} parts are done"
            print(f"asked to stop: {done}; the same command goes on from there", file=sys.stderr)
        raise
    finally:
        restore(handlers)
