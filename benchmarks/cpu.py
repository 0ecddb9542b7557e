"""Speed on a CPU against what one would write without the package: `python benchmarks/cpu.py WHAT`, each in one run.

train
    Pairs per second of the command `train` against plain transformers and PEFT, see `peers`.
score
    Pairs per second and latency against the naive loop (`naive`): one pair after the other, each clip padded to 30 s,
    the LM head computed and thrown away. Both are the same model with the same weights, and scores must agree. Clips
    are as in conversation (`materials`, 2 to 8 s, 4 responses to each context). Ratios are of CPU time on a CPU, which
    other programs hardly change, and of wall time on a GPU; latency is wall time of one call with one pair. The second
    table is about one context with 16 responses, against 16 pairs with 16 contexts as long: what is the same for all
    of them (the context's states in the audio tower and in the language model) is computed once, so that the longer
    the context compared with the responses, the more is gained.
load
    Memory to load the thinker out of a whole Qwen2.5-Omni checkpoint, against the official class for the whole. A
    checkpoint of random weights (3 GB) is written in the hub's layout: thinker, talker and vocoder, bfloat16, in
    shards. Each side loads it in a process of its own and then reads every weight that it holds once, as moving it to
    a GPU would: weights that are only mapped from the file would not count otherwise. Peaks of resident memory are the
    kernel's, above what the process had after its imports. In another type than that of the file, weights are copies
    and their pages in the file, which the system can drop, stay mapped until all are read.
bootstrap
    Cluster bootstrap of Spearman for several judges against a loop over SciPy, which does what one would write: draw
    groups, repeat their items, `scipy.stats.spearmanr` for each judge. Only a few of its resamples are run; both sides
    get the same draws, and their values are compared. Ours has as many threads as there are cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import peers
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.rank_draws import spearman_draws
from empathy_judge.models.backbones import load_backbone, qwen_omni
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings, LoraSettings
from empathy_judge.scoring.audio_inputs import make_pair
from empathy_judge.scoring.predictor import Predictor, choose_device
from materials import hub_name, write_conversations, write_weights
from naive import ALPHA, MAXIMUM, MINIMUM, RANK, NaiveCollate, NaiveRater, read_items, scores
from rich.console import Console
from rich.table import Table
from scipy import stats
from timing import in_turns, memory, ratios, reset_peak, spread
from transformers import (
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2Tokenizer,
    WhisperFeatureExtractor,
)


def main() -> None:
    """Exit with 1 if two that should agree differ, or the thinker takes too much memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whats = parser.add_subparsers(required=True)
    train = whats.add_parser("train")
    peers.add_options(train)
    train.set_defaults(measure=peers.measure)
    score = whats.add_parser("score")
    score.add_argument("--shapes", choices=["nano", "mid", "7b"], default="nano", help="size of the backbone")
    score.add_argument("--rounds", type=int, default=5)
    score.add_argument("--pairs", type=int, default=16, help="in each round")
    score.set_defaults(measure=measure_scoring)
    load = whats.add_parser("load")
    load.add_argument("--side", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    load.set_defaults(measure=measure_loading)
    whats.add_parser("bootstrap").set_defaults(measure=measure_bootstrap)
    options = parser.parse_args()
    sys.exit(0 if options.measure(options) else 1)


# ---------------------------------------------------------------- scoring

SHARED = ((6.0, 6.0), (10.0, 5.0), (15.0, 4.0))
"""Seconds of the context and of each response."""
RESPONSES = 16


def measure_scoring(options: argparse.Namespace) -> bool:
    """Print both tables; whether scores agree."""
    device = choose_device(None)
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_conversations(folder / "data", options.pairs)
        checkpoint = peers.prepare(folder, options.shapes, 1).checkpoint
        judge = random_judge(checkpoint, device)
        items = read_items(PairDataset.load(folder / "data"), "train")
        console.print(f"{options.shapes} | {device} | {torch.get_num_threads()} threads | torch {torch.__version__}")
        apart = compare_with_naive(console, judge, checkpoint, items, options.rounds)
        apart = max(apart, compare_shared(console, judge, options.rounds))
    print(f"scores differ by {apart:.1e} points at most; at most {peers.TOLERANCE:.0e} is expected on a CPU")
    return apart <= peers.TOLERANCE or device.type != "cpu"


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
    judge.merge()  # as `Scorer` does
    pairs = [pair for pair, _ in items]
    warm_scorer = Predictor(judge)
    waits: dict[str, list[float]] = {"naive loop": [], "a call for each pair": []}

    def one_by_one() -> None:
        scorer = Predictor(judge)
        waits["a call for each pair"] += _latencies(lambda pair: list(scorer.predict([pair])), pairs)

    def naive_loop() -> None:
        waits["naive loop"] += _latencies(lambda item: rater.score(iter([collate([item])])), items)

    ways: dict[str, Callable[[], object]] = {
        "naive loop": naive_loop,
        "naive, batches of 16": lambda: rater.score(iter([collate(items)])),
        "a call for each pair": one_by_one,
        "one call": lambda: scores(judge, pairs),
        "one call, clips already encoded": lambda: list(warm_scorer.predict(pairs)),
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


# ---------------------------------------------------------------- loading

LIMIT = 1.2
"""Largest ratio of peak memory to the thinker's own bytes that passes, in the type of the file."""
SHARD = 500_000_000
_LANGUAGE_MODEL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
}  # fmt: skip


def measure_loading(options: argparse.Namespace) -> bool:
    """Print both sides; whether the thinker takes as little as it should."""
    if options.side:
        print(json.dumps(load_side(*options.side)))
        return True
    with tempfile.TemporaryDirectory() as folder:
        size = write_checkpoint(Path(folder))
        print(f"checkpoint: {size / 1e6:.0f} MB; of it the listening half of the thinker:", end=" ", flush=True)
        sides = {}
        for side in ("thinker", "thinker at half depth", "thinker in float32", "whole"):
            command = [sys.executable, __file__, "load", "--side", side, folder]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            sides[side] = json.loads(ran.stdout.splitlines()[-1])
    stored, converted = sides["thinker"]["weights"], sides["thinker in float32"]["weights"]
    print(f"{stored / 1e6:.0f} MB")
    for (side, result), base in zip(sides.items(), (stored, stored, converted, stored), strict=True):
        print(
            f"{side}: {result['weights'] / 1e6:.0f} MB in {result['seconds']:.1f} s; peak above imports "
            f"{result['peak'] / 1e6:.0f} MB, {result['peak'] / base:.2f} times the thinker's bytes"
        )
    return sides["thinker"]["peak"] <= LIMIT * stored


def whole_model() -> Qwen2_5OmniConfig:
    """Thinker, talker and vocoder in shapes that take 3 GB."""
    return Qwen2_5OmniConfig(
        thinker_config={
            "audio_config": {
                "d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
                "output_dim": 1024,
            },
            "vision_config": {"depth": 8, "hidden_size": 768, "intermediate_size": 2048, "out_hidden_size": 1024},
            "text_config": _LANGUAGE_MODEL,
        },
        talker_config={"embedding_size": 1024, "head_dim": 64, **_LANGUAGE_MODEL},
    )  # fmt: skip


def write_checkpoint(folder: Path) -> int:
    """Write random weights under the names and in the shapes of the whole model; returns their bytes."""
    config = whole_model()
    with torch.device("meta"):
        shapes = Qwen2_5OmniForConditionalGeneration(config).state_dict()
    weights = {hub_name(key): tensor.shape for key, tensor in shapes.items()}
    noise = torch.randn(max(shape.numel() for shape in weights.values())).mul_(0.02).bfloat16()

    def draw(key: str) -> torch.Tensor:
        return noise[: weights[key].numel()].reshape(weights[key]).clone()

    parameters = write_weights(weights, draw, folder, SHARD)
    config.save_pretrained(folder)
    torch.save({}, folder / "spk_dict.pt")  # the official class asks for speakers
    tokenizer = Qwen2Tokenizer(extra_special_tokens={"audio_token": "<|AUDIO|>"})
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=128, chunk_length=300).save_pretrained(folder)
    return 2 * parameters


