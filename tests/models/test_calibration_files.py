"""Calibrations on disk: they come back as they were, belong to their weights, or are refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

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
    from_json,
    no_calibration,
    to_json,
)
from empathy_judge.models.description import read_json
from empathy_judge.models.judge_calibration import store_calibration
from empathy_judge.models.scoring import PairScorer
from empathy_judge.models.weight_files import weights_hash

from .conftest import edit

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
        {"empathy": empathy, "warmth": no_calibration("no rated pairs", True)},
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
    earlier = {name: value for name, value in to_json(everything).items() if name != "domain"}
    assert from_json(earlier, "here", DIMENSIONS) == replace(everything, domain=None)


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
        {"empathy": empathy, "warmth": warmth},
    )  # fmt: skip
    store_calibration(one, folder)
    loaded = load_any(folder)
    save_judge(loaded, tmp_path / "again", "card")
    assert load_any(tmp_path / "again").calibration == loaded.calibration == one
    assert plain.calibration is None
    pairs = PairDataset.load(dataset_folder).pairs[:3]
    raw, found = (
        [scored.scores for scored in PairScorer(own.judge, 3, own.calibration).assess(pairs, 0.8)]
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
