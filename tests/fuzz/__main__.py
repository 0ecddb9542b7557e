"""Damages valid files at random and looks what reads them: ``python tests/fuzz --mutations 10000``.

Every mutation must be accepted or refused by a `UserError` of one line. Another exception, a crash of the process, more
than ``--seconds`` or more than 8 GiB is a failure; it is named with the seed that repeats it:
``python tests/fuzz --target NAME --seed SEED --mutations 1``. Work is done in child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

OUTCOMES = ("accepted", "refused", "failed")
Job = tuple[str, int]
"""Target and seed."""


@dataclass
class Child:
    """A process that works on one mutation at a time; `since` is None until its source is written."""

    process: subprocess.Popen[bytes]
    job: Job | None = None
    since: float | None = None
    received: bytes = b""


@dataclass
class Tally:
    """What came out."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[dict[str, str | int]] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, job: Job, outcome: str, what: str, detail: str, seconds: float) -> None:
        """Counts one mutation."""
        self.outcomes.setdefault(job[0], Counter())[outcome] += 1
        self.slowest = max(self.slowest, seconds)
        if outcome == "failed":
            self.failures.append({"target": job[0], "seed": job[1], "mutation": what, "failure": detail})


def main() -> int:
    """Print counts by outcome and every failure; 1 if there is one."""
    options = _options()
    if options.child:
        from worker import work

        return work(options.child)
    from targets import PLANTED, names

    targets = options.target or names()
    unknown = sorted(set(targets) - {*names(), *PLANTED})
    if unknown:
        print(f"error: --target {unknown[0]}: expected {', '.join(dict.fromkeys(names()))}", file=sys.stderr)
        return 2
    jobs = deque((targets[n % len(targets)], options.seed + n) for n in range(options.mutations))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="empathy-judge-fuzz-") as folder:
        tally = Runner(jobs, options.seconds, folder).run(options.jobs)
    spent = time.perf_counter() - start
    if options.json:
        print(json.dumps({"outcomes": tally.outcomes, "failures": tally.failures, "seconds": spent}))
    else:
        _print(tally, spent)
    return 1 if tally.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=10_000, help="over all targets (default: 10000)")
    parser.add_argument("--target", action="append", help="what reads the files; repeatable (default: everything)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="child processes (default: one per core)")
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time for one mutation (default: 20)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


class Runner:
    """Hands mutations to child processes, and starts another child where one does not survive."""

    def __init__(self, jobs: deque[Job], limit: float, folder: str) -> None:
        """Nothing is started yet.

        Args:
            jobs: What is left to do.
            limit: Longest time for one mutation (s).
            folder: For the children's files.
        """
        self.tally = Tally()
        self._jobs, self._limit, self._folder = jobs, limit, folder
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []

    def run(self, count: int) -> Tally:
        """Does all jobs in `count` processes."""
        for _ in range(min(count, len(self._jobs))):
            self._start()
        while self._children:
            for key, _ in self._selector.select(timeout=1.0):
                self._read(key.data, os.read(key.fd, 1 << 16))
            for child in list(self._children):
                if child.since is not None and time.perf_counter() - child.since > self._limit:
                    child.process.kill()
                    self._bury(child, f"no answer after {self._limit:g} s")
        self._selector.close()
        return self.tally

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        child = Child(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).parent), "--child", self._folder],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            )
        )  # fmt: skip
        assert child.process.stdout is not None
        self._selector.register(child.process.stdout, selectors.EVENT_READ, child)
        self._children.append(child)
        self._next(child)

    def _next(self, child: Child) -> None:
        """Hands out the next mutation; a child without one ends."""
        assert child.process.stdin is not None
        child.job, child.since = (self._jobs.popleft() if self._jobs else None), None
        if child.job is None:
            child.process.stdin.close()
        else:
            child.process.stdin.write(json.dumps(child.job).encode() + b"\n")
            child.process.stdin.flush()

    def _read(self, child: Child, chunk: bytes) -> None:
        """An empty answer says that the clock starts, any other what came out; no answer that the child has ended."""
        if not chunk:
            code = child.process.wait()
            self._bury(child, f"the process ended: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}")
            return
        *lines, child.received = (child.received + chunk).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if not answer:
                child.since = time.perf_counter()
            elif child.job is not None and child.since is not None:
                spent = time.perf_counter() - child.since
                self.tally.add(child.job, answer["outcome"], answer["mutation"], answer["detail"], spent)
                self._next(child)

    def _bury(self, child: Child, failure: str) -> None:
        """Counts what a child did not survive, if anything."""
        assert child.process.stdout is not None
        self._selector.unregister(child.process.stdout)
        child.process.stdout.close()
        child.process.wait()
        self._children.remove(child)
        if child.job is not None:
            spent = 0.0 if child.since is None else time.perf_counter() - child.since
            self.tally.add(child.job, "failed", "see the seed", failure, spent)
            if self._jobs:
                self._start()


def _print(tally: Tally, spent: float) -> None:
    print(f"{'target':<24}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    total: Counter[str] = Counter()
    for target, counts in sorted(tally.outcomes.items()):
        total += counts
        print(f"{target:<24}" + "".join(f"{counts[outcome]:>10}" for outcome in OUTCOMES))
    print(f"{'all':<24}" + "".join(f"{total[outcome]:>10}" for outcome in OUTCOMES))
    print(f"{sum(total.values())} mutations in {spent:.0f} s, the slowest {tally.slowest:.1f} s")
    for failure in tally.failures:
        print(f"--target {failure['target']} --seed {failure['seed']}: {failure['mutation']}: {failure['failure']}")


if __name__ == "__main__":
    sys.exit(main())
