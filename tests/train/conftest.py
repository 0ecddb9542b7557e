"""Runs of these tests end where training ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from empathy_judge.models.scoring import PairScorer
from empathy_judge.train import run
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.validation_pictures import ValidationPictures


def scores_of(judge, pairs, batch_size: int = 4) -> np.ndarray:
    return torch.stack([found.score for _, found in PairScorer(judge, batch_size).predict(pairs)]).numpy()


@torch.no_grad()
def read_by(judge, pair) -> torch.Tensor:
    """Features before they are compared with landmarks."""
    inputs = judge.heard(judge.build_inputs([pair]))
    pooled = judge.pool_states(judge.backbone.hidden_states(inputs), inputs)
    return judge.head_input.standardised(pooled, *judge.head_input.raw(inputs))[0].double()


@pytest.fixture(autouse=True)
def without_calibration(monkeypatch) -> None:
    """Measuring clips takes as long as an epoch; `trained_run` is calibrated."""
    monkeypatch.setattr(run, "_calibrate", lambda *_: None)


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch) -> None:
    """Drawing takes as long as an epoch, too; modules about pictures have a fixture of this name that does nothing."""
    monkeypatch.setattr(ValidationPictures, "on_validation_end", lambda *_: None)


@pytest.fixture
def batches_read(monkeypatch) -> list[tuple[int, int, list[int]]]:
    """Epoch, number and items of every batch that was trained on."""
    read: list[tuple[int, int, list[int]]] = []
    plain = JudgeModule.training_step

    def step(module: JudgeModule, batch, batch_idx):
        read.append((module.current_epoch, batch_idx, batch.indices.tolist()))
        return plain(module, batch, batch_idx)

    monkeypatch.setattr(JudgeModule, "training_step", step)
    return read
