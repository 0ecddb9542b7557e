"""Workers, one process for each GPU of this machine: each scores its share of the chunks, then what others have left.
One that dies is started again, an error ends the job."""

from __future__ import annotations

import multiprocessing
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import ASKED_TO_STOP, AudioError, UserError, as_user_error
from ...core.processes import Launch, available_cores, end_with_parent
from ...core.quiet import silence_libraries
from .job import Chunk, Parts, audio_mark
from .manifest import Manifest, Row
from .scores import ScoredRow, score_rows

if TYPE_CHECKING:  # torch: the process that starts workers needs none
    from ..scorer import Scorer

_MAX_DEATHS = 20
"""Deaths of workers in a row, without a chunk being finished, after which the job fails."""
_PATIENCE = 10.0  # seconds that a worker has to end
_PAUSE = 1.0  # seconds between two looks at the workers
_LOOK = 0.5  # seconds between two looks of a worker at its chunk
_RETRIES = 2
"""How often a chunk whose process died is tried again as a whole."""
_ROW_DEATHS = 2
"""Deaths at one row after which it is passed over: a single one may be the machine's fault."""
_MAX_BAD_ROWS = 3
"""Such rows of a chunk after which the rest of it is passed over: each costs two starts, with a judge to load."""
_ROW = re.compile("[0-9]{1,9}")


def worker_devices(launch: Launch, device: str | None, workers: int | None) -> list[str | None]:
    """The device of each worker that this process starts: by default GPUs if there are some, and a worker for each. One
    process of several has one worker, or as many as it is asked for, on the GPUs after those of lower local ranks.

    Raises:
        UserError: If the workers would be in each other's way.
    """
    if device not in (None, "cpu", "cuda"):
        if launch.world > 1 or (workers or 1) > 1:
            raise UserError(
                f"--device {device} for several workers, each of which has a device of its own; expected no --device, "
                "cuda, or cpu"
            )
        return [device]
    gpus = 0
    if device != "cpu":
        import torch

        gpus = torch.cuda.device_count()
    if not gpus:
        return [device] * (workers or 1)
    count = workers or (gpus if launch.world == 1 else 1)
    return [f"cuda:{(launch.local_rank * count + worker) % gpus}" for worker in range(count)]


class _WorkerProcess(NamedTuple):
    """A worker process. It sends None when its judge is loaded, and a text if there is an error."""

    number: int
    process: SpawnProcess
    connection: Connection


