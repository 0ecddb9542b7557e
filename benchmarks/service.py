"""The HTTP service under load, against one client that asks for one score after the other.

The real program is started on a judge, and asked by one client at a time, by many good ones at once, and by many of
which some are slow, greedy, broken, silent or gone (`KINDS`); each has an address of its own (127.0.1.x). Then all
rest for a moment, go on, and the service is told to stop (SIGTERM). Printed as JSON are throughput and latency of good
requests, statuses by kind (0 = the client hung up, -1 = nobody listened, -2 = no answer), how scores differ from those
of `Scorer`, memory and descriptors of the service and its decoders, and what was let in but never answered. Exit code
1 where anything was answered otherwise than it should be, the worst good answer took more than 10 times the median, an
accepted request was lost, a score was off by more than 1e-5, or memory grew by more than 5 % in the second half.
Run: `python benchmarks/service.py demo/judge --seconds 180`
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import soundfile
from empathy_judge.scorer import Scorer

LIMITS = {"worst_to_median": 10.0, "score_error": 1e-5, "memory_growth": 1.05}
"""What passes: worst good answer against the median, score against that of `Scorer`, and memory in the last quarter
against that in the third."""
RATE = 16_000
HUGE = 100 * 10**6
KNOWN = 24
REST_SECONDS = 8.0
"""Pause after the load, so that open connections are closed: more than twice `--idle-seconds` below."""
# few kept states, so that memory is constant once the service is warm: no clip comes twice
_OPTIONS = ("--idle-seconds", "3", "--body-seconds", "20", "--kept-bytes", "16000000")
_BOUNDARY = b"b0undary"
_CHUNK = 2**16


# ---------------------------------------------------------------- clients


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
    """Makes one request after the other, from an address of its own."""

    def __init__(self, port: int, number: int, material: Material) -> None:
        self.port, self.address, self.material, self.draw = port, f"127.0.1.{number + 1}", material, material.draw
        self.clip, self.windows = material.clip, material.windows
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=90,
            transport=httpx.AsyncHTTPTransport(local_address=self.address, verify=False),
        )

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
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.address, 0))

    async def post(self, response: bytes, name: str = "r.wav", context: bytes | None = None, **fields: str) -> int:
        """A form with a context; None = a short one."""
        files = [("response", (name, response)), ("context", ("c.wav", context or self.clip()))]
        return (await self.http.post("/v1/score", files=files, data=fields)).status_code

    async def raw(self, pieces: AsyncIterator[bytes], length: int | None, hang_up: float | None = None) -> int:
        """A form in pieces, of a declared length (None = chunked). It hangs up so many seconds after the last of them
        (None = it waits for the answer)."""
        reader, writer = await self.connect()
        size = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
        writer.write(
            b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=%s\r\n"
            b"X-Request-ID: %s\r\n%s\r\n\r\n" % (_BOUNDARY, self.http.headers["X-Request-ID"].encode(), size)
        )

        async def send() -> None:
            try:
                async for piece in pieces:
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if length is None else piece)
                    await writer.drain()
                if length is None:
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
    "lying header": (2, lambda c: c.post(_lying(c.clip())), {422, 429}),
    "zip bomb": (1, lambda c: c.post(c.material.zip_bomb), {422, 429}),
    "FLAC bomb": (1, lambda c: c.post(c.material.flac_bomb), {422, 429}),
    "broken form": (2, _broken_form, {400, 429}),
    "long text": (2, lambda c: c.post(c.clip(), situation="x y " * 400), {200, 429}),
    "too long a text": (2, lambda c: c.post(c.clip(), situation="\N{BOUQUET}" * 1000), {422, 429}),
    "huge text": (1, lambda c: c.post(c.clip(), situation="x" * 10**6), {422, 429}),
    "special token": (1, lambda c: c.post(c.clip(), situation="<|audio_bos|>"), {422, 429}),
    "many windows beside a text": (1, lambda c: c.post(c.clip(45, 49), situation="x y " * 300), {200, 429}),
    "never reads": (1, _never_reads, {0}),
    "says nothing": (1, _says_nothing, {0}),
    "no level": (1, lambda c: c.post(c.clip(), level="2"), {422, 429}),
}
"""Name -> weight among the requests, the function that makes one, and the right statuses (0 = it hung up itself)."""


@dataclass(frozen=True)
class RequestOutcome:
    """The outcome of one request."""

    kind: str  # name in `KINDS`
    id: str  # of the request, in the log of the service too
    status: int  # of the answer; 0 = hung up as planned; -1 = no connection; -2 = a connection but no answer
    seconds: float  # its duration
    at: float  # when it ended (`time.monotonic`)


async def make(kind: str, client: Client) -> RequestOutcome:
    """One request of a kind."""
    start, request_id = time.monotonic(), uuid.uuid4().hex
    client.http.headers["X-Request-ID"] = request_id
    try:
        status = await KINDS[kind][1](client)
    except (httpx.ConnectError, ConnectionRefusedError):
        status = -1
    except (httpx.TransportError, OSError, TimeoutError, IndexError):
        status = -2
    return RequestOutcome(kind, request_id, status, time.monotonic() - start, time.monotonic())


async def load(clients: Sequence[Client], kinds: Sequence[str], stop: asyncio.Event) -> list[RequestOutcome]:
    """All clients at once, each making one request after the other until told to stop."""
    outcomes: list[RequestOutcome] = []

    async def work(client: Client) -> None:
        while not stop.is_set():
            (kind,) = client.draw.choices(kinds, [KINDS[kind][0] for kind in kinds])
            outcome = await make(kind, client)
            outcomes.append(outcome)
            if outcome.status < 0 or outcome.status in (429, 503):
                await asyncio.sleep(client.draw.uniform(0.05, 1.0))

    await asyncio.gather(*map(work, clients))
    return outcomes


# ---------------------------------------------------------------- the service


class Program:
    """`empathy-judge serve` in a process of its own."""

    def __init__(self, judge: str, folder: Path) -> None:
        self.log = folder / "log.jsonl"
        command = [sys.executable, "-m", "empathy_judge.cli", "serve", judge, "--port", "0", *_OPTIONS]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stderr=log)
        self.port = self._event("listening")["port"]
        self._event("ready")
        self.descriptors_at_start = self.descriptors()

    def lines(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def _event(self, name: str) -> dict[str, Any]:
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            for line in self.lines():
                if line["event"] == name:
                    return line
            time.sleep(0.1)
        raise SystemExit(f"the service did not start:\n{self.log.read_text()}")

    def megabytes(self) -> float:
        """Memory of the service and its decoders."""
        service = psutil.Process(self.process.pid)
        return sum(process.memory_info().rss for process in (service, *service.children())) / 2**20

    def descriptors(self) -> int:
        """Number of descriptors that the service has open."""
        return psutil.Process(self.process.pid).num_fds()


def latencies(outcomes: Sequence[RequestOutcome], seconds: float) -> dict[str, float]:
    """For good requests that were scored: how many per second, and quantiles of their latency in milliseconds."""
    good = [outcome.seconds for outcome in outcomes if outcome.kind.startswith("good") and outcome.status == 200]
    p50, p95, p99, worst = 1000 * np.quantile(good or [np.nan], (0.5, 0.95, 0.99, 1.0))
    return {"per_second": len(good) / seconds, "p50": p50, "p95": p95, "p99": p99, "worst": worst}


async def timed(clients: Sequence[Client], seconds: float) -> dict[str, float]:
    """Throughput and latency of so many good clients."""
    stop, start = asyncio.Event(), time.monotonic()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    outcomes = await load(clients, ["good"], stop)
    return latencies(outcomes, time.monotonic() - start)


async def mixed(program: Program, clients: Sequence[Client], seconds: float) -> tuple[dict, dict[str, Any]]:
    """All kinds of clients for a time, then a rest, then SIGTERM while they go on; returns the latencies and a report
    with all checks."""
    stop, memory = asyncio.Event(), []
    start, loading = time.monotonic(), asyncio.create_task(load(clients, list(KINDS), stop))
    while (passed := time.monotonic() - start) < seconds:
        memory.append((passed / seconds, program.megabytes()))
        await asyncio.sleep(min(1.0, seconds / 40))
    stop.set()
    before = await loading
    duration = time.monotonic() - start
    for client in clients:
        await client.http.aclose()
    await asyncio.sleep(REST_SECONDS)
    left_open = program.descriptors() - program.descriptors_at_start
    stop_second, material = asyncio.Event(), clients[0].material
    clients = [Client(program.port, number, material) for number in range(len(clients))]
    loading = asyncio.create_task(load(clients, [*KINDS, *["never reads"] * 10], stop_second))
    await asyncio.sleep(min(REST_SECONDS, seconds / 4))
    signalled = time.monotonic()
    program.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(program.process.wait, 120)
    ended = time.monotonic()
    stop_second.set()
    after = await loading
    # a service that stops may refuse (503) or be gone; connections without an answer are looked up below
    unexpected = [outcome for outcome in before if outcome.status not in KINDS[outcome.kind][2]]
    unexpected += [outcome for outcome in after if outcome.status not in KINDS[outcome.kind][2] | {503, -1, -2}]
    log = program.lines()
    scored = {line["id"] for line in log if line.get("status") == 200 and line["method"] == "POST"}
    (stopped,) = [line for line in log if line["event"] == "stopped"]
    third, last = (np.mean([size for at, size in memory if low <= at < low + 0.25]) for low in (0.5, 0.75))
    times = latencies(before, duration)
    refused = [outcome.seconds for outcome in before if outcome.kind.startswith("good") and outcome.status == 429]
    problems = {
        "unexpected": Counter(f"{outcome.kind}: {outcome.status}" for outcome in unexpected),
        "bugs": sum(line["event"] == "bug" for line in log),
        "lost": stopped["lost"] + sum(outcome.status < 0 and outcome.id in scored for outcome in after),
        "exit_code": code,
    }
    measured = {
        "worst_to_median": times["worst"] / times["p50"],
        "score_error": max(material.errors, default=0.0),
        "memory_growth": float(last / third),
    }
    return times, {
        "statuses": {
            kind: dict(Counter(outcome.status for outcome in before if outcome.kind == kind)) for kind in KINDS
        },
        "good_refused": len(refused),
        "slowest_refusal_ms": 1000 * max(refused, default=0.0),
        "known_scores": len(material.errors),
        "memory_most_mb": max(size for _, size in memory),
        "memory_end_mb": float(last),
        "descriptors_more": left_open,
        "after_sigterm": dict(Counter(outcome.status for outcome in after if outcome.at > signalled)),
        "stopping_seconds": ended - signalled,
        "let_in": stopped["let_in"],
        **measured,
        "problems": problems,
        "passed": not any(problems.values()) and all(measured[name] <= limit for name, limit in LIMITS.items()),
    }


async def main() -> int:
    """Start, ask, stop, print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", help="judge folder")
    parser.add_argument("--seconds", type=float, default=180.0, help="of the mixed load (default: 180)")
    parser.add_argument("--clients", type=int, default=64, help="at once (default: 64)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    material = Material(options.judge, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        program = Program(options.judge, Path(folder))
        try:
            clients = [Client(program.port, number, material) for number in range(options.clients)]
            await timed(clients[:4], options.seconds / 30)  # warm up
            times = {
                "alone": await timed(clients[:1], options.seconds / 9),
                "many": await timed(clients, options.seconds / 9),
            }
            times["mixed"], report = await mixed(program, clients, options.seconds)
        finally:
            program.process.kill()
    print(json.dumps({**times, **report}, indent=2))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
