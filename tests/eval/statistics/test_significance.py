"""Tests of a difference against plain loops, R's psych and cocor, and their level; rankings and power by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from empathy_judge.eval.statistics.agreement import Statistic, spearman
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.significance import (
    PairedDifference,
    compare_all,
    groups_needed,
    holm,
    permutation_test,
    power,
    rank_judges,
    separation,
    significance_clusters,
    williams,
)
from scipy import stats

from .conftest import NAN, redrawn


def tied(n: int, groups: int, seed: int) -> tuple[np.ndarray, ...]:
    """Judges on different scales, the first one better, with ties."""
    rng = np.random.default_rng(seed)
    human = rng.normal(size=n)
    first, second = human + 0.7 * rng.normal(size=n), human + 1.5 * rng.normal(size=n)
    codes = np.concatenate([np.arange(groups), rng.integers(0, groups, n - groups)])
    return first.round(0), 10 * second.round(1) + 50, human.round(1), codes


def compared(first: np.ndarray, second: np.ndarray, human: np.ndarray, codes: np.ndarray, **kwargs) -> PairedDifference:
    resamples = Resamples.sample(codes, kwargs.pop("resamples", 200), 0)
    return compare_all({"a": first, "b": second}, human, resamples, **kwargs)["a", "b"]


def test_every_permutation_equals_a_plain_loop():
    first, second, human, codes = tied(24, 8, seed=1)
    x, y = (stats.zscore(stats.rankdata(v)) for v in (first, second))
    z = stats.rankdata(human)
    differences = []
    for swap in product([False, True], repeat=8):
        swapped = np.array(swap)[codes]
        own, others = np.where(swapped, y, x), np.where(swapped, x, y)
        differences.append(stats.pearsonr(own, z).statistic - stats.pearsonr(others, z).statistic)
    observed = stats.spearmanr(first, human).statistic - stats.spearmanr(second, human).statistic
    assert differences[0] == pytest.approx(observed, abs=1e-12)
    p, permutations = permutation_test(first, second, human, codes, permutations=128)
    assert permutations == 128
    assert p == pytest.approx(np.mean(np.abs(differences) >= abs(observed) - 1e-9), abs=1e-12)
    assert 0.01 < p < 0.9


def test_random_permutations_estimate_the_exact_p():
    first, second, human, codes = tied(40, 13, seed=2)
    exact, every = permutation_test(first, second, human, codes, permutations=4096)
    drawn, permutations = permutation_test(first, second, human, codes, permutations=4095, seed=3)
    assert (every, permutations) == (4096, 4095)
    assert drawn == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 4095) + 1 / 4096)
    assert permutation_test(first, second, human, codes, permutations=4095, seed=3) == (drawn, 4095)
    assert drawn != permutation_test(first, second, human, codes, permutations=4095, seed=4)[0]
    # The observed assignment counts (Phipson and Smyth, 2010): p is never 0
    human = np.random.default_rng(0).normal(size=200)
    p, _ = permutation_test(human, -human, human, np.arange(200), permutations=999)
    assert p == 1 / 1000


def test_bootstrap_equals_a_plain_loop():
    first, second, human, codes = tied(60, 20, seed=5)
    resamples = Resamples.sample(codes, 60, 0)
    found = compare_all({"a": first, "b": second}, human, resamples, permutations=10)["a", "b"]

    def apart(items: np.ndarray) -> float:
        own, others = (stats.spearmanr(score[items], human[items]).statistic for score in (first, second))
        return own - others

    draws, observed = np.array([apart(items) for items in redrawn(resamples)]), apart(np.arange(60))
    assert found.difference.value == pytest.approx(observed, abs=1e-12)
    assert (found.difference.low, found.difference.high) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=1e-9)
    assert found.standard_error == pytest.approx(draws.std(ddof=1), abs=1e-9)
    assert found.bootstrap_p == pytest.approx(2 * (min((draws <= 0).sum(), (draws >= 0).sum()) + 1) / 61, abs=1e-12)


def test_williams_equals_psych():
    # The data and R's psych::r.test value (two-sided p 0.9317423, n = 9 systems, Spearman) are those of the tests of
    # nlpstats (Deutsch); the generator state follows three matrices that its first case uses.
    rng = np.random.RandomState(12)
    matrices = [rng.random_sample((9, 5)) for _ in range(6)]
    x, y, z = (matrix.mean(axis=1) for matrix in matrices[3:])
    assert compared(x, y, z, np.arange(9)).williams_p == pytest.approx(0.9317423, abs=5e-8)


@pytest.mark.parametrize(
    ("three", "n", "t"),
    [
        # Outputs of cocor::cocor.dep.groups.overlap, whose input is printed to four decimals.
        ((-0.1741, 0.2015, 0.3734), 646, -9.0340),
        ((0.8066, 0.2383, 0.2255), 177, 9.3823),
        ((0.5447, 0.8, 0.0729), 70, -2.8114),
        # psych::r.test(103, .4, .5, .1), Steiger's (1980) own example.
        ((0.4, 0.5, 0.1), 103, -0.89),
    ],
)
def test_williams_equals_printed_values(three, n, t):
    tolerance = 0.005 if n == 103 else 0.0015
    assert stats.t.isf(williams(*three, n) / 2, n - 3) == pytest.approx(abs(t), abs=tolerance)


def test_items_without_a_score_are_left_out_and_counted():
    first, second, human, codes = tied(60, 20, seed=7)
    first[:5], second[3:8], human[20] = NAN, NAN, NAN
    kept = ~np.isnan(first) & ~np.isnan(second) & ~np.isnan(human)
    resamples = Resamples.sample(codes, 100, 0)
    scores = {"a": first, "b": second, "c": np.arange(60.0)}
    every = compare_all(scores, human, resamples, permutations=99)
    found = every["a", "b"]
    assert (found.difference.n, found.difference.dropped) == (51, 9)
    assert (every["a", "c"].difference.n, every["b", "c"].difference.n) == (54, 54)
    complete = {"a": first[kept], "b": second[kept]}
    whole = compare_all(complete, human[kept], resamples.select(kept), permutations=99)["a", "b"]
    for name in ("value", "low", "high"):
        assert getattr(found.difference, name) == getattr(whole.difference, name)
    for name in ("p", "permutations", "bootstrap_p", "williams_p"):
        assert getattr(found, name) == getattr(whole, name)


@pytest.mark.parametrize(
    ("first", "human", "reason"),
    [
        ([1, 1, 1, 1], [1, 2, 3, 4], "first judge: the judge scores are constant"),
        ([4, 1, 3, 2], [2, 2, 2, 2], "the human scores are constant"),
        ([4, 1, 3, np.inf], [1, 2, 3, 4], "first judge: 1 item with an infinite score"),
        ([4, 1, NAN, NAN], [1, 2, 3, 4], "2 items; a correlation needs at least 3"),
        ([NAN, NAN, NAN, NAN], [1, 2, 3, 4], "0 items"),
        ([], [], "0 items"),
    ],
)
def test_without_a_correlation_there_is_no_difference(first, human, reason):
    second = np.array([2.0, 1.0, 4.0, 3.0])[: len(first)]
    found = compared(np.array(first, dtype=float), second, np.array(human, dtype=float), np.arange(len(first)))
    assert found.difference.value is None
    assert found.difference.reason == reason
    assert (found.p, found.permutations, found.bootstrap_p, found.standard_error) == (None,) * 4
    assert found.williams_p is None


def test_few_items_and_few_groups_have_p_values_that_say_so():
    three = compared(np.array([1.0, 2, 3]), np.array([3.0, 1, 2]), np.array([1.0, 2, 3]), np.arange(3))
    assert three.difference.value == pytest.approx(1.5)
    assert three.williams_p is None  # at least 4 items are needed
    first, second, human, _ = tied(30, 10, seed=8)
    one = compared(first, second, human, np.zeros(30))
    assert (one.p, one.permutations) == (1.0, 1)  # nothing to exchange
    assert (one.bootstrap_p, one.standard_error) == (None, None)
    assert one.difference.reason == "no interval: 1 group, at least 5 needed"
    assert compared(first, second, human, np.arange(30), resamples=0).bootstrap_p is None
    # A judge does not differ from itself
    first, _, human, codes = tied(60, 20, seed=9)
    found = compared(first, 2 * first + 1, human, codes)
    assert (found.difference.value, found.difference.low, found.difference.high) == (0.0, 0.0, 0.0)
    assert (found.p, found.bootstrap_p) == (1.0, 1.0)
    assert found.williams_p is None


def clustered(rng: np.random.Generator, n: int = 100, groups: int = 40, share: float = 0.5) -> tuple[np.ndarray, ...]:
    """Two exchangeable judges, people, groups; `share` of the variance of truth and of all errors is the group's."""
    codes = np.concatenate([np.arange(groups), rng.integers(0, groups, n - groups)])

    def noise() -> np.ndarray:
        return np.sqrt(share) * rng.normal(size=groups)[codes] + np.sqrt(1 - share) * rng.normal(size=n)

    truth = noise()
    return truth + noise(), truth + noise(), truth + 0.6 * noise(), codes


