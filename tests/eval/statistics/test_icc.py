"""ICC against published tables and `pingouin`, and on incomplete panels against known variances."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics import icc as module
from empathy_judge.eval.statistics.agreement import Statistic
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.icc import FORMS, Form, icc

from .conftest import NAN, SHROUT_FLEISS, own_groups, redrawn, simulated, table_of

# pingouin 0.7.0: intraclass_corr with options["round.column.CI95"] = 10
PINGOUIN: dict[Form, tuple[float, float, float]] = {
    "ICC(1,1)": (0.1657417684054755, -0.1329323249, 0.7225600623),
    "ICC(A,1)": (0.28976377952755916, 0.0187865134, 0.7610843696),
    "ICC(C,1)": (0.7148407148407154, 0.342464765, 0.94585826),
    "ICC(1,k)": (0.44279713367926876, -0.8844421552, 0.9124154203),
    "ICC(A,k)": (0.6200505475989893, 0.0711368153, 0.9272320402),
    "ICC(C,k)": (0.9093155423770697, 0.6756747138, 0.9858916782),
}


def measured(scores: np.ndarray, resamples: int = 0) -> dict[Form, Statistic]:
    return icc(table_of(scores.T), own_groups(len(scores), resamples))


def panel(n: int, raters: int, missing: float) -> np.ndarray:
    """Shape (n, raters); variance 1 of items, 0.5 of raters, 0.75 of the rest; items with two ratings or more."""
    scores = simulated(n, raters, 0.5**0.5, 0.75**0.5, missing, seed=3)[1].T
    return scores[(~np.isnan(scores)).sum(axis=1) >= 2]


@pytest.mark.parametrize("form", FORMS)
def test_equals_pingouin_with_f_intervals_on_the_classic_table(form):
    found = measured(SHROUT_FLEISS)[form]
    assert (found.value, found.low, found.high) == pytest.approx(PINGOUIN[form], abs=1e-9)
    assert (found.n, found.dropped, found.reason) == (6, 0, None)


def test_items_with_one_rating_are_dropped_and_counted():
    lonely = np.full((2, 4), NAN)
    lonely[0, 1] = 3.0  # and the last item has no rating at all
    found = measured(np.concatenate([SHROUT_FLEISS, lonely]))
    for form in FORMS:
        assert found[form].value == pytest.approx(PINGOUIN[form][0], abs=1e-9)
        assert (found[form].n, found[form].dropped) == (6, 1)


def brute_force(scores: np.ndarray) -> tuple[float, float, float]:
    """Variances of items, raters and error by Henderson's method 3, with projections and traces written out."""
    items, raters = np.nonzero(~np.isnan(scores))
    y = scores[items, raters]
    z_items, z_raters = np.eye(scores.shape[0])[items], np.eye(scores.shape[1])[raters]

    def left(*designs: np.ndarray) -> np.ndarray:
        x = np.concatenate([np.ones((len(y), 1)), *designs], axis=1)
        return np.eye(len(y)) - x @ np.linalg.pinv(x, rcond=1e-10)

    both = left(z_items, z_raters)
    error = y @ both @ y / np.trace(both)

    def variance(z: np.ndarray, without: np.ndarray) -> float:
        extra = without - both  # what this factor explains beyond the other one
        return (y @ extra @ y - error * np.trace(extra)) / np.trace(z.T @ extra @ z)

    return variance(z_items, left(z_raters)), variance(z_raters, left(z_items)), error


def test_an_incomplete_panel_equals_method_3_written_out():
    scores = panel(25, 6, missing=0.5)
    item, rater, error = brute_force(scores)
    k = 1 / np.mean(1 / (~np.isnan(scores)).sum(axis=1))
    found = measured(scores)
    assert found["ICC(A,1)"].value == pytest.approx(item / (item + rater + error))
    assert found["ICC(C,1)"].value == pytest.approx(item / (item + error))
    assert found["ICC(A,k)"].value == pytest.approx(item / (item + (rater + error) / k))
    assert found["ICC(C,k)"].value == pytest.approx(item / (item + error / k))


def test_one_way_with_raters_of_its_own_for_every_item():
    rng = np.random.default_rng(5)
    items = np.repeat(np.arange(400), np.tile([2, 4], 200))
    noise = np.sqrt(0.5) * rng.normal(size=len(items)) + np.sqrt(0.75) * rng.normal(size=len(items))
    scores = rng.normal(size=400)[items] + noise
    names = tuple(map(str, range(len(items))))
    found = icc(RatingTable(items, np.arange(len(items)), scores, 400, names), own_groups(400))
    assert found["ICC(1,1)"].value == pytest.approx(1 / 2.25, abs=0.03)
    assert found["ICC(1,k)"].value == pytest.approx(1 / (1 + 1.25 * 3 / 8), abs=0.03)  # 1 / 2 and 1 / 4 on average
    assert found["ICC(A,1)"].value is None  # biases and noise cannot be told apart
    assert found["ICC(C,1)"].reason == "the variance of items, raters and error is 0 or cannot be told apart"


