"""The many-facet Rasch model: against simulated truth, published estimates, a maximiser of SciPy, and as a target."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.rasch import _Fit, fit_rasch
from empathy_judge.data_modules.ratings import Dimension, RatingTable
from empathy_judge.data_modules.targets import training_targets
from scipy import optimize

from .test_targets import dataset
from .test_targets import table as table_of

SCALE = Dimension("d", 1, 5, 1)
THRESHOLDS = np.array([-1.5, -0.5, 0.5, 1.5])


def simulated(
    n: int, raters: int, k: int, seed: int, spread: float = 1.5
) -> tuple[RatingTable, np.ndarray, np.ndarray]:
    """Ratings 1 to 5 of n items by k of the raters each, true items and true severities."""
    rng = np.random.default_rng(seed)
    quality, severity = rng.normal(0, spread, n), rng.normal(0, 0.7, raters)
    severity -= severity.mean()
    items = np.repeat(np.arange(n), k)
    who = np.concatenate([rng.choice(raters, k, replace=False) for _ in range(n)])
    power = np.arange(5) * (quality[items] - severity[who])[:, None] - np.append(0, np.cumsum(THRESHOLDS))
    p = np.exp(power)
    steps = (rng.random(len(items))[:, None] > np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)).sum(axis=1)
    return RatingTable(items, who, steps + 1.0, n, tuple(f"r{one}" for one in range(raters))), quality, severity


@pytest.mark.parametrize(("n", "raters", "k"), [(200, 10, 10), (200, 10, 4), (300, 8, 3)])
def test_estimates_and_standard_errors_hold_the_truth(n, raters, k):
    slopes, covered, fits = [], [], []
    for seed in range(20):
        table, quality, severity = simulated(n, raters, k, seed)
        found = fit_rasch(table, SCALE)
        pairs = ((quality, found.items), (severity, found.severities), (THRESHOLDS, found.thresholds))
        slopes.append([np.polyfit(truth, own, 1)[0] for truth, own in pairs])
        covered.append(np.mean(np.abs(found.severities - severity) < 1.96 * found.severity_errors))
        fits.append([found.infit.mean(), found.outfit.mean()])
    assert np.mean(slopes, axis=0) == pytest.approx([1, 1, 1], abs=0.05)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.03)
    assert np.mean(fits, axis=0) == pytest.approx([1.0, 1.0], abs=0.05)


# How many of 1000 students gave each pattern of right answers to five questions, from 00000 to 11111: section 6 of the
# Law School Admission Test (Bock and Lieberman, 1970)
LSAT = [
    3, 6, 2, 11, 1, 1, 3, 4, 1, 8, 0, 16, 0, 3, 2, 15, 10, 29, 14, 81, 3,
    28, 15, 80, 16, 56, 21, 173, 11, 61, 28, 298,
]  # fmt: skip


def test_published_difficulties_come_out():
    """Students are items and questions raters: of two scores there is one threshold, and a severity is a difficulty."""
    answers = np.repeat(list(itertools.product([0.0, 1.0], repeat=5)), LSAT, axis=0)
    students, questions = np.divmod(np.arange(answers.size), 5)
    found = fit_rasch(RatingTable(students, questions, answers.ravel(), 1000, tuple("abcde")), Dimension("d", 0, 1, 1))
    # Posterior means and deviations of the BUGS examples, volume 1 (OpenBUGS 3.2), under priors that say little
    assert found.severities == pytest.approx([-1.26, 0.4776, 1.239, 0.1696, -0.6256], abs=0.005)
    assert found.severity_errors == pytest.approx([0.1053, 0.0698, 0.0687, 0.0733, 0.0862], rel=0.08)


def test_marginal_likelihood_is_at_its_maximum():
    table, _, _ = simulated(25, 8, 8, 3, spread=0.6)
    steps = (table.scores - 1).astype(int)
    fit = _Fit(table, steps, 5)
    fit.severities_and_thresholds()
    nodes, density = np.polynomial.hermite_e.hermegauss(41)

    def loss(free: np.ndarray) -> float:
        severities, thresholds, (centre, spread) = np.split(free, [7, 10])
        severities, thresholds = (np.append(own, -own.sum()) for own in (severities, thresholds))
        power = np.arange(5) * (centre + spread * nodes - severities[:, None])[..., None]
        power -= np.append(0, np.cumsum(thresholds))
        logs = power - np.log(np.exp(power).sum(axis=-1, keepdims=True))  # (raters, nodes, steps)
        of_items = logs[table.raters, :, steps].reshape(25, 8, -1).sum(axis=1)
        return -float(np.log(np.exp(of_items) @ density).sum())

    best = optimize.minimize(loss, np.append(np.zeros(11), 1.0), method="BFGS").x
    assert fit.severities[:7] == pytest.approx(best[:7], abs=0.005)
    assert fit.thresholds[:3] == pytest.approx(best[7:10], abs=0.005)


def test_a_rater_who_rates_at_random_does_not_fit():
    table, _, _ = simulated(200, 6, 6, 4)
    rng = np.random.default_rng(5)
    scores = np.where(table.raters == 2, rng.integers(1, 6, len(table.raters)), table.scores)
    found = fit_rasch(RatingTable(table.items, table.raters, scores, 200, table.rater_ids), SCALE)
    assert found.infit.argmax() == found.outfit.argmax() == 2
    assert found.infit[2] > 1.7
    assert np.delete(found.infit, 2).max() < 1.2


def test_ends_of_the_scale_unrated_items_and_unused_scores():
    scores = [[1, 1, 1], [2, 1, 2], [2, 4, 2], [4, 2, 2], [1, 2, 4], [4, 4, 2], [4, 4, 4], [np.nan] * 3]
    found = fit_rasch(table_of(np.array(scores)), SCALE)
    assert len(found.thresholds) == 2  # from 1 to 2 and from 2 to 4: nobody gave a 3 or a 5
    assert found.items[0] == found.items[:7].min()
    assert found.items[6] == found.items[:7].max()
    assert np.isfinite(found.items[:7]).all()
    assert np.isnan(found.items[7])
    assert np.isnan(found.fair_means[7])
    assert 1 <= found.fair_means[:7].min() <= found.fair_means[:7].max() <= 4


@pytest.mark.parametrize(
    ("scale", "scores", "message"),
    [
        (Dimension("d", 1, 5), [[1, 2], [2, 3]], "dimension d: a Rasch model needs a scale with steps"),
        (SCALE, [[2, 2], [2, 2]], "dimension d: a Rasch model needs two different scores"),
        (SCALE, [[1, None], [2, None]], "dimension d: a Rasch model needs two different scores and an item with two"),
        (SCALE, [[1, 2, None, None], [None, None, 2, 4]],
         "2 panels without a common item, such as those of '0' and '2'"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(scale, scores, message):
    with pytest.raises(DataError, match=message):
        fit_rasch(table_of(np.array(scores, dtype=float)), scale)


def matrix(table: RatingTable) -> np.ndarray:
    """Scores of items by raters, NaN = not rated."""
    scores = np.full((table.n_items, len(table.rater_ids)), np.nan)
    scores[table.items, table.raters] = table.scores
    return scores


def test_as_a_target_it_undoes_severity_that_a_mean_keeps():
    table, quality, _ = simulated(300, 6, 2, 6)
    data = dataset({"d": matrix(table)}, step=1)
    mean, rasch = (training_targets(data, target).scores[:, 0] for target in ("mean", "rasch"))
    assert ((rasch >= 1) & (rasch <= 5)).all()
    assert np.corrcoef(rasch, quality)[0, 1] > np.corrcoef(mean, quality)[0, 1] + 0.02


def test_a_dimension_that_nobody_rated_has_no_targets():
    scores = matrix(simulated(60, 4, 3, 0)[0])
    both = dataset({"d": scores, "unrated": np.full((60, 4), np.nan)}, step=1)
    found = training_targets(both, "rasch").scores
    np.testing.assert_array_equal(found[:, 0], training_targets(dataset({"d": scores}, step=1), "rasch").scores[:, 0])
    assert np.isnan(found[:, 1]).all()
