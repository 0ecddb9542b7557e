"""Means over groups against SciPy group by group, hand values, and repetition of items."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.group_level import GROUP_CORRELATIONS, GroupCorrelation, group_correlation, top_1
from scipy import stats

NAN = float("nan")
SCIPY = {"spearman": stats.spearmanr, "kendall": stats.kendalltau}


def scores(n: int = 120, groups: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """With ties; groups of 1 to about 12 items, some of them constant on one side."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    group = rng.integers(0, groups, n)
    y = (x + rng.normal(size=n)).round(0)
    x = x.round(1)
    x[group == 2], y[group == 5] = 2.0, 1.0
    return x, y, group


def correlations(name: str, x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> dict[int, float]:
    found = {}
    for group in np.unique(groups):
        own = groups == group
        if own.sum() >= 3 and np.ptp(x[own]) > 0 and np.ptp(y[own]) > 0:
            found[int(group)] = float(SCIPY[name](x[own], y[own]).statistic)
    return found


def chances(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> dict[int, float]:
    found = {}
    for group in np.unique(groups):
        own = groups == group
        if own.sum() > 1 and np.ptp(y[own]) > 0:
            best = x[own] == x[own].max()
            found[int(group)] = float((y[own][best] == y[own].max()).mean())
    return found


def no_draws(groups: np.ndarray) -> Resamples:
    return Resamples.draw(groups, 0, 0)


@pytest.mark.parametrize("name", GROUP_CORRELATIONS)
def test_mean_of_scipy_by_group(name: GroupCorrelation):
    x, y, groups = scores()
    expected = correlations(name, x, y, groups)
    found = group_correlation(name, x, y, groups, no_draws(groups))
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
    found = top_1(score, human, groups, no_draws(groups))
    assert found.mean.value == pytest.approx((1 + 0.5 + 0) / 3, abs=1e-12)
    assert (found.groups, found.too_small, found.constant) == (3, 1, 1)
    assert found.chance == pytest.approx((1 / 3 + 1 / 3 + 2 / 3) / 3, abs=1e-12)
    assert found.mean.n == 9
    constant = top_1(np.ones(12), human, groups, no_draws(groups))
    assert constant.mean.value == pytest.approx(constant.chance, abs=1e-12)


@pytest.mark.parametrize("name", [*GROUP_CORRELATIONS, "top_1"])
def test_draws_of_whole_groups_are_means_over_drawn_groups(name):
    """Two groups per cluster: a drawn cluster brings its groups as often as it is drawn."""
    x, y, groups = scores(seed=2)
    resamples = Resamples.draw(groups // 2, 40, 3)
    if name == "top_1":
        found, by_group = top_1(x, y, groups, resamples), chances(x, y, groups)
    else:
        found, by_group = group_correlation(name, x, y, groups, resamples), correlations(name, x, y, groups)
    for draw, counts in zip(found.mean.draws, resamples.counts, strict=True):
        drawn = np.repeat(list(by_group), [int(counts[resamples.codes[groups == group][0]]) for group in by_group])
        assert draw == pytest.approx(np.mean([by_group[group] for group in drawn]), abs=1e-12)
    assert found.mean.low < found.mean.value < found.mean.high


@pytest.mark.parametrize("name", [*GROUP_CORRELATIONS, "top_1"])
def test_draws_of_groups_that_span_clusters_are_the_statistic_of_repeated_items(name):
    x, y, _ = scores(seed=3)
    groups, clusters = np.arange(120) % 6, np.arange(120) // 6
    resamples = Resamples.draw(clusters, 25, 4)
    measured = chances if name == "top_1" else (lambda *items: correlations(name, *items))
    found = top_1(x, y, groups, resamples) if name == "top_1" else group_correlation(name, x, y, groups, resamples)
    assert found.groups == 6
    for draw, counts in zip(found.mean.draws, resamples.counts, strict=True):
        items = np.repeat(np.arange(120), counts[resamples.codes].astype(int))
        expected = np.mean(list(measured(x[items], y[items], groups[items]).values()))
        assert draw == pytest.approx(expected, abs=1e-12)


def test_groups_count_the_same_and_contexts_are_not_told_apart():
    """A judge that knows only the contexts: a high correlation over all items, none within groups."""
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(50), 6)
    human = rng.normal(size=50)[groups] + 0.3 * rng.normal(size=300)
    judge = human.reshape(50, 6).mean(axis=1)[groups] + 0.05 * rng.normal(size=300)
    assert stats.spearmanr(judge, human).statistic > 0.9
    found = group_correlation("spearman", judge, human, groups, Resamples.draw(groups, 500, 0))
    assert found.mean.low < 0 < found.mean.high


def test_order_of_items_and_missing_scores():
    x, y, groups = scores(seed=6)
    shuffled = np.random.default_rng(0).permutation(120)
    resamples = Resamples.draw(groups, 30, 0)
    given = group_correlation("kendall", x, y, groups, resamples)
    again = group_correlation("kendall", x[shuffled], y[shuffled], groups[shuffled], resamples.select(shuffled))
    assert again.mean.value == pytest.approx(given.mean.value, abs=1e-12)
    np.testing.assert_allclose(again.mean.draws, given.mean.draws, rtol=0, atol=1e-12)
    gaps = x.copy()
    gaps[:15] = NAN
    found = top_1(gaps, y, groups, no_draws(groups))
    assert found.mean.dropped == 15
    expected = chances(x[15:], y[15:], groups[15:])
    assert found.mean.value == pytest.approx(np.mean(list(expected.values())), abs=1e-12)


@pytest.mark.parametrize("name", [*GROUP_CORRELATIONS, "top_1"])
def test_undefined_values_have_a_reason(name):
    def reason(x: list[float], y: list[float], groups: list[int]) -> str | None:
        arrays = np.array(x), np.array(y), np.array(groups)
        draws = Resamples.draw(arrays[2], 10, 0)
        found = top_1(*arrays, draws) if name == "top_1" else group_correlation(name, *arrays, draws)
        assert found.mean.value is None
        assert (found.groups, found.chance) == (0, None)
        assert len(found.mean.draws) == 0
        return found.mean.reason

    assert reason([], [], []) == "0 items"
    assert reason([NAN], [1.0], [0]) == "0 items, 1 dropped as NaN"
    assert reason([1.0, 2], [1.0, 2], [0, 1]) == "no group is left: 2 too small, 0 constant"
    assert reason([1.0, 2, 3], [2.0, 2, 2], [0, 0, 0]) == "no group is left: 0 too small, 1 constant"
    assert reason([1.0, np.inf, 3], [2.0, 1, 2], [0, 0, 0]) == "1 item with an infinite score"


def test_one_group_has_a_value_and_no_interval():
    x, y = np.arange(5.0), np.array([1.0, 3, 2, 5, 4])
    found = group_correlation("spearman", x, y, np.zeros(5), Resamples.draw(np.zeros(5), 10, 0)).mean
    assert (found.value, found.low) == (pytest.approx(0.8), None)
    assert found.reason == "no interval: 1 groups, at least 5 needed"
