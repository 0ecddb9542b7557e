"""The HTTP service under load, against one client that asks for one score after the other.

The real program is started on a judge, and asked three times: by one client at a time, by many good ones at once, and
by many of which some are slow, greedy, broken or gone (`service_clients.KINDS`). It is then told to stop (SIGTERM)
while all of them go on. Reported are throughput and latency of good requests, statuses by kind, memory of the service
and its decoders after warming up and at the end, and what was let in but never answered. Exit code 1 where anything was
answered otherwise than it should be, an accepted request was lost, or memory grew by more than 5 %.
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
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from service_clients import KINDS, Clients, Outcome, make

MEMORY_LIMIT = 1.05
"""Largest ratio of memory at the end to that after warming up that passes."""
_OPTIONS = ("--idle-seconds", "3", "--body-seconds", "20", "--kept-bytes", "16000000")
# few kept states, so that memory has come to rest when the service is warm: no clip comes twice


class Program:
    """`empathy-judge serve` in a process of its own."""

    def __init__(self, judge: str, folder: Path) -> None:
        self.log = folder / "log.jsonl"
        command = [sys.executable, "-m", "empathy_judge.cli", "serve", judge, "--port", "0", *_OPTIONS]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stderr=log)
        self.port = self._event("listening")["port"]
        self._event("ready")

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
        return sum(own.memory_info().rss for own in (service, *service.children())) / 2**20


async def load(clients: Clients, names: Sequence[str], count: int, stop: asyncio.Event) -> list[Outcome]:
    """So many clients at once, each making one request after the other until told to stop."""
    shares = [KINDS[name].share for name in names]
    outcomes: list[Outcome] = []

    async def work() -> None:
        while not stop.is_set():
            (name,) = clients.draw.choices(names, shares)
            outcome = await make(name, clients)
            outcomes.append(outcome)
            if outcome.status < 0 or outcome.status in (429, 503):
                await asyncio.sleep(clients.draw.uniform(0.05, 0.3))

    await asyncio.gather(*(work() for _ in range(count)))
    return outcomes


async def timed(clients: Clients, names: Sequence[str], count: int, seconds: float) -> dict[str, Any]:
    """Throughput and latency of good requests."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    begun = time.monotonic()
    outcomes = await load(clients, names, count, stop)
    return {**latencies(outcomes, time.monotonic() - begun), "outcomes": outcomes}


def latencies(outcomes: Sequence[Outcome], seconds: float) -> dict[str, float]:
    """Of good requests that were scored: how many in a second, and quantiles of their time in milliseconds."""
    good = [outcome.seconds for outcome in outcomes if outcome.kind == "good" and outcome.status == 200]
    p50, p95, p99 = 1000 * np.quantile(good or [np.nan], (0.5, 0.95, 0.99))
    return {"per_second": len(good) / seconds, "p50": p50, "p95": p95, "p99": p99}


async def mixed(program: Program, clients: Clients, count: int, seconds: float) -> dict[str, Any]:
    """All kinds of clients for a time, then SIGTERM while they go on."""
    stop, memory = asyncio.Event(), []
    names = list(KINDS)
    loading = asyncio.create_task(load(clients, names, count, stop))
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        memory.append((passed, program.megabytes()))
        await asyncio.sleep(min(1.0, seconds / 40))
    counters = (await clients.http.get("/metrics")).text
    told = time.monotonic()
    program.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(program.process.wait, 120)
    ended = time.monotonic()
    stop.set()
    outcomes = await loading
    before = [outcome for outcome in outcomes if outcome.at <= told]
    return {
        **latencies(before, told - begun),
        "before": before,
        "after": [outcome for outcome in outcomes if outcome.at > told],
        "memory": memory,
        "exit_code": code,
        "stopping_seconds": ended - told,
        "counters": counters,
    }


