"""Standard errors, conformal intervals, mappings and thresholds that are fitted to ratings, by hand and by simulation;
and calibrations of runs and judge folders, beside their weights and through the commands."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from empathy_judge import Scorer
from empathy_judge.cli import main
from empathy_judge.core.errors import AudioError, UserError
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.eval.judges.trained import TrainedJudge
from empathy_judge.eval.measurement import Loading
from empathy_judge.models.description import read_json
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.weight_files import weights_hash
from empathy_judge.scoring.artifact import load_any, save_judge
from empathy_judge.scoring.assessment import Domain
from empathy_judge.scoring.audio_inputs import make_pair
from empathy_judge.scoring.calibration import (
    LEVELS,
    Calibration,
    DimensionCalibration,
    Isotonic,
    Quantile,
    Unmapped,
    from_json,
    uncalibrated,
)
from empathy_judge.scoring.judge_calibration import (
    calibrate_judge,
    conformal_quantile,
    fit_dimension,
    store_calibration,
)
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.run import train

from ..conftest import failed, output_of
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


RATE = 16_000


@pytest.fixture(scope="module")
def calibrated(judge_folder, dataset_folder, tmp_path_factory) -> Path:
    """The judge on disk, calibrated on all 24 pairs: it says that it was trained on other data."""
    folder = Path(shutil.copytree(judge_folder, tmp_path_factory.mktemp("calibrated") / "judge"))
    assert main(["calibrate", str(folder), "--data", str(dataset_folder), "--split", "all", "--device", "cpu"]) == 0
    return folder


def test_a_calibration_of_deviations_that_the_head_does_not_give_is_refused(calibrated, tmp_path):
    folder = Path(shutil.copytree(calibrated, tmp_path / "judge"))
    description = read_json(folder / "judge.json")
    description["calibration"]["dimensions"]["warmth"]["uses_deviation"] = True
    (folder / "judge.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match=r"judge\.json: calibration: uses_deviation true, but the head gives none"):
        load_any(folder)


@pytest.fixture
def clips(clips) -> Path:
    """The folder of all tests, with a manifest of a response and one that cannot be read."""
    (clips / "bad.wav").write_text("no audio")
    (clips / "pairs.csv").write_text("pair_id,response_audio\na,r0.wav\nb,bad.wav\n")
    return clips


def test_training_leaves_a_calibration_of_its_best_checkpoint(trained_run, dataset_folder):
    loaded = load_any(trained_run)
    own = loaded.calibration
    assert own == from_json(read_json(trained_run / "calibration.json"), "here", loaded.judge.dimensions)
    assert (own.splits, own.method, own.synthetic, own.failed) == (("validation",), "none", True, 0)
    part = PairDataset.load(dataset_folder).subset("validation")
    assert own.content_hash == part.card.content_hash
    scores = np.stack([found.score.numpy() for _, found in Predictor(loaded.judge, 4).predict(part.pairs)])  # pyright: ignore
    errors = np.abs(part.mean_scores().to_numpy() - scores)
    for column, name in enumerate(("empathy", "warmth")):
        found = own.dimensions[name]
        assert (found.n, found.groups, found.uses_deviation) == (9, 3, False)
        assert found.factor == pytest.approx(np.sqrt(np.mean(errors[:, column] ** 2)), rel=1e-5)
        ordered = np.sort(errors[:, column])
        values = [quantile.value for quantile in found.quantiles]
        assert values[:3] == pytest.approx([ordered[4], ordered[7], ordered[8]], rel=1e-5)
        assert values[3] is None  # 9 pairs cannot say what holds for 95 %


def test_training_calibrates_from_the_scores_of_its_validation(train_arguments, dataset_folder, tmp_path, monkeypatch):
    """As scoring the split again with the best checkpoint does, without a second judge in memory.

    With a head that has deviations, raters that are learned beside it, and an epoch after the best one.
    """
    built = []
    build = EmpathyJudge.__init__

    def counted(judge: EmpathyJudge, *args: Any, **kwargs: Any) -> None:
        built.append(judge)
        build(judge, *args, **kwargs)

    monkeypatch.setattr(EmpathyJudge, "__init__", counted)
    options = {"judge__head": "gaussian", "data__target": "single", "objective__rater_embedding": 4}
    train(train_arguments(tmp_path / "run", trainer__max_epochs=3, trainer__logger="false", **options))
    assert len(built) == 1
    loaded = load_any(tmp_path / "run")
    again = calibrate_judge(loaded, PairDataset.load(dataset_folder), ["validation"], device="cpu")
    assert loaded.calibration.weights == again.weights
    assert loaded.calibration.domain == again.domain
    for name, expected in again.dimensions.items():
        found = loaded.calibration.dimensions[name]
        assert (found.n, found.groups, found.uses_deviation) == (9, 3, True)
        assert found.factor == pytest.approx(expected.factor, rel=1e-5)
        assert [own.value is None for own in found.quantiles] == [own.value is None for own in expected.quantiles]
        for one, other in zip(found.quantiles[:3], expected.quantiles[:3], strict=True):
            assert one.value == pytest.approx(other.value, rel=1e-5)


def test_a_checkpoint_without_a_calibration_of_its_own_scores_and_gives_no_intervals(trained_run, tmp_path, make_tone):
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    calibration = json.loads((run / "calibration.json").read_text())
    (run / "calibration.json").write_text(json.dumps({**calibration, "weights": "0" * 64}))
    scorer = Scorer.from_pretrained(run, device="cpu")
    response = (make_tone(0.6, 300, 0.3), RATE)
    assert 1 < scorer.score(None, response)["empathy"] < 5
    with pytest.raises(UserError, match=r"calibration\.json was fitted to other weights than those of .*best\.ckpt"):
        scorer.require_calibration()
    assert {own.low for own in scorer.assess(None, response).scores.values()} == {None}


def test_a_calibrated_judge_folder_gives_intervals(calibrated, judge_folder, clips):
    scorer, plain = (Scorer.from_pretrained(folder, device="cpu") for folder in (calibrated, judge_folder))
    assert (scorer.calibration.splits, scorer.calibration.dimensions["warmth"].n) == (None, 24)
    pair = (clips / "c.wav", clips / "r0.wav")
    scores = plain.score(*pair)
    assert scorer.score(*pair) == scores
    wide, narrow = (scorer.assess(*pair, level=level).scores for level in (0.95, 0.5))
    for dimension in scorer.dimensions:
        own, fitted = wide[dimension.name], scorer.calibration.dimensions[dimension.name]
        assert own.score == scores[dimension.name]
        assert own.standard_error == pytest.approx(fitted.factor)
        half = fitted.quantiles[3].value
        assert own.low == pytest.approx(max(dimension.minimum, own.score - half), abs=1e-5)
        assert own.high == pytest.approx(min(dimension.maximum, own.score + half), abs=1e-5)
        assert not own.abstained
        inner = narrow[dimension.name]
        assert own.low <= inner.low < own.score < inner.high <= own.high  # pyright: ignore
    assert scorer.assess([None], [pair[1]])[0].scores.keys() == scores.keys()
    judge = TrainedJudge.load(calibrated, Loading(device="cpu"))
    table = judge.score([make_pair("one", *pair), make_pair("two", None, clips / "bad.wav")]).set_index("dimension")
    for name, row in table[table["pair_id"] == "one"].iterrows():
        assert row["score"] == pytest.approx(scores[str(name)], abs=1e-5)
        assert row["uncertainty"] == pytest.approx(wide[str(name)].standard_error)
        assert (row["low_95"], row["high_50"]) == pytest.approx((wide[str(name)].low, narrow[str(name)].high), abs=1e-5)
    assert table.loc[table["pair_id"] == "two", ["score", "uncertainty", "low_95"]].isna().all(axis=None)
    assert "abstained" not in table
    with pytest.raises(
        UserError, match=r"no intervals: the judge is not calibrated; `empathy-judge calibrate` does it"
    ):
        plain.require_calibration()
    with pytest.raises(AudioError):
        scorer.assess(None, clips / "bad.wav")


def test_score_prints_and_writes_what_is_known(calibrated, clips, capsys):
    words = ["score", str(calibrated), str(clips / "c.wav"), str(clips / "r0.wav"), "--device", "cpu"]
    found = json.loads(output_of(capsys, *words, "--json", "--level", "0.8"))
    kinds = ("standard_error", "low", "high")
    names = ("empathy", "warmth")
    known = [f"{name}_{kind}" for name in names for kind in kinds]
    assert list(found) == [*names, *known, *(f"{name}_label" for name in names), "warnings", "windows", "seconds"]
    line = output_of(capsys, *words, "--level", "0.8").splitlines()[0]
    assert line == (
        f"empathy {found['empathy']:.3f} (1 to 5), standard error {found['empathy_standard_error']:.2f}, 80 % interval "
        f"{found['empathy_low']:.2f} to {found['empathy_high']:.2f}"
    )
    capsys.readouterr()
    assert main(["score", str(calibrated), "--manifest", str(clips / "pairs.csv"), "--device", "cpu"]) == 1
    one, two = csv.DictReader(capsys.readouterr().out.splitlines())
    assert list(one) == ["pair_id", *found, "status"]
    assert float(one["empathy_low"]) < float(one["empathy"]) < float(one["empathy_high"])
    assert (one["status"], set(two.values()) - {"b", two["status"]}) == ("ok", {""})


def test_what_cannot_be_calibrated_is_one_line(judge_folder, trained_run, dataset_folder, tmp_path, capsys):
    loaded, dataset = load_any(trained_run), PairDataset.load(dataset_folder)
    for splits, options, text in (
        (["train"], {}, "was trained on split train"),
        (None, {}, "was trained on split train"),
        (["dev"], {}, "no pair is in split 'dev'"),
        (["validation"], {"method": "isotonic"}, "9 rated pairs in 3 groups; a mapping needs at least 20 in 5"),
        (["validation"], {"abstain": 0.2}, "expected a head with a deviation"),
    ):
        with pytest.raises(UserError, match=text):
            calibrate_judge(loaded, dataset, splits, device="cpu", **options)
    unrated = replace(dataset, ratings=dataset.ratings[dataset.ratings["pair_id"] == "none"])
    with pytest.raises(UserError, match="split test has no rating of empathy, warmth"):
        calibrate_judge(loaded, unrated, ["test"], device="cpu")
    capsys.readouterr()
    data = ("--data", str(dataset_folder), "--device", "cpu")
    assert "expected a judge folder" in failed(capsys, "calibrate", str(tmp_path), *data)
    manifest = ("--manifest", str(tmp_path / "pairs.csv"), "--device", "cpu", "--level", "0.9")
    assert "no intervals: the judge is not calibrated" in failed(capsys, "score", str(judge_folder), *manifest)