def load_side(side: str, folder: str) -> dict[str, float]:
    """Load in this process; bytes above what it has now, and seconds."""
    load = {
        "thinker": lambda: load_backbone(Checkpoint(folder, dtype=torch.bfloat16)).network,
        "thinker at half depth": lambda: load_backbone(Checkpoint(folder, dtype=torch.bfloat16, depth=0.5)).network,
        "thinker in float32": lambda: load_backbone(Checkpoint(folder, dtype=torch.float32)).network,
        "whole": lambda: Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16),
    }[side]
    assert qwen_omni  # imported before the baseline
    reset_peak(torch.device("cpu"))
    before, start = memory("VmRSS"), time.perf_counter()
    network = load()
    seconds = time.perf_counter() - start
    for weight in network.parameters():
        weight.sum()
    size = sum(weight.nbytes for weight in network.parameters())
    return {"weights": size, "peak": memory("VmHWM") - before, "seconds": seconds}


# ---------------------------------------------------------------- bootstrap

ITEMS, JUDGES, RESAMPLES = 100_000, 8, 10_000
PER_GROUP, LOOP = 8, 5  # items of a group; resamples of the loop
LIKE = 1e-9
"""Largest difference between the two that passes."""


def measure_bootstrap(_: argparse.Namespace) -> bool:
    """Print the table; whether the values agree."""
    # judges without ties, means of five raters on a scale of five, and groups of `PER_GROUP` items
    rng = np.random.default_rng(0)
    truth = rng.normal(3, 1, ITEMS)
    human = np.clip(np.round(truth[:, None] + rng.normal(0, 1, (ITEMS, 5))), 1, 5).mean(axis=1)
    scores = truth + rng.normal(0, 1, (JUDGES, ITEMS))
    groups = (np.arange(ITEMS) // PER_GROUP).astype(str)

    reset_peak(torch.device("cpu"))
    before, start = memory("VmRSS"), time.perf_counter()
    resamples = Resamples.sample(groups, RESAMPLES, seed=0)
    draws = spearman_draws(scores, human, resamples.codes, resamples.counts)
    ours, peak = time.perf_counter() - start, memory("VmHWM") - before
    start = time.perf_counter()
    expected = []
    for row in resamples.counts[:LOOP]:
        items = np.repeat(np.arange(len(human)), row[resamples.codes].astype(int))
        expected.append([stats.spearmanr(score[items], human[items])[0] for score in scores])
    loop = (time.perf_counter() - start) * RESAMPLES / LOOP

    apart = float(np.abs(draws[:, :LOOP] - np.transpose(expected)).max())
    print(f"{RESAMPLES} resamples of {ITEMS} items in {len(set(groups))} groups, {JUDGES} judges")
    print(f"ours: {ours:.1f} s; loop over SciPy: {loop:.0f} s (from {LOOP} resamples); {loop / ours:.0f} times")
    print(f"largest difference of a value: {apart:.1e}; peak memory above imports and data: {peak / 1e6:.0f} MB")
    return apart <= LIKE


if __name__ == "__main__":
    main()
