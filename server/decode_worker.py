"""A process that decodes clips of strangers, so that one that hangs, crashes or eats memory takes nothing else with it.

It reads requests from standard input and writes replies to standard output, each a line of JSON and then bytes:
``{"bytes", "name", "max_seconds"}`` and the file; ``{"rate", "samples"}`` and float32 samples, or ``{"error"}``. It
ends with its input. It loads no torch; samples keep their rate.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import BinaryIO

from ..data_modules.audio import Clip, load_clip, probe
from ..data_modules.errors import AudioError

MAX_CHANNELS = 8
"""Accepted; a few kilobytes of Vorbis may claim 255."""
MAX_SAMPLES = 2**26
"""Accepted before channels are averaged; a few megabytes of FLAC may hold far more."""
MAX_MEMORY = 2**30
"""Bytes of data that the process may have; beyond, a clip is refused."""


def decode_safely(data: bytes, name: str, max_seconds: float | None) -> Clip:
    """A clip at its own rate.

    Args:
        data: A file.
        name: What messages call it.
        max_seconds: Longest clip that is accepted.

    Raises:
        AudioError: As `load_clip`; also for more than `MAX_CHANNELS` channels or `MAX_SAMPLES` samples, or where the
            memory does not suffice.
    """
    info = probe(data, name)
    if info.channels > MAX_CHANNELS:
        raise AudioError(f"{name}: {info.channels} channels; accepted: at most {MAX_CHANNELS}", "not supported")
    samples = info.seconds * info.rate * info.channels
    # a clip that is too long in seconds is told so by load_clip, before anything is decoded
    if samples > MAX_SAMPLES and (max_seconds is None or info.seconds <= max_seconds):
        raise AudioError(f"{name}: holds {samples:.0f} samples; accepted: at most {MAX_SAMPLES}", "too long")
    try:
        return load_clip(data, max_seconds, name)
    except MemoryError:
        raise AudioError(
            f"{name}: takes more than {MAX_MEMORY >> 20} MiB to decode", "too large for the memory"
        ) from None


def main() -> None:
    """Decode until the input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # what libraries print goes to standard error
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _send(replies, {"ready": True})
    while line := sys.stdin.buffer.readline():
        asked = json.loads(line)
        data = sys.stdin.buffer.read(asked["bytes"])
        try:
            clip = decode_safely(data, asked["name"], asked["max_seconds"])
        except AudioError as error:
            _send(replies, {"error": str(error), "kind": error.kind})
        else:
            _send(replies, {"rate": clip.rate, "samples": len(clip.samples)}, clip.samples.tobytes())


def _send(replies: BinaryIO, head: dict[str, object], data: bytes = b"") -> None:
    replies.write(json.dumps(head).encode() + b"\n")
    replies.write(data)
    replies.flush()


if __name__ == "__main__":
    main()
