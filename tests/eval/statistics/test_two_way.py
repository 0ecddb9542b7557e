"""Intervals for other raters: centred on the value, wider than those for the same raters, and they cover."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.agreement import Statistic, spearman
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.two_way import for_other_items_and_raters, for_other_raters
from scipy import stats


def panel(rng: np.random.Generator, items: int, raters: int, *, rated: float = 1.0) -> tuple[RatingTable, np.ndarray]:
    """Raters whose noise differs, and a judge."""
    truth = rng.normal(size=items)
    noise = rng.uniform(0.5, 1.5, raters)
    scores = truth[:, None] + noise * rng.normal(size=(items, raters)) + rng.normal(scale=0.5, size=raters)
    there = rng.random((items, raters)) < rated
    there[:, 0] = True
    item, rater = np.nonzero(there)
    table = RatingTable(item, rater, scores[there], items, tuple(f"r{n}" for n in range(raters)))
    return table, truth + rng.normal(scale=0.7, size=items)


def same_raters(judge: np.ndarray, table: RatingTable, draws: Resamples) -> Statistic:
    return estimate(spearman, judge, table.sums / table.counts, resamples=draws)


def ends(found: Statistic) -> np.ndarray:
    """Ends and value on Fisher's scale."""
    return np.arctanh(np.array([found.low, found.value, found.high], dtype=float))


def test_other_raters_by_hand():
    table, judge = panel(np.random.default_rng(3), 40, 6, rated=0.7)
    found = for_other_raters(judge, table)
    left = []
    for rater in range(6):
        kept = table.raters != rater
        count = np.bincount(table.items[kept], minlength=40)
        seen = count > 0
        means = np.bincount(table.items[kept], table.scores[kept], 40)[seen] / count[seen]
        left.append(np.arctanh(stats.spearmanr(judge[seen], means)[0]))
    error = np.sqrt(5 / 6 * ((np.array(left) - np.mean(left)) ** 2).sum())
    low, value, high = ends(found)
    assert found.value == pytest.approx(stats.spearmanr(judge, table.sums / table.counts)[0], abs=1e-12)
    assert high - value == pytest.approx(stats.t.ppf(0.975, 5) * error, abs=1e-9)
    assert value - low == pytest.approx(high - value, abs=1e-9)


def test_intervals_are_centred_and_cover():
    """Drawing raters with replacement would leave the interval 0.05 below the value, and nearly half of it."""
    truth = []
    for seed in range(60):
        table, judge = panel(np.random.default_rng([9, seed]), 2000, 5)
        truth.append(spearman(judge, table.sums / table.counts))
    held, middles = [], []
    for seed in range(100):
        table, judge = panel(np.random.default_rng(seed), 100, 5)
        draws = Resamples.sample(np.arange(100).astype(str), 100, seed)
        found = for_other_items_and_raters(judge, table, same_raters(judge, table, draws), draws)
        low, value, high = ends(found)
        held.append(low <= np.arctanh(np.mean(truth)) <= high)
        middles.append((low + high) / 2 - value)
    assert np.mean(held) >= 0.9
    assert np.mean(middles) == pytest.approx(0, abs=0.01)


def test_two_raters_few_groups_and_a_constant_judge_have_no_interval():
    table, judge = panel(np.random.default_rng(0), 30, 2)
    draws = Resamples.sample(np.arange(30).astype(str), 20, seed=0)
    for found in (
        for_other_raters(judge, table),
        for_other_items_and_raters(judge, table, same_raters(judge, table, draws), draws),
    ):
        assert (found.low, found.reason) == (None, "no interval: 2 raters, at least 3 needed")
        assert found.value is not None
    table, judge = panel(np.random.default_rng(0), 30, 4)
    draws = Resamples.sample(["a", "b", "c"] * 10, 20, seed=0)
    found = for_other_items_and_raters(judge, table, same_raters(judge, table, draws), draws)
    assert (found.low, found.reason) == (None, "no interval: 3 groups, at least 5 needed")
    found = for_other_raters(np.ones(30), table)
    assert (found.value, found.reason) == (None, "the judge scores are constant")
    # Many raters are left out several at a time
    table, judge = panel(np.random.default_rng(1), 60, 250, rated=0.1)
    found = for_other_raters(judge, table)
    assert found.low is not None
    assert 0 < np.ptp(ends(found)) < 0.5
