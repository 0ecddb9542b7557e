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
import logging
import os
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

import numpy as np

from ..data_modules.audio import Clip, decode, is_clipped, load_clip, probe
from ..data_modules.errors import AudioError

MAX_CHANNELS = 8
"""Most channels that are accepted; a few kilobytes of Vorbis may claim 255."""
MAX_SAMPLES = 2**25
"""Most samples that are accepted, before channels are averaged: 100 s at 192 kHz in mono. A few megabytes of FLAC may
hold far more."""
MAX_MEMORY = 2**30
"""Bytes of data that a process may have; beyond, a clip is refused."""
_PIPE_BYTES = 2**20
_START_SECONDS = 120.0


class Decoded(NamedTuple):
    """A clip at the judge's rate, and what is known of it at its own: seconds, and whether it is clipped."""

    clip: Clip
    seconds: float
    clipped: bool


class Decoders:
    """A few processes that decode to a sample rate (Hz). One that takes more than `decode_seconds` for a clip is killed
    and replaced."""

    def __init__(
        self, count: int, rate: int, max_seconds: float, decode_seconds: float, on_restart: Callable[[], None]
    ) -> None:
        self._rate, self._max_seconds, self._seconds = rate, max_seconds, decode_seconds
        self._on_restart = on_restart
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        self._workers = [_Worker() for _ in range(count)]
        self._under_way: set[asyncio.Task[Decoded]] = set()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="resampling")

    async def start(self) -> None:
        """Start the processes."""
        await asyncio.gather(*(worker.start() for worker in self._workers))
        for worker in self._workers:
            self._free.put_nowait(worker)

    async def stop(self) -> None:
        """End them; what they are doing is lost."""
        for worker in self._workers:
            await worker.kill()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def decode(self, data: bytes, name: str) -> Decoded:
        """A clip at the judge's rate.

        Args:
            data: A file.
            name: What messages call it.

        Raises:
            AudioError: If it cannot be used, or not be decoded in time.
        """
        worker = await self._free.get()
        # the caller may be cancelled; the exchange goes on to its end, else half a reply would stay in the pipe
        task = asyncio.create_task(self._exchange(worker, data, name))
        self._under_way.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Decoded]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it any more

    async def _exchange(self, worker: _Worker, data: bytes, name: str) -> Decoded:
        try:
            await worker.start()
            async with asyncio.timeout(self._seconds):
                clip = await worker.decode(data, name, self._max_seconds)
            # resampled here, so that there are never more clips at their own rate than processes
            loop = asyncio.get_running_loop()
            samples = await loop.run_in_executor(self._threads, decode, clip, self._rate)
            return Decoded(Clip(samples, self._rate, name), clip.seconds, is_clipped(clip))
        except TimeoutError:
            await self._replace(worker)
            raise AudioError(f"{name}: decoding took longer than {self._seconds:g} s") from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            await self._replace(worker)
            raise AudioError(f"{name}: the decoder crashed on it") from None
        finally:
            self._free.put_nowait(worker)

    async def _replace(self, worker: _Worker) -> None:
        logging.getLogger("empathy_judge.serving").warning("decoder replaced")
        self._on_restart()
        await worker.kill()


class _Worker:
    """One process, started when it is needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        """Start the process if there is none, or if it has ended; returns the streams that it reads and writes."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_PIPE_BYTES,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the service, which ends its decoders itself
            )
            # The first line says that the process is ready
            async with asyncio.timeout(_START_SECONDS):
                await self._process.stdout.readline()  # pyright: ignore[reportOptionalMemberAccess] it is a pipe
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018 (for pyright)
        return self._process.stdin, self._process.stdout

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            assert process.stdout is not None
            # asyncio waits for the end of the pipe as well, which it does not reach while a long reply is unread
            # Another task may still read it, and reaches its end
            with contextlib.suppress(RuntimeError):
                await process.stdout.read()
            await process.wait()

    async def decode(self, data: bytes, name: str, max_seconds: float) -> Clip:
        requests, replies = await self.start()
        head = {"bytes": len(data), "name": name, "max_seconds": max_seconds}
        requests.write(json.dumps(head).encode() + b"\n")
        requests.write(data)
        await requests.drain()
        reply = json.loads(await replies.readuntil(b"\n"))
        if "error" in reply:
            raise AudioError(reply["error"], reply["kind"])
        samples = await replies.readexactly(4 * reply["samples"])
        return Clip(np.frombuffer(samples, dtype=np.float32), reply["rate"], name)


def _environment() -> dict[str, str]:
    """The environment of a process that reads foreign data: no secrets, the same package, one thread."""
    inherited = ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR", "SYSTEMROOT")
    return {
        **{name: os.environ[name] for name in inherited if name in os.environ},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


# ---------------------------------------------------------------- in the process


def decode_safely(data: bytes, name: str, max_seconds: float) -> Clip:
    """A clip at its own rate.

    Args:
        data: A file.
        name: What messages call it.
        max_seconds: Longest clip that is accepted.

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
    _reply(replies, {"ready": True})
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        data = sys.stdin.buffer.read(request["bytes"])
        try:
            clip = decode_safely(data, request["name"], request["max_seconds"])
        except AudioError as error:
            _reply(replies, {"error": str(error), "kind": error.kind})
        else:
            _reply(replies, {"rate": clip.rate, "samples": len(clip.samples)}, clip.samples.tobytes())


def _reply(replies: BinaryIO, head: dict[str, object], data: bytes = b"") -> None:
    replies.write(json.dumps(head).encode() + b"\n")
    replies.write(data)
    replies.flush()


if __name__ == "__main__":
    main()
