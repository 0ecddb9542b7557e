"""Clients of `service.py`: good ones, and all the others that a service on the network meets."""

from __future__ import annotations

import asyncio
import io
import random
import time
import uuid
import zipfile
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass

import httpx
import numpy as np
import soundfile

RATE = 16_000
_BOUNDARY = b"b0undary"
_CHUNK = 2**16
_ID: ContextVar[str] = ContextVar("id")  # of the request that a task is making
HUGE = 100 * 10**6
ANSWERED_BUSY = {200, 429}


@dataclass(frozen=True)
class Kind:
    """What a client does.

    Attributes:
        share: Of the requests, any unit.
        send: Makes one request; returns the status, 0 = it hung up itself.
        expected: Statuses that are right.
    """

    share: float
    send: Callable[[Clients], object]
    expected: frozenset[int]


class Clients:
    """Makes requests to one service.

    Args:
        port: Of the service on this machine.
        seed: Of all that is drawn.
    """

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.draw = random.Random(seed)
        self._noise = np.random.default_rng(seed).normal(size=20 * RATE).astype(np.float32)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=90, limits=limits, trust_env=False, verify=False
        )
        self.http.event_hooks = {"request": [_add_id]}
        self._zeros = bytes(_CHUNK)
        bomb = io.BytesIO()
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.wav", bytes(10**8))
        self.zip_bomb = bomb.getvalue()
        flac = io.BytesIO()
        soundfile.write(flac, np.zeros((48_000 * 60, 8), np.int16), 48_000, format="FLAC")
        self.flac_bomb = flac.getvalue()

    def clip(self) -> bytes:
        """One to four seconds of noise in syllables; never the same twice."""
        count = round(self.draw.uniform(1.0, 4.0) * RATE)
        start = self.draw.randrange(len(self._noise) - count)
        syllables = 0.5 + 0.5 * np.sin(np.arange(count) * (2 * np.pi * self.draw.uniform(2, 6) / RATE))
        file = io.BytesIO()
        soundfile.write(
            file, 0.1 * self.draw.random() * self._noise[start : start + count] * syllables, RATE, format="WAV"
        )
        return file.getvalue()

    async def post(self, response: bytes, name: str = "r.wav", path: str = "/v1/score", **fields: str) -> int:
        """A form with a context."""
        files = [("response", (name, response)), ("context", ("c.wav", self.clip()))]
        return (await self.http.post(path, files=files, data=fields)).status_code

    async def raw(self, pieces: AsyncIterator[bytes], length: int | None, hang_up: float | None = None) -> int:
        """A form byte by byte.

        Args:
            pieces: Of the body.
            length: That is declared; None = chunked.
            hang_up: Seconds after the body; None = wait for the answer.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        size = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
        writer.write(
            b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=%s\r\n"
            b"X-Request-ID: %s\r\n%s\r\n\r\n" % (_BOUNDARY, _ID.get().encode(), size)
        )
        sending = asyncio.create_task(_send(writer, pieces, length is None))
        try:
            if hang_up is not None:
                await sending
                await asyncio.sleep(hang_up)
                return 0
            async with asyncio.timeout(60):
                line = await reader.readline()
            return int(line.split()[1])
        finally:
            sending.cancel()
            writer.transport.abort()

    def part(self, data: bytes) -> bytes:
        """A whole body with one response."""
        head = b'--%s\r\nContent-Disposition: form-data; name="response"; filename="r"\r\n\r\n' % _BOUNDARY
        return head + data + b"\r\n--%s--\r\n" % _BOUNDARY


async def _add_id(request: httpx.Request) -> None:
    request.headers["X-Request-ID"] = _ID.get("")


async def _send(writer: asyncio.StreamWriter, pieces: AsyncIterator[bytes], chunked: bool) -> None:
    try:
        async for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
    except ConnectionError:
        pass  # the service has heard enough


async def _pieces(data: bytes, parts: int = 1, pause: float = 0.0) -> AsyncIterator[bytes]:
    step = -(-len(data) // parts)
    for start in range(0, len(data), step):
        yield data[start : start + step]
        await asyncio.sleep(pause)


async def _endless(head: bytes) -> AsyncIterator[bytes]:
    yield head
    for _ in range(HUGE // _CHUNK):
        yield bytes(_CHUNK)


async def _stalled(data: bytes) -> AsyncIterator[bytes]:
    yield data
    await asyncio.sleep(60)


def _lying(data: bytes) -> bytes:
    at = data.index(b"data") + 4
    return data[:at] + (2**30).to_bytes(4, "little") + data[at + 4 :]


async def _slow(clients: Clients) -> int:
    body = clients.part(clients.clip())
    return await clients.raw(_pieces(body, parts=20, pause=0.1), len(body))


async def _leaves_early(clients: Clients) -> int:
    body = clients.part(clients.clip())
    return await clients.raw(_pieces(body[: len(body) // 2]), len(body), hang_up=0.0)


async def _leaves_late(clients: Clients) -> int:
    body = clients.part(clients.clip())
    return await clients.raw(_pieces(body), len(body), hang_up=clients.draw.uniform(0.0, 0.3))


async def _stalls(clients: Clients) -> int:
    body = clients.part(clients.clip())
    return await clients.raw(_stalled(body[: len(body) // 2]), len(body))


async def _huge(clients: Clients) -> int:
    head = clients.part(b"").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    length = HUGE if clients.draw.random() < 0.5 else None
    return await clients.raw(_endless(head), length)


async def _rank(clients: Clients) -> int:
    files = [("response", ("r", clients.clip())) for _ in range(3)] + [("context", ("c", clients.clip()))]
    about = (await clients.http.get("/v1/judge")).json()
    named = {"dimension": about["dimensions"][0]["name"]} if "dimensions" in about else {}  # it may be stopping
    return (await clients.http.post("/v1/rank", files=files, data=named)).status_code


async def _broken_form(clients: Clients) -> int:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    return (await clients.http.post("/v1/score", content=b"--y\r\n\r\n", headers=headers)).status_code


_TRICKS = (
    "../../../etc/passwd",
    "/proc/self/mem",
    "C:\\windows\\win.ini",
    "file:///etc/shadow",
    "a\x00.wav",
    "| id",
    "",
)
GOOD = Kind(70, lambda c: c.post(c.clip()), frozenset(ANSWERED_BUSY))
KINDS = {
    "good": GOOD,
    "rank of three": Kind(3, _rank, frozenset(ANSWERED_BUSY)),
    "tricks in file names": Kind(3, lambda c: c.post(c.clip(), c.draw.choice(_TRICKS[:-1])), frozenset(ANSWERED_BUSY)),
    "slow upload": Kind(4, _slow, frozenset(ANSWERED_BUSY)),
    "stalled upload": Kind(1, _stalls, frozenset({408, 429})),
    "hangs up while sending": Kind(3, _leaves_early, frozenset({0})),
    "hangs up while waiting": Kind(3, _leaves_late, frozenset({0})),
    "100 MB": Kind(1, _huge, frozenset({413, 429})),
    "no sound": Kind(3, lambda c: c.post(b"\x00\x01" * 20_000), frozenset({422, 429})),
    "cut off": Kind(2, lambda c: c.post(c.clip()[:-500]), frozenset({422, 429})),
    "lying header": Kind(2, lambda c: c.post(_lying(c.clip())), frozenset({422, 429})),
    "zip bomb": Kind(1, lambda c: c.post(c.zip_bomb), frozenset({422, 429})),
    "FLAC bomb": Kind(1, lambda c: c.post(c.flac_bomb), frozenset({422, 429})),
    "broken form": Kind(2, _broken_form, frozenset({400, 429})),
    "no level": Kind(1, lambda c: c.post(c.clip(), level="2"), frozenset({422, 429})),
}


@dataclass(frozen=True)
class Outcome:
    """Of one request.

    Attributes:
        kind: Name in `KINDS`.
        id: Of the request, in the log of the service too.
        status: Of the answer; 0 = hung up as planned; -1 = no connection; -2 = a connection but no answer.
        seconds: It took.
        at: When it ended (`time.monotonic`).
    """

    kind: str
    id: str
    status: int
    seconds: float
    at: float


async def make(name: str, clients: Clients) -> Outcome:
    """One request of a kind."""
    begun, own_id = time.monotonic(), uuid.uuid4().hex
    _ID.set(own_id)
    try:
        status = int(await KINDS[name].send(clients))  # type: ignore[misc]
    except (httpx.ConnectError, ConnectionRefusedError):
        status = -1
    except (httpx.TransportError, OSError, TimeoutError, IndexError):
        status = -2
    return Outcome(name, own_id, status, time.monotonic() - begun, time.monotonic())
