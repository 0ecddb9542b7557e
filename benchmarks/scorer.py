"""Scoring: pairs per second and latency against the naive loop, in one run: `python benchmarks/scorer.py --shapes mid`.

The naive loop is what one writes today with plain transformers and PEFT (`naive`): one pair after the other, each clip
padded to 30 s, the LM head computed and thrown away. Both are the same model with the same weights, and scores must
agree. Clips are as in conversation (`conversations`, 2 to 8 s, 4 responses to each context). Ratios are of CPU time on
a CPU, which other programs hardly change, and of wall time on a GPU; latency is wall time of one call with one pair.

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
from conversations import Conversations, write_conversations
from empathy_judge.audio_inputs import make_pair
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.models.heads import Prediction
from empathy_judge.models.judge import EmpathyJudge, JudgeSettings
from empathy_judge.models.layers import compile_layers
from empathy_judge.models.lora import LoraSettings
from empathy_judge.models.scoring import PairScorer, choose_device
from naive import ALPHA, MAXIMUM, MINIMUM, RANK, Collate, NaiveRater, read_items
from random_checkpoint import write_checkpoint
from rich.console import Console
from rich.table import Table

TOLERANCE = 1e-4
"""Largest difference of scores between two that are the same model in float32, rating points."""
SHARED = ((6.0, 6.0), (10.0, 5.0), (15.0, 4.0))
"""Seconds of the context and of each response."""
RESPONSES = 16


def main() -> None:
    """Print both tables; exit with 1 if scores differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=["nano", "mid", "7b"], default="nano", help="size of the backbone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=16, help="in each round")
    parser.add_argument(
        "--measure", nargs="+", choices=["naive", "shared", "compiled"], default=["naive", "shared"],
        help="against the naive loop, one context for many responses, compiled layers (default: naive shared)",
    )  # fmt: skip
    options = parser.parse_args()
    device = choose_device(None)
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        judge, rater, collate = same_model(folder, options.shapes, device)
        write_conversations(folder / "data", Conversations(options.pairs))
        items = read_items(PairDataset.load(folder / "data"), "train")
        console.print(f"{options.shapes} | {device} | {torch.get_num_threads()} threads | torch {torch.__version__}")
        pairs = [pair for pair, _ in items]
        apart = []
        if "naive" in options.measure:
            apart.append(compare_with_naive(console, judge, rater, collate, items, options.rounds))
        if "shared" in options.measure:
            apart.append(compare_shared(console, judge, options.rounds))
        if "compiled" in options.measure:
            apart.append(compare_compiled(console, judge, pairs, options.rounds))
    print(f"scores differ by {max(apart):.1e} points at most; accepted {TOLERANCE:.0e}")
    sys.exit(0 if max(apart) <= TOLERANCE or device.type != "cpu" else 1)


def same_model(folder: Path, shapes: str, device: torch.device) -> tuple[EmpathyJudge, NaiveRater, Collate]:
    """Ours and the naive one, with LoRA that does something, of the same weights."""
    checkpoint = Path(NANO_FOLDER)
    if shapes != "nano":
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        write_checkpoint("qwen2_audio", shapes, checkpoint)
    torch.manual_seed(0)
    settings = JudgeSettings(
        str(checkpoint),
        dtype="bfloat16" if device.type == "cuda" else "float32",
        lora=LoraSettings(rank=RANK, alpha=ALPHA),
    )
    judge = EmpathyJudge(settings, [Dimension("fit", MINIMUM, MAXIMUM)]).to(device)
    with torch.no_grad():
        for name, weight in judge.trainable().items():
            weight.add_(0.02 * torch.randn_like(weight) if "lora_" in name else 0.1 * torch.randn_like(weight))
    rater = NaiveRater(str(checkpoint), None, device)
    rater.begin_with(judge.trainable())
    return judge.eval(), rater.eval(), Collate(str(checkpoint))


# ---------------------------------------------------------------- against the naive loop


def compare_with_naive(
    console: Console,
    judge: EmpathyJudge,
    rater: NaiveRater,
    collate: Collate,
    items: Sequence[tuple[Pair, float]],
    rounds: int,
) -> float:
    """Print pairs per second and latency; returns the largest difference of scores."""
    pairs = [pair for pair, _ in items]
    known = PairScorer(judge)

    def one_by_one() -> list[float]:
        scorer = PairScorer(judge)
        return _ticks(lambda pair: list(scorer.predict([pair])), pairs)

    def naive_loop() -> list[float]:
        return _ticks(lambda item: list(rater.score(iter([collate([item])]))), items)

    ways: dict[str, Callable[[], object]] = {
        "naive loop": naive_loop,
        "naive, batches of 16": lambda: rater.score(iter([collate(items)])),
        "a call for each pair": one_by_one,
        "one call": lambda: list(PairScorer(judge).predict(pairs)),
        "one call, clips heard before": lambda: list(known.predict(pairs)),
    }
    ours = torch.cat([_score(found) for _, found in PairScorer(judge).predict(pairs)])
    apart = float((ours - rater.score(iter([collate([item]) for item in items]))).abs().max())
    seconds, latencies = _in_turns(ways, rounds, judge.device)
    table = Table("scoring", "pairs/s", "times the naive loop (median, range)", "latency p50, p95 (ms)")
    for name, own in seconds.items():
        ratios = [base / value for value, base in zip(own, seconds["naive loop"], strict=True)]
        waits = latencies[name]
        p50, p95 = np.percentile(waits, [50, 95]) * 1e3 if waits else (0, 0)
        pace = f"{len(pairs) / statistics.median(own):.2f}"
        table.add_row(name, pace, _spread(ratios), f"{p50:.0f}, {p95:.0f}" if waits else "")
    console.print(table)
    return apart


