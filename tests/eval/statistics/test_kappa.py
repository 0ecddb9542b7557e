"""Weighted kappa against scikit-learn's `cohen_kappa_score` and hand values; resamples against plain repetition."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from empathy_judge.eval.statistics.agreement import ccc
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.kappa import KAPPA_DISTANCES, KappaDistance, Weights, weighted_kappa

NAN = float("nan")
X = np.array([1.0, 2, 3, 4, 5, 5, 2, 1, 4, 7])
Y = np.array([1.0, 3, 3, 5, 5, 4, 2, 2, 7, 7])


@pytest.mark.parametrize(
    ("weights", "distance", "expected"),
    [  # scikit-learn 1.9.1: cohen_kappa_score(x, y, weights=..., labels=range(1, 8) for scores, None for ranks)
        ("linear", "scores", 0.6818181818181819),
        ("quadratic", "scores", 0.8284960422163589),
        ("linear", "ranks", 0.6907216494845361),
        ("quadratic", "ranks", 0.8615916955017301),
    ],
)
def test_equals_scikit_learn_with_a_gap_in_the_scale(weights: Weights, distance: KappaDistance, expected: float):
    assert weighted_kappa(X, Y, weights, distance) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("weights", "distance", "expected"),
    [
        # Scores 0, 1, 4 against 1, 1, 4. Distances: 1 observed of 3 items; of nine cells 1+1+4 + 0+0+3 + 3+3+0 = 15.
        ("linear", "scores", 1 - (1 / 3) / (15 / 9)),
        # Squared 1 of 3; of nine cells 1+1+16 + 0+0+9 + 9+9+0 = 45.
        ("quadratic", "scores", 1 - (1 / 3) / (45 / 9)),
        # Positions 0, 1, 2 against 1, 1, 2: of nine cells 1+1+2 + 0+0+1 + 1+1+0 = 7, squared 1+1+4 + 0+0+1 + 1+1+0 = 9.
        ("linear", "ranks", 1 - (1 / 3) / (7 / 9)),
        ("quadratic", "ranks", 1 - (1 / 3) / (9 / 9)),
    ],
)
def test_by_hand(weights: Weights, distance: KappaDistance, expected: float):
    found = weighted_kappa(np.array([0.0, 1, 4]), np.array([1.0, 1, 4]), weights, distance)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("distance", KAPPA_DISTANCES)
@pytest.mark.parametrize("weights", ["linear", "quadratic"])
def test_equal_scores_are_1_and_order_of_sides_does_not_matter(weights: Weights, distance: KappaDistance):
    assert weighted_kappa(X, X, weights, distance) == pytest.approx(1.0)
    swapped = weighted_kappa(Y, X, weights, distance)
    assert weighted_kappa(X, Y, weights, distance) == pytest.approx(swapped, abs=1e-12)


def test_quadratic_kappa_of_scores_is_concordance_also_of_fractions():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 200)) + 5 * rng.normal(size=200)
    assert weighted_kappa(x, y, "quadratic", "scores") == pytest.approx(ccc(x, y), abs=1e-12)


def test_scale_changes_nothing_but_gaps_do_under_scores():
    gap_x, gap_y = np.where(X == 7, 6, X), np.where(Y == 7, 6, Y)  # 1 to 5 and 6: no gap
    by_ranks = weighted_kappa(X, Y, "quadratic", "ranks")
    assert weighted_kappa(gap_x, gap_y, "quadratic", "ranks") == by_ranks
    assert weighted_kappa(gap_x, gap_y, "quadratic", "scores") == pytest.approx(by_ranks, abs=1e-12)
    assert weighted_kappa(10 * X + 3, 10 * Y + 3, "linear", "scores") == pytest.approx(
        weighted_kappa(X, Y, "linear", "scores"), abs=1e-12
    )


@pytest.mark.parametrize("distance", KAPPA_DISTANCES)
@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ([3.0, 3, 3, 3], "the judge scores are constant"),
        ([1.0, 2, NAN, NAN], "2 items; a correlation needs at least 3"),
        ([1.0, 2, np.inf, 3], "1 item with an infinite score"),
    ],
)
def test_undefined_values_have_a_reason(distance: KappaDistance, x: list[float], reason: str):
    found = estimate(partial(weighted_kappa, weights="linear", distance=distance), np.array(x), np.arange(4.0))
    assert (found.value, found.reason) == (None, reason)


def test_nan_is_dropped_and_counted():
    kappa = partial(weighted_kappa, weights="quadratic", distance="ranks")
    gaps = estimate(kappa, np.append(X, [NAN, 2]), np.append(Y, [2, NAN]))
    assert (gaps.n, gaps.dropped) == (10, 2)
    assert gaps.value == pytest.approx(0.8615916955017301, abs=1e-9)


@pytest.mark.parametrize("distance", KAPPA_DISTANCES)
@pytest.mark.parametrize("weights", ["linear", "quadratic"])
def test_interval_is_that_of_repeated_items(weights: Weights, distance: KappaDistance):
    """Also where a resample lacks a category, so that ranks change."""
    x, y = np.append(X, [NAN, 5]), np.append(Y, [2, 4])
    groups = [f"g{item // 2}" for item in range(len(x))]
    resamples = Resamples.draw(groups, 200, 1)
    kappa = partial(weighted_kappa, weights=weights, distance=distance)
    found = estimate(kappa, x, y, resamples=resamples)
    plain = []
    for counts in resamples.counts:
        times = counts[resamples.codes].astype(int)
        plain.append(estimate(kappa, np.repeat(x, times), np.repeat(y, times)).value)
    plain = np.array(plain, dtype=float)
    low, high = np.nanpercentile(plain, (2.5, 97.5))
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))
    assert found.low < found.value < found.high
    assert found.undefined_resamples == np.isnan(plain).sum()
