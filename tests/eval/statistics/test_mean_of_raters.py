"""What the mean of k raters reaches against the mean of the others, by formula and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.agreement import Statistic
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.mean_of_raters import raters_ceiling, single_reliability
from empathy_judge.eval.statistics.reliability import leave_one_rater_out, measure
from scipy.stats import spearmanr

NAN = float("nan")


def table_of(scores: np.ndarray) -> RatingTable:
    """From shape (raters, items); NaN = not rated."""
    raters, items = np.nonzero(~np.isnan(scores))
    names = tuple(f"r{rater}" for rater in range(len(scores)))
    return RatingTable(items, raters, scores[raters, items], scores.shape[1], names)


def panel(n: int, raters: int, seed: int, noise: float = 1.0) -> np.ndarray:
    """Ratings (raters, n): true scores of sd 1, biases of sd 0.3, noise."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    return truth + 0.3 * rng.normal(size=(raters, 1)) + noise * rng.normal(size=(raters, n))


def estimate_of(value: float | None, draws: list[float], reason: str | None = None) -> Statistic:
    return Statistic(value, n=12, reason=reason, draws=np.array(draws))


def test_ceilings_of_k_raters_agree_with_theory_and_with_each_other() -> None:
    table = table_of(panel(2000, 10, seed=3))
    resamples = Resamples.draw(np.arange(2000) // 2, 20, 0)
    reliability = measure(table, resamples, 0).panel_reliability
    for k in (1, 2, 5):
        found = raters_ceiling(table, reliability, resamples, k, seed=0)
        truth = np.sqrt(k / (k + 1) * (10 - k) / (11 - k))  # noise and true scores have the same variance
        assert found.measured.value == pytest.approx(truth, abs=0.03)
        assert found.expected.value == pytest.approx(found.measured.value, abs=0.01)
        for one in (found.expected, found.measured):
            assert one.n == 2000
            assert (one.low or NAN) < (one.value or NAN) < (one.high or NAN)


def test_measured_ceiling_equals_all_choices_by_hand() -> None:
    scores = panel(40, 5, seed=4).round(0)
    table, resamples = table_of(scores), Resamples.draw(np.arange(40), 30, 0)
    reliability = measure(table, resamples, 0).panel_reliability
    one = raters_ceiling(table, reliability, resamples, 1, seed=0).measured
    assert one.value == pytest.approx(leave_one_rater_out(table, resamples).together.value, abs=1e-12)
    both = [
        spearmanr(scores[[i, j]].mean(axis=0), np.delete(scores, [i, j], axis=0).mean(axis=0)).statistic
        for i in range(5)
        for j in range(i)
    ]
    two = raters_ceiling(table, reliability, resamples, 2, seed=1).measured
    assert two.value == pytest.approx(np.mean(both), abs=1e-12)


def test_an_incomplete_panel_leaves_out_the_items_with_too_few_raters() -> None:
    scores = panel(60, 6, seed=5)
    scores[1:, :15] = NAN  # one rating
    scores[3:, 15:30] = NAN  # three
    scores[0, 30:] = NAN  # five
    table, resamples = table_of(scores), Resamples.draw(np.arange(60), 30, 0)
    reliability = measure(table, resamples, 0).panel_reliability
    found = {k: raters_ceiling(table, reliability, resamples, k, seed=0) for k in (1, 2, 4, 5)}
    assert [found[k].measured.n for k in (1, 2, 4, 5)] == [45, 45, 30, 0]
    assert found[5].measured.reason == "0 items with more than 5 raters, at least 10 needed"
    single = single_reliability(reliability, table, resamples).value
    assert single is not None

    def reliable(ratings: float) -> float:
        return ratings * single / (1 + (ratings - 1) * single)

    # Two of three raters leave one, two of five leave three: 1.5 on (harmonic) average.
    expected = found[2].expected.value
    assert expected == pytest.approx(np.sqrt(reliable(2) * reliable(1 / ((15 / 1 + 30 / 3) / 45))), abs=1e-12)
    # Four of the same five raters, or the one left over, are the same division; the first rater, who did not rate these
    # items, makes some of these choices more frequent than others.
    rest = raters_ceiling(table_of(scores[1:, 30:]), reliability, Resamples.draw(np.arange(30), 30, 0), 1, seed=0)
    assert found[4].measured.value == pytest.approx(rest.measured.value, abs=0.05)


def test_single_reliability_inverts_spearman_brown() -> None:
    table, resamples = table_of(panel(12, 4, seed=6)), Resamples.draw(np.arange(12), 3, 0)
    found = single_reliability(estimate_of(0.8, [0.8, 0.5, 0.0]), table, resamples)
    assert found.value == pytest.approx(0.5, abs=1e-12)  # 4 x 0.5 / (1 + 3 x 0.5) = 0.8
    np.testing.assert_allclose(found.draws, [0.5, 0.2, 0.0], rtol=0, atol=1e-12)


def test_one_rater_constant_ratings_and_no_ratings() -> None:
    for scores in (panel(20, 1, seed=9), np.full((3, 20), 4.0), np.full((3, 0), 4.0)):
        table, resamples = table_of(scores), Resamples.draw(np.arange(scores.shape[1]), 20, 0)
        reliability = measure(table, resamples, 0).panel_reliability
        assert single_reliability(reliability, table, resamples).value is None
        ceiling = raters_ceiling(table, reliability, resamples, 1, seed=0)
        assert ceiling.measured.value is None
        assert ceiling.measured.reason
        assert ceiling.expected.reason
    with pytest.raises(ValueError, match="k 0; expected 1 or more"):
        raters_ceiling(table, reliability, resamples, 0, seed=0)


def test_a_rater_who_is_constant_does_not_count_in_the_mean_over_choices() -> None:
    scores = panel(40, 4, seed=10)
    scores[2] = 3.0
    table, resamples = table_of(scores), Resamples.draw(np.arange(40), 20, 0)
    reliability = measure(table, resamples, 0).panel_reliability
    found = raters_ceiling(table, reliability, resamples, 1, seed=0).measured
    others = [spearmanr(scores[i], np.delete(scores, i, axis=0).mean(axis=0)).statistic for i in (0, 1, 3)]
    assert found.value == pytest.approx(np.mean(others), abs=1e-12)
    assert found.low is not None
