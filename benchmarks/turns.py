"""Ways of doing the same thing, each in a process of its own, that take turns.

The speed of a machine drifts, by other users and by heat. Here each way goes on by a few steps while all others wait,
so that the drift is unfair to none; the ratio of two ways is taken in each round.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from rate import Counter


@dataclass(frozen=True)
class Step:
    """A step of a way.

    Attributes:
        seconds: From the end of the step before to the end of this one.
        waited: Until its batch was there (seconds of these).
        cpu: CPU time of the process meanwhile (seconds), all threads together: what others do on the machine hardly
            changes it.
        pairs: Number in its batch.
        tokens: Places in its batch, padding included.
        real: Those that are not padding.
    """

    seconds: float
    waited: float
    cpu: float
    pairs: int
    tokens: int
    real: int


@dataclass(frozen=True)
class Order:
    """What the next turn is: so many steps. `count`: under a counter of floating-point operations, which is slow."""

    steps: int
    count: bool = False


@dataclass(frozen=True)
class Turn:
    """What was done in a turn.

    Attributes:
        steps: Each step.
        flops: Floating-point operations, where they were counted; otherwise 0.
        peak: Most memory so far, bytes: of the GPU if there is one, else resident memory of the process.
        resident: Resident memory of the process now, bytes.
    """

    steps: tuple[Step, ...]
    flops: int
    peak: int
    resident: int

    @property
    def rate(self) -> float:
        """Pairs per second."""
        return sum(step.pairs for step in self.steps) / sum(step.seconds for step in self.steps)

    @property
    def cpu_rate(self) -> float:
        """Pairs per second of CPU time."""
        return sum(step.pairs for step in self.steps) / sum(step.cpu for step in self.steps)


class Finished(Exception):
    """No further turn is wanted."""


class Turns:
    """The side of a way: it calls `wait` when it is ready, then `batch_came` and `step_done` in each step."""

    def __init__(self, connection: Connection) -> None:
        """Talk to the `Player` at the other end."""
        self._connection = connection
        self._steps: list[Step] = []
        self._order = Order(0)
        self._counter: Counter | None = None
        self._start = self._came = self._cpu = 0.0
        self._batch = (0, 0, 0)

    def wait(self) -> None:
        """Report the last turn and wait for the next.

        Raises:
            Finished: If there is none.
        """
        flops = 0
        if self._counter is not None:
            flops, self._counter = self._counter.stop(), None
        self._connection.send(Turn(tuple(self._steps), flops, *_memory()))
        order = self._connection.recv()
        if order is None:
            raise Finished
        self._order, self._steps = order, []
        if order.count:
            self._counter = Counter()
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def batch_came(self, pairs: int, mask: torch.Tensor) -> None:
        """A step begins.

        Args:
            pairs: Number in the batch.
            mask: 1 where a token is, 0 where padding is `(batch, tokens)`.
        """
        self._came = time.perf_counter()
        self._batch = (pairs, mask.numel(), int(mask.sum()))

    def step_done(self) -> None:
        """A step has ended; wait if it was the last of this turn.

        Raises:
            Finished: As `wait`.
        """
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        end, cpu = time.perf_counter(), time.process_time()
        self._steps.append(Step(end - self._start, self._came - self._start, cpu - self._cpu, *self._batch))
        if len(self._steps) == self._order.steps:
            self.wait()
        else:
            self._start, self._cpu = end, cpu


class Player:
    """The side of who hands out the turns."""

    def __init__(self, run: Callable[..., None], *arguments: Any, log: Path) -> None:
        """Start `run(turns, *arguments)` in a new process and wait until it is ready.

        Args:
            run: A function of a module.
            arguments: Pickled.
            log: File for what the process prints.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_play, args=(run, theirs, log, *arguments))
        self._process.start()
        theirs.close()
        self._log = log
        self._report()

    def play(self, order: Order) -> Turn:
        """Let it make a turn."""
        self._connection.send(order)
        return self._report()

    def stop(self) -> None:
        """No further turn: the process ends."""
        if self._process.is_alive():
            self._connection.send(None)
            self._process.join()

    def _report(self) -> Turn:
        try:
            return self._connection.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a way has failed:\n{self._log.read_text()[-2000:]}") from None


def _play(run: Callable[..., None], connection: Connection, log: Path, *arguments: Any) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    with suppress(Finished):
        run(Turns(connection), *arguments)


def _memory() -> tuple[int, int]:
    """`Turn.peak` and `Turn.resident`."""
    # not getrusage: its maximum is inherited from the process that started this one
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak, now = (next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key)) for key in _KEYS)
    return (torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak), now


_KEYS = ("VmHWM", "VmRSS")
