"""Standard errors, conformal intervals, mappings and thresholds, by hand and by simulation; and calibrations on disk:
they come back as they were, belong to their weights, or are refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.models.artifact import load_any, save_judge
from empathy_judge.models.assessment import Domain
from empathy_judge.models.calibration import (
    LEVELS,
    Calibration,
    DimensionCalibration,
    Isotonic,
    Quantile,
    Temperature,
    Unmapped,
    fit_mapping,
    from_json,
    no_calibration,
    to_json,
    uncalibrated,
)
from empathy_judge.models.description import read_json
from empathy_judge.models.judge_calibration import conformal_quantile, fit_dimension, store_calibration
from empathy_judge.models.scoring import Predictor
from empathy_judge.models.weight_files import weights_hash
from empathy_judge.scorer import Scorer
from scipy.special import expit, logit

from .conftest import edit

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
    assert own.quantile(0.9).value == pytest.approx(1.0)  # errors 0, 1/9, 1/9, ..., 1, 1: the 18th smallest
    assert own.quantile(0.5).value == pytest.approx(5 / 9)
    values = np.array([[3.0], [4.9], [1.05]])
    found = calibration(own).apply(values, np.array([[0.2], [0.4], [0.3]]), [SCALE], 0.9)
    assert found.low[:, 0] == pytest.approx([2.8, 4.5, 1.0])
    assert found.high[:, 0] == pytest.approx([3.2, 5.0, 1.35])
    narrow = calibration(own).apply(values, np.array([[0.2], [0.4], [0.3]]), [SCALE], 0.5)
    assert narrow.high[0, 0] == pytest.approx(3 + 0.2 * 5 / 9)
    with pytest.raises(UserError, match=r"level 0\.7; expected one of 0\.5, 0\.8, 0\.9, 0\.95"):
        calibration(own).apply(values, values, [SCALE], 0.7)
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


def test_isotonic_knots_are_the_blocks_of_the_rising_step_function():
    """By the max-min formula (Barlow et al., 1972); what scikit-learn 1.9 gives, which takes seconds to import."""
    rng = np.random.default_rng(1)
    score = np.round(rng.uniform(1, 5, 200), 1)  # ties
    human = np.clip(score + rng.normal(0, 1, 200), 1, 5)
    own = fit_mapping("isotonic", score, human, SCALE)
    assert isinstance(own, Isotonic)
    values = np.unique(score)
    above = [[human[(score >= low) & (score <= high)].mean() for high in values if high >= low] for low in values]
    at = [
        max(min(row[place - first :]) for first, row in enumerate(above) if first <= place)
        for place in range(len(values))
    ]
    steps = np.array(at)[np.searchsorted(values, score)]
    levels = np.unique(steps.round(9))
    assert np.array(own.ratings) == pytest.approx(levels, abs=1e-6)
    assert np.array(own.scores) == pytest.approx([score[np.isclose(steps, level)].mean() for level in levels])
    # between the outer knots nothing ties that the judge does not tie
    inner = np.linspace(own.scores[0], own.scores[-1], 500)
    assert np.diff(own.apply(inner, SCALE)).min() > 0
    assert own.apply(np.array([1.0, 0.5]), SCALE).tolist() == [own.ratings[0]] * 2


def test_temperature_finds_the_curve_that_made_the_ratings():
    score = np.linspace(1.05, 4.95, 60)
    human = 1 + 4 * expit(logit((score - 1) / 4) / 2.5 + 0.4)
    own = fit_mapping("temperature", score, human, SCALE)
    assert isinstance(own, Temperature)
    assert (own.temperature, own.shift) == pytest.approx((2.5, 0.4), rel=1e-5)
    mapped = own.apply(score, SCALE)
    assert mapped == pytest.approx(human, abs=1e-6)
    assert np.diff(mapped).min() > 0
    ends = own.apply(np.array([1.0, 5.0, np.nan]), SCALE)
    assert 1 < ends[0] < ends[1] < 5
    assert np.isnan(ends[2])


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


# ---------------------------------------------------------------- on disk

DIMENSIONS = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10))
GONE = object()


def example() -> Calibration:
    values = (0.2, 0.5, 0.9, None)
    quantiles = tuple(
        Quantile(level, value, None if value is not None else "12 rated pairs, at least 19 needed")
        for level, value in zip(LEVELS, values, strict=True)
    )
    empathy = DimensionCalibration(12, 4, Isotonic((1.5, 3.25, 4.0), (1.0, 3.0, 3.0)), True, 0.75, quantiles, 0.6)
    return Calibration(
        "w" * 64, "tones", True, "c" * 64, "s" * 64, ("validation",), 1, "isotonic", 0.1,
        {"empathy": empathy, "warmth": no_calibration(True)}, UNKNOWN,
    )  # fmt: skip


def test_a_calibration_comes_back_as_it_was(tmp_path):
    kinds = [Unmapped(), Temperature(1.75, -0.2), example().dimensions["empathy"].mapping]
    for mapping in kinds:
        one = example()
        own = replace(one.dimensions["empathy"], mapping=mapping)
        one = replace(one, dimensions={**one.dimensions, "empathy": own})
        path = store_calibration(one, tmp_path)
        assert from_json(read_json(path), "here", DIMENSIONS) == one
    domain = Domain(12, {"response seconds": (0.5, 6.25), "turns of context": (1.0, 1.0)})
    everything = replace(example(), splits=None, abstain_share=None, domain=domain)
    assert from_json(to_json(everything), "here", DIMENSIONS) == everything


@pytest.mark.parametrize(
    ("where", "value", "text"),
    [
        (["schema_version"], 2, "schema_version 2; expected 1"),
        (["method"], "spline", "method 'spline'; expected 'none', 'isotonic' or 'temperature'"),
        (["abstain_share"], 1.5, "abstain_share 1.5"),
        (["extra"], 1, "unexpected extra"),
        (["domain"], 3, "domain 3; expected an object"),
        (["domain"], {"n": 3, "ranges": {"x": [2, 1]}}, "range of x 2 to 1; expected finite, rising numbers"),
        (["weights"], GONE, "weights is missing"),
        (["domain"], GONE, "domain is missing"),
        (["dimensions", "warmth"], GONE, "dimensions empathy; expected empathy, warmth"),
        (["dimensions", "kindness"], {}, "dimensions.kindness.n is missing"),
        (["dimensions", "empathy"], [], "dimensions.empathy []; expected an object"),
        (["dimensions", "empathy", "n"], True, "empathy.n True; expected a valid integer"),
        (["dimensions", "empathy", "factor"], float("nan"), "factor nan; expected a finite number"),
        (["dimensions", "empathy", "factor"], 10**400, "factor 1000"),
        (["dimensions", "empathy", "mapping", "scores"], [1.5, 1.5, 4.0], "scores [1.5, 1.5, 4.0]; expected rising"),
        (["dimensions", "empathy", "mapping", "ratings"], [1.0, 3.0, 2.0], "ratings [1.0, 3.0, 2.0]; expected rising"),
        (["dimensions", "empathy", "mapping", "ratings"], [1.0, 3.0], "3 scores and 2 ratings"),
        (["dimensions", "empathy", "mapping", "ratings"], [1.0, 3.0, 9.0], "outside the scale; expected 1 to 5"),
        (["dimensions", "empathy", "mapping"], {"method": "temperature", "temperature": 0, "shift": 0}, "than 0"),
        (["dimensions", "empathy", "quantiles"], [], "one for each of the levels 0.5, 0.8, 0.9, 0.95"),
        (["dimensions", "empathy", "quantiles", 0, "level"], 0.6, "the levels 0.5, 0.8, 0.9, 0.95, in order"),
        (["dimensions", "empathy", "quantiles", 0, "value"], 0.7, "values that rise with the level"),
        (["dimensions", "empathy", "quantiles", 0, "value"], None, "quantiles.0: a value and a reason"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(where, value, text, tmp_path):
    values: Any = to_json(example())
    place = values
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    if value is GONE:
        del place[where[-1]]
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(values))  # with NaN, as Python's parser takes it
    with pytest.raises(UserError) as found:
        from_json(read_json(path), str(path), DIMENSIONS)
    assert text in str(found.value)
    assert str(path) in str(found.value)


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000], ids=["empty", "open", "deep"])
def test_what_is_no_json_is_refused(text, tmp_path):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UserError, match=r"bad\.json: not JSON"):
        read_json(tmp_path / "bad.json")


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
