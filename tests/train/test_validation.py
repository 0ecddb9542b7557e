"""Agreement of the whole validation split, and what training has added to the start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.data_modules.training_items import RatedPairs
from empathy_judge.models.heads import Prediction
from empathy_judge.train.validation import Validation
from scipy.stats import spearmanr


@pytest.fixture
def validation(dataset_folder) -> Validation:
    """Of the nine validation pairs of the tiny dataset."""
    pairs = RatedPairs(PairDataset.load(dataset_folder).subset("validation"))
    return Validation(pairs, [], (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10)))


def test_what_training_added_has_an_interval_over_groups(validation):
    draw = np.random.default_rng(0)
    validation.targets[:, 0] = np.arange(9.0)
    validation.scores = np.stack([np.arange(9.0), draw.normal(size=9)], 1)
    start = np.stack([draw.normal(size=9), validation.scores[:, 1]], 1)
    start[8, 0] = np.nan  # not scored then: left out of both
    found = validation.added_to(start, np.arange(9) // 1.5)
    before = spearmanr(start[:8, 0], np.arange(8)).statistic
    assert (found["empathy"]["probe"], found["empathy"]["added"]) == pytest.approx((before, 1 - before))
    assert 0 < found["empathy"]["low"] < 1 - before < found["empathy"]["high"]
    assert [found["warmth"][name] for name in ("added", "low", "high")] == [0, 0, 0]
    few = validation.added_to(start, np.arange(9) // 3)
    assert few["empathy"] == {**found["empathy"], "low": None, "high": None}
    validation.targets[:, 0] = np.nan
    assert set(validation.added_to(start, np.arange(9))["empathy"].values()) == {None}


def test_deviations_are_gathered_with_the_scores(validation):
    scores, deviations = torch.rand(9, 2), torch.rand(9, 2)
    for rows in (torch.arange(5, 9), torch.arange(5)):
        validation.add(rows, Prediction(scores[rows], deviations[rows]))
    validation.agreement()
    assert np.array_equal(validation.scores, scores.double().numpy())
    assert np.array_equal(validation.deviations, deviations.double().numpy())
    validation.clear()
    validation.add(torch.arange(9), Prediction(scores))
    validation.agreement()
    assert np.isnan(validation.deviations).all()
