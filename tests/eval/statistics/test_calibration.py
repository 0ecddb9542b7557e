"""Calibration, use of the scale and stated intervals against plain loops and hand values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from empathy_judge.eval.statistics.agreement import Statistic
from empathy_judge.eval.statistics.bootstrap import Resamples, estimates
from empathy_judge.eval.statistics.calibration import (
    MAPPINGS,
    calibration_curve,
    calibration_error,
    calibration_line,
    coverage,
    error_ratio,
    expected_calibration_error,
    mapped_errors,
    mapped_scores,
    mean_width,
    scale_use,
)
from scipy import stats

from .conftest import NAN, own_groups, redrawn

X = np.array([1.0, 2, 2, 3, 4, 4, 5, 6, 7, 8])
Y = np.array([2.0, 1, 3, 2.5, 2, 4, 3.5, 5, 4.5, 5])


def scores(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Judge with ties, people in half points, and 12 groups."""
    rng = np.random.default_rng(seed)
    human = rng.uniform(1, 5, n)
    return (human + rng.normal(size=n)).round(1), (2 * human).round(0) / 2, rng.integers(0, 12, n)


def check(found: Statistic, statistic: Callable, x: np.ndarray, y: np.ndarray, resamples: Resamples) -> None:
    """The statistic, and the percentiles of the statistic on repeated items."""
    assert found.value == pytest.approx(statistic(x, y), abs=1e-12)
    ends = np.nanpercentile([statistic(x[items], y[items]) for items in redrawn(resamples)], (2.5, 97.5))
    assert (found.low, found.high) == pytest.approx(tuple(ends), abs=1e-9)


def error_by_hand(x: np.ndarray, y: np.ndarray, bins: int = 10) -> float:
    middle = stats.rankdata(x) - 0.5
    bin_of = np.minimum(middle * bins // len(x), bins - 1)
    return sum(abs((x - y)[bin_of == number].sum()) for number in range(bins)) / len(x)


# --- scale use


def test_scale_use_is_numpys_also_in_resamples():
    x, y, groups = scores()
    resamples = Resamples.sample(groups, 80, 1)
    found = scale_use(x, y, 1.0, 5.0, resamples)
    for side, chosen in ((found["judge"], 0), (found["human"], 1)):
        check(side["mean"], lambda *own, k=chosen: own[k].mean(), x, y, resamples)
        check(side["sd"], lambda *own, k=chosen: own[k].std(), x, y, resamples)
        check(side["outside"], lambda *own, k=chosen: ((own[k] < 1) | (own[k] > 5)).mean(), x, y, resamples)
        check(side["range_used"], lambda *own, k=chosen: np.ptp(np.quantile(own[k], (0.05, 0.95))) / 4, x, y, resamples)
    check(found["sd_ratio"], lambda a, b: a.std() / b.std(), x, y, resamples)
    assert found["judge"]["outside"].value > 0.05
    assert found["human"]["outside"].value == 0


def test_scale_use_of_constants_and_few_items():
    constant = scale_use(np.full(4, 3.3), np.arange(4.0), 0, 4, own_groups(4))
    shown = constant["judge"]["sd"], constant["judge"]["range_used"], constant["sd_ratio"]
    assert [own.value for own in shown] == [0, 0, 0]
    undefined = scale_use(np.arange(4.0), np.full(4, 0.1), 0, 4, own_groups(4))["sd_ratio"]
    assert (undefined.value, undefined.reason) == (None, "the human scores are constant")
    one = scale_use(np.array([2.0, NAN]), np.array([3.0, 3]), 1, 5, own_groups(2))["judge"]["mean"]
    assert (one.value, one.n, one.dropped) == (2, 1, 1)
    assert scale_use(np.array([]), np.array([]), 1, 5, own_groups(0))["judge"]["mean"].reason == "0 items"


# --- calibration


def test_curve_by_hand():
    # Middles of ranks 0.5, 2, 2, 3.5, 5, 5, 6.5, 7.5, 8.5, 9.5 of 10, in 2 bins: those below 5 and the others.
    low, high = calibration_curve(X, Y, np.arange(10), bins=2)
    assert (low.n, low.score, low.human) == (4, 2.0, 2.125)
    assert (high.n, high.score, high.human) == (6, pytest.approx(34 / 6), 4.0)
    assert low.standard_error == pytest.approx(Y[:4].std(ddof=1) / 2, abs=1e-12)
    assert high.standard_error == pytest.approx(stats.sem(Y[4:]), abs=1e-12)


def test_standard_error_of_groups_by_hand():
    # Deviations from the mean 3 are -2, 0, 0, 2; by group -2, 2: root of (4 + 4) * 2 / 1, over 4.
    (only,) = calibration_curve(np.ones(4), np.array([1.0, 3, 3, 5]), np.array(["a", "a", "b", "b"]), bins=5)
    assert (only.n, only.standard_error) == (4, pytest.approx(1.0, abs=1e-12))
    (single,) = calibration_curve(np.ones(2), np.array([1.0, 3]), np.zeros(2))
    assert single.standard_error is None


def test_bins_have_equal_counts_keep_ties_together_and_ignore_the_order():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 100))
    assert [own.n for own in calibration_curve(x, y, np.arange(100))] == [10] * 10
    assert [own.n for own in calibration_curve(x[:33], y[:33], np.arange(33), 5)] == [7, 6, 7, 6, 7]
    coarse, shuffled = x.round(0), rng.permutation(100)
    found = calibration_curve(coarse, y, np.arange(100))
    assert sum(own.n for own in found) == 100
    assert len(found) <= len(np.unique(coarse)) < 10
    again = calibration_curve(coarse[shuffled], y[shuffled], shuffled)
    assert [own.n for own in again] == [own.n for own in found]
    np.testing.assert_allclose([own.human for own in again], [own.human for own in found], rtol=0, atol=1e-12)


