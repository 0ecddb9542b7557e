"""Mappings from scores to ratings; calibrations on disk come back as they were, or are refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.description import read_json
from empathy_judge.scoring.assessment import Domain
from empathy_judge.scoring.calibration import (
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
)
from empathy_judge.scoring.judge_calibration import store_calibration
from scipy.special import expit, logit

SCALE = Dimension("empathy", 1, 5)
UNKNOWN = Domain(0, {})
"""Of a calibration whose pairs were never described."""


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
