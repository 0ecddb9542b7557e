"""Memory and time of one optimisation step and of one scoring batch, beside what `train --dry-run` predicts.

A checkpoint of random weights is written in the hub's layout and loaded by the code that loads real ones. The shapes
`7b` are those of Qwen/Qwen2-Audio-7B-Instruct and of the thinker of Qwen/Qwen2.5-Omni-7B (16 GB of disk, a GPU); small
ones run anywhere. Steps are those of training: forward and backward pass, AdamW; on a GPU with bfloat16 weights and
`bf16-mixed`, memory being what the allocator held at most; on the CPU in float32 (its bfloat16 takes seconds a layer),
every allocation of a step being followed. One line of JSON for each case goes to `--out`.
Run: `python benchmarks/step.py` on a CPU, `python benchmarks/step.py --shapes 7b` on a GPU
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Dimension, Pair, Turn
from empathy_judge.models.backbones.common.base import Inputs
from empathy_judge.models.judge import EmpathyJudge, JudgeSettings
from empathy_judge.models.lora import LoraSettings
from empathy_judge.models.recompute import recompute_activations
from empathy_judge.models.scoring import PairScorer, Scored
from empathy_judge.train.memory import LiveMemory, StepMemory, step_memory
from random_checkpoint import FAMILIES, write_checkpoint

LIMIT = 0.15
"""Largest share by which the prediction may be off."""
STEPS = 5
RATE = 16_000


@dataclass(frozen=True)
class Case:
    """What is measured."""

    family: str
    quantization: str
    gradient_checkpointing: bool
    batch: int
    seconds: float


def main() -> None:
    """Print a line for each case; exit with 1 if a prediction is off by more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=["small", "7b"], default="small")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each clip")
    parser.add_argument("--out", type=Path, help="file that a line of JSON for each case is added to")
    options = parser.parse_args()
    device = torch.device(options.device)
    worst = 0.0
    for family in options.families:
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(family, options.shapes, Path(folder))
            for quantization, checkpointing in (("none", False), ("none", True), ("nf4", True)):
                case = Case(family, quantization, checkpointing, options.batch, options.seconds)
                found = {"shapes": options.shapes, **asdict(case), **measure(case, folder, device)}
                print(json.dumps(found), flush=True)
                if options.out is not None:
                    with open(options.out, "a", encoding="utf-8") as file:
                        file.write(json.dumps(found) + "\n")
                worst = max(worst, abs(found["predicted_over_measured"] - 1))
    print(f"largest error of a prediction: {worst:.0%}")
    sys.exit(0 if worst <= LIMIT else 1)


# ---------------------------------------------------------------- measuring


def measure(case: Case, folder: str, device: torch.device) -> dict[str, float | str]:
    """Run steps and a scoring batch; memory in bytes, times in seconds."""
    mixed_precision = device.type == "cuda"
    settings = JudgeSettings(
        backbone=folder,
        dtype="bfloat16" if mixed_precision else "float32",
        quantization=case.quantization,  # pyright: ignore[reportArgumentType] one of the two
        lora=LoraSettings(rank=16, alpha=32.0, dropout=0.05),
    )
    predicted = step_memory(
        settings,
        batch=case.batch,
        seconds=case.seconds,
        mixed_precision=mixed_precision,
        gradient_checkpointing=case.gradient_checkpointing,
    )
    start = time.perf_counter()
    judge = EmpathyJudge(settings, [Dimension("any", 1, 5, 1)]).to(device)
    loading = time.perf_counter() - start
    if case.gradient_checkpointing:
        recompute_activations(judge.network)
    for name, module in judge.named_modules():
        module.train("lora_" in name)  # the frozen backbone is in evaluation mode
    pairs = make_pairs(case)
    inputs = judge.build_inputs(pairs).to(device)
    optimizer = torch.optim.AdamW(judge.trainable().values(), lr=1e-4)
    memory, seconds = run_steps(judge, inputs, optimizer)
    tokens = int(inputs.attention_mask.sum())
    scoring = score(judge, pairs)
    del judge, optimizer, inputs
    gc.collect()
    return {
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokens": tokens,
        "load_seconds": round(loading, 2),
        "step_seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds),
        "score_seconds": round(scoring, 3),
        "predicted_bytes": round(expected(predicted)),
        "measured_bytes": memory,
        "predicted_over_measured": round(expected(predicted) / memory, 3),
    }


def expected(predicted: StepMemory) -> float:
    """The prediction without the CUDA runtime, which no allocator sees."""
    return predicted.weights + predicted.gradients + predicted.optimizer + predicted.activations


def make_pairs(case: Case) -> list[Pair]:
    """Noise, different in each clip."""
    noise = np.random.default_rng(0).normal(scale=0.1, size=(case.batch, 2, round(case.seconds * RATE)))
    clips = [[Clip(samples.astype(np.float32), RATE) for samples in pair] for pair in noise]
    return [Pair(f"{n}", response, (Turn("user", context),)) for n, (context, response) in enumerate(clips)]


def run_steps(judge: EmpathyJudge, inputs: Inputs, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Most memory of a step (bytes), and the median time of one (seconds)."""
    device = judge.device.type
    step(judge, inputs, optimizer)  # the optimizer makes its moments
    there = [*judge.parameters(), *(value for state in optimizer.state.values() for value in state.values())]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step(judge, inputs, optimizer)
        torch.cuda.synchronize()
        memory = torch.cuda.max_memory_allocated()
    else:
        with LiveMemory(there) as live:
            step(judge, inputs, optimizer)
        memory = live.peak + sum(map(stored_bytes, there))
    times = []
    for _ in range(STEPS if device == "cuda" else 1):
        start = time.perf_counter()
        step(judge, inputs, optimizer)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return memory, sorted(times)[len(times) // 2]


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, with the scales of one in 4 bits."""
    state = getattr(tensor, "quant_state", None)
    return tensor.nbytes + (0 if state is None else state.absmax.nbytes + state.state2.absmax.nbytes)


def step(judge: EmpathyJudge, inputs: Inputs, optimizer: torch.optim.Optimizer) -> None:
    """One optimisation step, as training makes it."""
    with torch.autocast(judge.device.type, torch.bfloat16, enabled=judge.device.type == "cuda"):
        loss = (judge(inputs) / 4).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def score(judge: EmpathyJudge, pairs: list[Pair]) -> float:
    """Seconds to score a batch, audio included, after one for warming up."""
    judge.eval()
    list(PairScorer(judge, len(pairs)).score(pairs))
    start = time.perf_counter()
    found = [one for _, one in PairScorer(judge, len(pairs)).score(pairs)]
    seconds = time.perf_counter() - start
    assert all(isinstance(one, Scored) and one.score.isfinite().all() for one in found)
    return seconds


if __name__ == "__main__":
    main()
