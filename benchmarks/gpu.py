"""Training and scoring on one GPU at the true shapes of 7B backbones, in ten minutes: `make bench-gpu`.

For Qwen2-Audio 7B and the thinker of Qwen2.5-Omni 7B with random weights: loading, the training step of `train` with
the family's recipe (and what checkpointing, batches by tokens, cached audio and compiled layers change), and scoring,
next to the naive loop of plain transformers and PEFT on the same card in the same rounds (`naive`; the generation model
with its LM head, adapters in the same layers). Clips last 2 to 8 s, four responses to a context. Shares are of the rate
of a large product of bfloat16 matrices, measured in each round; operations are counted by formula (`work_of`).

Every result is written at once to OUT.json and OUT.md, so that a run that is stopped leaves what it had. Batches are
the largest that a dry run says fit into the card; what does not fit is left out and named.
Run: `python benchmarks/gpu.py --out benchmarks/results/gpu` on a GPU; `--device cpu --shapes tiny` checks the program
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from timing import spread

BACKBONES, PIECES = ("qwen2_audio", "qwen2_5_omni"), ("step", "score", "naive")
GIB = 2**30
GRACE = 20.0  # seconds after its time is over that a process may take to end a piece


def main() -> None:
    """Measure and write; exit with 1 if a piece failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shapes", choices=["tiny", "small", "7b"], default="7b")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=BACKBONES)
    parser.add_argument("--only", nargs="+", choices=PIECES, default=PIECES, help="naive alone: its training step")
    parser.add_argument("--minutes", type=float, default=9.5, help="of everything; what comes too late is left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="in a round")
    parser.add_argument("--warm-up", type=int, default=6, help="steps after each pause that are not counted")
    parser.add_argument("--pairs", type=int, default=1600, help="of the data")
    parser.add_argument("--matrix", type=int, default=8192, help="rows and columns of the product")
    parser.add_argument("--workers", type=int, default=min(4, (os.cpu_count() or 1) - 1), help="data-loader processes")
    options = parser.parse_args()
    end = time.time() + 60 * options.minutes
    rows: list[dict[str, Any]] = []
    for number, family in enumerate(options.backbones):
        until = time.time() + (end - time.time()) / (len(options.backbones) - number)
        for row in measured(family, options, until):
            rows.append(row)
            write(options.out, rows)
            print(next(iter(lines([row])), f"{family}: {row['piece']} {row['way']}"), flush=True)
    sys.exit(any("failed" in row for row in rows))


def measured(family: str, options: argparse.Namespace, until: float) -> Iterator[dict[str, Any]]:
    """Results of one backbone, out of a process that is killed when its time is over."""
    passed = ("shapes", "device", "rounds", "steps", "warm_up", "pairs", "matrix", "workers")
    words = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in passed]
    words += [f"--family={family}", f"--only={','.join(options.only)}", f"--until={until}"]
    program = Path(__file__).with_name("gpu_work.py")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), *words], stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
        )
        killer = threading.Timer(max(0.0, until + GRACE - time.time()), process.kill)
        killer.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        killer.cancel()
        code = process.wait()
        log.seek(0)
        if code == -9:
            yield {"piece": "end", "backbone": family, "way": "", "left_out": "killed when its time was over"}
        elif code != 0:
            yield {"piece": "end", "backbone": family, "way": "", "failed": log.read()[-3000:]}


# ---------------------------------------------------------------- what is written


def write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """All results so far."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(list(rows), indent=1)), (".md", "\n".join(page(rows)))):
        unfinished = out.with_name(f".{out.name}{suffix}.unfinished")
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.replace(out.with_name(out.name + suffix))


def page(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The results in Markdown."""
    yield "# Training and scoring on one GPU"
    for row in rows:
        if row["piece"] == "load" and "machine" in row:
            yield f"\n## {row['backbone']}, shapes {row['shapes']}: {row['parameters'] / 1e9:.2f} billion parameters\n"
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            yield (
                f"{row['machine']}, {row['memory_bytes'] / GIB:.0f} GiB, {row['threads']} CPU threads; {versions}; "
                f"{row['dtype']}. Products of large matrices: {row['matrix_rate'] / 1e12:.1f} TFLOP/s. Weights written "
                f"in {row['write_seconds']:.0f} s, loaded onto the device in {row['load_seconds']:.0f} s, with "
                f"{row['host_peak_bytes'] / GIB:.1f} GiB of main memory at most for "
                f"{row['weight_bytes'] / GIB:.1f} GiB of weights. Batches of {row['batch']} "
                f"pairs. {row['left_out_batches']}"
            )
        of_it = [other for other in rows if other["backbone"] == row["backbone"]]
        if row["piece"] == "load":
            yield from steps_table([other for other in of_it if "pairs_per_second" in other])
            yield from scores_table([other for other in of_it if "ways" in other])
            yield from ("", *(f"- {line}" for line in lines(of_it)))


def steps_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Of training; medians, and the range of rounds."""
    if rows:
        yield "\nTraining (median of rounds, their range in brackets):\n"
        yield (
            "| way | pairs a batch | pairs/s | of the matrix rate | peak GiB (dry run) | waiting for data | padding | "
            "host syncs a step |"
        )
        yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        predicted = "" if row["predicted_bytes"] is None else f" ({row['predicted_bytes'] / GIB:.1f})"
        syncs = "not on a CPU" if row["syncs_per_step"] is None else f"{row['syncs_per_step']:.1f}"
        yield (
            f"| {row['way']} | {row['batch']} | {spread(row['pairs_per_second'])} | {spread(row['share'], '.0%')} | "
            f"{row['peak_bytes'] / GIB:.1f}{predicted} | {statistics.median(row['waiting']):.1%} | "
            f"{row['padding']:.0%} | {syncs} |"
        )
        if "naive_pairs_per_second" in row:
            yield (
                f"| naive, in the same rounds | {row['batch']} | {spread(row['naive_pairs_per_second'])} | "
                f"{spread(row['naive_share'], '.0%')} | {row['naive_peak_bytes'] / GIB:.1f} | | | |"
            )
            yield f"| {row['way']} by naive | | {spread(row['times_naive'])} times | | | | | |"


def scores_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Of scoring."""
    if rows:
        yield "\nScoring, nothing known of a clip before:\n"
        yield "| weights | way | pairs/s | of the matrix rate |"
        yield "|---|---|---|---|"
    for row in rows:
        for way, rates in row["ways"].items():
            share = spread(row["share"], ".0%") if way == "all pairs" and "share" in row else ""
            yield f"| {row['way'] or 'as trained'} | {way} | {spread(rates, '.3g')} | {share} |"


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was left out, what failed, and where the host waits for the GPU."""
    for row in rows:
        name = " ".join(filter(None, [f"{row['backbone']}:", row["piece"], row["way"]]))
        for kind in ("left_out", "naive_left_out"):
            if kind in row:
                yield f"{name}: {kind.replace('_', ' ')}: {row[kind]}"
        if "failed" in row:
            yield f"{name}: failed: {row['failed'].strip().splitlines()[-1]}"
        if row.get("sync_lines"):
            yield f"{name}: the host waits at " + ", ".join(f"{where} ({n})" for where, n in row["sync_lines"].items())


if __name__ == "__main__":
    main()
