"""The choice of the training target reaches the loss, and validation stays with plain means."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.targets import training_targets
from empathy_judge.train.collate import Batch
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train


@pytest.mark.parametrize("target", ["bias_corrected", "single"])
def test_batches_hold_the_chosen_targets(target, train_arguments, dataset_folder, tmp_path, monkeypatch, capsys):
    seen: dict[int, np.ndarray] = {}
    checked: list[np.ndarray] = []

    def start(module: JudgeModule, batch: Batch, batch_idx: int) -> None:
        seen.update(zip(batch.indices.tolist(), batch.labels.targets.numpy(), strict=True))

    def validated(module: JudgeModule) -> None:
        checked.append(module.data.validation.scores.numpy())

    monkeypatch.setattr(JudgeModule, "on_train_batch_start", start)
    monkeypatch.setattr(JudgeModule, "on_validation_start", validated, raising=False)
    words = train_arguments(tmp_path / "run", data__target=target, trainer__max_epochs=1, trainer__logger="false")
    train(words)
    dataset = PairDataset.load(dataset_folder)
    expected = training_targets(dataset.subset("train"), target)
    assert len(expected.scores) == (30 if target == "single" else 12)
    assert np.stack([seen[index] for index in range(len(expected.scores))]) == pytest.approx(expected.scores, abs=1e-6)
    means = dataset.subset("validation").mean_scores().to_numpy(np.float32)
    assert checked
    assert checked[-1] == pytest.approx(means)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]["target"] == target
    assert "training targets:" not in capsys.readouterr().err  # nothing was clipped or left out
