"""One worker: it scores its share of the chunks of a job, then what others have left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import itemgetter

from ..scorer import Scorer
from .job import Chunk, Parts, audio_mark
from .manifest import Manifest, Problem, Row, RowReader
from .scores import ScoredRow, score_columns, score_rows

_RETRIES = 2
"""How often a chunk whose process died is tried again as a whole."""
_ROW_DEATHS, _MOST_CULPRITS = 2, 3
_LOOK = 0.5  # seconds


class Worker:
    """Scores chunks of a job that was planned."""

    def __init__(self, parts: Parts, scorer: Scorer, rank: int = 0, world: int = 1, owner: str | None = None) -> None:
        """Get ready.

        Args:
            parts: Of the job.
            scorer: Its judge.
            rank: Of this worker among all workers of all processes.
            world: How many workers there are.
            owner: Names this worker, and the one that is started in its place when it dies; None = its rank.
        """
        self._parts, self._scorer, self._rank, self._world = parts, scorer, rank, world
        self._owner = owner or str(rank)
        self._columns = score_columns(scorer)
        self._manifest = Manifest(parts.job.manifest)
        self._reader = RowReader(parts.job.manifest.parent)

    def run(self) -> None:
        """Score `range(rank, chunks, world)`, then whatever is missing, until every part is there.

        Nobody waits for others or asks them. A worker that is done with its share takes chunks whose parts are missing,
        each from another place of the list. At the end a chunk may be scored twice, in time that nobody needs; so a
        process that died, or a slow machine, delays nothing.
        """
        for chunk in self._parts.chunks()[self._rank :: self._world]:
            self.score(chunk)
        while missing := self._parts.missing():
            self.score(missing[self._rank * len(missing) // self._world])

    def score(self, chunk: Chunk) -> None:
        """Score a chunk and write its part, unless it is there or another worker is faster."""
        if self._is_done(chunk):
            return
        self._scorer.forget()  # so that a part does not depend on what was scored before it
        tries = Tries(self._parts, chunk, self._owner)
        try:
            tries.note("start")
            rows, audio = self._rows(chunk), ""
            if not self._manifest.embeds:  # the clips of a whole chunk are not held in memory
                rows = list(rows)
                audio = audio_mark(rows, self._parts.job.checksums)  # before they are heard: a later change is noticed
            found, looked = [], time.monotonic()
            for row in self._one_by_one(rows, tries) if tries.careful else self._together(rows):
                found.append(row)
                if time.monotonic() - looked >= _LOOK:
                    looked = time.monotonic()
                    if self._is_done(chunk):
                        return tries.end()
        except (KeyboardInterrupt, SystemExit):
            tries.note("stop")
            raise
        self._parts.write(chunk, self._columns, [row for _, row in sorted(found, key=itemgetter(0))], audio)
        tries.end()

    def _is_done(self, chunk: Chunk) -> bool:
        return self._parts.path(chunk).exists() or not self._parts.under_way()

    def _rows(self, chunk: Chunk) -> Iterator[Row]:
        for record in self._manifest.read(chunk.first, chunk.rows):
            yield self._reader.of_record(record, self._manifest.path)

    def _scored(self, rows: Iterable[Row]) -> Iterator[ScoredRow]:
        return score_rows(self._scorer, rows, self._columns, self._parts.job.level)

    def _together(self, rows: Iterable[Row]) -> Iterator[tuple[int, ScoredRow]]:
        """Positions and scores; rows in memory with the same context after one another: it is encoded and read once."""
        if not isinstance(rows, list):
            return enumerate(self._scored(rows))
        order = sorted(range(len(rows)), key=lambda number: _context(rows[number]))
        return zip(order, self._scored(rows[number] for number in order), strict=True)

    def _one_by_one(self, rows: Iterable[Row], tries: Tries) -> Iterator[tuple[int, ScoredRow]]:
        hopeless = len(tries.culprits) > _MOST_CULPRITS
        for number, row in enumerate(rows):
            if row.pair is not None and (hopeless or number in tries.culprits):
                whose = "this row" if number in tries.culprits else "several rows near this one"
                problem = Problem("process died", f"the process that scored {whose} died each time")
                row = Row(row.pair_id, None, problem)
            tries.note(str(number))
            yield from zip((number,), self._scored([row]), strict=True)


def _context(row: Row) -> tuple[str, ...]:
    if row.pair is None:
        return ()
    return (row.pair.situation or "", *(str(turn.audio) for turn in row.pair.context))


class Tries:
    """Notes beside a part: a row that kills whoever scores it must not stop a job.

    A chunk whose process died is tried twice again. Then its rows are scored one by one, and one at which the process
    died twice is passed over; where there are many of these, all rows of the chunk are. Each worker writes notes of its
    own: "start", then one by one the rows, and "stop" if it was asked to stop, which is no death.

    Attributes:
        careful: Whether rows are to be scored one by one.
        culprits: Positions of the rows in the chunk, from 0, that are passed over.
    """

    def __init__(self, parts: Parts, chunk: Chunk, owner: str) -> None:
        """Read what the worker of this name and others have noted."""
        notes = parts.path(chunk, "tries")
        self._path = parts.folder / f"{notes.name}-{owner}"
        deaths: list[list[str]] = []
        for path in parts.folder.glob(f"{notes.name}-*"):
            with suppress(FileNotFoundError):  # its worker has just finished
                starts = [start.split() for start in path.read_text(encoding="utf-8").split("start")[1:]]
                ended = starts if path == self._path else starts[:-1]  # the last start of another may go on
                deaths += [rows for rows in ended if "stop" not in rows]
        self.careful = len(deaths) > _RETRIES
        last = Counter(int(rows[-1]) for rows in deaths if rows)
        self.culprits = {row for row, count in last.items() if count >= _ROW_DEATHS}

    def note(self, word: str) -> None:
        """Write a line."""
        with suppress(FileNotFoundError), open(self._path, "a", encoding="utf-8") as file:  # else the job is over
            file.write(f"{word}\n")

    def end(self) -> None:
        """Forget all: the chunk is done."""
        self._path.unlink(missing_ok=True)
