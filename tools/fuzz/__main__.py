"""Damages valid files at random and looks what reads them: ``python tools/fuzz --mutations 10000``.

Every mutation must be accepted or refused by a `UserError` of one line. Another exception, a crash of the process, more
than ``--seconds`` or more than 8 GiB is a failure; it is named with the seed that repeats it:
``python tools/fuzz --target NAME --seed SEED --mutations 1``. Work is done in child processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from targets import PLANTED, names, work

Job = tuple[str, int]
"""Target and seed."""
Outcome = dict[str, Any]
"""Target, seed, outcome, mutation, detail, and seconds."""
_SPAWN = multiprocessing.get_context("spawn")


def work_through(jobs: deque[Job], limit: float, folder: str) -> list[Outcome]:
    """What came out of jobs, taken while there are any; another child starts where one does not survive.

    Args:
        jobs: What is left to do; several threads may share it.
        limit: Longest time for one mutation (s).
        folder: For the children's files.
    """
    found: list[Outcome] = []
    child: tuple[Connection, SpawnProcess] | None = None
    while jobs:
        try:
            job = jobs.popleft()
        except IndexError:  # another thread was faster
            break
        pipe, process = child = child or _start(limit, folder)
        pipe.send(job)
        try:
            answer = pipe.recv()
        except EOFError:
            process.join()
            answer = {"outcome": "failed", "mutation": "see the seed", "detail": _end(process, limit), "seconds": limit}
            child = None
        found.append({"target": job[0], "seed": job[1], **answer})
    if child is not None:
        child[0].close()  # nothing is left to do
    return found


def _start(limit: float, folder: str) -> tuple[Connection, SpawnProcess]:
    pipe, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=work, args=(theirs, limit, folder))
    process.start()
    theirs.close()  # else its end would not be noticed
    return pipe, process


def _end(process: SpawnProcess, limit: float) -> str:
    code = process.exitcode or 0
    if code == -signal.SIGALRM:
        return f"no answer after {limit:g} s"
    return f"the process ended: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


def main() -> int:
    """Print counts by outcome and every failure as JSON; 1 if there is one."""
    options = _options()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    targets = options.target or names()
    unknown = sorted(set(targets) - {*names(), *PLANTED})
    if unknown:
        print(f"error: --target {unknown[0]}: expected {', '.join(dict.fromkeys(names()))}", file=sys.stderr)
        return 2
    jobs = deque((targets[n % len(targets)], options.seed + n) for n in range(options.mutations))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="empathy-judge-fuzz-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        parts = [pool.submit(work_through, jobs, options.seconds, folder) for _ in range(min(options.jobs, len(jobs)))]
        found = [outcome for part in parts for outcome in part.result()]
    spent = time.perf_counter() - start
    outcomes: dict[str, Counter[str]] = {}
    for one in found:
        outcomes.setdefault(one["target"], Counter())[one["outcome"]] += 1
    failures = [
        {"target": one["target"], "seed": one["seed"], "mutation": one["mutation"], "failure": one["detail"]}
        for one in found
        if one["outcome"] == "failed"
    ]
    slowest = max((one["seconds"] for one in found), default=0.0)
    seconds = {"all": spent, "slowest": slowest}
    print(json.dumps({"outcomes": outcomes, "seconds": seconds, "failures": failures}, indent=2))
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=10_000, help="over all targets (default: 10000)")
    parser.add_argument("--target", action="append", help="what reads the files; repeatable (default: everything)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="child processes (default: one per core)")
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time for one mutation (default: 20)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
