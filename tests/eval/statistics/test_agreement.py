"""Every statistic against values worked out by hand."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from empathy_judge.eval.statistics.agreement import (
    CORRELATIONS,
    STATISTICS,
    KappaDistance,
    bias,
    ccc,
    icc_a1,
    icc_c1,
    kendall,
    loa_lower,
    loa_upper,
    mae,
    pearson,
    rmse,
    spearman,
    weighted_kappa,
)
from empathy_judge.eval.statistics.bootstrap import estimate
from empathy_judge.eval.statistics.icc import icc

from .conftest import NAN, SHROUT_FLEISS, own_groups, table_of

KAPPAS = [partial(weighted_kappa, weights="linear", distance=distance) for distance in get_args(KappaDistance)]
# Bland and Altman (1986), table 1: peak flow of 17 people in l/min, first reading of the large and of the mini meter.
LARGE = [494, 395, 516, 434, 476, 557, 413, 442, 650, 433, 417, 656, 267, 478, 178, 423, 427]
MINI = [512, 430, 520, 428, 500, 600, 364, 380, 658, 445, 432, 626, 260, 477, 259, 350, 451]


def vector(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize(
    ("function", "x", "y", "expected"),
    [
        (spearman, (1, 2, 3, 4, 5), (2, 1, 4, 3, 5), 1 - 6 * 4 / (5 * 24)),  # squared rank differences sum to 4
        (spearman, (1, 2, 2, 3), (1, 2, 3, 4), 4.5 / np.sqrt(4.5 * 5)),  # ranks of x: 1, 2.5, 2.5, 4
        (kendall, (1, 2, 3, 4, 5), (2, 1, 4, 3, 5), (8 - 2) / 10),  # 8 concordant, 2 discordant pairs
        (kendall, (1, 2, 2, 3), (1, 2, 3, 4), 5 / np.sqrt(30)),  # 5 concordant pairs, 1 tied in x
        (pearson, (1, 2, 3, 4, 5), (2, 1, 4, 3, 5), 0.8),
        (pearson, (1, 2, 3), (2, 3, 4), 1.0),
        (ccc, (1, 2, 3), (2, 3, 4), (2 * 2 / 3) / (2 / 3 + 2 / 3 + 1)),  # pays for the shift
        (ccc, (1, 2, 3), (1, 2, 3), 1.0),
        (mae, (3, 5, 1), (1, 4, 4), 2.0),
        (mae, (3, 3), (1, 4), 1.5),
        (rmse, (3, 5, 1), (1, 4, 4), np.sqrt(14 / 3)),
        (bias, (4.0,), (1.5,), 2.5),  # judge minus human
        (loa_upper, (4, 6), (1, 1), 4 + 1.96 * np.sqrt(2)),
        (icc_c1, (1, 2, 3), (2, 3, 4), 1.0),
        (icc_a1, (1, 2, 3), (3, 2, 1), -2 / (2 - 4 / 3)),  # mean squares 0, 0 and 2
    ],
)
def test_values_by_hand(function, x, y, expected):
    assert function(vector(*x), vector(*y)) == pytest.approx(expected)


def test_limits_of_agreement_of_the_peak_flow_meters():
    """They print a mean of -2.1, a standard deviation of 38.8, and with 2 for 1.96 limits of -79.7 and 75.5."""
    large, mini = vector(*LARGE), vector(*MINI)
    lower, mean, upper = (statistic(large, mini) for statistic in (loa_lower, bias, loa_upper))
    deviation = (upper - lower) / (2 * 1.96)
    assert f"{mean:.1f} {deviation:.1f}" == "-2.1 38.8"
    assert lower == pytest.approx(-79.7 + 0.04 * 38.8, abs=0.1)
    assert upper == pytest.approx(75.5 - 0.04 * 38.8, abs=0.1)
    assert estimate(loa_lower, vector(4.0), vector(1.5)).reason == "1 item; limits of agreement need at least 2"


@pytest.mark.parametrize(("first", "second"), list(combinations(range(4), 2)))
def test_intraclass_correlations_of_two_raters_are_those_of_the_panel(first, second):
    """Of two judges of Shrout and Fleiss, by the analysis of variance that gives their printed figures for four."""
    both = SHROUT_FLEISS[:, [first, second]]
    expected = icc(table_of(both.T), own_groups(6))
    assert icc_a1(both[:, 0], both[:, 1]) == pytest.approx(expected["ICC(A,1)"].value, abs=1e-12)
    assert icc_c1(both[:, 0], both[:, 1]) == pytest.approx(expected["ICC(C,1)"].value, abs=1e-12)


@pytest.mark.parametrize("name", STATISTICS)
def test_nan_on_either_side_is_dropped_and_counted(name):
    whole = STATISTICS[name](vector(1, 2, 4, 3, 7), vector(2, 1, 4, 3, 5))
    gaps = estimate(STATISTICS[name], vector(1, NAN, 2, 4, 3, 9, 7), vector(2, 3, 1, 4, 3, NAN, 5))
    assert gaps.value == pytest.approx(whole)
    assert (gaps.n, gaps.dropped) == (5, 2)


@pytest.mark.parametrize("function", [*CORRELATIONS, *KAPPAS])
@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        (vector(3, 3, 3, 3), vector(1, 2, 3, 4), "the judge scores are constant"),
        (vector(1, 2, 3, 4), vector(2, 2, 2, 2), "the human scores are constant"),
        (vector(1, 1, 1), vector(2, 2, 2), "the judge and the human scores are constant"),
        (vector(0.1 + 0.2, 0.3, 0.3), vector(1, 2, 3), "the judge scores are constant"),  # equal up to rounding
        (vector(1, 2), vector(1, 2), "2 items; a correlation needs at least 3"),
        (vector(1, NAN, NAN), vector(1, 2, 3), "1 item; a correlation needs at least 3"),
    ],
)
def test_a_correlation_that_is_undefined_has_a_reason_and_is_not_zero(function, x, y, reason):
    result = estimate(function, x, y)
    assert result.value is None
    assert result.reason == reason


@pytest.mark.parametrize("name", STATISTICS)
def test_no_items_and_infinite_scores_are_undefined(name):
    assert estimate(STATISTICS[name], vector(), vector()).reason == "0 items"
    assert estimate(STATISTICS[name], vector(NAN, 1), vector(1, NAN)).reason == "0 items, 2 dropped as NaN"
    result = estimate(STATISTICS[name], vector(1, 2, np.inf, 4), vector(1, 2, 3, 4))
    assert (result.value, result.reason) == (None, "1 item with an infinite score")


def test_vectors_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="equal length"):
        estimate(spearman, vector(1, 2, 3), vector(1, 2))


# ---------------------------------------------------------------- kappa

FIRST = np.array([1.0, 2, 3, 4, 5, 5, 2, 1, 4, 7])
SECOND = np.array([1.0, 3, 3, 5, 5, 4, 2, 2, 7, 7])


@pytest.mark.parametrize(
    ("weights", "distance", "expected"),
    [  # scikit-learn 1.9.1: cohen_kappa_score(x, y, weights=..., labels=range(1, 8) for scores, None for ranks)
        ("linear", "scores", 0.6818181818181819),
        ("quadratic", "scores", 0.8284960422163589),
        ("linear", "ranks", 0.6907216494845361),
        ("quadratic", "ranks", 0.8615916955017301),
    ],
)
def test_equals_scikit_learn_with_a_gap_in_the_scale(weights, distance, expected):
    assert weighted_kappa(FIRST, SECOND, weights, distance) == pytest.approx(expected, abs=1e-9)


def test_quadratic_kappa_of_scores_is_concordance_also_of_fractions():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 200)) + 5 * rng.normal(size=200)
    assert weighted_kappa(x, y, "quadratic", "scores") == pytest.approx(ccc(x, y), abs=1e-12)