def test_scores_that_rounding_alone_sets_apart_share_a_bin():
    """As a linear mapping makes them in two folds, or one CPU and not another."""
    x, y = np.repeat([1.0, 2, 3], 10), np.tile(np.arange(10.0), 3)
    rounded = x * np.where(np.arange(30) % 2, 1 + 4e-16, 1)
    assert len(np.unique(rounded)) == 6
    assert [own.n for own in calibration_curve(rounded, y, np.arange(30), 7)] == [10, 10, 10]
    assert calibration_error(rounded, y) == pytest.approx(calibration_error(x, y), abs=1e-12)


def test_error_is_that_of_the_curve_and_of_repeated_items():
    x, y, groups = scores(seed=3)
    resamples = Resamples.sample(groups, 60, 2)
    found = expected_calibration_error(x, y, resamples)
    check(found, error_by_hand, x, y, resamples)
    curve = calibration_curve(x, y, groups)
    assert found.value == pytest.approx(sum(own.n * abs(own.score - own.human) for own in curve) / 60, abs=1e-12)


def test_a_shifted_a_constant_and_a_perfect_judge():
    assert np.isnan(calibration_line(np.full(5, 0.1), np.arange(5.0))).all()
    assert np.isnan(calibration_line(np.arange(5.0) * 1e-200, np.arange(5.0))).all()  # whose squares vanish
    assert calibration_line(np.arange(5.0), np.full(5, 2.0)) == pytest.approx((0, 2), abs=1e-12)
    assert calibration_error(Y + 0.5, Y) == pytest.approx(0.5, abs=1e-12)
    assert calibration_error(np.full(10, 3.0), Y) == pytest.approx(0.25, abs=1e-12)
    assert calibration_error(Y, Y) == 0.0
    empty = expected_calibration_error(np.array([NAN]), np.array([1.0]), own_groups(1))
    assert (empty.value, empty.reason) == (None, "0 items, 1 dropped as NaN")
    assert calibration_curve(np.array([np.inf]), np.array([1.0]), np.zeros(1)) == ()


def test_line_is_scipys_also_in_resamples():
    x, y, groups = scores(seed=4)
    resamples = Resamples.sample(groups, 60, 3)
    found = estimates(calibration_line, x, y, resamples=resamples, reasons={"slope": "", "intercept": ""})
    check(found["slope"], lambda a, b: stats.linregress(a, b).slope, x, y, resamples)
    check(found["intercept"], lambda a, b: stats.linregress(a, b).intercept, x, y, resamples)


# --- mappings

