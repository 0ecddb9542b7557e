"""Training and scoring on one GPU at the true shapes of 7B backbones, in ten minutes: `make bench-gpu`.

For Qwen2-Audio 7B and the thinker of Qwen2.5-Omni 7B with random weights: loading, the training step of `train` with
the family's recipe (and what checkpointing, batches by tokens, cached audio and compiled layers change), and scoring,
next to the naive loop of plain transformers and PEFT on the same card in the same rounds (`naive`; the generation model
with its LM head, adapters in the same layers). Clips last 2 to 8 s, four responses to a context. Shares are of the rate
of a large product of bfloat16 matrices, measured in each round; operations are counted by formula (`work_of`).

Each backbone has a process of its own, which is killed when its time is over. Every result is written at once to
OUT.json and OUT.md, so that a run that is stopped leaves what it had; with `--go-on` the next one measures the rest.
Batches are the largest that a dry run says fit into the card; what does not fit is left out and named.
Run: `python benchmarks/gpu.py --out benchmarks/results/gpu` on a GPU; `--device cpu --shapes tiny` checks the program
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from empathy_judge.core.files import replace_text
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.train.memory import step_memory
from empathy_judge.train.recipe import RecipeParser
from gpu_step import FIXED, PREDICTED_AT, RECIPE, WAYS, Bench, predicted_bytes, step, words, work_of
from materials import write_checkpoint, write_conversations
from naive import NaiveCollate, read_items, scores
from timing import in_turns, memory, peak_memory, ratios, reset_peak, spread, synchronize

BACKBONES = ("qwen2_audio", "qwen2_5_omni")
GIB = 2**30
LONGEST = 8.0  # seconds of a clip
LARGEST = 0.9  # share of the card's memory that a batch may need by the dry run
RESPONSES = 16  # to one context, where a context is shared
SCORED, NAIVELY = 256, 8  # pairs that are scored in a round, and by the naive model


def main() -> None:
    """Measure and write; exit with 1 if a piece failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shapes", choices=["tiny", "7b"], default="7b")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=BACKBONES)
    parser.add_argument("--minutes", type=float, default=9.5, help="of everything; what comes too late is left out")
    parser.add_argument("--go-on", action="store_true", help="keep what OUT.json holds, and measure the rest")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="in a round")
    parser.add_argument("--warm-up", type=int, default=6, help="steps after each pause that are not counted")
    parser.add_argument("--pairs", type=int, default=1600, help="of the data")
    parser.add_argument("--matrix", type=int, default=8192, help="rows and columns of the product")
    parser.add_argument("--workers", type=int, default=min(4, (os.cpu_count() or 1) - 1), help="data-loader processes")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)  # folder of the process of one backbone
    options = parser.parse_args()
    if options.here:
        options.family = options.backbones[0]
        measure_backbone(options)
        return
    if options.device == "cpu":  # else libraries would ask the GPUs of this machine, and turns be timed on one
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    kept = read(options.out) if options.go_on and options.out.with_name(f"{options.out.name}.json").exists() else []
    write(options.out, [row for row in kept if not row.keys() & {"failed", "left_out"}])
    end = time.time() + 60 * options.minutes
    for number, family in enumerate(options.backbones):
        allowed = (end - time.time()) / (len(options.backbones) - number)
        end_row: dict[str, Any] = {"piece": "end", "backbone": family, "way": ""}
        with tempfile.TemporaryDirectory() as folder:  # a process that is killed leaves its files
            command = [sys.executable, *sys.argv, "--backbones", family, "--here", folder]
            try:
                subprocess.run(command, timeout=max(0.0, allowed), check=True)
            except subprocess.TimeoutExpired:
                add(options.out, end_row | {"left_out": "killed when its time was over"})
            except subprocess.CalledProcessError as error:
                add(options.out, end_row | {"failed": str(error)})
    sys.exit(any("failed" in row for row in read(options.out)))


# ---------------------------------------------------------------- one backbone


