"""Time and memory of a training step under each strategy, and whether the judge that comes out is that of DDP.

A checkpoint of random weights and a dataset of noise are written, and `empathy-judge train` trains a few steps with
each `configs/strategy_NAME.yaml` on all GPUs of the machine. The shapes `7b` are those of
Qwen/Qwen2-Audio-7B-Instruct (16 GB of disk); small ones run anywhere, there without ZeRO, which needs a GPU. One line
of JSON for each strategy.
Run: `python benchmarks/strategies.py --shapes 7b` on a machine with GPUs, `python benchmarks/strategies.py` on a CPU
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import soundfile
import torch
from empathy_judge.assessment import Assessment
from empathy_judge.data_modules.schema import DatasetCard, Dimension, PairDataset, write_dataset
from empathy_judge.scorer import Scorer
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train
from random_checkpoint import write_checkpoint

CONFIGS = Path(__file__).parents[1] / "configs"
RATE = 16_000
STRATEGIES = ("ddp", "fsdp2", "zero2", "zero3")
WARM_UP = 3
VALIDATED = 8
WORKER = "--worker"


def main() -> None:
    """Print a line for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=["small", "7b"], default="small")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--devices", type=int, default=max(1, torch.cuda.device_count()), help="processes")
    parser.add_argument("--batch", type=int, default=4, help="pairs of each process")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each clip")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "backbone").mkdir()
        write_checkpoint("qwen2_audio", options.shapes, folder / "backbone")
        write_noise(folder / "data", options.seconds, options.steps * options.batch * options.devices)
        expected: torch.Tensor | None = None
        for strategy in options.strategies:
            reason = missing(strategy)
            if reason:
                print(json.dumps({"strategy": strategy, "skipped": reason}), flush=True)
                continue
            found = measure(strategy, folder, options)
            scores = score(folder / strategy, folder / "data")
            expected = scores if expected is None else expected
            apart = float((scores - expected).abs().max())
            print(json.dumps({**found, f"scores_apart_from_{options.strategies[0]}": round(apart, 5)}), flush=True)


def missing(strategy: str) -> str | None:
    """Why a strategy cannot run here."""
    if strategy.startswith("zero") and not torch.cuda.is_available():
        return "no GPU"
    return "no DeepSpeed" if strategy.startswith("zero") and importlib.util.find_spec("deepspeed") is None else None


def measure(strategy: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train with a strategy in processes of its own."""
    on_gpu = torch.cuda.is_available()
    values = {
        "model.backbone": folder / "backbone",
        "model.cache": "none",
        "model.dtype": "bfloat16" if on_gpu else "float32",
        "data.path": folder / "data",
        "data.batch_size": options.batch,
        "data.eval_batch_size": options.batch,
        "trainer.accelerator": "gpu" if on_gpu else "cpu",
        "trainer.devices": options.devices,
        "trainer.precision": "bf16-mixed" if on_gpu else "32-true",
        "trainer.gradient_clip_val": 1.0,
        "trainer.max_epochs": 1,
        "trainer.logger": "false",
        "run": folder / strategy,
    }
    words = ["--config", str(CONFIGS / "nano.yaml"), "--config", str(CONFIGS / f"strategy_{strategy}.yaml")]
    words += [word for name, value in values.items() for word in (f"--{name}", str(value))]
    facts = folder / f"{strategy}.json"
    done = subprocess.run([sys.executable, __file__, WORKER, str(facts), *words], stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{strategy}: training failed")
    where = torch.cuda.get_device_name() if on_gpu else "CPU"
    fixed = {"shapes": options.shapes, "devices": options.devices, "batch": options.batch, "seconds": options.seconds}
    return {"strategy": strategy, "device": where, "torch": torch.__version__, **fixed, **json.loads(facts.read_text())}


def work(facts: Path, words: list[str]) -> None:
    """Train, and write down the time and memory of steps of the first process."""
    ends: list[float] = []

    def on_train_batch_end(module: JudgeModule, *_: object) -> None:
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    def on_train_end(module: JudgeModule) -> None:
        if module.global_rank == 0:
            steps = np.diff(ends)[WARM_UP:].tolist()
            peak = torch.cuda.max_memory_allocated() / 2**30 if module.device.type == "cuda" else None
            facts.write_text(json.dumps({"step_seconds": round(statistics.median(steps), 4), "peak_gib": peak}))

    module: Any = JudgeModule
    module.on_train_batch_end, module.on_train_end = on_train_batch_end, on_train_end
    train(words)


def score(run: Path, data: Path) -> torch.Tensor:
    """Scores of the last checkpoint for all pairs `(pairs, dimensions)`."""
    scorer = Scorer.from_pretrained(run / "checkpoints" / "last.ckpt")
    found = [own for _, own in scorer.assess_pairs(PairDataset.load(data).pairs)]
    return torch.tensor([list(own.points.values()) for own in found if isinstance(own, Assessment)])


def write_noise(folder: Path, seconds: float, trained: int) -> None:
    """Pairs of noise with random ratings, split."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    pairs, ratings = [], []
    for number in range(trained + VALIDATED):
        clips = {}
        for column in ("context_audio", "response_audio"):
            clips[column] = f"{column}{number}.wav"
            noise = rng.normal(scale=0.1, size=round(seconds * RATE))
            soundfile.write(folder / clips[column], noise.astype(np.float32), RATE)
        split = "train" if number < trained else "validation"
        pairs.append({"pair_id": f"{number}", "group_id": f"{number}", "split": split, **clips})
        ratings.append((f"{number}", "r", "any", int(rng.integers(1, 6))))
    card = DatasetCard("noise", (Dimension("any", 1, 5, 1),), source="noise", licence="CC0-1.0", synthetic=True)
    columns = ["pair_id", "rater_id", "dimension", "score"]
    write_dataset(folder, card, pd.DataFrame(pairs), pd.DataFrame(ratings, columns=columns))


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        work(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
