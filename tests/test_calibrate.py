"""Calibrating runs and judge folders, and scores with standard errors and intervals, through the commands."""

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
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.judges.trained import TrainedJudge
from empathy_judge.eval.measurement import Loading
from empathy_judge.models.description import read_json
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.audio_inputs import make_pair
from empathy_judge.scoring.calibration import from_json
from empathy_judge.scoring.judge_calibration import calibrate_judge
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.run import train

from .conftest import failed, output_of

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
