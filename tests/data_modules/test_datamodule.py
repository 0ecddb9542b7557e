"""What a trainer reads: targets for training, plain means for validation. `tests/train` trains on it."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.data_modules.datamodule import PairDataModule
from empathy_judge.data_modules.settings import DataSettings
from empathy_judge.data_modules.targets import training_targets


@pytest.mark.parametrize("target", ["mean", "bias_corrected", "single"])
def test_training_takes_the_target_and_validation_the_plain_mean(target, dataset_folder):
    data = PairDataModule(DataSettings(str(dataset_folder), target=target))
    data.setup("fit")
    validation = data.dataset.subset("validation")
    assert data.validation.scores.numpy() == pytest.approx(validation.mean_scores().to_numpy(np.float32))
    train = data.dataset.subset("train")
    assert data.train.scores.numpy() == pytest.approx(training_targets(train, target).scores, abs=1e-6)
    plain = train.mean_scores().to_numpy(np.float32)
    assert (data.train.scores.shape == plain.shape) == (target != "single")
    assert len(data.train) == (30 if target == "single" else 12)
    if target == "bias_corrected":  # the third rater, half a point above the second, rated every other pair only
        assert np.abs(data.train.scores[:, 1].numpy() - plain[:, 1]).max() > 0.1
