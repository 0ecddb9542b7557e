"""Resamples are the plain statistic on repeated items, groups stay whole, and intervals cover."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics.agreement import CORRELATIONS, STATISTICS, Statistic, bias, mae, spearman
from empathy_judge.eval.statistics.bootstrap import (
    Resamples,
    bca_percentiles,
    difference,
    estimate,
    fisher_z,
    ratio,
    t_interval,
    with_interval,
    z_variance,
)
from empathy_judge.eval.statistics.krippendorff import krippendorff_alpha
from scipy import stats

from .conftest import redrawn, table_of


def tied_scores(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated scores with many ties, and groups of unequal sizes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = x + rng.normal(size=n)
    return x.round(0), y.round(1), rng.integers(0, n // 5, size=n).astype(str)


@pytest.mark.parametrize("name", STATISTICS)
def test_draws_equal_the_plain_statistic_on_the_repeated_items(name):
    x, y, groups = tied_scores(60, seed=1)
    resamples = Resamples.sample(groups, 50, seed=3)
    draws = estimate(STATISTICS[name], x, y, resamples=resamples).draws
    for draw, items in zip(draws, redrawn(resamples), strict=True):
        assert draw == pytest.approx(STATISTICS[name](x[items], y[items]), abs=1e-12)


def test_groups_are_drawn_whole_and_as_many_as_there_are():
    groups = ["a", "b", "a", "c", "b", "a"]
    resamples = Resamples.sample(groups, 200, seed=0)
    items = resamples.apply(lambda drawn: np.bincount(drawn, minlength=6))
    assert items.shape == (200, 6)
    np.testing.assert_array_equal(items[:, 0], items[:, 2])
    np.testing.assert_array_equal(items[:, 0], items[:, 5])
    np.testing.assert_array_equal(items[:, 1], items[:, 4])
    np.testing.assert_array_equal(items[:, [0, 1, 3]].sum(axis=1), np.full(200, 3))
    assert {tuple(row) for row in items[:, [0, 1, 3]]} >= {(1.0, 1.0, 1.0), (3.0, 0.0, 0.0), (0.0, 1.0, 2.0)}


def test_undefined_resamples_are_counted_and_too_many_of_them_leave_no_interval():
    draws = np.concatenate([np.full(10, np.nan), np.linspace(0, 1, 90)])
    resamples = Resamples(np.arange(9), np.ones((len(draws), 9)))
    some = with_interval(Statistic(0.5, n=20), draws, resamples)
    assert some.undefined_resamples == 10
    assert (some.low, some.high) == (pytest.approx(0.025), pytest.approx(0.975))
    more = Resamples(np.arange(9), np.ones((len(draws) + 1, 9)))
    many = with_interval(Statistic(0.5, n=20), np.append(draws, np.nan), more)
    assert (many.low, many.reason) == (None, "no interval: undefined in 11 of 101 resamples")


def test_a_resample_in_which_the_scores_are_constant_is_undefined():
    # Only group 0 differs from the rest: without it the judge is constant, in (6/7)^7 = 34 % of draws.
    x, y, groups = np.array([2.0] + 6 * [1.0]), np.arange(7.0), [str(i) for i in range(7)]
    resamples = Resamples.sample(groups, 1000, seed=0)
    without = resamples.counts[:, 0] == 0
    for function in CORRELATIONS:
        undefined = np.isnan(estimate(function, x, y, resamples=resamples).draws)
        assert undefined[without].all()
        np.testing.assert_array_equal(undefined, without | (resamples.counts[:, 0] == 7))


def test_differences_and_ratios_are_taken_draw_by_draw():
    x, y, groups = tied_scores(60, seed=8)
    resamples = Resamples.sample(groups, 100, seed=0)
    one, other = (estimate(mae, x, v, resamples=resamples) for v in (y, np.zeros(60)))
    apart, divided = difference(one, other, resamples), ratio(one, other, resamples)
    assert apart.value == pytest.approx(one.value - other.value, abs=1e-12)
    assert (apart.low, apart.high) == pytest.approx(np.percentile(one.draws - other.draws, [2.5, 97.5]), abs=1e-12)
    assert divided.value == pytest.approx(one.value / other.value, abs=1e-12)
    assert (divided.low, divided.high) == pytest.approx(np.percentile(one.draws / other.draws, [2.5, 97.5]), abs=1e-12)
    below = ratio(one, estimate(bias, y, y + 1, resamples=resamples), resamples)
    assert (below.undefined_resamples, below.low) == (100, None)
    nothing = difference(one, Statistic(None, n=3, reason="why"), resamples)
    assert (nothing.value, nothing.n, nothing.reason) == (None, 60, "why")


def simulated(seed: int, groups: int = 40, size: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bivariate normal scores, correlation 0.6, half of the variance shared within a group on both sides."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky([[1.0, 0.6], [0.6, 1.0]])
    shared = np.repeat(rng.normal(size=(groups, 2)), size, axis=0)
    x, y = root @ ((shared + rng.normal(size=(groups * size, 2))) / np.sqrt(2)).T
    return x, y, np.repeat(np.arange(groups), size).astype(str)


@pytest.mark.parametrize(("function", "truth"), [(spearman, 6 / np.pi * np.arcsin(0.3)), (bias, 0.0)])
def test_intervals_over_groups_cover_the_truth_and_intervals_over_items_do_not(function, truth):
    covered = {"groups": 0, "items": 0}
    for seed in range(100):
        x, y, groups = simulated(seed)
        for kind, clusters in (("groups", groups), ("items", np.arange(len(x)).astype(str))):
            result = estimate(function, x, y, resamples=Resamples.sample(clusters, 200, seed))
            covered[kind] += result.low <= truth <= result.high
    assert 88 <= covered["groups"] <= 99
    assert covered["items"] < covered["groups"]


def test_bca_interval_equals_that_of_scipy():
    """Every item its own group: SciPy leaves out one item at a time, as we do one group."""
    rng = np.random.default_rng(0)
    x = rng.exponential(size=40)
    resamples = Resamples.sample(np.arange(40).astype(str), 20_000, seed=0, interval="bca")
    assert (resamples.resamples, resamples.jackknife) == (20_000, 40)
    np.testing.assert_array_equal(resamples.counts[20_000:].sum(axis=1), np.full(40, 39))
    ours = estimate(np.mean, x, resamples=resamples)
    theirs = stats.bootstrap((x,), np.mean, n_resamples=20_000, method="BCa", random_state=1).confidence_interval
    plain = estimate(np.mean, x, resamples=resamples.percentile(20_000))
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.02)
    assert ours.low - plain.low > 0.01  # skewed to the right: the whole interval moves up
    assert ours.high - plain.high > 0.01


def test_bca_percentiles_by_hand():
    """Efron (1987): z0 from the share of draws below the value, a from the skewness of the jackknife."""
    drawn, left_out = np.arange(-100.0, 101.0), np.array([0.0, 0.0, 0.3])
    away = 0.1 - left_out
    a = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    z0 = stats.norm.ppf(120.5 / 201)
    expected = [100 * stats.norm.cdf(z0 + (z0 + z) / (1 - a * (z0 + z))) for z in stats.norm.ppf([0.025, 0.975])]
    assert bca_percentiles(20.0, drawn, left_out) == pytest.approx(expected, abs=1e-9)
    assert bca_percentiles(0.0, drawn, np.full(5, np.nan)) == pytest.approx((2.5, 97.5), abs=1e-9)


def test_many_groups_are_left_out_several_at_a_time():
    resamples = Resamples.sample(np.arange(450).astype(str), 10, seed=0, interval="bca")
    assert resamples.jackknife == 200
    left_out = 1 - resamples.counts[10:]
    np.testing.assert_array_equal(left_out.sum(axis=0), np.ones(450))
    assert set(left_out.sum(axis=1)) == {2.0, 3.0}


def test_alpha_is_covered_with_six_groups():
    """Percentiles hold it 82 % of the time: six drawn groups are more alike than six groups."""
    truth, held = 1 / (1 + 1.0), []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        groups = np.arange(24) // 4
        quality = 0.7 * rng.normal(size=6)[groups] + np.sqrt(0.51) * rng.normal(size=24)
        scores = quality[:, None] + rng.normal(size=(24, 4))
        found = krippendorff_alpha(table_of(scores.T), "interval", Resamples.sample(groups, 200, seed))
        held.append(found.low <= truth <= found.high)
    assert 0.9 <= np.mean(held) <= 0.99


@pytest.mark.parametrize("ratings", [2.0, 3.5, 8.0])
def test_intervals_of_correlations_are_those_of_fishers_z(ratings):
    value, drawn = 0.4, np.array([0.39, 0.4, 0.41])
    centre = 0.5 * np.log((1 + (ratings - 1) * value) / (1 - value))
    assert fisher_z(value, ratings) == pytest.approx(centre)
    step = 1e-6  # the delta method, by a difference
    slope = (fisher_z(value + step, ratings) - fisher_z(value - step, ratings)) / (2 * step)
    variance = z_variance(value, drawn, ratings)
    assert variance == pytest.approx(drawn.var(ddof=1) * slope**2, rel=1e-6)
    found = t_interval(Statistic(value), variance, 7, ratings)
    half = stats.t.ppf(0.975, 7) * np.sqrt(variance)
    ends = fisher_z(np.array([found.low, found.high], dtype=float), ratings)
    np.testing.assert_allclose(ends, [centre - half, centre + half], rtol=0, atol=1e-12)
    if ratings == 2:
        assert found.high == pytest.approx(np.tanh(np.arctanh(value) + half))
    # Beyond the end of the scale, and where nothing varies
    below = t_interval(Statistic(-1.0), 0.1, 7, ratings)
    assert (below.low, below.value) == (-1.0, -1.0)
    assert t_interval(Statistic(value), 0.0, 7, ratings).high == value


def test_draws_within_strata():
    strata, groups = ["b", "a", "a", "b", "b", "a"], ["g", "g", "h", "g", "i", "k"]
    drawn = Resamples.sample(groups, 200, 0, strata=strata)
    assert drawn.codes.tolist() == [3, 0, 1, 3, 4, 2]  # g of a and g of b are two groups
    assert (drawn.counts[:, :3].sum(axis=1) == 3).all()
    assert (drawn.counts[:, 3:].sum(axis=1) == 2).all()
    assert abs(np.corrcoef(drawn.counts[:, 0], drawn.counts[:, 3])[0, 1]) < 0.2
    one = Resamples.sample(groups, 20, 0, strata=["a"] * 6)
    np.testing.assert_array_equal(one.counts, Resamples.sample(groups, 20, 0).counts)