def test_false_positives_of_permutations_are_at_the_level_only_where_groups_stay_whole():
    rng = np.random.default_rng(10)
    whole, cells = [], []
    for _ in range(1000):
        first, second, human, codes = clustered(rng)
        whole.append(permutation_test(first, second, human, codes, permutations=399)[0])
        cells.append(permutation_test(first, second, human, np.arange(100), permutations=199)[0])
    assert 0.04 <= np.mean(np.array(whole) <= 0.05) <= 0.06
    assert np.mean(np.array(cells) <= 0.05) > 0.08


# ---------------------------------------------------------------- rankings


def test_holm_by_hand():
    # 4 x 0.005 = 0.02; 3 x 0.01 = 0.03; 2 x 0.03 = 0.06; 1 x 0.04 = 0.04, not below the one before.
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02], rtol=0, atol=1e-15)
    np.testing.assert_allclose(holm(np.array([0.4, 0.6, 0.7])), [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(holm(np.array([0.03])), [0.03])
    assert holm(np.array([])).shape == (0,)


@pytest.mark.parametrize(
    ("worse", "clusters"),
    [
        ({0: (1, 2, 3), 1: (2, 3), 2: (3,)}, (1, 2, 3, 4)),
        ({0: (2, 3), 1: (2, 3)}, (1, 1, 2, 2)),
        # The first is better than the third, but the second is not: nothing divides them.
        ({0: (2, 3), 1: (3,)}, (1, 1, 1, 1)),
        ({0: (1, 2, 3)}, (1, 2, 2, 2)),
        ({}, (1, 1, 1, 1)),
    ],
)
def test_a_cluster_begins_where_all_above_are_better_than_all_below(worse, clusters):
    better = np.zeros((4, 4), dtype=bool)
    for judge, others in worse.items():
        better[judge, list(others)] = True
    assert significance_clusters(better) == clusters


def test_judges_are_ranked_and_undefined_ones_named():
    rng = np.random.default_rng(0)
    human = rng.normal(size=300)
    scores = {
        "poor": human + 5 * rng.normal(size=300), "constant": np.ones(300),
        "good": human + 0.3 * rng.normal(size=300), "also good": human + 0.3 * rng.normal(size=300),
        "nan": np.full(300, NAN), "random": rng.normal(size=300),
    }  # fmt: skip
    comparisons = compare_all(scores, human, Resamples.sample(np.arange(300), 20, 0), permutations=1999)
    agreement = {name: estimate(spearman, score, human) for name, score in scores.items()}
    tested = {pair: (own.difference.value, own.p) for pair, own in comparisons.items() if own.p is not None}
    ranking = rank_judges(agreement, tested)
    best, second, poor, random = ranking.clusters
    assert ({best, second}, poor, random) == ({"good", "also good"}, "poor", "random")
    assert list(ranking.clusters.values())[:3] == [1, 1, 2]
    assert ranking.unranked == {"constant": "the judge scores are constant", "nan": "0 items, 300 dropped as NaN"}
    # Six comparisons are defined; the four smallest p values, 1 / 2000 each, are all multiplied by 6.
    assert len(ranking.p) == 6
    assert {p for pair, p in ranking.p.items() if len({best, second} & {*pair}) == 1} == {6 / 2000}
    assert ranking.p["poor", "random"] == pytest.approx(2 * tested["poor", "random"][1])
    assert ranking.clusters["random"] == (3 if ranking.p["poor", "random"] < 0.05 else 2)


def test_a_difference_of_the_other_sign_divides_nothing():
    # On the items that both scored, b is better; a scored many easy items besides.
    human = np.random.default_rng(1).normal(size=200)
    a, b = human.copy(), human.copy()
    a[:50] = -a[:50]
    b[50:] = NAN
    comparisons = compare_all({"a": a, "b": b}, human, Resamples.sample(np.arange(200), 20, 0), permutations=999)
    assert comparisons["a", "b"].difference.value == pytest.approx(-2.0)
    agreement = {"a": Statistic(0.95, n=200), "b": Statistic(0.9, n=50)}
    ranking = rank_judges(agreement, {("a", "b"): (-2.0, comparisons["a", "b"].p)})
    assert ranking.p["a", "b"] == pytest.approx(1 / 1000)
    assert list(ranking.clusters.items()) == [("a", 1), ("b", 1)]


def comparison(groups: int, seed: int, resamples: int = 300) -> PairedDifference:
    """Of two judges on three items for each group."""
    return compared(*tied(3 * groups, groups, seed), resamples=resamples, permutations=99)


def test_power_by_hand():
    assert power(0.0, 1.0) == pytest.approx(0.05, abs=1e-12)
    # R: pnorm(2.8 - qnorm(0.975)) + pnorm(-2.8 - qnorm(0.975)).
    assert power(-0.28, 0.1) == pytest.approx(0.7995569, abs=1e-6)
    # (1.959964 + 0.841621)^2 = 7.848880; times 40 groups = 313.96.
    assert groups_needed(0.1, 0.1, 40) == 314
    assert groups_needed(-0.1, 0.1, 40) == 314
    assert groups_needed(9.0, 0.1, 40) == 6


def test_all_fields_from_one_comparison():
    found = comparison(60, seed=3)
    difference = Statistic(0.1, low=0.04, high=0.16, n=180)
    result = separation(replace(found, difference=difference, standard_error=0.03))
    assert result.power == pytest.approx(power(0.1, 0.03), abs=1e-12)
    assert result.detectable_difference == pytest.approx(2.801585 * 0.03, abs=1e-6)
    assert result.groups_needed == groups_needed(0.1, 0.03, 60) == 43
    assert (result.groups_low, result.groups_high) == (groups_needed(0.16, 0.03, 60), groups_needed(0.04, 0.03, 60))
    assert result.items_needed == 129  # three per group
    assert result.reason is None
    assert power(0.1, 0.03 * np.sqrt(60 / 43)) >= 0.8 > power(0.1, 0.03 * np.sqrt(60 / 42))
    open_ended = separation(replace(found, difference=replace(difference, low=-0.01), standard_error=0.03))
    assert open_ended.groups_high is None
    assert open_ended.reason == "no largest number of groups: the interval of the difference reaches 0"


def test_no_number_without_a_difference_or_its_error():
    found = comparison(60, seed=4)
    same = separation(replace(found, difference=Statistic(0.0, low=-0.1, high=0.1, n=180)))
    assert (same.power, same.groups_needed) == (pytest.approx(0.05), None)
    assert same.detectable_difference == pytest.approx(2.801585 * (found.standard_error or 0), abs=1e-6)
    assert same.reason == "no difference was observed: no number of groups would show it"
    undefined = replace(found, difference=Statistic(None, reason="the human scores are constant"))
    assert separation(undefined).reason == "the human scores are constant"
    assert separation(comparison(4, seed=5)).reason == "no interval: 4 groups, at least 5 needed"
    assert separation(comparison(60, seed=5, resamples=0)).reason == (
        "no standard error of the difference: no resamples"
    )
    identical = separation(replace(found, difference=Statistic(0.0, low=0.0, high=0.0), standard_error=0.0))
    assert identical.reason == "the difference is the same in all resamples"
