"""Calibrations on disk: they come back as they were, belong to their weights, or are refused in one line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Dimension
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

DIMENSIONS = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10))


def example(weights: str = "w" * 64) -> Calibration:
    values = (0.2, 0.5, 0.9, None)
    quantiles = tuple(
        Quantile(level, value, None if value is not None else "12 rated pairs, at least 19 needed")
        for level, value in zip(LEVELS, values, strict=True)
    )
    empathy = DimensionCalibration(12, 4, Isotonic((1.5, 3.25, 4.0), (1.0, 3.0, 3.0)), True, 0.75, quantiles, 0.6)
    return Calibration(
        weights, "tones", True, "c" * 64, "s" * 64, ("validation",), 1, "isotonic", 0.1,
        {"empathy": empathy, "warmth": no_calibration("no rated pairs", True)},
    )  # fmt: skip


def test_a_calibration_comes_back_as_it_was(tmp_path):
    kinds = [Unmapped(), Temperature(1.75, -0.2), example().dimensions["empathy"].mapping]
    for number, mapping in enumerate(kinds):
        one = example()
        one = replace(
            one, dimensions={**one.dimensions, "empathy": replace(one.dimensions["empathy"], mapping=mapping)}
        )
        path = tmp_path / str(number) / "calibration.json"
        path.parent.mkdir()
        store_calibration(one, path.parent)
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
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(values))  # with NaN, as Python's parser takes it
    with pytest.raises(UserError) as found:
        from_json(read_json(path), str(path), DIMENSIONS)
    assert text in str(found.value)
    assert str(path) in str(found.value)
    assert "\n" not in str(found.value)


def test_what_is_missing_or_no_json_is_refused(tmp_path):
    values = to_json(example())
    for names, text in (
        (("weights",), "weights is missing"),
        (("dimensions", "warmth"), "dimensions empathy; expected empathy, warmth"),
    ):
        changed = json.loads(json.dumps(values))
        place = changed
        for name in names[:-1]:
            place = place[name]
        del place[names[-1]]
        with pytest.raises(UserError, match=text):
            from_json(changed, "here", DIMENSIONS)
    for text in ("", "[", "[" * 100_000):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match=r"bad\.json: not JSON"):
            read_json(tmp_path / "bad.json")


# ---------------------------------------------------------------- beside their weights


@pytest.fixture(scope="module")
def calibrated_folder(judge_folder, tmp_path_factory) -> Path:
    """The judge on disk with a calibration: `warmth` isotonic, with quantiles of all levels."""
    from empathy_judge.models import JUDGE_FILE
    from empathy_judge.models.artifact import load_any
    from empathy_judge.models.weight_files import weights_hash

    folder = Path(shutil.copytree(judge_folder, tmp_path_factory.mktemp("calibrated") / "judge"))
    quantiles = tuple(Quantile(level, level) for level in LEVELS)
    empathy = DimensionCalibration(100, 20, Unmapped(), False, 0.5, quantiles)
    warmth = DimensionCalibration(100, 20, Isotonic((0.0, 10.0), (2.0, 8.0)), False, 0.25, quantiles)
    one = Calibration(
        weights_hash(load_any(folder).judge), "tones", True, "c", "s", ("validation",), 0, "isotonic", None,
        {"empathy": empathy, "warmth": warmth},
    )  # fmt: skip
    description = json.loads((folder / JUDGE_FILE).read_text())
    (folder / JUDGE_FILE).write_text(json.dumps({**description, "calibration": to_json(one)}))
    return folder


def test_a_judge_scores_as_its_calibration_says_before_and_after_saving(
    calibrated_folder, judge_folder, dataset_folder, tmp_path
):
    from empathy_judge.data_modules.schema import PairDataset
    from empathy_judge.models.artifact import load_any, save_judge
    from empathy_judge.models.scoring import PairScorer

    pairs = PairDataset.load(dataset_folder).pairs[:3]
    loaded, plain = load_any(calibrated_folder), load_any(judge_folder)
    save_judge(loaded, tmp_path / "again", "card")
    again = load_any(tmp_path / "again")
    assert again.calibration == loaded.calibration
    assert plain.calibration is None
    raw, found, after = (
        [scored.scores for scored in PairScorer(one.judge, 3, one.calibration).assess(pairs, 0.8)]
        for one in (plain, loaded, again)
    )
    for one, two, three in zip(raw, found, after, strict=True):
        assert two == three
        assert two["empathy"].score == one["empathy"].score  # not mapped: bit by bit
        assert two["warmth"].score == pytest.approx(2 + 0.6 * one["warmth"].score, rel=1e-6)
        assert [own.standard_error for own in two.values()] == [0.5, 0.25]
        for own in two.values():
            assert own.high - own.score == pytest.approx(own.score - own.low) == pytest.approx(0.8, abs=1e-6)
        assert {own.standard_error for own in one.values()} == {None}


def test_a_calibration_of_other_weights_is_refused(calibrated_folder, tmp_path):
    from empathy_judge.models import JUDGE_FILE
    from empathy_judge.models.artifact import load_any

    folder = Path(shutil.copytree(calibrated_folder, tmp_path / "judge"))
    description = json.loads((folder / JUDGE_FILE).read_text())
    description["calibration"]["weights"] = "0" * 64
    (folder / JUDGE_FILE).write_text(json.dumps(description))
    with pytest.raises(UserError, match=r"judge\.json: calibration: fitted to other weights"):
        load_any(folder)