def run_workers(parts: Parts, launch: Launch, devices: Sequence[str | None], look: Callable[[], int]) -> None:
    """Score what is missing of a job that was planned until every part is there. `look` is called about once a second
    and says how many chunks are done, by whomever.

    Raises:
        UserError: If a worker says so, or workers die and nothing gets done.
    """
    # CUDA cannot be used in a forked process
    count, context = len(devices), multiprocessing.get_context("spawn")
    # Each worker by itself would start a thread for each core
    threads = max(available_cores() // count, 1) if count > 1 else None
    workers: list[_WorkerProcess] = []
    loaded: set[Connection] = set()

    def start(number: int) -> None:
        receiving, sending = context.Pipe(duplex=False)
        share = (launch.rank * count + number, launch.world * count)
        process = context.Process(target=_work, args=(parts, share, devices[number], threads, sending))
        process.start()
        # Only the worker keeps this end, so that its death ends the pipe
        sending.close()
        workers.append(_WorkerProcess(number, process, receiving))

    def is_alive(worker: _WorkerProcess) -> bool:
        try:
            while worker.connection.poll():
                if (error := worker.connection.recv()) is not None:
                    raise UserError(error)
                loaded.add(worker.connection)
        except (EOFError, ConnectionError):
            return False
        return True

    deaths, done = 0, look()
    try:
        for number in range(count):
            start(number)
        while workers:
            wait([worker.connection for worker in workers], timeout=_PAUSE)
            # Deaths count in a row: with every chunk that is done they begin anew
            before, done = done, look()
            deaths = deaths if done == before else 0
            for worker in [worker for worker in workers if not is_alive(worker)]:
                workers.remove(worker)
                _end([worker])
                if not (code := worker.process.exitcode):
                    continue
                deaths += 1
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                # The next one would not load the judge either
                if code > 0 and worker.connection not in loaded:
                    raise UserError(f"a worker could not start: it {how}; what it said stands above")
                if deaths >= _MAX_DEATHS:
                    raise UserError(
                        f"{deaths} workers died and no part was finished meanwhile, the last one {how}; what is done "
                        "is kept, and the same command goes on"
                    )
                print(f"a worker {how}: its rows are tried again by another", file=sys.stderr)
                start(worker.number)
    finally:
        for worker in workers:
            worker.process.terminate()
        _end(workers)


def _end(workers: Sequence[_WorkerProcess]) -> None:
    for worker in workers:
        worker.process.join(_PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.connection.close()


# In the process of a worker


def _work(parts: Parts, share: tuple[int, int], device: str | None, threads: int | None, connection: Any) -> None:
    """The main function of a worker process."""
    # Ctrl-C reaches all processes, and the one that started this one ends it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SLURM sends it to all processes of a step
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    end_with_parent()  # no other process would restart it or end it
    silence_libraries()  # before the judge is imported
    worker: Worker | None = None
    try:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        worker = Worker(parts, parts.job.load(device), *share)
        connection.send(None)
        worker.run()
    except Exception as error:
        # Errors that another worker would meet again: a full disk, a folder in the way, no memory for the judge. Where
        # memory is missing for a row, the row is to blame
        recurs = worker is None or isinstance(error, UserError | OSError)
        user_error = as_user_error(error) if recurs else None
        if user_error is None:
            traceback.print_exc()
            raise SystemExit(1) from None
        connection.send(str(user_error))
    finally:
        # The process ends anyway, and Python would print a later exception
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(ASKED_TO_STOP)


class Worker:
    """Scores chunks of a job that was planned."""

    def __init__(self, parts: Parts, scorer: Scorer, rank: int = 0, world: int = 1, owner: str | None = None) -> None:
        """Get ready, as the worker of this rank among those of all processes. `owner` names it, and the one that is
        started in its place when it dies (None = its rank)."""
        self._parts, self._scorer, self._rank, self._world = parts, scorer, rank, world
        self._owner = owner or str(rank)
        self._manifest = Manifest(parts.job.manifest)
        self._reader = parts.job.reader(scorer.columns)

    def run(self) -> None:
        """Score `range(rank, chunks, world)`, then whatever is missing, until every part is there.

        Workers do not wait for others or ask them. A worker that is done with its share takes chunks whose parts are
        missing, each worker from another place of the list. At the end a chunk may be scored twice, in time that would
        be idle; so a process that died, or a slow machine, delays nothing.
        """
        for chunk in self._parts.chunks()[self._rank :: self._world]:
            self.score(chunk)
        while missing := self._parts.missing():
            self.score(missing[self._rank * len(missing) // self._world])

    def score(self, chunk: Chunk) -> None:
        """Score a chunk and write its part, unless it is there or another worker is faster."""
        if self._is_done(chunk):
            return
        # A part must not depend on what was scored before it
        self._scorer.predictor.forget()
        log = AttemptLog(self._parts, chunk, self._owner)
        try:
            log.note("start")
            records = self._manifest.read(chunk.first, chunk.rows)
            rows = (self._reader.of_record(record, self._manifest.path) for record in records)
            order, audio = range(chunk.rows), ""
            # Clips inside a manifest are not held in memory for a whole chunk
            if not self._manifest.embeds:
                chunk_rows = list(rows)
                # Before scoring, to notice later changes
                audio = audio_mark(chunk_rows, self._parts.job.checksums)
                # Rows of one context follow each other: it is encoded and read once
                if not log.row_by_row:
                    order = sorted(order, key=lambda number: _context(chunk_rows[number]))
                rows = (chunk_rows[number] for number in order)
            scored = self._row_by_row(rows, log) if log.row_by_row else self._scored(rows)
            # Another worker may have taken the same chunk at the end, and been faster
            results, last_look = {}, time.monotonic()
            for number, row in zip(order, scored, strict=True):
                results[number] = row
                if time.monotonic() - last_look >= _LOOK:
                    last_look = time.monotonic()
                    if self._is_done(chunk):
                        return log.end()
            columns = (*self._reader.copied, *self._scorer.columns)
            self._parts.write(chunk, columns, [results[number] for number in range(chunk.rows)], audio)
        # The last ends the job, such as a full disk: no row is to blame
        except (KeyboardInterrupt, SystemExit, UserError):
            log.note("stop")
            raise
        log.end()

    def _is_done(self, chunk: Chunk) -> bool:
        return self._parts.path(chunk).exists() or not self._parts.under_way()

    def _scored(self, rows: Iterable[Row]) -> Iterator[ScoredRow]:
        return score_rows(self._scorer, rows, self._parts.job.level)

    def _row_by_row(self, rows: Iterable[Row], log: AttemptLog) -> Iterator[ScoredRow]:
        give_up = len(log.bad_rows) > _MAX_BAD_ROWS
        for number, row in enumerate(rows):
            if not isinstance(row.pair, AudioError) and (give_up or number in log.bad_rows):
                whose = "this row" if number in log.bad_rows else "several rows near this one"
                died = AudioError(f"the process that scored {whose} died each time", "process died")
                row = row._replace(pair=died)
            log.note(str(number))
            yield from self._scored([row])


def _context(row: Row) -> tuple[str, ...]:
    if isinstance(row.pair, AudioError):
        return ()
    return (row.pair.situation or "", *(str(turn.audio) for turn in row.pair.context))


class AttemptLog:
    """Notes next to a part: a row that kills whoever scores it must not stop a job.

    A chunk whose process died is tried twice again. Then its rows are scored one by one, and one at which the process
    died twice is passed over; where there are many of these, all rows of the chunk are. Each worker writes notes of its
    own: "start", then one by one the rows, and "stop" if it was asked to stop or an error ends the job: no death.

    Attributes:
        row_by_row: Whether rows are to be scored one by one.
        bad_rows: Positions of the rows in the chunk, from 0, that are passed over.
    """

    def __init__(self, parts: Parts, chunk: Chunk, owner: str) -> None:
        """Read what the worker of this name and others have noted."""
        notes = parts.path(chunk, "tries")
        self._path = parts.folder / f"{notes.name}-{owner}"
        deaths: list[list[str]] = []
        for path in parts.folder.glob(f"{notes.name}-*"):
            with suppress(OSError):  # its worker has just finished, or it is no file
                words = path.read_bytes().decode(errors="replace")
                starts = [start.split() for start in words.split("start")[1:]]
                # The last start of another worker may go on
                ended = starts if path == self._path else starts[:-1]
                deaths += [rows for rows in ended if "stop" not in rows]
        self.row_by_row = len(deaths) > _RETRIES
        last = Counter(int(rows[-1]) for rows in deaths if rows and _ROW.fullmatch(rows[-1]))
        self.bad_rows = {row for row, count in last.items() if count >= _ROW_DEATHS}

    def note(self, word: str) -> None:
        """Write a line to the notes."""
        with suppress(FileNotFoundError), open(self._path, "a", encoding="utf-8") as file:  # else the job is over
            file.write(f"{word}\n")

    def end(self) -> None:
        """Delete the notes: the chunk is done."""
        self._path.unlink(missing_ok=True)
