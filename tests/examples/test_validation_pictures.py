"""The example that shows TensorBoard the predictions and the worst items of each validation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.data_modules.training_items import RatedPairs
from empathy_judge.models.heads import Prediction
from empathy_judge.train.validation import Validation
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ..conftest import loaded

EXAMPLE = loaded(Path(__file__).parents[2] / "examples" / "validation_pictures.py")
DIMENSIONS = Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10)


def test_the_worst_items_by_the_length_of_their_scale(dataset_folder):
    """Two points on a scale of four are more than three on a scale of ten."""
    validation = Validation(RatedPairs(PairDataset.load(dataset_folder).subset("validation")), [], DIMENSIONS)
    predicted = torch.from_numpy(validation.targets).clone()
    predicted[4, 0] += 2
    predicted[1, 1] -= 3
    predicted[1, 0] += 0.5
    predicted[6, 1] = torch.nan  # not scored
    validation.targets[7] = np.nan  # not rated
    predicted[7] = 5
    validation.add(torch.arange(9), Prediction(predicted))
    validation.agreement(3)
    assert EXAMPLE.worst_items(validation, DIMENSIONS, count=2) == [(4, 0), (1, 1)]
    assert len(EXAMPLE.worst_items(validation, DIMENSIONS, count=20)) == 8  # without the one that nobody rated


@pytest.mark.slow
def test_tensorboard_shows_each_dimension_and_the_worst_items(dataset_folder, backbone_folder, tmp_path, monkeypatch):
    trainer = {"max_epochs": 2}
    recipe = {"judge": {"backbone": str(backbone_folder)}, "data": {"batch_size": 4}, "trainer": trainer}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = [str(dataset_folder), "--config", str(tmp_path / "recipe.yaml"), "--run", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["validation_pictures.py", *words])
    EXAMPLE.main()
    events = EventAccumulator(str(tmp_path / "run/logs/tensorboard"), size_guidance={"tensors": 0, "images": 0})
    events.Reload()
    assert events.Tags()["images"] == ["validation/empathy", "validation/warmth"]
    assert [event.step for event in events.Images("validation/empathy")] == [2, 5]
    assert [event.step for event in events.Scalars("val_agreement")] == [2, 5]
    assert len(events.Tags()["audio"]) == 2 * EXAMPLE.WORST
    text = events.Tensors("validation/worst/text_summary")[-1].tensor_proto.string_val[0].decode()
    dataset = PairDataset.load(dataset_folder).subset("validation")
    ratings = dataset.mean_scores()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines()[2:]]
    assert len(rows) == 8
    for _, name, dimension, _, rating in rows:
        assert float(rating) == pytest.approx(ratings.loc[name, dimension], abs=0.006)
