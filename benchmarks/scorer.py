"""Scoring: pairs per second and latency against the naive loop, in one run: `python benchmarks/scorer.py --shapes mid`.

The naive loop is what one writes today with plain transformers and PEFT (`naive`): one pair after the other, each clip
padded to 30 s, the LM head computed and thrown away. Both are the same model with the same weights, and scores must
agree. Clips are as in conversation (`materials`, 2 to 8 s, 4 responses to each context). Ratios are of CPU time on a
CPU, which other programs hardly change, and of wall time on a GPU; latency is wall time of one call with one pair.

The second table is about one context with 16 responses, against 16 pairs with 16 contexts as long: what is the same for
all of them (the context's states in the audio tower and in the language model) is computed once, so that the longer the
context beside the responses, the more is gained.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from empathy_judge.audio_inputs import make_pair
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.scoring import PairScorer, choose_device
from empathy_judge.models.settings import JudgeSettings, LoraSettings
from materials import write_conversations
from naive import ALPHA, MAXIMUM, MINIMUM, RANK, NaiveCollate, NaiveRater, read_items, scores
from peers import TOLERANCE, prepare
from rich.console import Console
from rich.table import Table
from timing import in_turns, ratios, spread

SHARED = ((6.0, 6.0), (10.0, 5.0), (15.0, 4.0))
"""Seconds of the context and of each response."""
RESPONSES = 16


def main() -> None:
    """Print both tables; exit with 1 if scores differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=["nano", "mid", "7b"], default="nano", help="size of the backbone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=16, help="in each round")
    options = parser.parse_args()
    device = choose_device(None)
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_conversations(folder / "data", options.pairs)
        checkpoint = prepare(folder, options.shapes, 1).checkpoint
        judge = random_judge(checkpoint, device)
        items = read_items(PairDataset.load(folder / "data"), "train")
        console.print(f"{options.shapes} | {device} | {torch.get_num_threads()} threads | torch {torch.__version__}")
        apart = compare_with_naive(console, judge, checkpoint, items, options.rounds)
        apart = max(apart, compare_shared(console, judge, options.rounds))
    print(f"scores differ by {apart:.1e} points at most; at most {TOLERANCE:.0e} is expected on a CPU")
    sys.exit(0 if apart <= TOLERANCE or device.type != "cpu" else 1)


def random_judge(checkpoint: str, device: torch.device) -> EmpathyJudge:
    """A judge with random LoRA and head weights."""
    torch.manual_seed(0)
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    settings = JudgeSettings(checkpoint, dtype=dtype, lora=LoraSettings(rank=RANK, alpha=ALPHA))
    judge = EmpathyJudge(settings, [Dimension("fit", MINIMUM, MAXIMUM)]).to(device)
    with torch.no_grad():
        for name, weight in judge.trainable().items():
            weight.add_(0.02 * torch.randn_like(weight) if "lora_" in name else 0.1 * torch.randn_like(weight))
    return judge.eval()


def compare_with_naive(
    console: Console, judge: EmpathyJudge, checkpoint: str, items: Sequence[tuple[Pair, float]], rounds: int
) -> float:
    """Print pairs per second and latency; returns the largest difference of scores."""
    rater, collate = NaiveRater(checkpoint, None, judge.device), NaiveCollate(checkpoint)
    rater.begin_with(judge.trainable())
    rater.eval()
    pairs = [pair for pair, _ in items]
    warm_scorer = PairScorer(judge)
    waits: dict[str, list[float]] = {"naive loop": [], "a call for each pair": []}

    def one_by_one() -> None:
        scorer = PairScorer(judge)
        waits["a call for each pair"] += _latencies(lambda pair: list(scorer.predict([pair])), pairs)

    def naive_loop() -> None:
        waits["naive loop"] += _latencies(lambda item: rater.score(iter([collate([item])])), items)

    ways: dict[str, Callable[[], object]] = {
        "naive loop": naive_loop,
        "naive, batches of 16": lambda: rater.score(iter([collate(items)])),
        "a call for each pair": one_by_one,
        "one call": lambda: scores(judge, pairs),
        "one call, clips heard before": lambda: list(warm_scorer.predict(pairs)),
    }
    seconds = in_turns(ways, rounds)[judge.device.type != "cuda"]
    table = Table("scoring", "pairs/s", "times the naive loop (median, range)", "latency p50, p95 (ms)")
    for name, durations in seconds.items():
        p50, p95 = np.percentile(waits.get(name, [0]), [50, 95]) * 1e3
        pace = f"{len(pairs) / statistics.median(durations):.2f}"
        latency = f"{p50:.0f}, {p95:.0f}" if name in waits else ""
        table.add_row(name, pace, spread(ratios(seconds["naive loop"], durations)), latency)
    console.print(table)
    return float((scores(judge, pairs) - rater.score(collate([item]) for item in items)).abs().max())


def compare_shared(console: Console, judge: EmpathyJudge, rounds: int) -> float:
    """Print what a shared context saves; returns the largest difference of scores."""
    rng = np.random.default_rng(0)
    headers = ("times 16 calls (median, range)", "times one call (median, range)", "scores differ by")
    table = Table("context, responses", "ms/pair", *headers, title=f"one context, {RESPONSES} responses")
    apart = []
    for lengths in SHARED:
        if max(lengths) > judge.backbone.max_seconds:
            continue
        contexts, responses = ([_noise(rng, length) for _ in range(RESPONSES)] for length in lengths)
        separate = [make_pair(str(n), *clips) for n, clips in enumerate(zip(contexts, responses, strict=True))]
        shared = [make_pair(str(n), contexts[0], clip) for n, clip in enumerate(responses)]

        def call(pairs: Sequence[Pair], at_once: int) -> torch.Tensor:
            return torch.cat([scores(judge, pairs[n : n + at_once]) for n in range(0, len(pairs), at_once)])

        ways: dict[str, Callable[[], object]] = {
            "calls": lambda pairs=separate: call(pairs, 1),
            "call": lambda pairs=separate: call(pairs, RESPONSES),
            "shared": lambda pairs=shared: call(pairs, RESPONSES),
        }
        seconds = in_turns(ways, rounds)[judge.device.type != "cuda"]
        apart.append(float((call(shared, RESPONSES) - call(shared, 1)).abs().max()))
        times = [spread(ratios(seconds[name], seconds["shared"])) for name in ("calls", "call")]
        pace = f"{1e3 * statistics.median(seconds['shared']) / RESPONSES:.0f}"
        table.add_row(f"{lengths[0]:g} s, {lengths[1]:g} s", pace, *times, f"{apart[-1]:.1e}")
    console.print(table)
    return max(apart)


def _latencies(compute: Callable, items: Sequence) -> list[float]:
    """Wall time of `compute` for each item (seconds)."""
    ends = [time.perf_counter()]
    for item in items:
        compute(item)
        ends.append(time.perf_counter())
    return [end - start for start, end in pairwise(ends)]


def _noise(rng: np.random.Generator, seconds: float) -> Clip:
    return Clip(rng.normal(scale=0.1, size=int(seconds * 16_000)).astype(np.float32), 16_000)


if __name__ == "__main__":
    main()
