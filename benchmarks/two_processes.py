"""Two training processes against one on two cores: `python benchmarks/two_processes.py`.

The command `train` on the backbone `mid` of `training.py`: one process with one thread, one with two threads, two
processes with one thread and half of the batch each (`trainer.devices 2`, gloo), and, to know what this machine can
give at most, two single processes that know nothing of each other. Each runs anew in each round; start-up is not
counted. The ratio to one process with one thread is taken in each round; median and range are quoted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
from conversations import Conversations, write_conversations
from empathy_judge.train.collate import Batch
from empathy_judge.train.run import train
from random_checkpoint import write_checkpoint
from rich.console import Console
from rich.table import Table
from rows import append_row
from ways import Place, common_arguments

BATCH = 8
ALONE = "one process, one thread"
DDP = ("--trainer.devices=2", "--trainer.strategy=ddp")


@dataclass(frozen=True)
class Set:
    """Processes that run at the same time.

    Attributes:
        name: What the table calls them.
        runs: Number of training runs.
        threads: Of each process.
        batch: Pairs in a batch of a process.
        ranks: Processes of a run.
    """

    name: str
    runs: int
    threads: int
    batch: int
    ranks: int = 1


SETS = (
    Set(ALONE, 1, 1, BATCH),
    Set("one process, two threads", 1, 2, BATCH),
    Set("two processes, half of the batch each", 1, 1, BATCH // 2, ranks=2),
    Set("two single processes at once", 2, 1, BATCH // 2),
)


class Clock(L.Callback):
    """Writes when each step was over (seconds), and how many pairs it had here."""

    def __init__(self, file: Path) -> None:
        """Write there, on rank 0."""
        self._file = file

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """A step is over."""
        if trainer.is_global_zero:
            append_row(self._file, {"time": time.time(), "pairs": len(batch.indices)})


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["train"]:  # so that a run of two processes can start its second one
        train(sys.argv[3:], [Clock(Path(sys.argv[2]))])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="of each run; the first two are not counted")
    parser.add_argument("--json", type=Path, help="file that a line for each set of processes is added to")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {processes.name: [] for processes in SETS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "checkpoint").mkdir()
        write_checkpoint("qwen2_audio", "mid", folder / "checkpoint")
        write_conversations(folder / "data", Conversations(2 * BATCH * options.steps))
        for number in range(options.rounds):
            for position, processes in enumerate(SETS):
                rates[processes.name].append(measure(processes, folder, f"{number}-{position}", options.steps))
    table = Table("processes", "pairs/s", "times one process with one thread (median, range)", title="training, mid")
    for name, own in rates.items():
        ratios = [rate / base for rate, base in zip(own, rates[ALONE], strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        table.add_row(name, f"{statistics.median(own):.2f}", spread)
        if options.json:
            append_row(options.json, {"processes": name, "rates": own, "ratios": ratios})
    Console(width=120).print(table)


def measure(processes: Set, folder: Path, name: str, steps: int) -> float:
    """Pairs per second of all runs together, while all of them train."""
    clocks = [folder / f"{name}-{number}.jsonl" for number in range(processes.runs)]
    started = [_start(processes, folder, clock, steps) for clock in clocks]
    for run in started:
        _, printed = run.communicate()
        if run.returncode:
            raise RuntimeError(f"{processes.name}: {printed[-2000:]}")
    times = [[json.loads(line) for line in clock.read_text().splitlines()] for clock in clocks]
    return together(times) * processes.ranks


def together(times: Sequence[Sequence[dict[str, float]]]) -> float:
    """Pairs per second of several runs in the time in which all train, without the first two steps of each."""
    start = max(run[1]["time"] for run in times)
    end = min(run[-1]["time"] for run in times)
    rate = 0.0
    for run in times:
        ends = [step["time"] for step in run]
        inside = [number for number in range(2, len(run)) if ends[number - 1] >= start and ends[number] <= end]
        seconds = ends[inside[-1]] - ends[inside[0] - 1]
        rate += sum(run[number]["pairs"] for number in inside) / seconds
    return rate


def _start(processes: Set, folder: Path, clock: Path, steps: int) -> subprocess.Popen[str]:
    place = Place(str(folder / "checkpoint"), str(folder / "data"), (9, 12), processes.batch, 0, "cpu")
    arguments = [
        *common_arguments(place, clock.with_suffix("")),
        f"--trainer.limit_train_batches={steps}",
        "--trainer.max_epochs=1",
        "--trainer.check_val_every_n_epoch=1",
        *(DDP if processes.ranks > 1 else ()),
    ]
    return subprocess.Popen(
        [sys.executable, __file__, "train", str(clock), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": str(processes.threads)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


if __name__ == "__main__":
    main()
