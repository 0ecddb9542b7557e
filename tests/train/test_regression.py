"""Preferences as a regression in logits; the spread of ratings."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.train.regression import fit_preferences, spread_within

BLOCKS = np.repeat([0, 1], [3, 5])


def test_preferences_are_learned_in_logits():
    draw = np.random.default_rng(1)
    first, second = draw.normal(size=(2, 400, 8))
    lead = 2 * (first[:, 0] - second[:, 0])
    wins = draw.uniform(size=400) < 1 / (1 + np.exp(-lead))
    better, worse = np.where(wins[:, None], first, second), np.where(wins[:, None], second, first)
    found = fit_preferences(better, worse, BLOCKS, np.arange(400) // 4)
    assert 1.4 < found.weights[0, 0] < 2.6
    assert np.abs(found.weights[1:]).max() < 0.4
    assert found.record["log_loss"] < np.log(2) * 0.8


def test_the_spread_of_ratings_is_that_within_pairs_and_what_the_regression_misses():
    histograms = np.array([[[1, 0, 1]], [[0, 2, 0]], [[0, 0, 0]]])
    targets = np.array([[2.0], [2.5], [np.nan]])
    within = spread_within(histograms, targets, np.array([[1.0, 2.0, 3.0]]))
    assert within.tolist() == pytest.approx([(1 + 0.25) / 2])
