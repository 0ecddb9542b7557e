"""Pairwise statistics against double loops and published examples; resamples against repetition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from empathy_judge.eval.statistics import pairwise
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.pairwise import WITHIN_GROUPS, ItemPairs, item_pairs, tie_calibration, within_groups
from scipy import stats

from .conftest import NAN, own_groups, redrawn

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


def measured(x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch, epsilon: float | None = None) -> ItemPairs:
    """Without draws; at this epsilon."""
    if epsilon is not None:
        monkeypatch.setattr(pairwise, "tie_calibration", lambda *_: (epsilon, None))
    return item_pairs(x, y, own_groups(len(x)))


@pytest.mark.parametrize("seed", range(5))
def test_equals_a_double_loop(seed, monkeypatch):
    x, y = scores(40, seed)
    for epsilon in (0.0, 0.3, abs(float(x[3] - x[5]))):
        found = measured(x, y, monkeypatch, epsilon)
        assert found.concordance.value == pytest.approx(by_loop(x, y, concordance), abs=1e-12)
        assert found.accuracy.value == pytest.approx(by_loop(x, y, accuracy(epsilon)), abs=1e-12)


@pytest.mark.parametrize(
    ("human", "epsilon", "expected"),
    [  # the examples of the authors' implementation (mt-metrics-eval, tau_optimization_test.py)
        ([1, 2, 3, 4], 0.0, 1.0),
        ([1, 1, 1, 4], 4.0, 4 / 6),
    ],
)
def test_tie_calibration_of_published_examples(human, epsilon, expected):
    score = np.array([0.0, 2, 6, 8])
    assert tie_calibration(score, np.array(human, dtype=float)) == (epsilon, None)
    found = item_pairs(score, np.array(human, dtype=float), own_groups(4))
    assert (found.epsilon, found.accuracy.value) == (epsilon, pytest.approx(expected, abs=1e-12))


@pytest.mark.parametrize("seed", range(4))
def test_epsilon_is_the_best_of_all_differences(seed):
    rng = np.random.default_rng(seed)
    y = rng.choice([1.0, 2, 3], p=[0.15, 0.7, 0.15], size=24)
    x = y + rng.normal(size=24).round(2)
    candidates = sorted({0.0, *(float(abs(one - other)) for one in x for other in x)})
    values = [by_loop(x, y, accuracy(epsilon)) for epsilon in candidates]
    found = item_pairs(x, y, own_groups(24))
    assert found.epsilon == candidates[int(np.argmax(values))]
    assert found.accuracy.value == pytest.approx(max(values), abs=1e-12)


def test_epsilon_of_very_many_pairs_comes_from_a_sample(monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.choice([1.0, 2, 3], p=[0.1, 0.8, 0.1], size=600)
    x = y + 0.3 * rng.normal(size=600)
    whole = item_pairs(x, y, own_groups(600))
    monkeypatch.setattr(pairwise, "CALIBRATED_PAIRS", 600 * 599 // 8)
    part = item_pairs(x, y, own_groups(600))
    assert part.epsilon_reason == "epsilon chosen on 300 random items of 600: at most 44925 pairs are compared"
    assert part == item_pairs(x, y, own_groups(600))
    assert part.epsilon not in (None, whole.epsilon)
    assert part.accuracy.value == measured(x, y, monkeypatch, part.epsilon).accuracy.value
    assert 0 <= whole.accuracy.value - part.accuracy.value < 0.01


@pytest.mark.parametrize("epsilon", [0.0, 0.35])
def test_draws_are_the_statistic_of_repeated_items(epsilon, monkeypatch):
    """Whatever the size of the blocks."""
    monkeypatch.setattr(pairwise, "tie_calibration", lambda *_: (epsilon, None))
    x, y = scores(30, 3)
    resamples = Resamples.sample(np.arange(30) % 6, 12, 5)
    for block in (1 << 20, 70):
        monkeypatch.setattr("empathy_judge.eval.statistics.rank_draws._PAIRS", block)
        found = item_pairs(x, y, resamples)
        for statistic, rule in ((found.concordance, concordance), (found.accuracy, accuracy(epsilon))):
            expected = [by_loop(x[origin], y[origin], rule, origin) for origin in redrawn(resamples)]
            np.testing.assert_allclose(statistic.draws, expected, rtol=0, atol=1e-12)


def test_interval_holds_the_value_and_nan_is_dropped():
    x, y = scores(120, 5)
    gaps = x.copy()
    gaps[::10] = NAN
    found = item_pairs(gaps, y, Resamples.sample(np.arange(120) // 4, 300, 0)).concordance
    assert (found.n, found.dropped) == (108, 12)
    assert found.low < found.value < found.high
    kept = ~np.isnan(gaps)
    assert found.value == item_pairs(gaps[kept], y[kept], own_groups(108)).concordance.value


def test_too_many_pairs_have_no_interval(monkeypatch):
    monkeypatch.setattr(pairwise, "MAX_PAIRS", 100)
    x, y = scores(20, 0)
    found = item_pairs(x, y, Resamples.sample(np.arange(20), 50, 0)).concordance
    assert found.value == pytest.approx(by_loop(x, y, concordance), abs=1e-12)
    assert (found.low, found.reason) == (None, "no interval: 190 pairs, at most 100 are resampled")


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "0 items"),
        ([NAN], [1.0], "0 items, 1 dropped as NaN"),
        ([1.0], [1.0], "no pair: 1 item"),
        ([1.0, 1], [1.0, 2], "the judge scores are constant"),
        ([1.0, 1], [2.0, 2], "the judge and the human scores are constant"),
        ([1.0, np.inf], [1.0, 2], "1 item with an infinite score"),
    ],
)
def test_undefined_values_have_a_reason(x, y, reason):
    found = item_pairs(np.array(x), np.array(y), own_groups(len(x)))
    for statistic in (found.concordance, found.accuracy):
        assert (statistic.value, statistic.reason) == (None, reason)
    assert (found.epsilon, found.epsilon_reason) == (None, None)


# ---------------------------------------------------------------- within groups

SCIPY = {"spearman": stats.spearmanr, "kendall": stats.kendalltau}


def grouped(n: int = 120, groups: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """With ties; groups of 1 to about 12 items, some of them constant on one side."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    group = rng.integers(0, groups, n)
    y = (x + rng.normal(size=n)).round(0)
    x = x.round(1)
    x[group == 2], y[group == 5] = 2.0, 1.0
    return x, y, group


