"""Corrections against hand values and SciPy; clusters against matrices drawn by hand."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics.agreement import Statistic, spearman
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.ranking import holm, rank_judges, significance_clusters
from empathy_judge.eval.statistics.significance import compare_all

NAN = float("nan")


def test_holm_by_hand() -> None:
    # 4 x 0.005 = 0.02; 3 x 0.01 = 0.03; 2 x 0.03 = 0.06; 1 x 0.04 = 0.04, not below the one before.
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02], rtol=0, atol=1e-15)
    np.testing.assert_allclose(holm(np.array([0.4, 0.6, 0.7])), [1.0, 1.0, 1.0])
    np.testing.assert_allclose(holm(np.array([0.02, NAN, 0.02])), [0.04, NAN, 0.04])


def test_holm_equals_the_definition() -> None:
    p = np.random.default_rng(0).random(50) ** 3
    p[10:14] = p[3]  # ties
    step_down = [max((50 - (p < other).sum()) * other for other in p if other <= own) for own in p]
    np.testing.assert_allclose(holm(p), np.minimum(step_down, 1), rtol=0, atol=1e-12)


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
    agreement = {name: spearman(score, human) for name, score in scores.items()}
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