def measure_backbone(options: argparse.Namespace) -> None:
    """Measure one backbone, and write each result at once.

    The judge is loaded once, as `train` and `score` load it. The command `train` then runs with the recipe of the
    family, one way of training after the other, on this judge; the naive model shares its frozen weights, so that both
    fit into a card and take turns.
    """
    bench: Bench | None = None
    done = {(row["piece"], row["way"]) for row in read(options.out) if row["backbone"] == options.family}
    missing = [piece for piece in pieces(options) if piece[:2] not in done]
    for piece, way, measure in [("load", "", lambda _: load(options)), *missing] if missing else ():
        row: dict[str, Any] = {"piece": piece, "backbone": options.family, "way": way}
        start = time.time()
        if bench is None and piece != "load":
            row["left_out"] = "the judge could not be loaded"
        else:
            try:
                result = measure(bench)
                bench = result.pop("bench", bench)
                row |= result
            except torch.OutOfMemoryError as error:
                row["left_out"] = "out of memory: " + str(error).partition(".")[0]
            except Exception as error:  # the other pieces are still worth having
                row["failed"] = "".join(traceback.format_exception(error))[-3000:]
        if options.device == "cuda":
            gc.collect()  # trainer and module refer to each other
            torch.cuda.empty_cache()
        add(options.out, row | {"took_seconds": round(time.time() - start, 1)})


def pieces(options: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[Any], dict[str, Any]]]]:
    """The measurements of a judge that is loaded, in order of importance: piece, way, and what measures it."""
    for way, values in WAYS.items():
        yield "step", way, partial(step, way=way, values=values)
        # before the further ways of training, the last of which compiles for minutes
        if way == RECIPE:
            yield "score", "", score
    for quantization in ("int8", "nf4"):
        yield "score", quantization, partial(score_quantized, quantization=quantization)


