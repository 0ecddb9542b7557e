"""One worker: it takes a chunk that nobody works on, scores it and writes its part, until all are done."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter

from filelock import FileLock, Timeout

from ..scorer import Scorer
from .attempts import Attempts
from .changes import AudioMarks
from .columns import score_columns
from .index import Chunk, open_table, read_chunk
from .parts import Parts
from .progress import Progress, Tell
from .rows import Problem, Row, RowReader
from .scoring import ScoredRow, score_rows

_LOOK_AGAIN = 1.0  # seconds, where others work on all that is left
_TELL = 0.5  # seconds


class Worker:
    """Scores chunks of a job that was planned."""

    def __init__(self, parts: Parts, scorer: Scorer, tell: Tell) -> None:
        """Get ready.

        Args:
            parts: Of the job.
            scorer: Its judge.
            tell: Is told about once in half a second what was done.
        """
        self._parts, self._scorer, self._tell = parts, scorer, tell
        self._columns = score_columns(scorer)
        self._table = open_table(parts.job.manifest)
        self._reader = RowReader(parts.job.manifest.parent)
        self._audio = AudioMarks(parts.job.checksums)
        parts.set_columns(self._columns)

    def run(self) -> None:
        """Score what is left, until all is done, by whomever."""
        for chunk in free_chunks(self._parts, self._parts.left()):
            self.score(chunk)

    def score(self, chunk: Chunk) -> None:
        """Score a chunk, whose lock is held."""
        self._scorer.forget()  # so that a part does not depend on what was scored before it
        attempts = Attempts(self._parts.path(chunk, "starts"))
        attempts.begin()
        self._audio = AudioMarks(self._parts.job.checksums)
        try:
            rows = self._carefully(chunk, attempts) if attempts.careful else self._at_once(chunk)
        except (KeyboardInterrupt, SystemExit):
            attempts.withdraw()
            raise
        failed = Counter(row.problem.kind for row in rows if row.problem is not None)
        self._parts.write(chunk, self._columns, [row.values for row in rows], failed, self._audio.hexdigest())
        attempts.end()
        self._tell(Progress(0, {}, 1))

    def _rows(self, chunk: Chunk) -> Iterator[Row]:
        for record in read_chunk(self._table, chunk):
            row = self._reader.of_record(record, self._table.path)
            self._audio.add(row)  # before it is heard: a change meanwhile is noticed next time
            yield row

    def _at_once(self, chunk: Chunk) -> list[ScoredRow]:
        if self._table.embeds:  # the clips of a whole chunk are not held in memory
            return list(self._told(self._scored(self._rows(chunk))))
        rows = list(self._rows(chunk))
        order = sorted(range(len(rows)), key=lambda number: _context(rows[number]))
        scored = self._told(self._scored(rows[number] for number in order))
        return [row for _, row in sorted(zip(order, scored, strict=True), key=itemgetter(0))]

    def _carefully(self, chunk: Chunk, attempts: Attempts) -> list[ScoredRow]:
        scored = (self._scored([row]) for row in self._one_by_one(chunk, attempts))
        return list(self._told(itertools.chain.from_iterable(scored)))

    def _scored(self, rows: Iterable[Row]) -> Iterator[ScoredRow]:
        return score_rows(self._scorer, rows, self._columns, self._parts.job.level)

    def _one_by_one(self, chunk: Chunk, attempts: Attempts) -> Iterator[Row]:
        culprits, hopeless = attempts.culprits, attempts.hopeless
        for number, row in enumerate(self._rows(chunk)):
            if row.pair is not None and (hopeless or number in culprits):
                whose = "this row" if number in culprits else "several rows near this one"
                row = Row(row.pair_id, None, Problem("process died", f"the process that scored {whose} died each time"))
            attempts.at(number)
            yield row

    def _told(self, scored: Iterable[ScoredRow]) -> Iterator[ScoredRow]:
        rows, failed, last = 0, Counter[str](), time.monotonic()
        for row in scored:
            rows += 1
            if row.problem is not None:
                failed[row.problem.kind] += 1
            if time.monotonic() - last >= _TELL:
                self._tell(Progress(rows, dict(failed), 0))
                rows, failed, last = 0, Counter[str](), time.monotonic()
            yield row
        self._tell(Progress(rows, dict(failed), 0))


def _context(row: Row) -> tuple[str, ...]:
    """What rows with the same one begin alike by: close together, their contexts are encoded and read once."""
    if row.pair is None:
        return ()
    return (row.pair.situation or "", *(str(turn.audio) for turn in row.pair.context))


def free_chunks(parts: Parts, left: Sequence[Chunk]) -> Iterator[Chunk]:
    """Chunks that are not done, one after the other, each while its lock is held; whoever takes one does it.

    A lock is free as soon as its process is gone, so that what a dead one left is taken by another. Where locks do not
    reach (some network file systems) a chunk may be scored twice, with the same result.
    """
    while left and parts.exist():
        busy = []
        for chunk in left:
            if parts.path(chunk).exists():
                continue
            if not parts.exist():  # somebody has put everything together
                return
            lock = FileLock(parts.path(chunk, "lock"))
            try:
                lock.acquire(blocking=False)
            except Timeout:
                busy.append(chunk)
                continue
            try:
                if not parts.path(chunk).exists():
                    yield chunk
            finally:
                with suppress(OSError):
                    parts.path(chunk, "lock").unlink()
                lock.release()
        if len(busy) == len(left):
            time.sleep(_LOOK_AGAIN)
        left = busy