# ---------------------------------------------------------------- one context, many responses


def compare_shared(console: Console, judge: EmpathyJudge, rounds: int) -> float:
    """Print what a shared context saves; returns the largest difference of scores."""
    rng = np.random.default_rng(0)
    headers = ("times 16 calls (median, range)", "times one call (median, range)", "scores differ by")
    table = Table("context, responses", "ms/pair", *headers, title=f"one context, {RESPONSES} responses")
    apart = []
    for context, response in SHARED:
        if max(context, response) > judge.backbone.max_seconds:
            continue
        contexts, responses = ([_noise(rng, s) for _ in range(RESPONSES)] for s in (context, response))
        separate = [make_pair(str(n), *clips) for n, clips in enumerate(zip(contexts, responses, strict=True))]
        shared = [make_pair(str(n), contexts[0], clip) for n, clip in enumerate(responses)]

        def calls(pairs: Sequence[Pair] = separate) -> None:
            for pair in pairs:
                list(PairScorer(judge).predict([pair]))

        ways: dict[str, Callable[[], object]] = {
            "calls": calls,
            "call": lambda pairs=separate: list(PairScorer(judge).predict(pairs)),
            "shared": lambda pairs=shared: list(PairScorer(judge).predict(pairs)),
        }
        seconds, _ = _in_turns(ways, rounds, judge.device)
        together = torch.cat([_score(found) for _, found in PairScorer(judge).predict(shared)])
        alone = torch.cat([_score(next(PairScorer(judge).predict([pair]))[1]) for pair in shared])
        apart.append(float((together - alone).abs().max()))
        ratios = [
            [base / own for own, base in zip(seconds["shared"], seconds[name], strict=True)]
            for name in ("calls", "call")
        ]
        pace = f"{1e3 * statistics.median(seconds['shared']) / RESPONSES:.0f}"
        table.add_row(f"{context:g} s, {response:g} s", pace, *map(_spread, ratios), f"{apart[-1]:.1e}")
    console.print(table)
    return max(apart)


def compare_compiled(console: Console, judge: EmpathyJudge, pairs: Sequence[Pair], rounds: int) -> float:
    """Print what compiled layers save, compiling not counted; returns the largest difference of scores."""

    def score() -> object:
        return list(PairScorer(judge).predict(pairs))

    plain, _ = _in_turns({"plain": score}, rounds, judge.device)
    before = torch.cat([_score(found) for _, found in PairScorer(judge).predict(pairs)])
    compile_layers(judge.network, leave=[])
    begun = time.perf_counter()
    after = torch.cat([_score(found) for _, found in PairScorer(judge).predict(pairs)])
    seconds = time.perf_counter() - begun
    compiled, _ = _in_turns({"compiled": score}, rounds, judge.device)
    ratio = statistics.median(plain["plain"]) / statistics.median(compiled["compiled"])
    apart = float((after - before).abs().max())
    console.print(f"compiled: {ratio:.2f} times one call without, after {seconds:.0f} s; scores differ by {apart:.1e}")
    return apart


def _in_turns(
    ways: dict[str, Callable[[], object]], rounds: int, device: torch.device
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each way in each round, and the latencies that a way returns, after a warm-up."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    latencies: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun = clock()
            found = way()
            seconds[name].append(clock() - begun)
            if isinstance(found, list) and isinstance(found[0], float):
                latencies[name] += found
    return seconds, latencies


def _ticks(compute: Callable, items: Sequence) -> list[float]:
    """Wall time of each."""
    ends = [time.perf_counter()]
    for item in items:
        compute(item)
        ends.append(time.perf_counter())
    return [end - begun for begun, end in pairwise(ends)]


def _noise(rng: np.random.Generator, seconds: float) -> Clip:
    return Clip(rng.normal(scale=0.1, size=int(seconds * 16_000)).astype(np.float32), 16_000)


def _score(found: object) -> torch.Tensor:
    assert isinstance(found, Prediction), found
    return found.score


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


if __name__ == "__main__":
    main()
