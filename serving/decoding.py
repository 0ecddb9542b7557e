"""Clips of strangers become samples at the judge's rate: decoded in processes that can be killed, resampled here.

Run as a module (`main`) this is such a process, so that a clip that hangs, crashes or eats memory takes nothing else
with it. It reads requests from standard input and writes replies to standard output, each a line of JSON and then
bytes: ``{"bytes", "name", "max_seconds"}`` and the file; ``{"rate", "samples"}`` and float32 samples, or ``{"error",
"kind"}``. It ends with its input. It loads no torch; samples keep their rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple

import numpy as np

from ..audio.decode import Clip, decode, is_clipped, load_clip, probe
from ..core.errors import AudioError

MAX_CHANNELS = 8
"""Most channels that are accepted; a few kilobytes of Vorbis may claim 255."""
MAX_SAMPLES = 2**25
"""Most samples that are accepted, before channels are averaged: 100 s at 192 kHz in mono. A few megabytes of FLAC may
hold far more."""
MAX_MEMORY = 2**30
"""Bytes of data that a process may have; beyond, a clip is refused."""
_START_SECONDS = 120.0


class Decoded(NamedTuple):
    """A clip at the judge's rate, and what is known of it at its own: seconds, and whether it is clipped."""

    clip: Clip
    seconds: float
    clipped: bool


class Decoders:
    """A few processes that decode to a sample rate (Hz), with a thread for each of them. A process that takes more than
    `seconds` for a clip is killed and replaced."""

    def __init__(
        self, count: int, rate: int, max_seconds: float, seconds: float, on_restart: Callable[[], None]
    ) -> None:
        self._rate, self._max_seconds, self._on_restart = rate, max_seconds, on_restart
        self.seconds = seconds
        self.workers = [Worker() for _ in range(count)]
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="decoding")

    async def start(self) -> None:
        """Start the processes."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, worker.start) for worker in self.workers))
        for worker in self.workers:
            self._free.put(worker)

    async def stop(self) -> None:
        """End them; what they are doing is lost."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.kill()

    async def decode(self, data: bytes, name: str) -> Decoded:
        """The clip in a file, at the judge's rate; `name` is what messages call it.

        Raises:
            AudioError: If it cannot be used, or not be decoded in time.
        """
        # Who is cancelled while a clip is decoded does not stop the thread: half a reply would stay in the pipe
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._decode, data, name)

    def _decode(self, data: bytes, name: str) -> Decoded:
        worker = self._free.get()  # never waits: there are as many threads as workers
        try:
            worker.start()
            clip = worker.decode(data, name, self._max_seconds, self.seconds)
        except (OSError, ValueError) as error:
            worker.kill()
            self._on_restart()
            slow = isinstance(error, TimeoutError)
            reason = f"decoding took longer than {self.seconds:g} s" if slow else "the decoder crashed on it"
            raise AudioError(f"{name}: {reason}") from None
        finally:
            self._free.put(worker)
        # Resampled in this thread, so that there are never more clips at their own rate than processes
        return Decoded(Clip(decode(clip, self._rate), self._rate, name), clip.seconds, is_clipped(clip))


class Worker:
    """One process, started when it is needed."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if there is none, or if it has ended."""
        if self.process is not None and self.process.poll() is None:
            return
        self.kill()
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the service, which ends its decoders itself
        )
        with self._killed_after(_START_SECONDS) as (_, replies):
            json.loads(replies.readline())  # the first line says that the process is ready

    def kill(self) -> None:
        """End the process."""
        # On leaving, `Popen` closes the pipes and waits; what was not sent yet cannot be sent any more
        if self.process is not None:
            with contextlib.suppress(BrokenPipeError), self.process:
                self.process.kill()

    def decode(self, data: bytes, name: str, max_seconds: float, seconds: float) -> Clip:
        """The clip at its own rate.

        Raises:
            AudioError: If the process refuses it.
            TimeoutError: If it takes longer than `seconds`; the process is killed.
            OSError, ValueError: If the process ends, before its reply or in the middle of it.
        """
        head = {"bytes": len(data), "name": name, "max_seconds": max_seconds}
        with self._killed_after(seconds) as (requests, replies):
            _send(requests, head, data)
            reply = json.loads(replies.readline())
            if "error" in reply:
                raise AudioError(reply["error"], reply["kind"])
            samples = np.frombuffer(replies.read(4 * reply["samples"]), dtype=np.float32)
        # A process that was killed leaves half a reply, which would be scored as a shorter clip
        if len(samples) != reply["samples"]:
            raise ValueError("the reply is cut off")
        return Clip(samples, reply["rate"], name)

    @contextlib.contextmanager
    def _killed_after(self, seconds: float) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """The pipes of the process, which is killed when time is over: whoever waits at a pipe goes on."""
        assert self.process is not None and self.process.stdin is not None  # noqa: PT018 (for pyright)
        assert self.process.stdout is not None
        timer, end = threading.Timer(seconds, self.kill), time.monotonic() + seconds
        timer.start()
        try:
            yield self.process.stdin, self.process.stdout
        except (OSError, ValueError):
            if time.monotonic() >= end:
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()


def _environment() -> dict[str, str]:
    """The environment of a process that reads foreign data: no secrets, the same package, one thread."""
    inherited = ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR", "SYSTEMROOT")
    return {
        **{name: os.environ[name] for name in inherited if name in os.environ},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _send(pipe: IO[bytes], head: dict[str, object], data: bytes = b"") -> None:
    pipe.write(json.dumps(head).encode() + b"\n")
    pipe.write(data)
    pipe.flush()


# ---------------------------------------------------------------- in the process


def decode_safely(data: bytes, name: str, max_seconds: float) -> Clip:
    """A clip at its own rate, of at most `max_seconds`; `name` is what messages call it.

    Raises:
        AudioError: As `load_clip`; also for more than `MAX_CHANNELS` channels or `MAX_SAMPLES` samples, or where the
            memory does not suffice.
    """
    # The head of a file says how much it holds, before anything is decoded
    info = probe(data, name)
    if info.channels > MAX_CHANNELS:
        raise AudioError(f"{name}: {info.channels} channels; expected at most {MAX_CHANNELS}", "not supported")
    samples = info.seconds * info.rate * info.channels
    # load_clip refuses a clip that is too long in seconds, before anything is decoded
    if samples > MAX_SAMPLES and info.seconds <= max_seconds:
        raise AudioError(f"{name}: holds {samples:.0f} samples; expected at most {MAX_SAMPLES}", "too long")
    return load_clip(data, max_seconds, name)


def main() -> None:
    """Decode until the input ends."""
    # Data and not address space, of which libraries reserve far more than they use
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What libraries print goes to standard error
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _send(replies, {"ready": True})
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        data = sys.stdin.buffer.read(request["bytes"])
        try:
            clip = decode_safely(data, request["name"], request["max_seconds"])
        except AudioError as error:
            _send(replies, {"error": str(error), "kind": error.kind})
        else:
            _send(replies, {"rate": clip.rate, "samples": len(clip.samples)}, clip.samples.tobytes())


if __name__ == "__main__":
    main()
