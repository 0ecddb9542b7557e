"""The HTTP service under load, against one client that asks for one score after the other.

The real program is started on a judge, and asked by one client at a time, by many good ones at once, by three quarters
of them alone and beside a quarter whose bodies are in very many small pieces, and by many of which some are slow,
greedy, broken, silent or gone (`KINDS`). Then all rest for a moment, go on, and the service is told to stop (SIGTERM).
Printed as JSON are throughput and latency of good requests, statuses by kind (0 = the client hung up, -1 = nobody
listened, -2 = no answer), how scores differ from those of `Scorer`, memory and descriptors of the service and its
decoders, and what was let in but never answered. Exit code 1 where anything was answered otherwise than it should be,
the worst good answer took more than 10 times the median, an accepted request was lost, a score was off by more than
1e-5, or memory grew by more than 5 % in the second half.
Run: `python benchmarks/service.py demo/judge --seconds 180`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from service_clients import KINDS, SMALL_PIECES, Client, Material

LIMITS = {"worst_to_median": 10.0, "score_error": 1e-5, "memory_growth": 1.05}
"""What passes: worst good answer against the median, score against that of `Scorer`, and memory in the last quarter
against that in the third."""
REST_SECONDS = 8.0
"""Pause after the load, so that open connections are closed: more than twice `--idle-seconds` below."""
# few kept states, so that memory is constant once the service is warm: no clip comes twice
_OPTIONS = ("--idle-seconds", "3", "--body-seconds", "20", "--kept-bytes", "16000000")


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


async def timed(clients: Sequence[Client], seconds: float, others: Sequence[Client] = ()) -> dict[str, Any]:
    """Throughput and latency of so many good clients, and what they got, beside others whose bodies are in very many
    small pieces."""
    stop, start = asyncio.Event(), time.monotonic()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    outcomes, _ = await asyncio.gather(load(clients, ["good"], stop), load(others, SMALL_PIECES, stop))
    statuses = dict(Counter(outcome.status for outcome in outcomes))
    return {**latencies(outcomes, time.monotonic() - start), "statuses": statuses}


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
    clients = [Client(program.port, material) for _ in range(len(clients))]
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
            clients = [Client(program.port, material) for _ in range(options.clients)]
            await timed(clients[:4], options.seconds / 30)  # warm up
            fourth = len(clients) // 4
            times = {
                "alone": await timed(clients[:1], options.seconds / 9),
                "many": await timed(clients, options.seconds / 9),
                "three_quarters": await timed(clients[fourth:], options.seconds / 9),
                "beside_small_pieces": await timed(clients[fourth:], options.seconds / 3, clients[:fourth]),
            }
            times["mixed"], report = await mixed(program, clients, options.seconds)
            beside = times["beside_small_pieces"]
            report["passed"] &= set(beside["statuses"]) <= {200, 429}
            report["passed"] &= bool(beside["worst"] <= LIMITS["worst_to_median"] * beside["p50"])
        finally:
            program.process.kill()
    print(json.dumps({**times, **report}, indent=2))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
