"""Training on the full histogram of ratings, from the configuration to the exported judge."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from empathy_judge.data_modules.schema import Dimension, PairDataset, write_dataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.artifact import load_any, load_run, save_judge
from empathy_judge.models.scoring import PairScorer
from empathy_judge.train.run import train


@pytest.fixture
def stepped(dataset_folder, tmp_path) -> Path:
    """The tones rated on two scales with steps, of five and of three scores."""
    folder = tmp_path / "stepped"
    shutil.copytree(dataset_folder, folder)
    (folder / "split.yaml").unlink()
    dataset = PairDataset.load(dataset_folder)
    ratings = dataset.ratings[dataset.ratings["dimension"] == "empathy"]
    calm = ratings.assign(dimension="calm", score=(ratings["score"] > 2) * 1.0 + (ratings["score"] > 3) * 1.0)
    card = dataclasses.replace(dataset.card, dimensions=(Dimension("empathy", 1, 5, 1), Dimension("calm", 0, 2, 1)))
    rows = [
        {
            "pair_id": pair.pair_id,
            "group_id": pair.group_id,
            "context_audio": Path(str(pair.context[0].audio)).name,
            "response_audio": Path(str(pair.response)).name,
        }
        for pair in dataset.pairs
    ]
    write_dataset(folder, card, pd.DataFrame(rows), pd.concat([ratings, calm]))
    split_dataset(folder, fractions={"train": 0.5, "validation": 0.375, "test": 0.125}, seed=0)
    return folder


@pytest.mark.long
def test_histograms_are_learned_and_the_exported_judge_scores_alike(stepped, train_arguments, tmp_path):
    histogram = {"judge__head": "histogram", "data__path": stepped}
    run = tmp_path / "run"
    train(train_arguments(run, **histogram, trainer__max_epochs=20, trainer__gradient_clip_val=1.0))
    part = PairDataset.load(stepped).subset("train")
    loaded = load_run(run / "checkpoints" / "last.ckpt")
    found = torch.stack([found.score for _, found in PairScorer(loaded.judge).predict(part.pairs)]).numpy()
    for column, name in enumerate(("empathy", "calm")):
        assert spearman(found[:, column], part.mean_scores()[name].to_numpy()) > 0.9
    save_judge(loaded, tmp_path / "judge", "card")
    exported = load_any(tmp_path / "judge")
    again = torch.stack([found.score for _, found in PairScorer(exported.judge).predict(part.pairs)]).numpy()
    assert (again == found).all()
    description = json.loads((tmp_path / "judge/judge.json").read_text())
    assert description["head"]["type"] == description["settings"]["head"] == "histogram"
    assert description["provenance"]["target"] == "mean"
