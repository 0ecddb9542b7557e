"""Resamples are the plain statistic on repeated items, groups stay whole, and intervals cover."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from empathy_judge.eval.agreement import STATISTICS, Statistic
from empathy_judge.eval.bootstrap import Resamples, estimate, row_pearson, statistic_draws, with_interval


def tied_scores(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated scores with many ties, and groups of unequal sizes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = x + rng.normal(size=n)
    return x.round(0), y.round(1), rng.integers(0, n // 5, size=n).astype(str)


@pytest.mark.parametrize("name", STATISTICS)
def test_draws_equal_the_plain_statistic_on_the_repeated_items(name: str) -> None:
    x, y, groups = tied_scores(60, seed=1)
    resamples = Resamples.draw(groups, 50, seed=3)
    draws = statistic_draws(name, x, y, resamples)
    for draw, counts in zip(draws, resamples.counts, strict=True):
        repeated = np.repeat(np.arange(60), counts[resamples.codes].astype(int))
        assert draw == pytest.approx(STATISTICS[name](x[repeated], y[repeated]).value, abs=1e-12)


@pytest.mark.parametrize("name", STATISTICS)
def test_draws_do_not_depend_on_the_size_of_the_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, groups = tied_scores(60, seed=2)
    resamples = Resamples.draw(groups, 40, seed=3)
    whole = statistic_draws(name, x, y, resamples)
    monkeypatch.setattr("empathy_judge.eval.bootstrap._BLOCK_VALUES", 7 * 60)
    np.testing.assert_allclose(statistic_draws(name, x, y, resamples), whole, rtol=0, atol=1e-12)


def test_groups_are_drawn_whole_and_as_many_as_there_are() -> None:
    groups = ["a", "b", "a", "c", "b", "a"]
    resamples = Resamples.draw(groups, 200, seed=0)
    items = resamples.apply(lambda weights: weights)
    assert items.shape == (200, 6)
    np.testing.assert_array_equal(items[:, 0], items[:, 2])
    np.testing.assert_array_equal(items[:, 0], items[:, 5])
    np.testing.assert_array_equal(items[:, 1], items[:, 4])
    np.testing.assert_array_equal(items[:, [0, 1, 3]].sum(axis=1), np.full(200, 3))
    assert {tuple(row) for row in items[:, [0, 1, 3]]} >= {(1.0, 1.0, 1.0), (3.0, 0.0, 0.0), (0.0, 1.0, 2.0)}


def test_one_seed_gives_one_interval_and_another_seed_another() -> None:
    x, y, groups = tied_scores(80, seed=4)
    first, again, other = (estimate("spearman", x, y, Resamples.draw(groups, 200, seed)) for seed in (0, 0, 1))
    assert first == again
    assert first.value == other.value
    assert (first.low, first.high) != (other.low, other.high)


def test_selected_items_share_the_draws() -> None:
    x, y, groups = tied_scores(80, seed=5)
    resamples = Resamples.draw(groups, 30, seed=0)
    chosen = np.arange(80) % 3 > 0
    expected: list[Any] = [
        STATISTICS["mae"](*(v[np.repeat(np.flatnonzero(chosen), counts[chosen])] for v in (x, y))).value
        for counts in resamples.apply(lambda weights: weights).astype(int)
    ]
    np.testing.assert_allclose(statistic_draws("mae", x[chosen], y[chosen], resamples.select(chosen)), expected)


def test_nan_items_are_left_out_of_value_and_interval() -> None:
    x, y, groups = tied_scores(80, seed=6)
    gaps = x.copy()
    gaps[:20] = np.nan
    resamples = Resamples.draw(groups, 100, seed=0)
    result = estimate("pearson", gaps, y, resamples)
    complete = estimate("pearson", x[20:], y[20:], resamples.select(np.arange(20, 80)))
    assert (result.value, result.low, result.high) == (complete.value, complete.low, complete.high)
    assert (result.n, result.dropped) == (60, 20)


def test_fewer_than_five_groups_have_no_interval() -> None:
    x, y = np.arange(12.0), np.arange(12.0) ** 2
    result = estimate("pearson", x, y, Resamples.draw([f"g{i % 4}" for i in range(12)], 100, seed=0))
    assert result.value == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert (result.low, result.high, result.reason) == (
        None,
        None,
        "no interval: 4 groups, at least 5 needed",
    )


def test_undefined_resamples_are_counted_and_too_many_of_them_leave_no_interval() -> None:
    draws = np.concatenate([np.full(10, np.nan), np.linspace(0, 1, 90)])
    some = with_interval(Statistic(0.5, n=20), draws, n_groups=9)
    assert some.undefined_resamples == 10
    assert (some.low, some.high) == (pytest.approx(0.025), pytest.approx(0.975))
    many = with_interval(Statistic(0.5, n=20), np.append(draws, np.nan), n_groups=9)
    assert (many.low, many.reason) == (None, "no interval: undefined in 11 of 101 resamples")


def test_a_resample_in_which_the_scores_are_constant_is_undefined() -> None:
    # Only group 0 differs from the rest: without it the judge is constant, in (6/7)^7 = 34 % of draws.
    x, y, groups = np.array([2.0] + 6 * [1.0]), np.arange(7.0), [str(i) for i in range(7)]
    resamples = Resamples.draw(groups, 1000, seed=0)
    without = resamples.counts[:, 0] == 0
    for name in ("spearman", "pearson", "kendall", "ccc"):
        undefined = np.isnan(statistic_draws(name, x, y, resamples))
        assert undefined[without].all()
        np.testing.assert_array_equal(undefined, without | (resamples.counts[:, 0] == 7))


def test_no_resamples_give_the_value_alone() -> None:
    x, y, groups = tied_scores(30, seed=7)
    result = estimate("kendall", x, y, Resamples.draw(groups, 0, seed=0))
    assert result.value is not None
    assert (result.low, result.high) == (None, None)


def test_row_pearson_is_numpys_row_by_row() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 8))
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(row_pearson(x, y), expected)
    assert np.isnan(row_pearson(np.ones((1, 4)), np.arange(4.0)[None])).all()


def simulated(seed: int, groups: int = 40, size: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bivariate normal scores, correlation 0.6, half of the variance shared within a group on both sides."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky([[1.0, 0.6], [0.6, 1.0]])
    shared = np.repeat(rng.normal(size=(groups, 2)), size, axis=0)
    x, y = root @ ((shared + rng.normal(size=(groups * size, 2))) / np.sqrt(2)).T
    return x, y, np.repeat(np.arange(groups), size).astype(str)


@pytest.mark.parametrize(
    ("name", "truth"),
    [("spearman", 6 / np.pi * np.arcsin(0.3)), ("bias", 0.0)],
)
def test_intervals_over_groups_cover_the_truth_and_intervals_over_items_do_not(name: str, truth: float) -> None:
    covered = {"groups": 0, "items": 0}
    for seed in range(100):
        x, y, groups = simulated(seed)
        for kind, clusters in (("groups", groups), ("items", np.arange(len(x)).astype(str))):
            result = estimate(name, x, y, Resamples.draw(clusters, 200, seed))
            assert result.low is not None
            assert result.high is not None
            covered[kind] += result.low <= truth <= result.high
    assert 88 <= covered["groups"] <= 99
    assert covered["items"] < covered["groups"]
