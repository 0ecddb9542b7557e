"""Memory of a process that runs for months."""

from __future__ import annotations

import ctypes
import sys

# of <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE = 2**18
_ARENAS = 2


def return_memory() -> None:
    """Let glibc give large blocks back to the system as soon as they are free.

    By default it learns from the first large tensors to keep all later ones in heaps, one for every few threads. Clips
    differ in length, so the heaps fill with holes: the service grew by 0.2 MB with every request
    (`benchmarks/service.py`). Does nothing where there is no glibc.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in (
            (_M_MMAP_THRESHOLD, _LARGE),
            (_M_TRIM_THRESHOLD, _LARGE),
            (_M_ARENA_MAX, _ARENAS),
        ):
            mallopt(parameter, value)
