"""Signals that ask a program to stop, and how it listens to them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""SLURM and Kubernetes send SIGTERM before they kill; SIGUSR1 is what `sbatch --signal` is usually told to send."""


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
