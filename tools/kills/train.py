"""Kills training at random and starts it again, many times: ``python tools/kills train --moments 50 -- ARGUMENTS``.

The arguments are those of ``empathy-judge train`` without ``--run``. A run is first trained without being disturbed,
then again and again by processes that are killed at a random moment, one in five by SIGTERM, the others by SIGKILL, and
started anew with ``--resume auto`` until it ends; as many runs as it takes to kill so often. For each:

- what every process trained on is, from the step at which it took over, what the undisturbed run trained on then, so
  that along the states that were saved no item is left out and none is read twice;
- a process takes over at most ``--checkpoint-steps`` steps before where the last one was killed;
- weights, moments of the optimizer and learning rates at the end are those of the undisturbed run, bit for bit.

The processes are forked from one that has imported everything: most of the time would go into imports otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from empathy_judge.core.errors import ASKED_TO_STOP
from empathy_judge.models import BEST, CHECKPOINTS, LAST
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train
from endings import differing

from commands import forked

Step = tuple[int, int, list[int]]
"""Epoch, number of the batch, and its items."""
FALTERING = 40  # starts in a row without a step


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this harm."""
    parser.add_argument("--checkpoint-steps", type=int, default=2)
    parser.add_argument("arguments", nargs="+", help="of train, after --")


def harm(given: argparse.Namespace) -> int:
    """Kill; print what was found as JSON; 1 if a run did not end as it should."""
    rng = random.Random(given.seed)
    words = [*given.arguments, "--checkpoint-steps", str(given.checkpoint_steps), "--trainer.logger", "false"]
    found: dict[str, Any] = {"kills": 0, "runs": 0, "starts": 0, "steps_done_again": 0, "failures": []}
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        start = time.monotonic()
        outcome = _run(words, whole, kill=None)
        seconds = time.monotonic() - start
        if outcome != 0:
            found["failures"].append(f"the undisturbed run ended with {outcome}: {_error(whole)}")
        steps = _trained(whole)
        while found["kills"] < given.moments and not found["failures"]:
            run = Path(folder) / f"run{found['runs']}"
            found["runs"] += 1
            _disturbed(words, run, rng, seconds, given.moments, found)
            found["failures"] += _differences(run, whole, steps, given.checkpoint_steps, found)
    print(json.dumps(found))
    return 1 if found["failures"] else 0


def _disturbed(
    words: Sequence[str], run: Path, rng: random.Random, seconds: float, kills: int, found: dict[str, Any]
) -> None:
    """Train to the end, whatever happens."""
    in_vain = 0
    while True:
        before = len(_trained(run))
        number = signal.SIGTERM if rng.random() < 0.2 else signal.SIGKILL
        kill = (rng.uniform(0, 1.2 * seconds), number) if found["kills"] < kills else None
        outcome = _run(words, run, kill)
        found["starts"] += 1
        in_vain = in_vain + 1 if len(_trained(run)) == before else 0
        if outcome == 0:
            return
        if outcome not in (-signal.SIGKILL, -signal.SIGTERM, ASKED_TO_STOP) or in_vain == FALTERING:
            found["failures"].append(f"{run.name}: a start ended with {outcome}: {_error(run)}")
            return
        found["kills"] += 1


def _run(words: Sequence[str], run: Path, kill: tuple[float, int] | None) -> int:
    """One process, killed after so many seconds if it lives so long: its exit code, or less the number of a signal."""
    _file(run, "starts").parent.mkdir(parents=True, exist_ok=True)
    with open(_file(run, "starts"), "a") as file:
        file.write(f"{len(_trained(run))}\n")
    after, number = kill or (None, signal.SIGKILL)
    return forked(lambda: _train(words, run), after, lambda child: os.kill(child, number) is None)[0]


def _train(words: Sequence[str], run: Path) -> int:
    """In a forked process: train, writing down every step before it is made."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(_file(run, "said"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    log = os.open(_file(run, "steps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    plain = JudgeModule.training_step

    def step(module: JudgeModule, batch: Any, batch_idx: int) -> Any:
        done = (module.current_epoch, batch_idx, batch.indices.tolist())
        os.write(log, (json.dumps(done) + "\n").encode())
        return plain(module, batch, batch_idx)

    JudgeModule.training_step = step
    train([*words, "--run", str(run), "--resume", "auto"])
    return 0


def _file(run: Path, name: str) -> Path:
    return run.with_name(f"{run.name}.{name}")


def _error(run: Path) -> str:
    path = _file(run, "said")
    return path.read_text()[-2_000:] if path.exists() else ""


def _trained(run: Path) -> list[Step]:
    """Every step that any process of a run began."""
    path = _file(run, "steps")
    lines = path.read_text().splitlines() if path.exists() else []
    return [(epoch, batch, items) for epoch, batch, items in map(json.loads, lines)]


def _differences(run: Path, whole: Path, steps: list[Step], kept_every: int, found: dict[str, Any]) -> list[str]:
    """What is not as in the undisturbed run."""
    if found["failures"]:
        return []
    trained = _trained(run)
    begins = sorted({int(line) for line in _file(run, "starts").read_text().split()} | {len(trained)})
    position = 0
    for begin, end in pairwise(begins):
        part = trained[begin:end]
        first = steps.index(part[0]) if part[0] in steps else -1
        if first < 0 or part != steps[first : first + len(part)]:
            return [f"{run.name}: a process that began at {part[0]} did not read what the undisturbed run does"]
        if not position - kept_every - 1 <= first <= position:
            return [f"{run.name}: after step {position} a process went on at step {first}"]
        found["steps_done_again"] += position - first
        position = first + len(part)
    if position != len(steps):
        return [f"{run.name}: ended after {position} of {len(steps)} steps"]
    name = LAST if (whole / CHECKPOINTS / LAST).exists() else BEST  # of a probe
    other = differing(run, whole, f"{CHECKPOINTS}/{name}")
    return [f"{run.name}: other end: {', '.join(other[:5])}"] if other else []