def by_group(name: str, x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> dict[int, float]:
    """The statistic of every group that has one."""
    found = {}
    for group in np.unique(groups):
        judge, people = x[groups == group], y[groups == group]
        if name == "top_1" and len(judge) > 1 and np.ptp(people) > 0:
            found[int(group)] = float((people[judge == judge.max()] == people.max()).mean())
        elif name != "top_1" and len(judge) >= 3 and np.ptp(judge) > 0 and np.ptp(people) > 0:
            found[int(group)] = float(SCIPY[name](judge, people).statistic)
    return found


@pytest.mark.parametrize("name", SCIPY)
def test_mean_of_scipy_by_group(name):
    x, y, groups = grouped()
    expected = by_group(name, x, y, groups)
    found = within_groups(name, x, y, groups, Resamples.sample(groups, 0, 0))
    assert found.mean.value == pytest.approx(np.mean(list(expected.values())), abs=1e-12)
    sizes = np.bincount(groups)
    assert found.groups == len(expected)
    assert found.too_small == ((sizes > 0) & (sizes < 3)).sum()
    assert found.constant == (sizes > 0).sum() - found.groups - found.too_small >= 2
    assert found.mean.n == sum(sizes[group] for group in expected)
    assert found.chance == 0.0


def test_top_1_by_hand():
    # a: the judge's best is people's best. b: one of two that it ties is. c: wrong. d: people tie all. e: one item.
    groups = np.array(list("aaabbbcccdde"))
    score = np.array([1.0, 2, 3, 5, 5, 1, 3, 2, 1, 1, 2, 9])
    human = np.array([1.0, 1, 4, 2, 1, 1, 1, 2, 2, 3, 3, 5])
    found = within_groups("top_1", score, human, groups, Resamples.sample(groups, 0, 0))
    assert found.mean.value == pytest.approx((1 + 0.5 + 0) / 3, abs=1e-12)
    assert (found.groups, found.too_small, found.constant) == (3, 1, 1)
    assert found.chance == pytest.approx((1 / 3 + 1 / 3 + 2 / 3) / 3, abs=1e-12)
    assert found.mean.n == 9
    constant = within_groups("top_1", np.ones(12), human, groups, Resamples.sample(groups, 0, 0))
    assert constant.mean.value == pytest.approx(constant.chance, abs=1e-12)


@pytest.mark.parametrize("name", WITHIN_GROUPS)
def test_draws_of_whole_groups_are_means_over_drawn_groups(name):
    """Two groups per cluster: a drawn cluster brings its groups as often as it is drawn."""
    x, y, groups = grouped(seed=2)
    resamples = Resamples.sample(groups // 2, 40, 3)
    found, own = within_groups(name, x, y, groups, resamples), by_group(name, x, y, groups)
    for draw, counts in zip(found.mean.draws, resamples.counts, strict=True):
        drawn = np.repeat(list(own), [int(counts[resamples.codes[groups == group][0]]) for group in own])
        assert draw == pytest.approx(np.mean([own[group] for group in drawn]), abs=1e-12)
    assert found.mean.low < found.mean.value < found.mean.high


@pytest.mark.parametrize("name", WITHIN_GROUPS)
def test_draws_of_groups_that_span_clusters_are_the_statistic_of_repeated_items(name):
    x, y, _ = grouped(seed=3)
    groups, clusters = np.arange(120) % 6, np.arange(120) // 6
    resamples = Resamples.sample(clusters, 25, 4)
    found = within_groups(name, x, y, groups, resamples)
    assert found.groups == 6
    for draw, items in zip(found.mean.draws, redrawn(resamples), strict=True):
        expected = np.mean(list(by_group(name, x[items], y[items], groups[items]).values()))
        assert draw == pytest.approx(expected, abs=1e-12)


def test_missing_scores_are_left_out_of_their_groups():
    x, y, groups = grouped(seed=6)
    gaps = x.copy()
    gaps[:15] = NAN
    found = within_groups("top_1", gaps, y, groups, Resamples.sample(groups, 0, 0))
    assert found.mean.dropped == 15
    expected = by_group("top_1", x[15:], y[15:], groups[15:])
    assert found.mean.value == pytest.approx(np.mean(list(expected.values())), abs=1e-12)


@pytest.mark.parametrize("name", WITHIN_GROUPS)
def test_undefined_means_over_groups_have_a_reason(name):
    def reason(x: list[float], y: list[float], groups: list[int]) -> str | None:
        arrays = np.array(x), np.array(y), np.array(groups)
        draws = Resamples.sample(arrays[2], 10, 0)
        found = within_groups(name, *arrays, draws)
        assert found.mean.value is None
        assert (found.groups, found.chance) == (0, None)
        assert len(found.mean.draws) == 0
        return found.mean.reason

    assert reason([], [], []) == "0 items"
    assert reason([NAN], [1.0], [0]) == "0 items, 1 dropped as NaN"
    assert reason([1.0, 2], [1.0, 2], [0, 1]) == "no group is left: 2 too small, 0 constant"
    assert reason([1.0, 2, 3], [2.0, 2, 2], [0, 0, 0]) == "no group is left: 0 too small, 1 constant"
    assert reason([1.0, np.inf, 3], [2.0, 1, 2], [0, 0, 0]) == "1 item with an infinite score"
