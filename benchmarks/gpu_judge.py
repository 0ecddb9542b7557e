"""A judge in memory that `train` and the naive loop share, for `gpu.py`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.train import module as training
from empathy_judge.train.memory import StepMemory
from naive import NaiveRater, naive_around
from rate import matrix_rate
from transformers.modeling_layers import GradientCheckpointingLayer

CONFIGS = Path(__file__).parents[1] / "configs"
PREDICTED_AT = 4
"""Pairs in the batch that a dry run is made of; activations grow with their number."""


@dataclass
class Bench:
    """A judge in memory, and what it is measured with."""

    options: argparse.Namespace
    folder: Path
    device: torch.device
    judge: EmpathyJudge
    batch: int
    predicted: dict[bool, StepMemory]
    rater: NaiveRater | None = None
    matrix_rate: float = 0.0

    def measure_machine(self) -> float:
        """Products per second of large matrices now (FLOP/s), in the dtype of the frozen weights."""
        dtype = next(self.judge.network.parameters()).dtype
        self.matrix_rate = matrix_rate(self.device, dtype, self.options.matrix)
        return self.matrix_rate

    def naive(self) -> NaiveRater:
        """The naive model, built when it is first asked for."""
        if self.rater is None:
            options = self.options
            self.rater = naive_around(self.judge, options.family, options.shapes, str(self.folder / "backbone"))
        return self.rater

    @property
    def data(self) -> PairDataset:
        """The pairs."""
        return PairDataset.load(self.folder / "data")


def words(options: argparse.Namespace, folder: Path, values: dict[str, str]) -> list[str]:
    """Arguments of `train`: the recipe, on this machine, with other values."""
    on_gpu = options.device == "cuda"
    given = {
        "model.backbone": str(folder / "backbone"),
        "data.path": str(folder / "data"),
        "data.num_workers": str(options.workers),
        "trainer.accelerator": "gpu" if on_gpu else "cpu",
        "trainer.devices": "1",
        "trainer.logger": "false",
        "trainer.max_epochs": "1000",
        "trainer.check_val_every_n_epoch": "1000",
        **values,
    }
    return [
        "--config",
        str(CONFIGS / f"{options.family}.yaml"),
        *(f"--{name}={value}" for name, value in given.items()),
    ]


def predicted_bytes(found: StepMemory, batch: int) -> float:
    """What a dry run says of a batch of this size."""
    return found.total + found.activations * (batch / PREDICTED_AT - 1)


@contextmanager
def on_this_judge(bench: Bench) -> Iterator[None]:
    """Let `train` take the judge that is in memory, leave it where it is, and forget what it did to its layers."""
    judge, plain = bench.judge, training.EmpathyJudge
    training.EmpathyJudge = lambda *_, **__: judge  # pyright: ignore[reportAttributeAccessIssue]
    # at its end Lightning carries a model to main memory
    judge._apply = lambda *_, **__: judge  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        training.EmpathyJudge = plain
        del judge._apply
        for layer in judge.network.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                vars(layer).pop("forward", None)
                layer._compiled_call_impl = None
        torch._dynamo.reset()
        judge.zero_grad()
        judge.eval()
