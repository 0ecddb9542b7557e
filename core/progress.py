"""What is printed while a program works: lines, tables, and how far long work is."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")
LINE_SECONDS = 30.0  # between two lines in a log


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
        rate = (done - self._before) / max(now - self._begun, 1e-9)
        rate_text = f"{rate:,.1f} per second" if rate >= 1 or not rate else f"{1 / rate:,.1f} s each"
        self._bar.update(self._task, completed=done, rate=rate_text, more=more)
        if self._in_lines and not self._quiet and now - self._said >= LINE_SECONDS:
            self._said = now
            remaining = f"{duration((self._total - done) / rate)} left" if rate else "time left unknown"
            parts = [f"{done:,} of {self._total:,}", rate_text, remaining, *([more] if more else [])]
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
