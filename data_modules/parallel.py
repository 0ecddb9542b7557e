"""Threads for work that leaves Python's lock (decoding, reading), a few items ahead and no more."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")
Result = TypeVar("Result")
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
