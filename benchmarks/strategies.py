"""Time and memory of a training step under each strategy, and whether the judge that comes out is that of DDP.

A checkpoint of random weights and a dataset of chirps are written, and `empathy-judge train` trains a few steps with
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

import lightning as L
import numpy as np
import torch
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.assessment import Assessment
from empathy_judge.scorer import Scorer
from empathy_judge.train.run import train
from materials import Conversations, write_checkpoint, write_conversations
from timing import memory, synchronize

CONFIGS = Path(__file__).parents[1] / "configs"
STRATEGIES = ("ddp", "fsdp2", "zero2", "zero3")
WARM_UP = 3
WORKER = "--worker"


def main() -> None:
    """Print a line for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=["small", "7b"], default="small")
    parser.add_argument("--batch", type=int, default=4, help="pairs of each process")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each clip")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    options.devices = max(1, torch.cuda.device_count())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "backbone").mkdir()
        write_checkpoint("qwen2_audio", options.shapes, folder / "backbone")
        pairs, seconds = options.steps * options.batch * options.devices, (options.seconds, options.seconds)
        write_conversations(folder / "data", Conversations(pairs, validation=8, responses=1, seconds=seconds))
        expected: torch.Tensor | None = None
        for strategy in STRATEGIES:
            reason = missing(strategy)
            if reason:
                print(json.dumps({"strategy": strategy, "skipped": reason}), flush=True)
                continue
            found = measure(strategy, folder, options)
            scores = score(folder / strategy, folder / "data")
            expected = scores if expected is None else expected
            apart = float((scores - expected).abs().max())
            print(json.dumps({**found, f"scores_apart_from_{STRATEGIES[0]}": round(apart, 5)}), flush=True)


def missing(strategy: str) -> str | None:
    """Why a strategy cannot run here."""
    if strategy.startswith("zero") and not torch.cuda.is_available():
        return "no GPU"
    return "no DeepSpeed" if strategy.startswith("zero") and importlib.util.find_spec("deepspeed") is None else None


def measure(strategy: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train with a strategy in processes of its own."""
    on_gpu = torch.cuda.is_available()
    values = {
        "config": CONFIGS / f"strategy_{strategy}.yaml",
        "judge.backbone": folder / "backbone",
        "cache.what": "none",
        "judge.dtype": "bfloat16" if on_gpu else "float32",
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
    facts = folder / f"{strategy}.json"
    words = [f"--config={CONFIGS / 'nano.yaml'}", *(f"--{name}={value}" for name, value in values.items())]
    done = subprocess.run([sys.executable, __file__, WORKER, str(facts), *words], stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{strategy}: training failed")
    where = torch.cuda.get_device_name() if on_gpu else "CPU"
    fixed = {name: getattr(options, name) for name in ("shapes", "devices", "batch", "seconds")}
    return {"strategy": strategy, "device": where, "torch": torch.__version__, **fixed, **json.loads(facts.read_text())}


class StepClock(L.Callback):
    """Writes down time and memory of the steps of the first process."""

    def __init__(self, facts: Path) -> None:
        """Write there."""
        self._facts = facts
        self._ends: list[float] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A step is over."""
        synchronize(pl_module.device)
        self._ends.append(time.perf_counter())

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """All steps are."""
        if trainer.is_global_zero:
            on_gpu = pl_module.device.type == "cuda"
            peak = torch.cuda.max_memory_allocated() if on_gpu else memory("VmHWM")
            seconds = statistics.median(np.diff(self._ends)[WARM_UP:].tolist())
            found = {"step_seconds": round(seconds, 4), "peak_gib": round(peak / 2**30, 2)}
            self._facts.write_text(json.dumps(found))


def score(run: Path, data: Path) -> torch.Tensor:
    """Scores of the last checkpoint for all pairs `(pairs, dimensions)`."""
    scorer = Scorer.from_pretrained(run / "checkpoints" / "last.ckpt")
    found = list(scorer.assess_pairs(PairDataset.load(data).pairs))
    return torch.tensor([list(own.points.values()) for own in found if isinstance(own, Assessment)])


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        train(sys.argv[3:], watching=[StepClock(Path(sys.argv[2]))])
    else:
        main()
