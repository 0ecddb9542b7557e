"""A judge at work, with what decodes for it and what brings it pairs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable

from ..data_modules.errors import UserError
from ..scorer import Scorer
from .batching import Batcher
from .decoding import Decoders
from .metrics import Metrics
from .settings import Settings

_WINDOWS = 10
"""Clips of a judge that hears long ones in windows may be so many times as long as one window."""


class Loaded:
    """A judge at work.

    Args:
        scorer: The judge.
        settings: Limits.
        metrics: Who is told.

    Attributes:
        scorer: The judge.
        version: Changes with anything in `judge.json`, the hashes of weights among it.
        max_seconds: Longest clip.
        rate: Hz at which it hears.
        decoders: Make samples.
        batcher: Calls the judge.
    """

    def __init__(self, scorer: Scorer, settings: Settings, metrics: Metrics) -> None:
        self.scorer = scorer
        text = json.dumps(scorer.description, sort_keys=True)
        self.version = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.max_seconds = longest_clip(scorer, settings)
        self.rate = scorer.sampling_rate
        self.decoders = Decoders(
            settings.decoders, self.rate, self.max_seconds, settings.decode_seconds, metrics.restarted
        )
        self.batcher = Batcher(scorer, settings.max_queue, settings.max_wait, metrics)


def longest_clip(scorer: Scorer, settings: Settings) -> float:
    """Longest clip that is accepted, in seconds.

    Raises:
        UserError: If the settings allow clips that the judge refuses.
    """
    hears = scorer.max_seconds
    in_windows = scorer.description["settings"]["long_clips"] != "refuse"
    if settings.max_seconds is None:
        return hears * _WINDOWS if in_windows else hears
    if settings.max_seconds > hears and not in_windows:
        raise UserError(f"--max-seconds {settings.max_seconds:g}; accepted: at most {hears:g}, which the judge hears")
    return settings.max_seconds


async def load_in_thread(load: Callable[[], Scorer]) -> Scorer:
    """Loads in a daemon thread, so that a service that is stopped meanwhile does not wait for it."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Scorer] = loop.create_future()

    def tell(set_value: Callable[..., None], value: object) -> None:
        if not found.done():
            set_value(value)

    def run() -> None:
        try:
            outcome = found.set_result, load()
        except Exception as error:
            outcome = found.set_exception, error
        with contextlib.suppress(RuntimeError):  # the service has ended
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await found
