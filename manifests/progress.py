"""What workers tell whoever waits for them; loads nothing, since a process that only waits needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """What a worker has done since it told last.

    Attributes:
        rows: How many rows.
        failed: How many of them have no score, by kind.
        chunks: How many chunks it has finished.
    """

    rows: int
    failed: dict[str, int]
    chunks: int


Tell = Callable[[Progress], None]
