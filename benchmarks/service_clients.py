"""The clients of `service.py`: what each kind sends to a service, and what it should get."""

from __future__ import annotations

import asyncio
import io
import random
import socket
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import numpy as np
import soundfile
from empathy_judge.scoring.scorer import Scorer

RATE = 16_000
HUGE = 100 * 10**6
KNOWN = 24
_SMALL = 150_000
_BOUNDARY = b"b0undary"
_CHUNK = 2**16


class Material:
    """What clients send; clips are never the same twice, but for those of known score."""

    def __init__(self, judge: str, seed: int) -> None:
        self.draw, self.errors = random.Random(seed), list[float]()
        self._noise = np.random.default_rng(seed).normal(size=300 * RATE).astype(np.float32)
        self.known = [(self.clip(), self.clip()) for _ in range(KNOWN)]
        scorer = Scorer.from_pretrained(judge, device="cpu")
        self._hears = scorer.max_seconds
        self.scores = scorer.score([context for context, _ in self.known], [response for _, response in self.known])
        bomb, flac = io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.wav", bytes(HUGE))
        soundfile.write(flac, np.zeros((48_000 * 360, 8), np.int16), 48_000, format="FLAC")
        self.zip_bomb, self.flac_bomb = bomb.getvalue(), flac.getvalue()

    def clip(self, shortest: float = 1.0, longest: float = 4.0) -> bytes:
        """A clip of noise in syllables, some seconds long; never the same twice."""
        count = round(self.draw.uniform(shortest, longest) * RATE)
        start = self.draw.randrange(len(self._noise) - count)
        syllables = 0.5 + 0.5 * np.sin(np.arange(count) * (2 * np.pi * self.draw.uniform(2, 6) / RATE))
        samples = 0.1 * self.draw.random() * self._noise[start : start + count] * syllables
        file = io.BytesIO()
        soundfile.write(file, samples, RATE, format="WAV")
        return file.getvalue()

    def windows(self, count: int) -> bytes:
        """A clip that the judge hears in so many windows."""
        return self.clip((count - 0.5) * self._hears, (count - 0.1) * self._hears)


class Client:
    """Makes one request after the other."""

    def __init__(self, port: int, material: Material) -> None:
        self.port, self.material, self.draw = port, material, material.draw
        self.clip, self.windows = material.clip, material.windows
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90, verify=False)

    async def known(self) -> int:
        """Send a pair whose score is known, and note the error."""
        number = self.draw.randrange(KNOWN)
        context, response = self.material.known[number]
        answer = await self.http.post("/v1/score", files={"response": response, "context": context})
        if answer.status_code == 200:
            scores, expected = answer.json()["scores"], self.material.scores[number]
            self.material.errors += [abs(scores[name]["score"] - expected[name]) for name in expected]
        return answer.status_code

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection without anything on it."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def post(self, response: bytes, name: str = "r.wav", context: bytes | None = None, **fields: str) -> int:
        """A form with a context; None = a short one."""
        files = [("response", (name, response)), ("context", ("c.wav", context or self.clip()))]
        return (await self.http.post("/v1/score", files=files, data=fields)).status_code

    async def raw(
        self, pieces: AsyncIterator[bytes], length: int | None, hang_up: float | None = None, in_chunks: bool = False
    ) -> int:
        """A form in pieces, of a declared length (None = chunked, which the pieces may be already). It hangs up so many
        seconds after the last of them (None = it waits for the answer)."""
        reader, writer = await self.connect()
        size = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
        writer.write(
            b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=%s\r\n"
            b"X-Request-ID: %s\r\n%s\r\n\r\n" % (_BOUNDARY, self.http.headers["X-Request-ID"].encode(), size)
        )

        async def send() -> None:
            try:
                async for piece in pieces:
                    framed = length is not None or in_chunks
                    writer.write(piece if framed else b"%x\r\n%s\r\n" % (len(piece), piece))
                    await writer.drain()
                if length is None and not in_chunks:
                    writer.write(b"0\r\n\r\n")
            except ConnectionError:
                pass  # the service has closed the connection

        sending = asyncio.create_task(send())
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


def _body(data: bytes) -> bytes:
    """A whole form with one response."""
    head = b'--%s\r\nContent-Disposition: form-data; name="response"; filename="r"\r\n\r\n' % _BOUNDARY
    return head + data + b"\r\n--%s--\r\n" % _BOUNDARY


