"""Worker processes on this machine: one that dies is started again, one that reports an error ends the job."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

from ..data_modules.errors import ASKED_TO_STOP, UserError
from .job import Job
from .parts import Parts
from .progress import Progress

_MOST_DEATHS = 20
"""Of workers, one after the other, without a chunk being finished."""
_PATIENCE = 10.0  # seconds that a worker has to end
_LOOK = 1.0  # seconds


@dataclass
class _Member:
    """A worker process.

    Attributes:
        device: Where its judge is.
        process: The process.
        connection: What it tells arrives here.
        ready: Whether its judge was loaded.
        gone: Whether it has ended or is about to.
    """

    device: str | None
    process: SpawnProcess
    connection: Connection
    ready: bool = False
    gone: bool = False


def run_pool(
    job: Job, devices: Sequence[str | None], tell: Callable[[Progress], None], look: Callable[[], None]
) -> None:
    """Score what is left of a job, until all is done.

    Args:
        job: Planned.
        devices: Of the workers.
        tell: Is told what they have done.
        look: Is called about once a second.

    Raises:
        UserError: If a worker says so, or workers die and nothing gets done.
    """
    threads = max((os.cpu_count() or 1) // len(devices), 1) if len(devices) > 1 else None
    members: list[_Member] = []
    deaths = 0
    try:
        members += [_start(job, device, threads) for device in devices]
        while members:
            wait([member.connection for member in members], timeout=_LOOK)
            for member in list(members):
                if any(progress.chunks for progress in _received(member, tell)):
                    deaths = 0
                if member.gone:
                    members.remove(member)
                    _end([member])
                    if member.process.exitcode != 0:
                        deaths += 1
                        _check(member, deaths)
                        members.append(_start(job, member.device, threads))
            look()
    finally:
        _end(members)


def _start(job: Job, device: str | None, threads: int | None) -> _Member:
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, device, threads, sending), name="empathy-judge-score")
    process.start()
    sending.close()
    return _Member(device, process, receiving)


def _received(member: _Member, tell: Callable[[Progress], None]) -> list[Progress]:
    """What a worker has told meanwhile.

    Raises:
        UserError: If it has told of one.
    """
    told = []
    try:
        while member.connection.poll():
            message = member.connection.recv()
            if isinstance(message, Progress):
                told.append(message)
                tell(message)
            elif message is None:
                member.ready = True
            else:
                raise UserError(message)
    except (EOFError, ConnectionError):
        member.gone = True
    return told


def _check(member: _Member, deaths: int) -> None:
    code = member.process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if not member.ready and code > 0:
        raise UserError(f"a worker could not start: it {how}; what it said stands above")
    if deaths >= _MOST_DEATHS:
        raise UserError(
            f"{deaths} workers died and no part was finished meanwhile, the last one {how}; what is done is kept, and "
            "the same command goes on"
        )
    print(f"a worker {how}: its rows are tried again by another", file=sys.stderr)


def _end(members: Sequence[_Member]) -> None:
    for member in members:
        if not member.gone:
            member.process.terminate()
    for member in members:
        member.process.join(_PATIENCE)
        if member.process.is_alive():
            member.process.kill()
            member.process.join()
        member.connection.close()


def _work(job: Job, device: str | None, threads: int | None, connection: Any) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; who started this process ends it
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as SLURM sends it to all processes of a step
    signal.signal(signal.SIGTERM, _stop)
    try:
        from .work import Worker

        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        worker = Worker(Parts(job), job.load(device), connection.send)
        connection.send(None)
        worker.run()
    except UserError as error:
        connection.send(str(error))
    except ConnectionError:  # whoever started this process is gone: nobody waits for it any more
        os._exit(1)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(ASKED_TO_STOP)
