"""Drawing raters beside items: what happens to single resamples, and how much wider the intervals become."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.data_modules.rating_table import RatingTable
from empathy_judge.eval.statistics.bootstrap import Resamples, statistic_draws
from empathy_judge.eval.statistics.two_way import rater_draws, two_way_draws
from scipy import stats


def panel(rng: np.random.Generator, items: int, raters: int, *, rated: float = 1.0) -> tuple[RatingTable, np.ndarray]:
    """Raters with noise of their own, and a judge."""
    truth = rng.normal(size=items)
    scores = truth[:, None] + rng.normal(size=(items, raters)) + rng.normal(scale=0.5, size=raters)
    there = rng.random((items, raters)) < rated
    there[:, 0] = True
    item, rater = np.nonzero(there)
    table = RatingTable(item, rater, scores[there], items, tuple(f"r{n}" for n in range(raters)))
    return table, truth + rng.normal(scale=0.7, size=items)


def test_a_resample_is_spearman_with_the_drawn_ratings() -> None:
    table, judge = panel(np.random.default_rng(0), 30, 5, rated=0.6)
    draws = Resamples.draw([f"g{item // 3}" for item in range(30)], 25, seed=1)
    found = two_way_draws(judge, table, draws, seed=2)
    raters = Resamples.draw(table.rater_ids, 25, seed=2)
    for value, counts, drawn in zip(found, draws.counts, raters.counts, strict=True):
        pairs = []
        for item in range(30):
            own = [
                (s, int(drawn[r])) for i, r, s in zip(table.items, table.raters, table.scores, strict=True) if i == item
            ]
            if total := sum(times for _, times in own):
                mean = sum(score * times for score, times in own) / total
                pairs += [(judge[item], mean)] * int(counts[draws.codes[item]])
        assert value == pytest.approx(stats.spearmanr(*zip(*pairs, strict=True)).statistic, abs=1e-9)


def test_raters_alone_are_drawn_on_the_items_as_they_are() -> None:
    table, judge = panel(np.random.default_rng(3), 40, 6, rated=0.7)
    found = rater_draws(judge, table, 30, seed=4)
    raters = Resamples.draw(table.rater_ids, 30, seed=4)
    for value, drawn in zip(found, raters.counts, strict=True):
        times = drawn[table.raters].astype(float)
        count = np.bincount(table.items, times, 40)
        means = np.round(np.bincount(table.items, times * table.scores, 40) / np.maximum(count, 1), 9)
        seen = count > 0
        assert value == pytest.approx(stats.spearmanr(judge[seen], means[seen]).statistic, abs=1e-9)


def test_few_raters_widen_the_interval_and_many_do_not() -> None:
    widths = {}
    for raters in (3, 60):
        table, judge = panel(np.random.default_rng(raters), 150, raters)
        draws = Resamples.draw(np.arange(150).astype(str), 400, seed=0)
        one_way = two_way_draws(judge, table, draws, seed=0).std()
        widths[raters] = one_way / statistic_draws("spearman", judge, table.sums / table.counts, draws).std()
    assert widths[3] > 1.25
    assert 0.9 < widths[60] < 1.15


def test_too_few_raters_are_not_drawn() -> None:
    table, judge = panel(np.random.default_rng(0), 30, 2)
    draws = Resamples.draw(np.arange(30).astype(str), 20, seed=0)
    assert np.isnan(two_way_draws(judge, table, draws, seed=0)).all()
