"""What the programs here measure with: ways that take turns, rates of floating-point operations, memory, ratios.

The speed of a machine drifts, by other users and by heat. So ways of doing the same thing take turns, each in a process
of its own: each goes on by a few steps while all others wait, and the ratio of two ways is taken in each round.
"""

from __future__ import annotations

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

# ---------------------------------------------------------------- ratios and memory


def ratios(own: Sequence[float], base: Sequence[float]) -> list[float]:
    """Ratios of two ways, round by round."""
    return [one / other for one, other in zip(own, base, strict=True)]


def spread(values: Sequence[float], form: str = ".1f") -> str:
    """Median and range, as text."""
    median, low, high = (format(value, form) for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({low} to {high})"


def memory(key: str) -> int:
    """Memory of this process (bytes), by the kernel's name: ``VmHWM`` is the peak, ``VmRSS`` is resident now.

    Not `resource.getrusage`: its maximum is inherited from the process that started this one.
    """
    return int(Path("/proc/self/status").read_text(encoding="utf-8").partition(f"{key}:")[2].split()[0]) * 1024


def peak_memory(device: torch.device) -> int:
    """Bytes that this process held at most: in GPU memory by torch's allocator, on a CPU resident in main memory."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else memory("VmHWM")


def reset_peak(device: torch.device) -> None:
    """Let `peak_memory` start anew, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
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
            start, cpu_start = time.perf_counter(), time.process_time()
            way()
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - cpu_start)
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
class Order:
    """What a way does in its next turn.

    Attributes:
        steps: Number of steps that are counted.
        warm_up: Number of steps before them that are not: batches were read ahead in the pause.
        count: Whether floating-point operations are counted, which is slow.
    """

    steps: int
    warm_up: int = 0
    count: bool = False


@dataclass
class TimedTurn:
    """Totals over the counted steps of a turn."""

    pairs: int = 0
    seconds: float = 0.0
    waited: float = 0.0  # seconds of these that were spent waiting for batches
    cpu: float = 0.0  # CPU seconds of all threads of the process: other programs hardly change it
    tokens: int = 0  # places in the batches, padding included
    real: int = 0  # those that are not padding
    flops: int = 0  # floating-point operations, where they were counted; otherwise 0
    peak: int = 0  # most memory so far, bytes: of the GPU if there is one, else resident memory of the process

    @property
    def rate(self) -> float:
        """Pairs per second."""
        return self.pairs / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Pairs per second of CPU time."""
        return self.pairs / self.cpu


class Finished(Exception):
    """No further turn is wanted."""


class Turns:
    """The side of a way that takes turns: it calls `wait` when it is ready, then `batch_came` and `step_done` in each
    step."""

    def __init__(self, hand_over: Callable[[TimedTurn], Order | None]) -> None:
        """`hand_over` takes the turn that has ended, at first an empty one, and gives the next order; None = none."""
        self._hand_over = hand_over
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._order, self._turn = Order(0), TimedTurn()
        self._counter: FlopCounterMode | None = None
        self._masks: list[torch.Tensor] = []
        self._step = 0
        self._start = self._cpu = self._last = 0.0

    def wait(self) -> None:
        """Report the last turn and wait for the next; raises `Finished` if there is none."""
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            self._turn.flops, self._counter = self._counter.get_total_flops(), None
        self._turn.peak = peak_memory(self._device)
        order = self._hand_over(self._turn)
        if order is None:
            raise Finished
        self._order, self._step = order, -order.warm_up
        if order.count:
            self._counter = flop_counter()
            self._counter.__enter__()
        self._begin()

    def batch_came(self, pairs: int, mask: torch.Tensor | None = None) -> None:
        """A step begins with a batch; `mask` `(batch, tokens)` is 1 where a token is and 0 where padding is."""
        self._turn.waited += time.perf_counter() - self._last
        self._turn.pairs += pairs
        if mask is not None:
            self._masks.append(mask)  # summing it now would wait for the GPU

    def step_done(self) -> None:
        """A step has ended, or on a GPU been asked for; wait if it was the last of this turn."""
        self._last = time.perf_counter()
        self._step += 1
        if self._step == 0:
            self._begin()
        elif self._step == self._order.steps:
            synchronize(self._device)
            self._turn.seconds, self._turn.cpu = time.perf_counter() - self._start, time.process_time() - self._cpu
            self._turn.tokens = sum(mask.numel() for mask in self._masks)
            self._turn.real = sum(int(mask.sum()) for mask in self._masks)
            self.wait()

    def _begin(self) -> None:
        synchronize(self._device)
        self._turn, self._masks = TimedTurn(), []
        self._start = self._last = time.perf_counter()
        self._cpu = time.process_time()


def one_turn(run: Callable[[Turns], object], order: Order) -> TimedTurn:
    """Make one turn of a way in this process."""
    turns, orders = list[TimedTurn](), iter((order, None))

    def hand_over(turn: TimedTurn) -> Order | None:
        turns.append(turn)
        return next(orders)

    with suppress(Finished):
        run(Turns(hand_over))
    return turns[-1]


class Player:
    """The side that hands out the turns."""

    def __init__(self, run: Callable[..., None], *arguments: Any, log: Path) -> None:
        """Start `run(turns, *arguments)` in a new process that prints into `log`, and wait until it is ready."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._log = log
        self.process = context.Process(target=_play, args=(run, theirs, log, *arguments))
        self.process.start()
        theirs.close()
        self._report()

    def play(self, order: Order) -> TimedTurn:
        """Let the process make a turn."""
        self._connection.send(order)
        return self._report()

    def stop(self) -> None:
        """No further turn: the process ends."""
        with suppress(OSError):  # it has ended
            self._connection.send(None)
        self.process.join()

    def _report(self) -> TimedTurn:
        try:
            return self._connection.recv()
        except EOFError:
            self.process.join()
            raise RuntimeError(f"a way has failed:\n{self._log.read_text()[-2000:]}") from None


@contextmanager
def players(ways: Mapping[str, Callable[[], Player]]) -> Iterator[dict[str, Player]]:
    """Start all ways, in memory at the same time, and warm each up by a step; stop them at the end."""
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

    def hand_over(turn: TimedTurn) -> Order | None:
        connection.send(turn)
        return connection.recv()

    with suppress(Finished):
        run(Turns(hand_over), *arguments)