def check(found: dict[str, Any], program: Program) -> dict[str, Any]:
    """What the program reports of the mixed load, and what is wrong with it."""
    before, after, memory = found["before"], found["after"], found["memory"]
    tables = {name: dict(Counter(own.status for own in before if own.kind == name).most_common()) for name in KINDS}
    unexpected = [own for own in before if own.status not in KINDS[own.kind].expected]
    at_end = Counter(own.status for own in after)
    # stopping may also refuse (503), or not be there any more; a connection without an answer is looked up below
    odd = [own for own in after if own.status not in {*KINDS[own.kind].expected, 503, -1, -2}]
    log = program.lines()
    scored = {line["id"] for line in log if line.get("status") == 200 and line["method"] == "POST"}
    (stopped,) = [line for line in log if line["event"] == "stopped"]
    length = memory[-1][0]
    warm = [size for at, size in memory if length * 0.25 <= at < length * 0.4]
    last = [size for at, size in memory if at >= length * 0.85]
    growth = float(np.mean(last) / np.mean(warm))
    answered = sum(own.status > 0 for own in before + after)
    problems = {
        "unexpected": Counter(f"{own.kind}: {own.status}" for own in unexpected + odd),
        "bugs": sum(line["event"] == "bug" for line in log),
        "lost": stopped["lost"] + sum(own.status < 0 and own.id in scored for own in before + after),
        "exit_code": found["exit_code"],
    }
    return {
        "statuses": tables,
        "after_sigterm": dict(at_end),
        "stopping_seconds": found["stopping_seconds"],
        "let_in": stopped["let_in"],
        "answered": answered,
        "memory_warm_mb": float(np.mean(warm)),
        "memory_end_mb": float(np.mean(last)),
        "memory_growth": growth,
        "problems": problems,
        "passed": growth <= MEMORY_LIMIT and not any(problems.values()),
    }


def report(alone: dict[str, Any], many: dict[str, Any], mix: dict[str, Any], checked: dict[str, Any]) -> None:
    """Print all for people."""
    print("good requests      per second    p50     p95     p99 ms")
    for name, own in (("one at a time", alone), ("many at once", many), ("among all kinds", mix)):
        print(f"{name:18} {own['per_second']:9.1f} {own['p50']:8.0f} {own['p95']:7.0f} {own['p99']:7.0f}")
    print(f"many at once / one at a time: {many['per_second'] / alone['per_second']:.2f} times the throughput")
    print("\nstatuses (0 = the client hung up)")
    for name, table in checked["statuses"].items():
        print(f"  {name:24} " + ", ".join(f"{status}: {count}" for status, count in sorted(table.items())))
    print(f"after SIGTERM (-1 = nobody listens, -2 = no answer): {checked['after_sigterm']}")
    print(f"ended after {checked['stopping_seconds']:.1f} s with code {checked['problems']['exit_code']}")
    print(f"let in {checked['let_in']}, lost {checked['problems']['lost']}, bugs {checked['problems']['bugs']}")
    print(
        f"memory {checked['memory_warm_mb']:.0f} MB warm, {checked['memory_end_mb']:.0f} MB at the end: "
        f"{checked['memory_growth']:.3f}"
    )
    print(f"unexpected: {dict(checked['problems']['unexpected']) or 'nothing'}")


async def main() -> int:
    """Start, ask, stop, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", help="judge folder")
    parser.add_argument("--seconds", type=float, default=180.0, help="of the mixed load (default: 180)")
    parser.add_argument("--clients", type=int, default=64, help="at once (default: 64)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(options.judge, Path(folder))
        try:
            clients = Clients(program.port, options.seed)
            await timed(clients, ["good"], 4, options.seconds / 30)  # warm up
            alone = await timed(clients, ["good"], 1, options.seconds / 9)
            many = await timed(clients, ["good"], options.clients, options.seconds / 9)
            mix = await mixed(program, clients, options.clients, options.seconds)
            checked = check(mix, program)
        finally:
            program.process.kill()
    if options.json:
        kept = ("per_second", "p50", "p95", "p99")
        times = {"alone": alone, "many": many, "mixed": mix}
        print(json.dumps({**{name: {key: own[key] for key in kept} for name, own in times.items()}, **checked}))
    else:
        report(alone, many, mix, checked)
    return 0 if checked["passed"] else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
