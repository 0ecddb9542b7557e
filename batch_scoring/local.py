"""Worker processes on this machine, one for each GPU: one that dies is started again, an error ends the job."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, NamedTuple

from ..data_modules.errors import ASKED_TO_STOP, UserError
from .job import Parts

_MOST_DEATHS = 20
"""Of workers, one after the other, without a chunk being finished."""
_PATIENCE = 10.0  # seconds that a worker has to end
_LOOK = 1.0  # seconds


class Launch(NamedTuple):
    """This process among those that torchrun, accelerate or `srun` started.

    Attributes:
        rank: From 0.
        world: How many there are.
        local_rank: Among those on this machine.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0


ALONE = Launch()


def find_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """What the environment says.

    The variables of a SLURM step are read, not those of a job, which a batch script has too that starts one process.
    """
    for rank, world, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        if int(environment.get(world, "1")) > 1:
            return Launch(int(environment.get(rank, "0")), int(environment[world]), int(environment.get(local, "0")))
    return ALONE


def worker_devices(launch: Launch, device: str | None, workers: int | None) -> list[str | None]:
    """The device of each worker that this process starts.

    Args:
        launch: One process of several has one worker, on the GPU of its local rank.
        device: As the user has it; None = GPUs if there are some.
        workers: As the user has it; None = one for each GPU, or one.

    Raises:
        UserError: If the workers would be in each other's way.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}; expected at least 1")
    if device not in (None, "cpu", "cuda"):
        if launch.world > 1 or (workers or 1) > 1:
            raise UserError(
                f"--device {device} for several workers, each of which has a device of its own; expected no --device, "
                "cuda, or cpu"
            )
        return [device]
    gpus = 0 if device == "cpu" else _gpu_count()
    if not gpus:
        return [device] * (workers or 1)
    if launch.world > 1:
        return [f"cuda:{(launch.local_rank + worker) % gpus}" for worker in range(workers or 1)]
    return [f"cuda:{worker % gpus}" for worker in range(workers or gpus)]


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


class _Member(NamedTuple):
    """A worker process. It says None when its judge is loaded, and text if there is an error."""

    number: int
    process: SpawnProcess
    connection: Connection


def run_workers(parts: Parts, launch: Launch, devices: Sequence[str | None], look: Callable[[], int]) -> None:
    """Score until every part is there.

    Args:
        parts: Of a job that was planned.
        launch: This process.
        devices: Of the workers.
        look: Is called about once a second; says how many chunks are done, by whomever.

    Raises:
        UserError: If a worker says so, or workers die and nothing gets done.
    """
    count, context = len(devices), multiprocessing.get_context("spawn")
    threads = max((os.cpu_count() or 1) // count, 1) if count > 1 else None
    members: list[_Member] = []
    ready: set[Connection] = set()

    def start(number: int) -> None:
        receiving, sending = context.Pipe(duplex=False)
        share = (launch.rank * count + number, launch.world * count)
        process = context.Process(target=_work, args=(parts, share, devices[number], threads, sending))
        process.start()
        sending.close()
        members.append(_Member(number, process, receiving))

    def goes_on(member: _Member) -> bool:
        try:
            while member.connection.poll():
                error = member.connection.recv()
                if error is not None:
                    raise UserError(error)
                ready.add(member.connection)
        except (EOFError, ConnectionError):
            return False
        return True

    deaths, done = 0, look()
    try:
        for number in range(count):
            start(number)
        while members:
            wait([member.connection for member in members], timeout=_LOOK)
            before, done = done, look()
            deaths = deaths if done == before else 0
            for member in [member for member in members if not goes_on(member)]:
                members.remove(member)
                _end([member])
                if code := member.process.exitcode:
                    deaths += 1
                    _say_how(code, deaths, member.connection in ready)
                    start(member.number)
    finally:
        for member in members:
            member.process.terminate()
        _end(members)


def _say_how(code: int, deaths: int, was_ready: bool) -> None:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if not was_ready and code > 0:
        raise UserError(f"a worker could not start: it {how}; what it said stands above")
    if deaths >= _MOST_DEATHS:
        raise UserError(
            f"{deaths} workers died and no part was finished meanwhile, the last one {how}; what is done is kept, and "
            "the same command goes on"
        )
    print(f"a worker {how}: its rows are tried again by another", file=sys.stderr)


def _end(members: Sequence[_Member]) -> None:
    for member in members:
        member.process.join(_PATIENCE)
        if member.process.is_alive():
            member.process.kill()
            member.process.join()
        member.connection.close()


def _work(parts: Parts, share: tuple[int, int], device: str | None, threads: int | None, connection: Any) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; who started this process ends it
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as SLURM sends it to all processes of a step
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        from .worker import Worker

        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        worker = Worker(parts, parts.job.load(device), *share)
        connection.send(None)
        worker.run()
    except UserError as error:
        connection.send(str(error))
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(ASKED_TO_STOP)


def _end_with_parent() -> None:
    """Whoever started this process was killed: nobody would start it again, or end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
