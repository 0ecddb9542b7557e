"""Threads for work that leaves Python's lock (decoding, reading), and signals that ask a program to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")
Result = TypeVar("Result")
SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""SLURM and Kubernetes send SIGTERM before they kill; SIGUSR1 is what `sbatch --signal` is usually told to send."""
_AHEAD = 8  # tasks per thread that wait or whose results wait


def map_threads(
    function: Callable[[Item], Result], items: Iterable[Item], label: str, total: int, done: int = 0
) -> Generator[Result, None, None]:
    """``map`` in threads, in order, with a progress bar where standard error is a terminal.

    Memory does not grow with the number of items: `items` is read as results are taken.

    Args:
        function: May run in several threads at a time. What it raises is raised here.
        items: Its arguments.
        label: Of the progress bar.
        total: Number of items, those that were done before included.
        done: How many were done before.
    """
    workers = os.cpu_count() or 1
    pool = ThreadPoolExecutor(workers)

    def results() -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= _AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield from progress(results(), label, total, done)
    finally:
        pool.shutdown(cancel_futures=True)


def progress(items: Iterable[Item], label: str, total: int, done: int = 0) -> Iterable[Item]:
    """The items, with a progress bar where standard error is a terminal."""
    console = Console(stderr=True)
    return track(items, label, total, completed=done, console=console, disable=not sys.stderr.isatty())


def listen(
    handler: Callable[[int, FrameType | None], None], signals: Sequence[signal.Signals] = SCHEDULER_SIGNALS
) -> dict[signal.Signals, Any]:
    """Set handlers; returns those before. Python lets the main thread alone do that: elsewhere nothing is set."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in signals}


def restore(before: Mapping[signal.Signals, Any]) -> None:
    """Put handlers back that `listen` returned."""
    for number, handler in before.items():
        signal.signal(number, handler)
