"""Spearman of many resamples and judges at once is SciPy's on the repeated items."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from empathy_judge.eval.statistics import rank_draws
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.rank_draws import spearman_draws
from scipy import stats


def loop(scores: np.ndarray, human: np.ndarray, codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    found = np.full((len(scores), len(counts)), np.nan)
    for number, row in enumerate(counts):
        items = np.repeat(np.arange(len(human)), row[codes].astype(int))
        for judge, score in enumerate(scores):
            if len(items) >= 3:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", stats.ConstantInputWarning)
                    found[judge, number] = stats.spearmanr(score[items], human[items]).statistic
    return found


def judges(human: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Without ties, with some, with many, constant, and the people themselves."""
    noisy = human + rng.normal(size=len(human))
    return np.stack([noisy, noisy.round(1), noisy.round(0), np.full(len(human), 2.5), human])


@pytest.mark.parametrize(
    ("n", "groups", "decimals"), [(3, 2, 0), (7, 3, 0), (40, 40, 9), (257, 60, 0), (300, 7, 1), (2_000, 500, 9)]
)
def test_equal_to_scipy(n, groups, decimals):
    rng = np.random.default_rng(n)
    human = rng.normal(size=n).round(decimals)
    scores, codes = judges(human, rng), rng.integers(0, groups, n)
    counts = rng.multinomial(groups, np.full(groups, 1 / groups), size=20).astype(np.float32)
    np.testing.assert_allclose(
        spearman_draws(scores, human, codes, counts), loop(scores, human, codes, counts), rtol=0, atol=1e-12
    )


def test_blocks_and_threads_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    human = rng.integers(1, 6, 30_000).astype(np.float64)
    scores, codes = judges(human, rng)[:3], rng.integers(0, 4_000, 30_000)
    counts = Resamples.sample(np.arange(4_000).astype(str), 70, seed=0).counts
    whole = spearman_draws(scores, human, codes, counts)
    monkeypatch.setattr(rank_draws, "_ROWS", 2)  # many blocks, in threads
    np.testing.assert_allclose(spearman_draws(scores, human, codes, counts), whole, rtol=0, atol=1e-13)
    np.testing.assert_allclose(whole[:, :2], loop(scores, human, codes, counts[:2]), rtol=0, atol=1e-12)


def test_nothing_to_correlate():
    empty = np.empty(0)
    assert np.isnan(spearman_draws(np.empty((2, 0)), empty, empty.astype(int), np.zeros((4, 0)))).all()
    two = spearman_draws(np.array([[1.0, 2.0]]), np.array([1.0, 2.0]), np.array([0, 1]), np.array([[1.0, 1.0], [2, 0]]))
    assert np.isnan(two).all()  # two items; one item twice
    assert (
        spearman_draws(np.array([[1.0, 2.0]]), np.array([1.0, 2.0]), np.array([0, 1]), np.array([[2.0, 1.0]]))[0, 0]
        == 1
    )
