"""What a run tells while it trains."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import yaml
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.train.run import train


def test_a_logger_of_the_configuration_stands_beside_the_table_and_has_all_of_the_run(
    train_arguments, dataset_folder, tmp_path, capsys
):
    train(train_arguments(
        tmp_path / "run", trainer__max_epochs=1, trainer__logger="lightning.pytorch.loggers.CSVLogger",
        trainer__logger__save_dir=tmp_path / "mine",
    ))  # fmt: skip
    for folder in (tmp_path / "run" / "logs", tmp_path / "mine"):
        (path,) = folder.rglob("metrics.csv")
        found = pd.read_csv(path)
        assert math.isfinite(found["val_agreement"].dropna().item())
        beside = found.dropna(subset="val_spearman/empathy")
        assert beside["val_noise_ceiling/empathy"].item() == pytest.approx(0.97, abs=0.01)
        assert (found["mfu"].dropna() > 0).all()
        assert (found["pairs_per_second"].dropna() > 0).all()
        told = yaml.safe_load((path.parent / "hparams.yaml").read_text())
        assert told["optimizer"]["learning_rate"] == 0.005  # as `train_arguments` has it
        assert told["content_hash"] == PairDataset.load(dataset_folder).card.content_hash
        assert told["splits"] == {"train": "train", "validation": "validation"}
        ceiling = beside["val_noise_ceiling/empathy"].item()  # in float32
        assert told["people"]["empathy"]["noise_ceiling"] == pytest.approx(ceiling, rel=1e-6)
    err = capsys.readouterr().err
    assert "epoch 1 of 1; loss " in err
    assert "(noise ceiling 0.97) for empathy" in err
