"""What the programs here measure with: ways that take turns, rates of floating-point operations, memory, ratios.

The speed of a machine drifts, by other users and by heat. So ways of doing the same thing take turns, each in a process
of its own: each goes on by a few steps while all others wait, and the ratio of two ways is taken in each round.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

# ---------------------------------------------------------------- ratios, rows and memory


def ratios(own: Sequence[float], base: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(own, base, strict=True)]


def spread(values: Sequence[float], form: str = ".1f") -> str:
    """Median and range."""
    median, low, high = (format(value, form) for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({low} to {high})"


def append_row(path: Path | None, row: dict[str, Any]) -> None:
    """Add a line of JSON in one write, so that several processes may share the file; None = nowhere."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def memory(key: str) -> int:
    """Of this process (bytes), by the kernel's name: ``VmHWM`` is the peak, ``VmRSS`` is resident now.

    Not `resource.getrusage`: its maximum is inherited from the process that started this one.
    """
    return int(Path("/proc/self/status").read_text(encoding="utf-8").partition(f"{key}:")[2].split()[0]) * 1024


def reset_peak() -> None:
    """Let ``VmHWM`` of this process start anew, where the system allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(
    ways: dict[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each way in each round, of the clock and of CPU time, after a warm-up."""
    for way in ways.values():
        way()
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun, cpu_begun = time.perf_counter(), time.process_time()
            way()
            wall[name].append(time.perf_counter() - begun)
            cpu[name].append(time.process_time() - cpu_begun)
    return wall, cpu


# ---------------------------------------------------------------- floating-point operations


def flop_counter() -> FlopCounterMode:
    """Counts within: matrix products, convolutions and attention, forward and backward, a multiplication and an
    addition as two."""

    def forward(q: Any, k: Any, v: Any, *_: object, **__: object) -> int:
        return sdpa_flop_count(q, (*q[:2], *k[2:]), (*q[:2], *v[2:]))  # each query head has keys of its own

    def backward(gradient: Any, q: Any, k: Any, v: Any, *_: object, **__: object) -> int:
        return sdpa_backward_flop_count(gradient, q, (*q[:2], *k[2:]), (*q[:2], *v[2:]))

    # torch 2.11 counts the attention kernels of GPUs alone
    aten = torch.ops.aten
    of_cpu: dict[Any, Any] = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
    return FlopCounterMode(display=False, custom_mapping=of_cpu)


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int = 1024, of_cpu: bool = False) -> float:
    """Operations per second (`of_cpu`: of CPU time) of a product of square matrices, the best of three."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def multiply() -> None:
        _ = left @ right
        synchronize(device)

    return 2 * size**3 / min(in_turns({"": multiply}, 3)[of_cpu][""])


# ---------------------------------------------------------------- turns


@dataclass(frozen=True)
class Step:
    """A step of a way."""

    seconds: float  # from the end of the step before to the end of this one
    waited: float  # of these, until its batch was there
    cpu: float  # seconds of all threads of the process: what others do on the machine hardly changes it
    pairs: int
    tokens: int  # places in its batch, padding included
    real: int  # those that are not padding


@dataclass(frozen=True)
class Order:
    """What the next turn is: so many steps. `count`: under a counter of floating-point operations, which is slow."""

    steps: int
    count: bool = False


@dataclass(frozen=True)
class Turn:
    """What was done in a turn."""

    steps: tuple[Step, ...]
    flops: int  # floating-point operations, where they were counted; otherwise 0
    peak: int  # most memory so far, bytes: of the GPU if there is one, else resident memory of the process

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
        self._counter: FlopCounterMode | None = None
        self._start = self._came = self._cpu = 0.0
        self._batch = (0, 0, 0)

    def wait(self) -> None:
        """Report the last turn and wait for the next; raises `Finished` if there is none."""
        flops = 0
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            flops, self._counter = self._counter.get_total_flops(), None
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else memory("VmHWM")
        self._connection.send(Turn(tuple(self._steps), flops, peak))
        order = self._connection.recv()
        if order is None:
            raise Finished
        self._order, self._steps = order, []
        if order.count:
            self._counter = flop_counter()
            self._counter.__enter__()
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def batch_came(self, pairs: int, mask: torch.Tensor) -> None:
        """A step begins with a batch; `mask` `(batch, tokens)` is 1 where a token is and 0 where padding is."""
        self._came = time.perf_counter()
        self._batch = (pairs, mask.numel(), int(mask.sum()))

    def step_done(self) -> None:
        """A step has ended; wait if it was the last of this turn."""
        synchronize(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        end, cpu = time.perf_counter(), time.process_time()
        self._steps.append(Step(end - self._start, self._came - self._start, cpu - self._cpu, *self._batch))
        if len(self._steps) == self._order.steps:
            self.wait()
        else:
            self._start, self._cpu = end, cpu


class Player:
    """The side of who hands out the turns."""

    def __init__(self, connection: Connection, ended: Callable[[], object], log: Path) -> None:
        """Wait until a process is ready that has `Turns` at the other end of the connection and prints into `log`;
        `ended` waits for its end."""
        self._connection, self._ended, self._log = connection, ended, log
        self._report()

    @classmethod
    def of(cls, run: Callable[..., None], *arguments: Any, log: Path) -> Player:
        """Start `run(turns, *arguments)` in a new process."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_play, args=(run, theirs, log, *arguments))
        process.start()
        theirs.close()
        return cls(ours, process.join, log)

    def play(self, order: Order) -> Turn:
        """Let it make a turn."""
        self._connection.send(order)
        return self._report()

    def stop(self) -> None:
        """No further turn: the process ends."""
        with suppress(OSError):  # it has ended
            self._connection.send(None)
        self._ended()

    def _report(self) -> Turn:
        try:
            return self._connection.recv()
        except EOFError:
            self._ended()
            raise RuntimeError(f"a way has failed:\n{self._log.read_text()[-2000:]}") from None


@contextmanager
def players(ways: Mapping[str, Callable[[], Player]]) -> Iterator[dict[str, Player]]:
    """All of them started, in memory at the same time and warmed up by a step; stopped at the end."""
    with ExitStack() as stack:
        started: dict[str, Player] = {}
        for name, start in ways.items():
            started[name] = start()
            stack.callback(started[name].stop)
        for player in started.values():
            player.play(Order(1))
        yield started


def _play(run: Callable[..., None], connection: Connection, log: Path, *arguments: Any) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    with suppress(Finished):
        run(Turns(connection), *arguments)
