"""Pairwise statistics against double loops, SciPy's Somers' D and published examples; resamples against repetition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from empathy_judge.eval.statistics import pairwise
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.pairwise import (
    concordance_index,
    item_pairs,
    pairwise_accuracy,
    tie_calibration,
)
from scipy import stats

NAN = float("nan")

Rule = Callable[[float, float], tuple[float, float]]


def concordance(judge: float, people: float) -> tuple[float, float]:
    if people == 0:
        return 0.0, 0.0
    return (0.5 if judge == 0 else float((judge > 0) == (people > 0))), 1.0


def accuracy(epsilon: float) -> Rule:
    def rule(judge: float, people: float) -> tuple[float, float]:
        said = 0.0 if abs(judge) <= epsilon else np.sign(judge)
        return float(said == np.sign(people)), 1.0

    return rule


def by_loop(x: np.ndarray, y: np.ndarray, rule: Rule, origin: np.ndarray | None = None) -> float:
    """Over all pairs; items of the same origin are no pair."""
    above = below = 0.0
    for i in range(len(x)):
        for j in range(i):
            if origin is None or origin[i] != origin[j]:
                one, every = rule(x[i] - x[j], y[i] - y[j])
                above, below = above + one, below + every
    return above / below if below else NAN


def scores(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Judge with some ties, people with many."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return x.round(1), (x + rng.normal(size=n)).round(0)


@pytest.mark.parametrize("seed", range(5))
def test_equals_a_double_loop(seed: int):
    x, y = scores(40, seed)
    assert concordance_index(x, y) == pytest.approx(by_loop(x, y, concordance), abs=1e-12)
    for epsilon in (0.0, 0.3, abs(float(x[3] - x[5]))):
        assert pairwise_accuracy(x, y, epsilon) == pytest.approx(by_loop(x, y, accuracy(epsilon)), abs=1e-12)


def test_concordance_is_somers_d():
    x, y = scores(200, 7)
    assert concordance_index(x, y) == pytest.approx((1 + stats.somersd(y, x).statistic) / 2, abs=1e-12)


def no_draws(n: int) -> Resamples:
    return Resamples.draw(np.arange(n), 0, 0)


@pytest.mark.parametrize(
    ("human", "epsilon", "expected"),
    [  # the examples of the authors' implementation (mt-metrics-eval, tau_optimization_test.py)
        ([1, 2, 3, 4], 0.0, 1.0),
        ([1, 1, 1, 4], 4.0, 4 / 6),
    ],
)
def test_tie_calibration_of_published_examples(human: list[float], epsilon: float, expected: float):
    score = np.array([0.0, 2, 6, 8])
    assert tie_calibration(score, np.array(human, dtype=float)) == (epsilon, None)
    assert pairwise_accuracy(score, np.array(human, dtype=float), epsilon) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("bins", "batch"), [(1 << 16, 1 << 20), (3, 10)])
def test_epsilon_is_the_best_of_all_differences(seed: int, bins: int, batch: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pairwise, "_BINS", bins)
    monkeypatch.setattr(pairwise, "_BATCH", batch)
    rng = np.random.default_rng(seed)
    y = rng.choice([1.0, 2, 3], p=[0.15, 0.7, 0.15], size=24)
    x = y + rng.normal(size=24).round(2)
    candidates = sorted({0.0, *(float(abs(one - other)) for one in x for other in x)})
    values = [by_loop(x, y, accuracy(epsilon)) for epsilon in candidates]
    found = item_pairs(x, y, no_draws(24))
    assert found.epsilon == candidates[int(np.argmax(values))]
    assert found.accuracy.value == pytest.approx(max(values), abs=1e-12)


def test_epsilon_of_very_many_pairs_comes_from_a_sample(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    y = rng.choice([1.0, 2, 3], p=[0.1, 0.8, 0.1], size=600)
    x = y + 0.3 * rng.normal(size=600)
    whole = item_pairs(x, y, no_draws(600))
    monkeypatch.setattr(pairwise, "MAX_PAIRS", 600 * 599 // 8)
    part = item_pairs(x, y, no_draws(600))
    assert part.epsilon_reason == "epsilon chosen on 300 random items of 600: at most 44925 pairs are compared"
    assert part == item_pairs(x, y, no_draws(600))
    assert part.epsilon not in (None, whole.epsilon)
    assert part.accuracy.value == pairwise_accuracy(x, y, epsilon=part.epsilon)
    assert 0 <= whole.accuracy.value - part.accuracy.value < 0.01


def test_epsilon_beats_no_epsilon_where_people_tie():
    rng = np.random.default_rng(1)
    y = rng.choice([1.0, 5], p=[0.8, 0.2], size=100)
    x = y + 0.5 * rng.normal(size=100)
    assert item_pairs(x, y, no_draws(100)).accuracy.value > 0.95 > 0.5 > pairwise_accuracy(x, y)


@pytest.mark.parametrize("epsilon", [0.0, 0.35])
def test_draws_are_the_statistic_of_repeated_items(epsilon: float, monkeypatch: pytest.MonkeyPatch):
    """Whatever the size of the blocks."""
    monkeypatch.setattr(pairwise, "tie_calibration", lambda *_: (epsilon, None))
    x, y = scores(30, 3)
    resamples = Resamples.draw(np.arange(30) % 6, 12, 5)
    origins = [np.repeat(np.arange(30), counts[resamples.codes].astype(int)) for counts in resamples.counts]
    for block in (1 << 20, 70):
        monkeypatch.setattr("empathy_judge.eval.statistics.rank_draws._PAIRS", block)
        found = item_pairs(x, y, resamples)
        for statistic, rule in ((found.concordance, concordance), (found.accuracy, accuracy(epsilon))):
            expected = [by_loop(x[origin], y[origin], rule, origin) for origin in origins]
            np.testing.assert_allclose(statistic.draws, expected, rtol=0, atol=1e-12)


def test_interval_holds_the_value_and_nan_is_dropped():
    x, y = scores(120, 5)
    gaps = x.copy()
    gaps[::10] = NAN
    found = item_pairs(gaps, y, Resamples.draw(np.arange(120) // 4, 300, 0)).concordance
    assert (found.n, found.dropped) == (108, 12)
    assert found.low < found.value < found.high
    assert found.value == concordance_index(gaps[~np.isnan(gaps)], y[~np.isnan(gaps)])


def test_too_many_pairs_have_no_interval(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pairwise, "MAX_PAIRS", 100)
    x, y = scores(20, 0)
    found = item_pairs(x, y, Resamples.draw(np.arange(20), 50, 0)).concordance
    assert found.value == concordance_index(x, y)
    assert (found.low, found.reason) == (None, "no interval: 190 pairs, at most 100 are resampled")


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "0 items"),
        ([NAN], [1.0], "0 items, 1 dropped as NaN"),
        ([1.0], [1.0], "no pair: 1 items"),
        ([1.0, 1], [1.0, 2], "the judge scores are constant"),
        ([1.0, 1], [2.0, 2], "the judge and the human scores are constant"),
        ([1.0, np.inf], [1.0, 2], "1 item with an infinite score"),
    ],
)
def test_undefined_values_have_a_reason(x: list[float], y: list[float], reason: str):
    found = item_pairs(np.array(x), np.array(y), no_draws(len(x)))
    for statistic in (found.concordance, found.accuracy):
        assert (statistic.value, statistic.reason) == (None, reason)
    assert (found.epsilon, found.epsilon_reason) == (None, None)


def test_two_items_are_a_pair_and_one_is_none():
    assert concordance_index(np.array([1.0, 2]), np.array([3.0, 4])) == 1.0
    assert concordance_index(np.array([2.0, 1]), np.array([3.0, 4])) == 0.0
    assert np.isnan(concordance_index(np.ones(1), np.ones(1)))
    assert np.isnan(pairwise_accuracy(np.ones(1), np.ones(1)))
    with pytest.raises(ValueError, match="epsilon -1"):
        pairwise_accuracy(np.arange(3.0), np.arange(3.0), epsilon=-1)
