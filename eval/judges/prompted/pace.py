"""How fast a server is asked: as fast as it lets us, no faster than it says."""

from __future__ import annotations

import asyncio
import time
from collections import deque

_WINDOW = 10.0  # seconds over which the rate of answers is taken
_RISE = 1.02  # with each answer after a limit was met, so that a limit that was lifted is found
_LEAST_GAP = 1e-4


class Pace:
    """When the next request may start.

    Until the server objects, or `rpm` says so, nothing waits. When it does (HTTP 429), all wait for as long as it asks,
    and requests then start at the rate at which answers came, a little faster with every answer.
    """

    def __init__(self, rpm: float | None = None) -> None:
        """Begin unlimited, or at so many requests a minute."""
        self._fixed = 60.0 / rpm if rpm else 0.0
        self._gap = self._fixed
        self._next = 0.0  # no request starts before
        self._answers: deque[float] = deque()
        self._slowed = 0.0  # when the gap was last widened

    async def turn(self) -> float:
        """Wait until a request may start; returns when it did, for `limited`."""
        while True:
            now = time.monotonic()
            if now >= self._next:
                self._next = max(now, self._next) + self._gap
                return now
            await asyncio.sleep(self._next - now)

    def answered(self) -> None:
        """An answer came."""
        now = time.monotonic()
        self._answers.append(now)
        while self._answers and self._answers[0] < now - _WINDOW:
            self._answers.popleft()
        self._gap = max(self._fixed, self._gap / _RISE if self._gap > _LEAST_GAP else 0.0)

    def limited(self, started: float, wait: float) -> None:
        """The server refused a request that started then, and wants us to wait (seconds)."""
        now = time.monotonic()
        self._next = max(self._next, now + wait)
        if started < self._slowed:
            return  # one of those that were under way when it first objected
        self._slowed = now
        recent = [moment for moment in self._answers if moment > now - _WINDOW]
        if len(recent) >= 2:
            self._gap = max(self._fixed, (now - recent[0]) / len(recent))
        else:
            self._gap = max(self._fixed, 2 * self._gap, 0.05)
