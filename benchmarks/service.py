"""The HTTP service under load, against one client that asks for one score after the other.

The real program is started on a judge and asked by one client, then by many at once; no clip comes twice, but for pairs
of known score. Printed as JSON are throughput and latency of the scored requests, statuses, how scores differ from
those of `Scorer`, and memory of the service and its decoders. Exit code 1 where anything was answered otherwise than
with 200 or 429, the worst answer took more than 10 times the median, or a score was off by more than 1e-5.
Run: `python benchmarks/service.py demo/judge --seconds 20`
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import soundfile
from empathy_judge.scorer import Scorer

RATE = 16_000
KNOWN = 24
"""Pairs whose score is known."""
WORST, TOLERANCE = 10.0, 1e-5
"""What passes: worst answer against the median, and score against that of `Scorer`."""


class Material:
    """What clients send."""

    def __init__(self, judge: str, seed: int) -> None:
        self.draw, self.errors = random.Random(seed), list[float]()
        self._noise = np.random.default_rng(seed).normal(size=60 * RATE).astype(np.float32)
        self.known = [(self.clip(), self.clip()) for _ in range(KNOWN)]
        contexts, responses = zip(*self.known, strict=True)
        self.scores = Scorer.from_pretrained(judge, device="cpu").score(list(contexts), list(responses))

    def clip(self) -> bytes:
        """One to four seconds of noise in syllables."""
        count = round(self.draw.uniform(1.0, 4.0) * RATE)
        start = self.draw.randrange(len(self._noise) - count)
        syllables = 0.5 + 0.5 * np.sin(np.arange(count) * (2 * np.pi * self.draw.uniform(2, 6) / RATE))
        file = io.BytesIO()
        samples = 0.1 * self.draw.random() * self._noise[start : start + count] * syllables
        soundfile.write(file, samples, RATE, format="WAV")
        return file.getvalue()

    async def ask(self, http: httpx.AsyncClient) -> int:
        """One request, every fifth for a known pair; returns its status."""
        number = self.draw.randrange(KNOWN) if self.draw.random() < 0.2 else None
        context, response = (self.clip(), self.clip()) if number is None else self.known[number]
        answer = await http.post("/v1/score", files={"response": response, "context": context})
        if answer.status_code == 200 and number is not None:
            scores, expected = answer.json()["scores"], self.scores[number]
            self.errors += [abs(scores[name]["score"] - expected[name]) for name in expected]
        return answer.status_code


def start(judge: str, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """`empathy-judge serve` in a process of its own, and its address when it is ready."""
    command = [sys.executable, "-m", "empathy_judge.cli", "serve", judge, "--port", "0"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        by_name = {event["event"]: event for event in events}
        if "ready" in by_name:
            return process, f"http://127.0.0.1:{by_name['listening']['port']}"
        time.sleep(0.1)
    raise SystemExit(f"the service did not start:\n{log.read_text()}")


async def load(material: Material, url: str, clients: int, seconds: float) -> dict[str, Any]:
    """Throughput and latency (ms) of so many clients at once, each making one request after the other."""
    begun, taken, statuses = time.monotonic(), list[float](), Counter[int]()

    async def work() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=90) as http:
            while time.monotonic() < begun + seconds:
                asked = time.monotonic()
                status = await material.ask(http)
                statuses[status] += 1
                if status == 200:
                    taken.append(time.monotonic() - asked)
                else:
                    await asyncio.sleep(material.draw.uniform(0.05, 1.0))

    await asyncio.gather(*(work() for _ in range(clients)))
    per_second = len(taken) / (time.monotonic() - begun)
    p50, p95, p99, worst = 1000 * np.quantile(taken or [np.nan], (0.5, 0.95, 0.99, 1.0))
    return {"per_second": per_second, "p50": p50, "p95": p95, "p99": p99, "worst": worst, "statuses": dict(statuses)}


def main() -> int:
    """Start, ask, stop, print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", help="judge folder")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load (default: 20)")
    parser.add_argument("--clients", type=int, default=64, help="at once (default: 64)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    material = Material(options.judge, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(options.judge, Path(folder, "log.jsonl"))
        try:
            asyncio.run(load(material, url, 4, options.seconds / 4))  # warm up
            found = {str(n): asyncio.run(load(material, url, n, options.seconds)) for n in (1, options.clients)}
            service = psutil.Process(process.pid)
            memory = sum(one.memory_info().rss for one in (service, *service.children()))
        finally:
            process.kill()
    error = max(material.errors, default=0.0)
    print(json.dumps({"clients": found, "score_error": error, "memory_mb": memory / 2**20}, indent=2))
    passed = all(set(one["statuses"]) <= {200, 429} and one["worst"] <= WORST * one["p50"] for one in found.values())
    return 0 if passed and error <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