def load(options: argparse.Namespace) -> dict[str, Any]:
    """Write random weights, load them as `train` does, and choose a batch that fits."""
    device, folder = torch.device(options.device), options.here
    (folder / "backbone").mkdir()
    start = time.perf_counter()
    parameters = write_checkpoint(options.family, options.shapes, folder / "backbone", options.device)
    writing = time.perf_counter() - start
    write_conversations(folder / "data", options.pairs, validation=4, seconds=(LONGEST / 4, LONGEST))
    parser = RecipeParser()
    settings = parser.recipe(parser.parse([*words(options, folder, FIXED), f"--run={folder / 'unused'}"])).judge
    common: dict[str, Any] = {"batch": PREDICTED_AT, "seconds": LONGEST, "mixed_precision": True}
    predicted = {again: step_memory(settings, **common, gradient_checkpointing=again) for again in (False, True)}
    room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 2**34
    fitting = [batch for batch in (16, 8, 4, 2, 1) if predicted_bytes(predicted[False], batch) < LARGEST * room]
    reset_peak(torch.device("cpu"))
    before, start = memory("VmRSS"), time.perf_counter()
    judge = EmpathyJudge(settings, PairDataset.load(folder / "data").card.dimensions).to(device)
    synchronize(device)
    loading = time.perf_counter() - start
    bench = Bench(options, folder, device, judge, min(fitting[0] if fitting else 1, options.pairs // 4), predicted)
    return {
        "bench": bench,
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU",
        "memory_bytes": room,
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "shapes": options.shapes,
        "parameters": parameters,
        "dtype": settings.dtype,
        "write_seconds": writing,
        "load_seconds": loading,
        "weight_bytes": sum(weight.nbytes for weight in judge.parameters()),
        "host_peak_bytes": memory("VmHWM") - before,
        "matrix_rate": bench.measure_machine(),
        "batch": bench.batch,
        "left_out_batches": "" if fitting else "no batch fits without computing layers again, by the dry run",
    }


def score(bench: Bench) -> dict[str, Any]:
    """Pairs per second of the path of `Scorer`, of its own and of shared contexts, and of the naive model."""
    items = read_items(bench.data, "train")[:SCORED]
    pairs = [pair for pair, _ in items]
    first, sample = pairs[0].context, items[:NAIVELY]
    shared = [replace(pair, context=first) for pair in pairs[:RESPONSES]]
    separate = [
        replace(pair, context=(replace(first[0], audio=other.response),))
        for pair, other in zip(pairs[:RESPONSES], reversed(pairs), strict=False)
    ]
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        name: (len(wanted), partial(scores, bench.judge, wanted, 2 * bench.batch))
        for name, wanted in (
            ("all pairs", pairs),
            (f"{RESPONSES} responses, contexts of their own", separate),
            (f"{RESPONSES} responses to one context", shared),
        )
    }
    rater, collate = bench.naive().eval(), NaiveCollate(str(bench.folder / "backbone"))
    ways["naive, one by one"] = (len(sample), lambda: rater.score(iter([collate([item]) for item in sample])))
    ways["naive, in a batch"] = (len(sample), lambda: rater.score(iter([collate(sample)])))
    work = work_of(bench.judge, bench.judge.build_inputs(pairs))
    flops = (work.tower + work.forward) / len(pairs)
    results = scored_in_turns(bench, ways)
    shares = [share * flops for share in ratios(results["ways"]["all pairs"], results["matrix_rate"])]
    return {**results, "flops_per_pair": flops, "share": shares, "peak_bytes": peak_memory(bench.device)}


def score_quantized(bench: Bench, quantization: str) -> dict[str, Any]:
    """Pairs per second of a judge whose language model is loaded in 8 or 4 bits."""
    settings = replace(bench.judge.settings, quantization=quantization)  # pyright: ignore[reportArgumentType]
    start = time.perf_counter()
    judge = EmpathyJudge(settings, bench.judge.dimensions).to(bench.device).eval()
    loading = time.perf_counter() - start
    pairs = [pair for pair, _ in read_items(bench.data, "train")[:SCORED]]
    way = (len(pairs), partial(scores, judge, pairs, 2 * bench.batch))
    return {"load_seconds": loading, **scored_in_turns(bench, {"all pairs": way})}


def scored_in_turns(bench: Bench, ways: dict[str, tuple[int, Callable[[], object]]]) -> dict[str, Any]:
    """Pairs per second of each way in each round, after one that is not counted."""
    reset_peak(bench.device)
    machine: list[float] = []
    turns = {name: way for name, (_, way) in ways.items()} | {"": lambda: machine.append(bench.measure_machine())}
    seconds, _ = in_turns(turns, bench.options.rounds)
    rates = {name: [count / duration for duration in seconds[name]] for name, (count, _) in ways.items()}
    return {"ways": rates, "matrix_rate": machine[1:], "batch": 2 * bench.batch}


# ---------------------------------------------------------------- what is written


def add(out: Path, row: dict[str, Any]) -> None:
    """Add a result to those that are written already; the judge may be loaded once more."""
    known = [other for other in read(out) if any(other[key] != row[key] for key in ("backbone", "piece", "way"))]
    write(out, [*known, row])
    print(next(iter(remarks([row])), f"{row['backbone']}: {row['piece']} {row['way']}"), flush=True)


def read(out: Path) -> list[dict[str, Any]]:
    """All results so far."""
    return json.loads(out.with_name(f"{out.name}.json").read_text())


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write all results so far, for programs and for people."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(rows, indent=1)), (".md", "\n".join(page(rows)))):
        replace_text(out.with_name(out.name + suffix), text + "\n")


def page(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The results in Markdown: medians of rounds, with their range in brackets."""
    yield "# Training and scoring on one GPU"
    for row in (row for row in rows if row["piece"] == "load"):
        results = [result for result in rows if result["backbone"] == row["backbone"]]
        if "machine" in row:
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
        yield (
            "\n| training | pairs a batch | pairs/s | of the matrix rate | peak GiB (dry run) | waiting for data | "
            "padding | host syncs a step |\n|---|---|---|---|---|---|---|---|"
        )
        yield from (line for result in results if "pairs_per_second" in result for line in step_lines(result))
        yield "\n| scoring | way | pairs/s | of the matrix rate |\n|---|---|---|---|"
        for result in results:
            for way, rates in result.get("ways", {}).items():
                share = spread(result["share"], ".0%") if way == "all pairs" and "share" in result else ""
                yield f"| {result['way'] or 'as trained'} | {way} | {spread(rates, '.3g')} | {share} |"
        yield from ("", *(f"- {line}" for line in remarks(results)))


def step_lines(row: dict[str, Any]) -> Iterator[str]:
    """A way of training, and the naive loop if it took turns with it."""
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


def remarks(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
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
