"""Threads for work that releases the interpreter lock (decoding, reading), messages on progress, signals that ask a
program to stop, and the rank of this process among those that a launcher started."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from .errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""SLURM and Kubernetes send SIGTERM before they kill; SIGUSR1 is what people let `sbatch --signal` send."""
LINE_SECONDS = 30.0  # between two lines in a log
# Enough that a slow clip does not leave the other threads without work; results of so many are held.
_AHEAD = 8
_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_PORT",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID",
)  # fmt: skip


def available_cores() -> int:
    """Cores that this process may use: fewer than the machine has where a scheduler allotted some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_threads(
    function: Callable[[Item], Result], items: Iterable[Item], label: str, total: int, done: int = 0
) -> Generator[Result, None, None]:
    """``map`` in threads, in order, with a `ProgressBar`.

    Memory does not grow with the number of items: `items` is read as results are taken. What the function raises is
    raised here. `total` includes the items that were done before, `done`.
    """
    workers = available_cores()
    pool = ThreadPoolExecutor(workers)

    def results() -> Iterator[Result]:
        futures: deque[Future[Result]] = deque()
        for item in items:
            futures.append(pool.submit(function, item))
            if len(futures) >= _AHEAD * workers:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()

    try:
        yield from progress(results(), label, total, done)
    finally:
        pool.shutdown(cancel_futures=True)


def in_daemon_thread(function: Callable[[], Result], name: str) -> Future[Result]:
    """What a function returns or raises in a thread of its own, for which a program that ends does not wait."""
    future: Future[Result] = Future()
    # From now on it cannot be cancelled; callers may only stop waiting.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def end_with_parent() -> None:
    """Let this process end if the one that started it is killed.

    A process of the forkserver is no child of the process that asked for it, and torch's data workers watch their
    parent alone.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def in_fresh_processes(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """``map`` in order, each item in a process of its own, which imports the script that calls this.

    Raises:
        UserError: If a process ends early.
    """
    context, others = multiprocessing.get_context("forkserver"), set(multiprocessing.active_children())
    # not a `Pool`, which waits for ever for what a dead process had to do
    with ProcessPoolExecutor(workers, context, end_with_parent, max_tasks_per_child=1) as pool:
        try:
            yield from pool.map(function, items)
        except BrokenProcessPool:
            expected = "more free memory, or, in a script, the call below if __name__ == '__main__'"
            raise UserError(f"a process that computes ended early; expected {expected}") from None
        except BaseException:  # such as Ctrl-C, for which the pool would wait until they are done
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


def say(what: object, style: str | None = None, stderr: bool = True) -> None:
    """Print a line or a table. The terminal breaks lines that are too long: a signature with line breaks could not be
    copied. Tables are never cut."""
    from rich.console import Console

    # paths and names may hold [ and :, in the title of a table and in its cells too, to which `print` does not pass it
    console = Console(stderr=stderr, markup=False, emoji=False)
    console.print(what, style=style, soft_wrap=isinstance(what, str), crop=False)


class ProgressBar:
    """Progress of long work, on standard error: a bar with rate and remaining time in a terminal, else a line at times.

    A bar needs the context manager, lines do not.
    """

    def __init__(self, label: str, total: int, done: int = 0, quiet: bool = False) -> None:
        """Get ready; `total` includes the items that were done before, `done`, which do not count for the rate. `quiet`
        shows nothing, as in all processes but one."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._label, self._total, self._before, self._quiet = label, total, done, quiet
        self._in_lines = not console.is_terminal
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")
        self._bar = Progress(
            *columns, TimeRemainingColumn(), TextColumn("{task.fields[more]}"),
            console=console, disable=quiet or self._in_lines,
        )  # fmt: skip
        self._task = self._bar.add_task(label, total=total, completed=done, rate="", more="")
        self._begun = self._said = time.monotonic()

    def update(self, done: int, more: str = "") -> None:
        """Show how many items are done, and `more`, another text that changes."""
        now = time.monotonic()
        # Of this run: a resumed one would otherwise claim what an earlier one did
        rate = (done - self._before) / max(now - self._begun, 1e-9)
        rate_text = f"{rate:,.1f} per second" if rate >= 1 or not rate else f"{1 / rate:,.1f} s each"
        self._bar.update(self._task, completed=done, rate=rate_text, more=more)
        if self._in_lines and not self._quiet and now - self._said >= LINE_SECONDS:
            self._said = now
            remaining = [f"{duration((self._total - done) / rate)} left"] if rate else []
            parts = [f"{done:,} of {self._total:,}", rate_text, *remaining, *([more] if more else [])]
            print(f"{self._label}: {', '.join(parts)}", file=sys.stderr, flush=True)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def progress(
    items: Iterable[Item], label: str, total: int, done: int = 0, quiet: bool = False
) -> Generator[Item, None, None]:
    """The items, with a `ProgressBar`; an item is done when the next one is asked for."""
    with ProgressBar(label, total, done, quiet) as bar:
        for count, item in enumerate(items, done + 1):
            yield item
            bar.update(count)


def duration(seconds: float) -> str:
    """Seconds as people say them: 70 s, 3 min, 2 h 5 min."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def listen(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
    signals: Sequence[signal.Signals] = SCHEDULER_SIGNALS,
) -> dict[signal.Signals, Any]:
    """Set handlers and return the earlier ones. Only the main thread can do that: in others nothing is set."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in signals}


def restore(before: Mapping[signal.Signals, Any]) -> None:
    """Put handlers back that `listen` returned."""
    for number, handler in before.items():
        signal.signal(number, handler)


class Launch(NamedTuple):
    """This process among those that torchrun, accelerate or `srun` started."""

    rank: int = 0  # from 0
    world: int = 1  # how many there are
    local_rank: int = 0  # among those on this machine


ALONE = Launch()


def find_launch() -> Launch:
    """The `Launch` that the environment describes.

    The variables of a SLURM step are read, not those of a job, which a batch script has too that starts one process.

    Raises:
        UserError: If a variable is no number, or the rank is none of so many processes.
    """
    for rank, world, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        count = _number(world)
        if count > 1:
            launch = Launch(_number(rank), count, _number(local))
            # Such a process would wait for others that never come
            if launch.rank >= count:
                raise UserError(f"{rank}={launch.rank} in the environment; expected less than {world}, {count}")
            return launch
    return ALONE


def check_ranks() -> None:
    """Refuse what torch and Lightning would stumble over as soon as they are loaded.

    Raises:
        UserError: If a variable of torchrun or SLURM is no number.
    """
    for name in _VARIABLES:
        _number(name)


def _number(name: str) -> int:
    text = os.environ.get(name, "0")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UserError(
            f"{name}={text}: not a number; expected it as torchrun or srun sets it, or not at all (unset {name})"
        )
    return int(text)
