"""Standard errors, conformal intervals, mappings and thresholds that are fitted to ratings, by hand and by simulation;
and a calibration beside the weights of its judge."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.models.weight_files import weights_hash
from empathy_judge.scoring.artifact import load_any, save_judge
from empathy_judge.scoring.assessment import Domain
from empathy_judge.scoring.calibration import (
    LEVELS,
    Calibration,
    DimensionCalibration,
    Isotonic,
    Quantile,
    Unmapped,
    uncalibrated,
)
from empathy_judge.scoring.judge_calibration import conformal_quantile, fit_dimension, store_calibration
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.scoring.scorer import Scorer

from ..models.conftest import edit

SCALE = Dimension("empathy", 1, 5)
UNKNOWN = Domain(0, {})
"""Of a calibration whose pairs were never described."""


def fit(score, human, deviation=None, groups=None, **options) -> DimensionCalibration:
    groups = np.arange(len(score)) if groups is None else groups
    return fit_dimension(SCALE, np.asarray(score), deviation, np.asarray(human, dtype=float), groups, **options)


def calibration(own: DimensionCalibration, dimension: Dimension = SCALE) -> Calibration:
    return Calibration("w", "tones", True, "c", "s", ("validation",), 0, "none", None, {dimension.name: own}, UNKNOWN)


# ---------------------------------------------------------------- quantiles


@pytest.mark.parametrize(
    ("n", "level", "place"),
    [(9, 0.9, 9), (9, 0.8, 8), (9, 0.5, 5), (19, 0.95, 19), (19, 0.9, 18), (19, 0.5, 10), (10, 0.9, 10), (69, 0.9, 63)],
)
def test_quantiles_by_hand(n, level, place):
    errors = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    assert conformal_quantile(errors, level).value == place


@pytest.mark.parametrize(("n", "level", "needed"), [(8, 0.9, 9), (18, 0.95, 19), (3, 0.8, 4)])
def test_a_level_that_too_few_pairs_cannot_give_is_null_with_its_reason(n, level, needed):
    found = conformal_quantile(np.arange(1.0, n + 1), level)
    assert found.value is None
    assert found.reason == f"{n} rated pairs, at least {needed} needed"


@pytest.mark.parametrize("deviations", [False, True], ids=["constant", "deviation"])
def test_intervals_cover_what_they_promise(deviations):
    """400 calibrations of 300 pairs, each tried on 200 new ones; half of the pairs are five times as uncertain."""
    rng = np.random.default_rng(0)
    repeats, n, new = 400, 300, 200
    spread = np.where(rng.random((repeats, n + new)) < 0.5, 0.1, 0.5)
    errors = np.abs(spread * rng.standard_t(4, size=spread.shape))
    scale = 2 * spread if deviations else np.ones_like(spread)  # a deviation may be wrong by a factor
    standardised = errors / scale
    for level in (0.5, 0.9):
        quantiles = np.array([conformal_quantile(own[:n], level).value for own in standardised])
        inside = standardised[:, n:] <= quantiles[:, None]
        assert level - 0.005 < inside.mean() < level + 0.01
        certain = inside[spread[:, n:] < 0.2].mean()
        assert (certain < level + 0.03) == deviations  # without deviations the certain ones are covered far too often


def test_intervals_are_as_wide_as_deviations_say_and_end_with_the_scale():
    score = np.linspace(2, 4, 19)
    deviation = np.linspace(0.1, 0.5, 19)
    human = score + deviation * np.linspace(-1, 1, 19)
    own = fit(score, human, deviation)
    quantiles = {quantile.level: quantile.value for quantile in own.quantiles}
    assert quantiles[0.9] == pytest.approx(1.0)  # errors 0, 1/9, 1/9, ..., 1, 1: the 18th smallest
    assert quantiles[0.5] == pytest.approx(5 / 9)
    values = np.array([[3.0], [4.9], [1.05]])
    found = calibration(own).apply(values, np.array([[0.2], [0.4], [0.3]]), [SCALE], 0.9)
    assert found.low[:, 0] == pytest.approx([2.8, 4.5, 1.0])
    assert found.high[:, 0] == pytest.approx([3.2, 5.0, 1.35])
    narrow = calibration(own).apply(values, np.array([[0.2], [0.4], [0.3]]), [SCALE], 0.5)
    assert narrow.high[0, 0] == pytest.approx(3 + 0.2 * 5 / 9)
    with pytest.raises(ValueError, match="calibrated on deviations"):
        calibration(own).apply(values, None, [SCALE], 0.9)


# ---------------------------------------------------------------- standard errors


def test_standard_errors_by_hand():
    score, human = np.array([2.0, 3.0, 4.0, 3.5]), np.array([2.3, 2.6, 4.0, np.nan])
    plain = fit(score, human)
    assert (plain.n, plain.uses_deviation) == (3, False)
    assert plain.factor == pytest.approx(np.sqrt((0.09 + 0.16 + 0) / 3))
    scaled = fit(score, human, np.array([0.3, 0.2, 1.0, 9.0]))
    assert scaled.factor == pytest.approx(np.sqrt((1 + 4 + 0) / 3))
    found = calibration(scaled).apply(np.array([[2.0]]), np.array([[0.6]]), [SCALE], 0.5)
    assert found.standard_error[0, 0] == pytest.approx(0.6 * np.sqrt(5 / 3))
    assert not found.abstained.any()


def test_a_dimension_without_ratings_knows_nothing_and_says_so():
    own = fit(np.array([2.0, 3.0]), np.array([np.nan, np.nan]), np.array([0.2, 0.3]))
    assert own.factor is None
    assert [(q.level, q.value, q.reason) for q in own.quantiles] == [
        (level, None, "no rated pairs") for level in LEVELS
    ]
    score = np.array([[2.5], [3.25]], dtype=np.float32)
    found = calibration(own).apply(score, score, [SCALE], 0.9)
    assert found.score.tolist() == score.tolist()
    assert all(np.isnan(values).all() for values in found[1:4])
    assert not found.abstained.any()
    assert np.isnan(uncalibrated(score).standard_error).all()


def test_a_deviation_of_nothing_is_a_bug():
    with pytest.raises(ValueError, match="above 0"):
        fit([2.0, 3.0], [2.0, 3.0], np.array([0.1, 0.0]))


# ---------------------------------------------------------------- mappings


@pytest.mark.parametrize("method", ["isotonic", "temperature"])
def test_errors_of_a_mapping_are_those_on_groups_that_it_has_not_seen(method):
    """Ratings hang on the group alone: a curve through the pairs of all groups looks better than it is on a new one."""
    rng = np.random.default_rng(2)
    level = rng.uniform(2, 4, 10)
    groups = np.repeat(np.arange(10), 6)
    score = level[groups] + rng.normal(0, 0.02, 60)
    human = np.clip(rng.permutation(level)[groups] * 0.5 + 0.5 * level[groups], 1, 5)
    own = fit(score, human, groups=groups, method=method)
    seen = np.sqrt(np.mean((human - own.mapping.apply(score, SCALE)) ** 2))
    assert own.factor > 1.15 * seen
    assert (own.n, own.groups) == (60, 10)


@pytest.mark.parametrize("method", ["isotonic", "temperature"])
def test_a_mapping_that_would_reverse_the_order_or_has_too_little_to_stand_on_is_refused(method):
    score = np.linspace(2, 4, 30)
    with pytest.raises(UserError, match="empathy: ratings do not rise with the scores"):
        fit(score, 6 - score, method=method)
    with pytest.raises(UserError, match=r"19 rated pairs in 19 groups; a mapping needs at least 20 in 5"):
        fit(score[:19], score[:19], method=method)
    with pytest.raises(UserError, match="30 rated pairs in 3 groups"):
        fit(score, score, groups=np.arange(30) % 3, method=method)
    assert fit(score, 6 - score).mapping == Unmapped()  # as they are: nothing to refuse


# ---------------------------------------------------------------- abstaining


def test_the_judge_abstains_from_the_stated_share():
    rng = np.random.default_rng(3)
    deviation = rng.uniform(0.1, 1, 50)
    score = np.full(50, 3.0)
    own = fit(score, score + 0.5 * deviation, deviation, abstain=0.2)
    assert own.abstain_above is not None
    found = calibration(own).apply(score[:, None], deviation[:, None], [SCALE], 0.9)
    assert found.abstained.sum() == 10
    assert found.standard_error[found.abstained].min() > found.standard_error[~found.abstained].max()


@pytest.mark.parametrize(
    ("deviation", "share", "text"),
    [
        (None, 0.1, "the standard error of the pairs to abstain from is that of the others"),
        (np.linspace(0.1, 0.5, 30), 0.01, "abstaining from a fraction of 0.01 of 30 pairs"),
        (np.linspace(0.1, 0.5, 30), 1.0, "abstaining from a fraction of 1 of 30 pairs"),
    ],
)
def test_a_threshold_that_tells_nothing_apart_is_refused(deviation, share, text):
    score = np.linspace(2, 4, 30)
    with pytest.raises(UserError, match=text):
        fit(score, score[::-1], deviation, abstain=share)


# ---------------------------------------------------------------- beside their weights


def test_a_judge_scores_as_its_calibration_says_and_takes_none_of_other_weights(folder, dataset_folder, tmp_path):
    plain, quantiles = load_any(folder), tuple(Quantile(level, level) for level in LEVELS)
    empathy = DimensionCalibration(100, 20, Unmapped(), False, 0.5, quantiles)
    warmth = DimensionCalibration(100, 20, Isotonic((0.0, 10.0), (2.0, 8.0)), False, 0.25, quantiles)
    one = Calibration(
        weights_hash(plain.judge), "tones", True, "c", "s", ("validation",), 0, "isotonic", None,
        {"empathy": empathy, "warmth": warmth}, UNKNOWN,
    )  # fmt: skip
    store_calibration(one, folder)
    loaded = load_any(folder)
    save_judge(loaded, tmp_path / "again")
    assert load_any(tmp_path / "again").calibration == loaded.calibration == one
    assert plain.calibration is None
    pairs = PairDataset.load(dataset_folder).pairs[:3]
    raw, found = (
        [scored.scores for scored in Scorer(own, "tones", Predictor(own.judge, 3)).assess_pairs(pairs, 0.8)]
        for own in (plain, loaded)
    )
    for before, after in zip(raw, found, strict=True):
        assert after["empathy"].score == before["empathy"].score  # not mapped: bit by bit
        assert after["warmth"].score == pytest.approx(2 + 0.6 * before["warmth"].score, rel=1e-6)
        assert [own.standard_error for own in after.values()] == [0.5, 0.25]
        for own in after.values():
            assert own.high - own.score == pytest.approx(own.score - own.low) == pytest.approx(0.8, abs=1e-6)
        assert {own.standard_error for own in before.values()} == {None}
    edit(folder / "judge.json", lambda values: values["calibration"].update(weights="0" * 64))
    with pytest.raises(UserError, match=r"judge\.json: calibration: fitted to other weights"):
        load_any(folder)
