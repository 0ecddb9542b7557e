"""Whether the naive way and ours are the same model: their losses on the same batches, and their scores afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.models.artifact import load_run
from empathy_judge.models.heads.prediction import Prediction
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.scoring import PairScorer
from empathy_judge.train.collate import Batch
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train
from naive import Collate, NaiveRater, read_items
from torch import Tensor
from ways import Place, common_arguments


@dataclass
class Recorder(L.Callback):
    """What a training run did.

    Attributes:
        beginning: What was trained, before the first step.
        positions: Of each batch, the positions of its pairs in the training split.
        rates: Learning rates of each step, as shares of their peaks.
        losses: Of each step.
    """

    beginning: dict[str, Tensor] = field(default_factory=dict)
    positions: list[list[int]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copy what is trained."""
        assert isinstance(pl_module, JudgeModule)
        self.beginning = {name: weight.detach().clone() for name, weight in pl_module.built.trainable().items()}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Note batch and rate."""
        group = trainer.optimizers[0].param_groups[0]
        self.positions.append(batch.indices.tolist())
        self.rates.append(group["lr"] / group["initial_lr"])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Note the loss."""
        self.losses.append(outputs["loss"].item())


@dataclass(frozen=True)
class Same:
    """How far both are apart after the same steps.

    Attributes:
        losses: Of our steps.
        loss_difference: Greatest between the two at one step.
        score_difference: Greatest between the scores of one pair (rating points).
        moved: Greatest change of a score by the training (rating points).
    """

    losses: list[float]
    loss_difference: float
    score_difference: float
    moved: float


def train_both(
    place: Place, folder: Path, steps: int, arguments: Sequence[str] = ()
) -> tuple[Same, EmpathyJudge, NaiveRater]:
    """Train by the command `train`, then naively on the same batches from the same beginning, and compare.

    Args:
        place: Where and on what.
        folder: For the run.
        steps: Number of steps.
        arguments: Further ones of the command, such as those of a cache.

    Returns:
        What was found, ours as it was stored, and the naive one.
    """
    recorder = Recorder()
    few = ["--trainer.check_val_every_n_epoch=1", "--trainer.max_epochs=1", f"--trainer.limit_train_batches={steps}"]
    train([*common_arguments(place, folder), *few, *arguments], [recorder])
    device = torch.device(place.device)
    rater = NaiveRater(place.checkpoint, None, device)
    rater.begin_with({name: value.to(device) for name, value in recorder.beginning.items()})
    dataset = PairDataset.load(place.data)
    items, collate = read_items(dataset, "train"), Collate(place.checkpoint)
    probe = items[: 2 * place.batch]
    batches = [collate(probe[start : start + place.batch]) for start in range(0, len(probe), place.batch)]
    before = rater.score(iter(batches))
    optimizer = rater.optimizer()
    peaks = [group["lr"] for group in optimizer.param_groups]
    losses = []
    for positions, rate in zip(recorder.positions, recorder.rates, strict=True):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * rate
        losses.append(rater.step(collate([items[position] for position in positions]).to(device), optimizer))
    judge = load_run(folder).judge.to(device).eval()
    after, ours = rater.score(iter(batches)), scores(judge, [pair for pair, _ in probe], place.batch)
    same = Same(
        recorder.losses,
        max(abs(one - other) for one, other in zip(losses, recorder.losses, strict=True)),
        float((after - ours).abs().max()),
        float((after - before).abs().max()),
    )
    return same, judge, rater


def scores(judge: EmpathyJudge, pairs: Sequence[Pair], batch: int) -> Tensor:
    """Our scores of these pairs `(pairs,)`, nothing known of them before."""
    found = [prediction for _, prediction in PairScorer(judge, batch).predict(pairs)]
    assert all(isinstance(prediction, Prediction) for prediction in found)
    return torch.cat([prediction.score for prediction in found])  # pyright: ignore[reportAttributeAccessIssue] see above
