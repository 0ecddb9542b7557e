"""A manifest scored into a file, from the first row to the last, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from ..data_modules.errors import ASKED_TO_STOP, UserError
from ..data_modules.folders import replace_file
from ..data_modules.parallel import SCHEDULER_SIGNALS, listen, restore
from .changes import AudioMarks
from .index import Chunk, file_hash, index, open_table, read_chunk
from .job import Job, first_difference
from .meter import Meter
from .parts import Parts
from .places import Place
from .records import Record, Table
from .rows import RowReader

STOPS = (*SCHEDULER_SIGNALS, signal.SIGINT)
_LOOKING = 16  # threads
Engine = Callable[[Parts, Meter], None]
"""Scores what is left of a job that was planned; returns when every part is there."""


@dataclass(frozen=True)
class Summary:
    """What became of a manifest; stands beside the scores in `OUT.summary.json`.

    Attributes:
        rows: How many there are.
        scored: How many have scores.
        failed: How many have none, by kind.
        seconds: That the last process took that scored some, loading included.
        pairs_per_second: Of the rows that were scored meanwhile, by whomever.
        done_before: Rows that an earlier run had finished.
        identity: What the scores depend on.
        out: The file, as it was written: size in bytes and SHA-256.
    """

    rows: int
    scored: int
    failed: dict[str, int]
    seconds: float
    pairs_per_second: float
    done_before: int
    identity: dict[str, str]
    out: dict[str, str | int] = field(default_factory=dict)

    def in_words(self) -> str:
        """One line, and one for each kind of failure."""
        again = f" ({self.done_before:,} of them before)" if self.done_before else ""
        lines = [
            f"rows: {self.rows:,}{again}, with scores: {self.scored:,}, in {self.seconds:,.1f} s: "
            f"{self.pairs_per_second:,.1f} pairs per second"
        ]
        return "\n".join([*lines, *(f"without scores: {count:,} ({kind})" for kind, count in self.failed.items())])


def score_manifest(job: Job, engine: Engine, place: Place = Place(), restart: bool = False) -> Summary:  # noqa: B008
    """Score a manifest, or go on with it.

    Every row of the manifest becomes a row of `job.out`, in the same order, with scores or with a status that says why
    there are none. What is done is kept in `OUT.parts` until all is; the same call goes on after any end. Any number of
    processes that see the folder may do the same job at a time. Parts of audio files that changed since are scored
    again; a file of scores that is complete stays as it is for processes that come late.

    Args:
        job: What to score with what.
        engine: Does the work.
        place: Of this process. Several processes do nothing where `job.out` is complete; a single one begins anew.
        restart: Delete what is done.

    Raises:
        UserError: If the manifest or the judge cannot be read, or something else was begun in the folder.
    """
    start = time.monotonic()
    parts = Parts(job)
    if restart and place.world > 1:
        raise UserError(f"--restart in several processes; accepted: delete {parts.folder} beforehand")
    try:
        with ExitStack() as until_done:
            with parts.locked():
                complete = _begin(parts, place, restart)
                if complete is None:
                    until_done.enter_context(parts.at_work())
            if complete is not None:
                parts.remove()
                return complete
            chunks = parts.chunks()
            rows = sum(chunk.rows for chunk in chunks)
            before = sum(chunk.rows for chunk in parts.done(chunks))
            if before < rows:
                with Meter(rows, lambda: _rows(parts, chunks), quiet=place.rank > 0) as meter:
                    engine(parts, meter)
    except BaseException:
        if place.world == 1 and not parts.hold_something():
            parts.remove()
        raise
    return _finish(parts, chunks, start, before)


def _begin(parts: Parts, place: Place, restart: bool) -> Summary | None:
    """Plan what was not planned yet; returns what became of the job if there is nothing to do."""
    table = open_table(parts.job.manifest)
    if restart:
        parts.clear()
    if not parts.exist():
        complete = _complete(parts.job) if place.world > 1 else None
        if complete is not None:
            return complete
    if not parts.exist() or not _is_begun(parts):
        parts.plan(index(table))
    elif not parts.in_use():  # else whoever is at work has looked
        _drop_changed(parts, table)
    return None


def _drop_changed(parts: Parts, table: Table) -> None:
    """Delete parts of audio files that have changed since, or that could not be used and now can."""
    if table.embeds:  # clips in the manifest are known by its hash
        return
    reader, done = RowReader(parts.job.manifest.parent), parts.done(parts.chunks())

    def look(chunk: Chunk, records: Sequence[Record]) -> None:
        marks = AudioMarks(parts.job.checksums)
        for record in records:
            marks.add(reader.of_record(record, table.path))
        if marks.hexdigest() != parts.audio(chunk):
            parts.drop(chunk)

    with ThreadPoolExecutor(_LOOKING) as threads:  # what takes time is the answer of a network file system
        for first in range(0, len(done), _LOOKING):
            some = done[first : first + _LOOKING]
            list(threads.map(look, some, [list(read_chunk(table, chunk)) for chunk in some]))


@contextmanager
def stopped_by_signals(job: Job) -> Iterator[None]:
    """Within, SIGTERM, SIGUSR1 and Ctrl-C end the program with `ASKED_TO_STOP`, workers first, and say how to go on."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in STOPS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(ASKED_TO_STOP)

    before = listen(stop, STOPS)
    try:
        yield
    except SystemExit:
        parts = Parts(job)
        if parts.exist():
            chunks = parts.chunks()
            done = f"{len(parts.done(chunks))} of {len(chunks)} parts are done"
            print(f"asked to stop: {done}; the same command goes on from there", file=sys.stderr)
        raise
    finally:
        restore(before)


def _is_begun(parts: Parts) -> bool:
    """Whether this very job was planned: then the manifest need not be read as a whole again."""
    return first_difference(parts.identity, parts.job.identity(file_hash(parts.job.manifest))) is None


def _rows(parts: Parts, chunks: tuple[Chunk, ...]) -> int:
    return sum(chunk.rows for chunk in parts.done(chunks)) if parts.exist() else sum(chunk.rows for chunk in chunks)


def _finish(parts: Parts, chunks: tuple[Chunk, ...], start: float, before: int) -> Summary:
    """Put the parts together, unless another process has."""
    job, rows = parts.job, sum(chunk.rows for chunk in chunks)
    with parts.locked():
        if not parts.exist():
            complete = _complete(job)
            parts.remove()
            if complete is None:
                raise UserError(f"{job.out}: was put together by another process and changed since")
            return complete
        identity, failed = parts.identity, parts.join(chunks)
        seconds = time.monotonic() - start
        summary = Summary(
            rows,
            rows - failed.total(),
            dict(Counter(failed).most_common()),
            round(seconds, 3),
            round((rows - before) / seconds, 3),
            before,
            identity,
            {"bytes": job.out.stat().st_size, "sha256": _sha256(job.out)},
        )
        text = json.dumps(asdict(summary), indent=2, ensure_ascii=False)
        replace_file(_summary_file(job), lambda path: path.write_text(f"{text}\n", encoding="utf-8"))
        parts.remove()
    return summary


def _complete(job: Job) -> Summary | None:
    """What is known of the scores, where these are those of this job."""
    try:
        summary = Summary(**json.loads(_summary_file(job).read_text(encoding="utf-8")))
        if os.path.getsize(job.out) != summary.out["bytes"]:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return summary if first_difference(summary.identity, job.identity(file_hash(job.manifest))) is None else None


def _summary_file(job: Job) -> Path:
    return job.out.with_name(f"{job.out.name}.summary.json")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
