"""Clips of strangers become samples at the judge's rate: decoded in processes that can be killed, resampled here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..data_modules.audio import Clip, decode
from ..data_modules.errors import AudioError
from .records import LOGGER

_PIPE_BYTES = 2**20
_START_SECONDS = 120.0
_RESAMPLERS = 2  # threads; each has threads of torch's below it


class Decoders:
    """A few processes of `decode_worker`. One that takes too long is killed and replaced.

    Args:
        count: Of processes.
        rate: Wanted sample rate (Hz).
        max_seconds: Longest clip that is accepted.
        decode_seconds: Longest time for one clip.
        on_restart: Called when a process is replaced.
    """

    def __init__(
        self, count: int, rate: int, max_seconds: float, decode_seconds: float, on_restart: Callable[[], None]
    ) -> None:
        self._rate, self._max_seconds, self._seconds = rate, max_seconds, decode_seconds
        self._on_restart = on_restart
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        self._workers = [_Worker() for _ in range(count)]
        self._under_way: set[asyncio.Task[Clip]] = set()
        self._threads = ThreadPoolExecutor(_RESAMPLERS, thread_name_prefix="resampling")

    async def start(self) -> None:
        """Start the processes."""
        await asyncio.gather(*(worker.ready() for worker in self._workers))
        for worker in self._workers:
            self._free.put_nowait(worker)

    async def stop(self) -> None:
        """End them; what they are doing is lost."""
        for worker in self._workers:
            await worker.kill()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._threads.shutdown()

    async def decode(self, data: bytes, name: str) -> tuple[Clip, float]:
        """A clip at the judge's rate, and its duration in seconds.

        Args:
            data: A file.
            name: What messages call it.

        Raises:
            AudioError: If it cannot be used, or not be decoded in time.
        """
        worker = await self._free.get()
        # whoever waits may be cancelled; the exchange goes on to its end, or the pipe would hold half a reply
        task = asyncio.create_task(self._exchange(worker, data, name))
        self._under_way.add(task)
        task.add_done_callback(self._forget)
        clip = await asyncio.shield(task)
        seconds = clip.seconds
        if clip.rate != self._rate:
            loop = asyncio.get_running_loop()
            samples = await loop.run_in_executor(self._threads, decode, clip, self._rate)
            clip = Clip(samples, self._rate, name)
        return clip, seconds

    def _forget(self, task: asyncio.Task[Clip]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it any more

    async def _exchange(self, worker: _Worker, data: bytes, name: str) -> Clip:
        try:
            await worker.ready()
            async with asyncio.timeout(self._seconds):
                return await worker.decode(data, name, self._max_seconds)
        except TimeoutError:
            await self._replace(worker)
            raise AudioError(f"{name}: decoding took longer than {self._seconds:g} s") from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            await self._replace(worker)
            raise AudioError(f"{name}: the decoder crashed on it") from None
        finally:
            self._free.put_nowait(worker)

    async def _replace(self, worker: _Worker) -> None:
        LOGGER.warning("decoder replaced")
        self._on_restart()
        await worker.kill()


class _Worker:
    """One process, started when it is needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def ready(self) -> asyncio.subprocess.Process:
        """The process, started if there is none."""
        if self._process is not None:
            return self._process
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.decode_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_PIPE_BYTES,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the service, which ends them when it is done
        )
        self._process = process
        async with asyncio.timeout(_START_SECONDS):
            await _read_head(process)
        return process

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def decode(self, data: bytes, name: str, max_seconds: float) -> Clip:
        process = await self.ready()
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018 (for pyright)
        head = {"bytes": len(data), "name": name, "max_seconds": max_seconds}
        process.stdin.write(json.dumps(head).encode() + b"\n")
        process.stdin.write(data)
        await process.stdin.drain()
        reply = await _read_head(process)
        if "error" in reply:
            raise AudioError(reply["error"], reply["kind"])
        samples = await process.stdout.readexactly(4 * reply["samples"])
        return Clip(np.frombuffer(samples, dtype=np.float32), reply["rate"], name)


async def _read_head(process: asyncio.subprocess.Process) -> dict:
    assert process.stdout is not None
    return json.loads(await process.stdout.readuntil(b"\n"))


def _environment() -> dict[str, str]:
    """Of a process that sees foreign data: no secrets, the same package, one thread."""
    kept = ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR", "SYSTEMROOT")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
