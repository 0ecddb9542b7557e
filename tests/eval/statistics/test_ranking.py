"""Corrections and clusters by hand, and numbers of groups against simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from empathy_judge.eval.statistics.agreement import Statistic, spearman
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.ranking import (
    groups_needed,
    holm,
    power,
    rank_judges,
    separation,
    significance_clusters,
)
from empathy_judge.eval.statistics.significance import Comparison, compare_all, permutation_test

NAN = float("nan")


def test_holm_by_hand() -> None:
    # 4 x 0.005 = 0.02; 3 x 0.01 = 0.03; 2 x 0.03 = 0.06; 1 x 0.04 = 0.04, not below the one before.
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02], rtol=0, atol=1e-15)
    np.testing.assert_allclose(holm(np.array([0.4, 0.6, 0.7])), [1.0, 1.0, 1.0])
    np.testing.assert_allclose(holm(np.array([0.02, NAN, 0.02])), [0.04, NAN, 0.04])


def test_corrections_of_nothing_and_of_bad_values() -> None:
    assert holm(np.array([])).shape == (0,)
    np.testing.assert_array_equal(holm(np.array([NAN, NAN])), [NAN, NAN])
    np.testing.assert_array_equal(holm(np.array([0.03])), [0.03])
    with pytest.raises(ValueError, match=r"p value 1\.2; expected 0 to 1"):
        holm(np.array([0.5, 1.2]))


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
def test_a_cluster_begins_where_all_above_are_better_than_all_below(
    worse: dict[int, tuple[int, ...]], clusters: tuple[int, ...]
) -> None:
    better = np.zeros((4, 4), dtype=bool)
    for judge, others in worse.items():
        better[judge, list(others)] = True
    assert significance_clusters(better) == clusters


def test_clusters_of_no_judge_and_of_one() -> None:
    assert significance_clusters(np.zeros((0, 0), dtype=bool)) == ()
    assert significance_clusters(np.zeros((1, 1), dtype=bool)) == (1,)
    assert rank_judges({}, {}).judges == ()


def test_judges_are_ranked_and_undefined_ones_named() -> None:
    rng = np.random.default_rng(0)
    human = rng.normal(size=300)
    scores = {
        "poor": human + 5 * rng.normal(size=300),
        "constant": np.ones(300),
        "good": human + 0.3 * rng.normal(size=300),
        "also good": human + 0.3 * rng.normal(size=300),
        "nan": np.full(300, NAN),
        "random": rng.normal(size=300),
    }
    comparisons = compare_all(scores, human, Resamples.draw(np.arange(300), 20, 0), permutations=1999)
    agreement = {name: estimate(spearman, score, human) for name, score in scores.items()}
    ranking = rank_judges(agreement, comparisons)
    assert set(ranking.judges[:2]) == {"good", "also good"}
    assert ranking.judges[2:] == ("poor", "random")
    assert ranking.clusters[:3] == (1, 1, 2)
    assert ranking.unranked == {"constant": "the judge scores are constant", "nan": "0 items, 300 dropped as NaN"}
    # Six comparisons are defined; the four smallest p values, 1 / 2000 each, are all multiplied by 6.
    np.testing.assert_allclose(ranking.p[:2, 2:], 6 / 2000)
    np.testing.assert_array_equal(ranking.p, ranking.p.T)
    assert np.isnan(np.diag(ranking.p)).all()
    raw = comparisons["poor", "random"].permutation
    assert raw is not None
    assert ranking.p[2, 3] == pytest.approx(2 * raw.p)
    assert ranking.clusters[3] == (3 if ranking.p[2, 3] < 0.05 else 2)


def test_a_difference_of_the_other_sign_divides_nothing() -> None:
    # On the items that both scored, b is better; a scored many easy items besides.
    human = np.random.default_rng(1).normal(size=200)
    a, b = human.copy(), human.copy()
    a[:50] = -a[:50]
    b[50:] = NAN
    comparisons = compare_all({"a": a, "b": b}, human, Resamples.draw(np.arange(200), 20, 0), permutations=999)
    assert comparisons["a", "b"].difference.value == pytest.approx(-2.0)
    agreement = {"a": Statistic(0.95, n=200), "b": Statistic(0.9, n=50)}
    ranking = rank_judges(agreement, comparisons)
    assert ranking.judges == ("a", "b")
    assert ranking.p[0, 1] == pytest.approx(1 / 1000)
    assert ranking.clusters == (1, 1)


def study(groups: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """A better judge, a worse one, people, and groups of three items; half of every variance is the group's."""
    codes = np.repeat(np.arange(groups), 3)

    def noise() -> np.ndarray:
        return (rng.normal(size=groups)[codes] + rng.normal(size=3 * groups)) / np.sqrt(2)

    truth = noise()
    return truth + 0.8 * noise(), truth + 1.3 * noise(), truth + 0.6 * noise(), codes


def comparison(groups: int, seed: int, resamples: int = 300) -> Comparison:
    first, second, human, codes = study(groups, np.random.default_rng(seed))
    drawn = Resamples.draw(codes, resamples, 0)
    return compare_all({"first": first, "second": second}, human, drawn, permutations=99)["first", "second"]


def test_as_many_groups_as_predicted_have_the_power() -> None:
    pilots = [comparison(300, seed, resamples=60) for seed in range(50)]
    difference = np.mean([pilot.difference.value or NAN for pilot in pilots])
    error = np.mean([pilot.standard_error or NAN for pilot in pilots])
    needed = groups_needed(float(difference), float(error), 300)
    assert 100 < needed < 200
    rng = np.random.default_rng(1)
    p = [permutation_test(*study(needed, rng), permutations=399).p for _ in range(400)]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.8, abs=0.07)


def test_power_by_hand() -> None:
    assert power(0.0, 1.0) == pytest.approx(0.05, abs=1e-12)
    # R: pnorm(2.8 - qnorm(0.975)) + pnorm(-2.8 - qnorm(0.975)).
    assert power(-0.28, 0.1) == pytest.approx(0.7995569, abs=1e-6)
    # (1.959964 + 0.841621)^2 = 7.848880; times 40 groups = 313.96.
    assert groups_needed(0.1, 0.1, 40) == 314
    assert groups_needed(-0.1, 0.1, 40) == 314
    assert groups_needed(9.0, 0.1, 40) == 6


def test_all_fields_from_one_comparison() -> None:
    found = comparison(60, seed=3)
    assert found.standard_error is not None
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


def test_no_number_without_a_difference_or_its_error() -> None:
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
