"""What a newcomer waits for: `python benchmarks/first_minute.py --out benchmarks/results/first_minute.md`.

Each way is a process of its own, cold, as a person starts it: a command, or an import. It is measured in CPU seconds of
the whole process, which other programs hardly change, and as a ratio to `import torch` in the same round; ways take
turns. Packages that are not needed (`quantization`) can be installed and are then imported by transformers and PEFT:
the table says whether they are. `make demo` comes before it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

ITEMS, SYSTEMS, RATERS, DIMENSIONS, OF_PEOPLE = 10_000, 9, 5, 7, 322_000
COMMAND = [sys.executable, "-m", "empathy_judge"]
BASE_ALONE = """
import runpy, sys
sys.modules["bitsandbytes"] = sys.modules["torchao"] = None  # as where they are not installed
runpy.run_module("empathy_judge", run_name="__main__")
"""
AIMS = {
    "agreement": 0.8, "plan": 0.8, "a mistyped option": 0.8, "a missing column": 0.8, "score of one pair": 2.05,
    "score of one pair, base packages alone": 2.05, "from empathy_judge import Scorer": 1.6,
}  # fmt: skip
"""Ratios to `import torch`."""


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="what make demo made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=OF_PEOPLE, help="of the large table")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        text = measure(options.demo, Path(scratch), options.rounds, options.rows)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


def ways_of(demo: Path) -> dict[str, Sequence[str | Path]]:
    """The command line of each way."""
    own = demo / "my"
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "agreement": [*COMMAND, "agreement", own / "ratings.csv"],
        "plan": [*COMMAND, "plan", own / "ratings.csv"],
        "a mistyped option": [*COMMAND, "agreement", own / "ratings.csv", "--resampels", "10"],
        "a missing column": [*COMMAND, "agreement", own / "pairs.csv"],
        "score of one pair": [*COMMAND, "score", demo / "judge", own / "context.wav", own / "response.wav"],
        "from empathy_judge import Scorer": [sys.executable, "-c", "from empathy_judge import Scorer"],
        "the official class of nano": [
            sys.executable, "-c", "import torch; from transformers import Qwen2AudioForConditionalGeneration",
        ],
        "score of one pair, base packages alone": [
            sys.executable, "-c", BASE_ALONE, "score", demo / "judge", own / "context.wav", own / "response.wav",
        ],
    }  # fmt: skip


def measure(demo: Path, scratch: Path, rounds: int, rows: int) -> str:
    """Run all ways in turns, then the large table once."""
    spent: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for name, words in ways_of(demo).items():
            spent.setdefault(name, []).append(cost(words))
    lines = [
        "# The first minute",
        "",
        "`benchmarks/first_minute.py`: cold processes, CPU seconds of all their threads; each ratio is to "
        f"`import torch` in the same round (median and range of {rounds}). "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}. Beside the base packages: {installed()}.",
        "",
        "| what | CPU seconds | times `import torch` | aim | most memory |",
        "|---|---|---|---|---|",
    ]
    base = [seconds for seconds, _ in spent["import torch"]]
    for name, costs in spent.items():
        ratios = sorted(seconds / other for (seconds, _), other in zip(costs, base, strict=True))
        seconds, memory = (statistics.median(column) for column in zip(*costs, strict=True))
        told = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(f"| {name} | {seconds:.1f} | {told} | {AIMS.get(name, '')} | {memory / 1e6:.0f} MB |")
    path = large_table(scratch, rows)
    seconds, memory = cost([*COMMAND, "agreement", path, "--resamples", "1000"])
    times = seconds / statistics.median(base)
    lines.append(
        f"| agreement of {rows:,} rows, 1,000 resamples, once | {seconds:.1f} | {times:.1f} | 30 s | "
        f"{memory / 1e6:.0f} MB |"
    )
    return "\n".join(lines) + "\n"


def cost(words: Sequence[str | Path]) -> tuple[float, float]:
    """CPU seconds and the most memory (bytes) of a process and those that it waits for."""
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0


def installed() -> str:
    """Which of the packages that transformers and PEFT import where they find them are here."""
    there = [name for name in ("bitsandbytes", "torchao") if importlib.util.find_spec(name)]
    return ", ".join(there) or "none that are imported unasked"


def large_table(folder: Path, rows: int) -> Path:
    """A table of people's ratings and of systems as annotators: items of 7 dimensions, ratings of 5 people of each."""
    rng = np.random.default_rng(0)
    per = RATERS + SYSTEMS - 1  # 8 judges beside the people
    items = min(ITEMS, -(-rows // (per * DIMENSIONS)))
    truth = rng.normal(size=(items, DIMENSIONS))
    parts = []
    for number in range(per):
        noisy = truth + rng.normal(size=truth.shape) * (1.0 if number < RATERS else 0.6 + 0.1 * number)
        scores = np.clip(np.round(3 + noisy), 1, 5)
        name = f"person-{number}" if number < RATERS else f"judge-{number}"
        grid = np.indices(truth.shape).reshape(2, -1)
        parts.append(
            pd.DataFrame(
                {
                    "pair_id": np.char.add("p", grid[0].astype(str)),
                    "group_id": np.char.add("g", (grid[0] // 9).astype(str)),
                    "rater_id": name, "dimension": np.char.add("d", grid[1].astype(str)), "score": scores.ravel(),
                }
            )
        )  # fmt: skip
    table = pd.concat(parts).iloc[:rows]
    path = folder / "large.csv"
    table.to_csv(path, index=False)
    return path


if __name__ == "__main__":
    main()