async def _upload(
    client: Client, share: float = 1.0, parts: int = 1, pause: float = 0.0, hang_up: float | None = None
) -> int:
    """A share of a good form, in parts, with a pause after each."""
    body = _body(client.clip())
    end = round(share * len(body))

    async def pieces() -> AsyncIterator[bytes]:
        step = -(-end // parts)
        for start in range(0, end, step):
            yield body[start : min(start + step, end)]
            await asyncio.sleep(pause)

    return await client.raw(pieces(), len(body), hang_up)


async def _huge(client: Client) -> int:
    async def pieces() -> AsyncIterator[bytes]:
        yield _body(b"").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        for _ in range(HUGE // _CHUNK):
            yield bytes(_CHUNK)

    return await client.raw(pieces(), HUGE if client.draw.random() < 0.5 else None)


async def _small(client: Client, body: bytes, in_chunks: bool = False) -> int:
    """A body that is costly to read, a megabyte on the wire, all at once."""

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    return await client.raw(pieces(), None if in_chunks else len(body), in_chunks=in_chunks)


async def _single_bytes(client: Client) -> int:
    """Each byte is a packet of its own, as far as the network lets it."""
    body = _body(bytes(2**13))

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(len(body)):
            yield body[at : at + 1]
            await asyncio.sleep(0)

    return await client.raw(pieces(), len(body))


async def _rank(client: Client) -> int:
    files = [("response", ("r", client.clip())) for _ in range(3)] + [("context", ("c", client.clip()))]
    about = (await client.http.get("/v1/judge")).json()
    named = {"dimension": about["dimensions"][0]["name"]} if "dimensions" in about else {}  # it may be stopping
    return (await client.http.post("/v1/rank", files=files, data=named)).status_code


async def _broken_form(client: Client) -> int:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    return (await client.http.post("/v1/score", content=b"--y\r\n\r\n", headers=headers)).status_code


async def _never_reads(client: Client) -> int:
    _, writer = await client.connect()
    writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
    await asyncio.sleep(5)
    writer.transport.abort()
    return 0


async def _says_nothing(client: Client) -> int:
    connections = [await client.connect() for _ in range(20)]
    await asyncio.sleep(2)
    for _, writer in connections:
        writer.transport.abort()
    return 0


def _lying(data: bytes) -> bytes:
    at = data.index(b"data") + 4
    return data[:at] + (2**30).to_bytes(4, "little") + data[at + 4 :]


_CHUNKS_OF_ONE = b"".join(b"1\r\n%c\r\n" % byte for byte in _body(b"\r" * _SMALL)) + b"0\r\n\r\n"
_ALMOST_ENDS = _body(b"\r\n--%s" % _BOUNDARY[:-1] * (6 * _SMALL // 11))
_FALSE_ENDS = _body(b"\r\n--%sX" % _BOUNDARY * (6 * _SMALL // 13))
_TINY_PARTS = b'--%s\r\nContent-Disposition: form-data; name="context"\r\n\r\n\r\n' % _BOUNDARY * 14_000
_HEAD_LINES = b"--%s\r\n%s\r\n" % (_BOUNDARY, b"a:b\r\n" * 180_000)
_TRICKS = (
    "../../../etc/passwd", "/proc/self/mem", "C:\\windows\\win.ini", "file:///etc/shadow", "a\x00.wav", "| id",
)  # fmt: skip
KINDS: dict[str, tuple[float, Callable[[Client], Awaitable[int]], set[int]]] = {
    "good": (60, lambda c: c.post(c.clip()), {200, 429}),
    "good, of known score": (15, Client.known, {200, 429}),
    "rank of three": (3, _rank, {200, 429}),
    "long response": (2, lambda c: c.post(c.clip(80, 100)), {200, 429}),
    "long response and context": (1, lambda c: c.post(c.windows(3), context=c.windows(3)), {200, 429}),
    "too long together": (1, lambda c: c.post(c.windows(8), context=c.windows(8)), {422, 429}),
    "tricks in file names": (3, lambda c: c.post(c.clip(), c.draw.choice(_TRICKS)), {200, 429}),
    "slow upload": (4, lambda c: _upload(c, parts=20, pause=0.1), {200, 429}),
    "stalled upload": (1, lambda c: _upload(c, share=0.5, pause=60.0), {408, 429}),
    "hangs up while sending": (3, lambda c: _upload(c, share=0.5, hang_up=0.0), {0}),
    "hangs up while waiting": (3, lambda c: _upload(c, hang_up=c.draw.uniform(0.0, 0.3)), {0}),
    "100 MB": (1, _huge, {413, 429}),
    "no sound": (3, lambda c: c.post(b"\x00\x01" * 20_000), {422, 429}),
    "cut off": (2, lambda c: c.post(c.clip()[:-500]), {422, 429}),
    "lying header": (2, lambda c: c.post(_lying(c.clip())), {200, 429}),
    "zip bomb": (1, lambda c: c.post(c.material.zip_bomb), {422, 429}),
    "FLAC bomb": (1, lambda c: c.post(c.material.flac_bomb), {422, 429}),
    "broken form": (2, _broken_form, {400, 429}),
    "long text": (2, lambda c: c.post(c.clip(), situation="x y " * 400), {200, 429}),
    "too long a text": (2, lambda c: c.post(c.clip(), situation="\N{BOUQUET}" * 1000), {422, 429}),
    "huge text": (1, lambda c: c.post(c.clip(), situation="x" * 10**6), {422, 429}),
    "special token": (1, lambda c: c.post(c.clip(), situation="<|audio_bos|>"), {422, 429}),
    "many windows beside a text": (1, lambda c: c.post(c.clip(45, 49), situation="x y " * 300), {200, 429}),
    "chunks of one byte": (1, lambda c: _small(c, _CHUNKS_OF_ONE, in_chunks=True), {400, 429}),
    "packets of one byte": (1, _single_bytes, {400, 422, 429}),  # the network may join them
    "almost ends": (1, lambda c: _small(c, _ALMOST_ENDS), {422, 429}),
    "false ends": (1, lambda c: _small(c, _FALSE_ENDS), {422, 429}),
    "tiny parts": (1, lambda c: _small(c, _TINY_PARTS + b"--%s--" % _BOUNDARY), {400, 429}),
    "lines of a head": (1, lambda c: _small(c, _HEAD_LINES), {400, 429}),
    "never reads": (1, _never_reads, {0}),
    "says nothing": (1, _says_nothing, {0}),
    "no level": (1, lambda c: c.post(c.clip(), level="2"), {422, 429}),
}
"""Name -> weight among the requests, the function that makes one, and the right statuses (0 = it hung up itself)."""
SMALL_PIECES = (
    "chunks of one byte", "packets of one byte", "almost ends", "false ends", "tiny parts", "lines of a head"
)  # fmt: skip
"""Kinds whose bodies are in very many small pieces."""