@pytest.mark.parametrize("missing", [0.0, 0.4])  # by the closed form, and by the equations of biases
def test_every_resample_is_the_icc_of_the_items_that_often(missing):
    scores = panel(40, 5, missing)
    resamples = Resamples.sample(np.arange(len(scores)) // 2, 4, 0)
    found = icc(table_of(scores.T), resamples)
    for row, items in enumerate(redrawn(resamples)):
        again = measured(scores[items])
        for form in FORMS:
            assert found[form].draws[row] == pytest.approx(again[form].value, abs=1e-7), form


def test_perfect_agreement_has_no_interval():
    found = measured(np.arange(5.0)[:, None] + np.zeros(3))
    assert {(one.value, one.low, one.reason) for one in found.values()} == {
        (1.0, None, "no interval: the raters agree perfectly")
    }
    biased = measured(np.arange(5.0)[:, None] + np.arange(3.0))
    assert biased["ICC(C,1)"].value == pytest.approx(1.0)
    assert biased["ICC(A,1)"].value == pytest.approx(2.5 / 3.5)
    assert biased["ICC(A,1)"].low is not None


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        (np.full((5, 3), 2.0), "the variance of items, raters and error is 0 or cannot be told apart"),
        (np.full((1, 3), 2.0), "items with at least two raters: 1; at least 2 needed"),
        (np.arange(9.0)[:, None], "items with at least two raters: 0; at least 2 needed"),
        (np.zeros((0, 0)), "items with at least two raters: 0; at least 2 needed"),
    ],
)
def test_undefined_with_a_reason(scores, reason):
    assert {(one.value, one.low, one.reason) for one in measured(scores, 10).values()} == {(None, None, reason)}


def test_very_many_raters_get_no_interval_on_an_incomplete_panel(monkeypatch):
    monkeypatch.setattr(module, "MAX_RESAMPLED_RATERS", 9)
    found = measured(panel(30, 10, missing=0.3), 20)["ICC(C,1)"]
    assert found.value is not None
    assert (found.low, found.reason) == (None, "no interval: 10 raters in an incomplete panel, at most 9")


def test_a_mean_whose_limits_have_no_lower_end_has_no_interval():
    """Spearman-Brown of a limit below -1 / (k - 1) is above 1."""
    found = measured(np.array([[1.0, 1.0], [1.0, 3.0], [2.0, 1.0]]))
    assert found["ICC(A,1)"].low < -1
    mean = found["ICC(A,k)"]
    assert mean.value is not None
    assert (mean.low, mean.high) == (None, None)
    assert mean.reason == "no interval: it has no lower end, as the raters may not agree at all"
    assert found["ICC(C,k)"].low < found["ICC(C,k)"].value < found["ICC(C,k)"].high


# Each rater gives every item the same score, 0.1 times this, in an incomplete panel
BUTTONS = np.where(
    np.array(
        [
            [0, 0, 0, 0, 1, 0, 1, 0],
            [0, 0, 1, 1, 0, 0, 1, 0],
            [1, 0, 1, 0, 0, 0, 0, 0],
            [0, 1, 1, 1, 1, 0, 0, 0],
            [0, 1, 1, 0, 0, 0, 1, 1],
        ],
        bool,
    ),
    np.array([1.2, 0.5, 0.4, 0.7, 0.0, 0.3, 0.9, 0.9]),
    NAN,
)


@pytest.mark.parametrize("scores", [BUTTONS, np.tile([1.0, 3.0], (12, 1)), np.tile([1.1, 3.3, 1.1], (12, 1))])
@pytest.mark.parametrize(("factor", "shift"), [(1, 0), (-2.5, 7), (1e-8, 0), (1, 1e6)])
def test_raters_who_always_press_the_same_button(scores, factor, shift):
    """Neither items nor errors vary: what rounding leaves of both is no consistency of 1."""
    order = np.random.default_rng(0).permutation(scores.shape[1])
    found = measured((factor * scores + shift)[:, order], resamples=20)
    for form in ("ICC(C,1)", "ICC(C,k)"):
        assert found[form].value is None
        assert found[form].reason == "the variance of items, raters and error is 0 or cannot be told apart"
    assert found["ICC(A,1)"].value == found["ICC(A,k)"].value == 0
    assert (found["ICC(A,1)"].low, found["ICC(A,1)"].high) == (None, None) or scores is BUTTONS


@pytest.mark.parametrize("value", [4.2, 1.1, -3e-8, 1e9 + 0.1])
def test_constant_ratings_have_no_icc(value):
    rated = np.random.default_rng(1).random((22, 6)) < 0.6
    found = measured(np.where(rated, value, NAN), resamples=20)
    assert [found[form].value for form in FORMS] == [None] * 6