LINEAR = [
    *(1.297909407665505, 2.450746268656717, 1.9018987341772156, 2.674342105263158, 3.3214285714285716),
    *(2.965156794425087, 3.776119402985074, 3.9651898734177213, 4.726973684210526, 5.464285714285714),
]


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [  # scikit-learn 1.9.1: LinearRegression and IsotonicRegression(out_of_bounds="clip"), LeaveOneGroupOut
        ("linear", LINEAR),
        ("isotonic", [2.0, 2.75, 1.5, 2.5, 3.75, 2.25, 3.875, 4.0, 5.0, 4.75]),
    ],
)
def test_mapping_is_scikit_learns(mapping, expected):
    groups = np.arange(10) % 5  # as many as folds: the division does not matter
    np.testing.assert_allclose(mapped_scores(X, Y, groups, mapping, seed=3), expected, rtol=0, atol=1e-9)
    found = mapped_errors(X, Y, groups, mapping, Resamples.sample(groups, 50, 0), seed=3)
    assert found["mae"].value == pytest.approx(np.abs(Y - expected).mean(), abs=1e-9)
    assert found["rmse"].value == pytest.approx(np.sqrt(((Y - expected) ** 2).mean()), abs=1e-9)
    assert found["mae"].low < found["mae"].value < found["mae"].high


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_no_mapping_has_seen_the_group(mapping):
    """Whatever people say about a group, the group's own mapped scores stay the same."""
    x, y, groups = scores(seed=5)
    given = mapped_scores(x, y, groups, mapping)
    for group in range(12):
        changed = np.where(groups == group, 100.0, y)
        found = mapped_scores(x, changed, groups, mapping)
        np.testing.assert_array_equal(found[groups == group], given[groups == group])
        assert not np.allclose(found, given)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_an_interval_holds_its_error_or_there_is_none(mapping):
    """After a mapping little error is left, and in resamples there is more."""
    found = []
    for seed in range(15):
        rng = np.random.default_rng(seed)
        groups, truth = np.repeat(np.arange(15), 4).astype(str), rng.normal(3, 1, 60)
        score, human = truth + rng.normal(0, 0.7, 60), truth + rng.normal(0, 0.4, 60)
        found.append(mapped_errors(score, human, groups, mapping, Resamples.sample(groups, 200, 0))["error"])
    held = [error for error in found if error.low is not None]
    assert all(error.low <= error.value <= error.high for error in held)
    reasons = {error.reason for error in found if error.low is None}
    assert reasons == {"no interval: the resamples lie above the value, as of a figure with a bias"}


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_mapping_of_constants_gaps_and_single_groups(mapping):
    groups = np.arange(6) // 2
    human = np.array([1.0, 2, 3, 4, 5, 6])
    constant = mapped_scores(np.ones(6), human, groups, mapping)
    np.testing.assert_allclose(constant, [4.5, 4.5, 3.5, 3.5, 2.5, 2.5], rtol=0, atol=1e-12)
    score = np.array([1.0, NAN, 3, 4, 5, 6])
    gaps = mapped_scores(score, human, groups, mapping)
    assert np.isnan(gaps).tolist() == np.isnan(score).tolist()
    errors = mapped_errors(score, human, groups, mapping, own_groups(6))
    assert (errors["mae"].n, errors["mae"].dropped) == (5, 1)
    alone = mapped_errors(human, human, np.zeros(6), mapping, own_groups(6))
    assert (alone["mae"].value, alone["mae"].reason) == (None, "1 group: no other one to fit a mapping on")
    assert mapped_errors(np.array([]), np.array([]), np.array([]), mapping, own_groups(0))["rmse"].reason == "0 items"


HUMAN = np.array([1.0, 2.0, 3.0, 4.0, np.nan, 2.5])
LOW = np.array([1.0, 2.5, 2.0, np.nan, 0.0, 2.0])
HIGH = np.array([2.0, 3.0, 3.0, np.nan, 9.0, 4.0])


def test_shares_and_widths_by_hand():
    """The first and the third rating are ends of their intervals; the second lies below, two items do not count."""
    resamples = own_groups(6, 500)
    share = coverage(LOW, HIGH, HUMAN, resamples)
    assert (share.value, share.n, share.dropped) == (0.75, 4, 2)
    assert share.reason == "no interval: 4 groups, at least 5 needed"
    width = mean_width(LOW, HIGH, HUMAN, resamples)
    assert (width.value, width.n) == ((1 + 0.5 + 1 + 2) / 4, 4)
    nothing = coverage(np.full(6, np.nan), HIGH, HUMAN, resamples)
    assert (nothing.value, nothing.reason) == (None, "0 items, 6 dropped as NaN")


@pytest.mark.parametrize(("width", "interval"), [(1.0, (0.025 ** (1 / 6), 1.0)), (-1.0, (0.0, 1 - 0.025 ** (1 / 6)))])
def test_where_all_are_inside_or_none_the_interval_is_that_of_so_many_trials(width, interval):
    """All draws are alike then. Six of six: SciPy has 0.54 to 1."""
    human = np.arange(6.0)
    share = coverage(human - width, human + width, human, own_groups(6, 500))
    assert (share.low, share.high) == pytest.approx(interval)
    exact = stats.binomtest(6 if width > 0 else 0, 6).proportion_ci()
    assert (share.low, share.high) == pytest.approx((exact.low, exact.high))


def test_errors_over_their_standard_errors_by_hand():
    score, error = HUMAN + np.array([0.3, -0.4, 0.0, 0.5, 1.0, 9.0]), np.array([0.3, 0.2, 1.0, 0.5, 1.0, np.nan])
    found = error_ratio(score, error, HUMAN, own_groups(6, 500))
    assert found.value == pytest.approx(np.sqrt((1 + 4 + 0 + 1) / 4))
    assert (found.n, found.dropped) == (4, 2)
