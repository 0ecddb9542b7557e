"""What `gpu.py` measures of one backbone, in a process of its own: each result is a line of JSON, printed at once.

The judge is loaded once, as `train` and `score` load it, from a folder of random weights. The command `train` then runs
with the recipe of the family, one way of training after the other, on this judge; the naive model shares its frozen
weights, so that both fit into a card and take turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
import transformers
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.models.heads import Prediction
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.scoring import PairScorer
from empathy_judge.train.memory import step_memory
from empathy_judge.train.recipe import RecipeParser
from gpu_step import FIXED, PAIRED, PREDICTED_AT, WAYS, Bench, peak_memory, predicted_bytes, step, words, work_of
from materials import Conversations, write_checkpoint, write_conversations
from naive import Collate, read_items
from timing import memory, reset_peak, synchronize

LONGEST = 8.0  # seconds of a clip
LARGEST = 0.9  # share of the card's memory that a dry run may say
RESPONSES = 16  # to one context, where a context is shared
SCORED, NAIVELY = 256, 8  # pairs that are scored in a round, and by the naive model


def main() -> None:
    """Measure; see `gpu.py` for the options."""
    parser = argparse.ArgumentParser()
    for name in ("family", "shapes", "device", "only"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rounds", "steps", "warm-up", "pairs", "matrix", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench: Bench | None = None
        for piece, way, measure in pieces(options, Path(name)):
            found: dict[str, Any] = {"piece": piece, "backbone": options.family, "way": way}
            begun = time.time()
            if begun > options.until:
                found["left_out"] = "no time was left"
            elif bench is None and piece != "load":
                found["left_out"] = "the judge could not be loaded"
            else:
                try:
                    result = measure(bench)
                    bench = result.pop("bench", bench)
                    found |= result
                except torch.OutOfMemoryError as error:
                    found["left_out"] = "out of memory: " + str(error).partition(".")[0]
                except Exception as error:  # the other pieces are still worth having
                    found["failed"] = "".join(traceback.format_exception(error))[-3000:]
            if options.device == "cuda":
                torch.cuda.empty_cache()
            print(json.dumps(found | {"took_seconds": round(time.time() - begun, 1)}), flush=True)


def pieces(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, Callable[[Any], dict[str, Any]]]]:
    """What is measured, the most wanted first."""
    yield "load", "", lambda _: load(options, folder)
    wanted = options.only.split(",")
    for way, values in WAYS.items():
        if "step" in wanted or ("naive" in wanted and way == PAIRED):
            naively = way == PAIRED and "naive" in wanted
            yield "step", way, lambda bench, way=way, values=values, n=naively: step(bench, way, values, n)
    if "score" in wanted:
        yield "score", "", lambda bench: score(bench, "naive" in wanted)
        for quantization in ("int8", "nf4"):
            yield "score", quantization, lambda bench, q=quantization: score_quantized(bench, q)


# ---------------------------------------------------------------- loading


def load(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write random weights, load them as `train` does, and choose a batch that fits."""
    device = torch.device(options.device)
    (folder / "backbone").mkdir()
    begun = time.perf_counter()
    parameters = write_checkpoint(options.family, options.shapes, folder / "backbone", options.device)
    writing = time.perf_counter() - begun
    write_conversations(folder / "data", Conversations(options.pairs, validation=4, seconds=(LONGEST / 4, LONGEST)))
    parser = RecipeParser()
    settings = parser.recipe(parser.parse([*words(options, folder, FIXED), f"--run={folder / 'unused'}"])).judge
    predicted = {
        again: step_memory(
            settings, batch=PREDICTED_AT, seconds=LONGEST, mixed_precision=True, gradient_checkpointing=again
        )
        for again in (False, True)
    }
    room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 2**34
    fitting = [batch for batch in (16, 8, 4, 2, 1) if predicted_bytes(predicted[False], batch) < LARGEST * room]
    reset_peak()
    before = memory("VmRSS")
    begun = time.perf_counter()
    judge = EmpathyJudge(settings, PairDataset.load(folder / "data").card.dimensions).to(device)
    synchronize(device)
    loading = time.perf_counter() - begun
    bench = Bench(options, folder, device, judge, min(fitting[0] if fitting else 1, options.pairs // 4), predicted)
    return {
        "bench": bench,
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU",
        "memory_bytes": room,
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "lightning": L.__version__},
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


# ---------------------------------------------------------------- scoring


def score(bench: Bench, naively: bool) -> dict[str, Any]:
    """Pairs per second of the path of `Scorer`, of its own and of shared contexts, and of the naive model."""
    items = read_items(bench.data, "train")[:SCORED]
    pairs = [pair for pair, _ in items]
    context = pairs[0].context
    shared = [replace(pair, context=context) for pair in pairs[:RESPONSES]]
    own = [
        replace(pair, context=(replace(context[0], audio=pairs[-1 - n].response),))
        for n, pair in enumerate(pairs[:RESPONSES])
    ]
    size = 2 * bench.batch
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        name: (len(wanted), lambda wanted=wanted: list(PairScorer(bench.judge, size).predict(wanted)))
        for name, wanted in (
            ("all pairs", pairs),
            (f"{RESPONSES} responses, contexts of their own", own),
            (f"{RESPONSES} responses to one context", shared),
        )
    }
    if naively:
        rater = bench.naive().eval()
        collate = Collate(str(bench.folder / "backbone"))
        few = items[:NAIVELY]
        ways["naive, one by one"] = (len(few), lambda: rater.score(iter([collate([item]) for item in few])))
        ways["naive, in a batch"] = (len(few), lambda: rater.score(iter([collate(few)])))
    work = work_of(bench.judge, bench.judge.build_inputs(pairs))
    found = in_turns(bench, ways)
    flops = (work.tower + work.forward) / len(pairs)
    shares = [rate * flops / machine for rate, machine in zip(found["all pairs"], found["matrix_rate"], strict=True)]
    return {
        "ways": found,
        "flops_per_pair": flops,
        "share": shares,
        "matrix_rate": found.pop("matrix_rate"),
        "batch": size,
        "peak_bytes": peak_memory(bench.device),
    }


def in_turns(bench: Bench, ways: dict[str, tuple[int, Callable[[], object]]]) -> dict[str, list[float]]:
    """Pairs per second of each way in each round, after one that is not counted."""
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rates: dict[str, list[float]] = {name: [] for name in [*ways, "matrix_rate"]}
    for number in range(bench.options.rounds + 1):
        for name, (count, way) in ways.items():
            synchronize(bench.device)
            begun = time.perf_counter()
            made = way()
            synchronize(bench.device)
            seconds = time.perf_counter() - begun
            if isinstance(made, list):
                assert all(isinstance(one, Prediction) and one.score.isfinite().all() for _, one in made)
            if number:
                rates[name].append(count / seconds)
        if number:
            rates["matrix_rate"].append(bench.measure_machine())
    return rates


def score_quantized(bench: Bench, quantization: str) -> dict[str, Any]:
    """Pairs per second of a judge whose language model is loaded in 8 or 4 bits."""
    settings = replace(bench.judge.settings, quantization=quantization)  # pyright: ignore[reportArgumentType]
    begun = time.perf_counter()
    judge = EmpathyJudge(settings, bench.judge.dimensions).to(bench.device).eval()
    loading = time.perf_counter() - begun
    pairs: list[Pair] = [pair for pair, _ in read_items(bench.data, "train")[:SCORED]]
    size = 2 * bench.batch
    found = in_turns(bench, {"all pairs": (len(pairs), lambda: list(PairScorer(judge, size).predict(pairs)))})
    return {"load_seconds": loading, "ways": found, "matrix_rate": found.pop("matrix_rate"), "batch": size}


if __name__ == "__main__":
    main()
