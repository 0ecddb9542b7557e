"""How far a job is: a bar in a terminal, otherwise one line a minute."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .progress import Progress as Done

_EVERY = 60.0  # seconds between two lines
_LOOK = 5.0  # seconds between two looks at what all processes have done


class Meter:
    """Counts rows and shows them on standard error."""

    def __init__(self, total: int, done: Callable[[], int], quiet: bool) -> None:
        """Begin to count.

        Args:
            total: Rows of the job.
            done: Says how many rows are finished, by whomever.
            quiet: Show nothing.
        """
        self._total, self._look_up, self._quiet = total, done, quiet
        self._before = self._finished = done()
        self._own = 0
        self.failed: Counter[str] = Counter()
        self._start = self._said = self._looked = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Meter:
        console = Console(stderr=True)
        if not self._quiet and sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[more]}"))
            self._bar = Progress(TextColumn("scoring"), *columns, console=console)
            self._task = self._bar.add_task("scoring", total=self._total, completed=self._before, more="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._show(time.monotonic())
            self._bar.stop()

    def tell(self, progress: Done) -> None:
        """Count what a worker of this process has done."""
        self._own += progress.rows
        self.failed.update(progress.failed)
        self.look()

    def look(self) -> None:
        """Show how far the job is, if it is time to."""
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked, self._finished = now, self._look_up()
        if self._bar is not None:
            self._show(now)
        elif not self._quiet and now - self._said >= _EVERY:
            self._said = now
            rate, left = self._speed(now)
            eta = f"{left / 60:.0f} min left" if left is not None else "no telling when it ends"
            print(f"scoring: {self._rows:,} of {self._total:,} rows, {self._more(rate)}, {eta}", file=sys.stderr)

    @property
    def _rows(self) -> int:
        """By all processes: what is finished, or what this one knows that it has done."""
        return min(max(self._finished, self._before + self._own), self._total)

    def _speed(self, now: float) -> tuple[float, float | None]:
        rate = (self._rows - self._before) / max(now - self._start, 1e-9)
        return rate, (self._total - self._rows) / rate if rate else None

    def _more(self, rate: float) -> str:
        failed = sum(self.failed.values())
        return f"{rate:.1f} per second" + (f", {failed:,} without scores" if failed else "")

    def _show(self, now: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._rows, more=self._more(self._speed(now)[0]))
