"""The probe as a row of reports: it is what `method: probe` makes, and is fitted within the command."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.judges.baselines.probe import learning_curve, open_probe
from empathy_judge.eval.report.others import PlanReport
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.run import train

from ....conftest import output_of


@pytest.fixture(scope="module")
def probe_run(train_arguments, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("probe") / "run"
    ear = {"judge__head_input__audio": "all_layers", "judge__head_input__functionals": "true"}
    train(train_arguments(run, method="probe", **ear))
    return run


def scores(judge, pairs) -> np.ndarray:
    return judge.score(pairs)["score"].to_numpy(float).reshape(len(pairs), -1)


def test_it_scores_as_the_run_of_method_probe(probe_run, dataset_folder, backbone_folder):
    dataset = PairDataset.load(dataset_folder)
    pairs = dataset.subset("validation").pairs
    trained = Predictor(load_any(probe_run).judge, 4).predict(pairs)
    expected = np.stack([found.score.numpy() for _, found in trained])
    for what in (probe_run, backbone_folder):
        judge = open_probe(f"probe:{what}", dataset.subset(["train"]), 0)
        np.testing.assert_allclose(scores(judge, pairs), expected, atol=1e-4)
    assert judge.name == f"probe:{backbone_folder.name}"


def test_a_clip_that_cannot_be_used_costs_its_pair_and_no_other(dataset_folder, backbone_folder, tmp_path):
    training, missing = PairDataset.load(dataset_folder).subset(["train"]), tmp_path / "none.wav"
    broken = dataclasses.replace(training.pairs[0], response=missing)
    damaged = dataclasses.replace(training, pairs=(broken, *training.pairs[1:]))
    judge = open_probe(f"probe:{backbone_folder}", damaged, 0)
    fitted = judge.record["fitted"]
    assert (fitted["pairs"], fitted["unusable_pairs"]) == (11, 1)
    found = judge.score([broken, training.pairs[1]])
    assert found["status"].tolist() == [f"{missing}: no such file"] * 2 + ["ok"] * 2


@pytest.mark.long
def test_a_plan_shows_what_it_learns_from_fewer_pairs(backbone_folder, dataset_folder, capsys):
    found = learning_curve(str(backbone_folder), PairDataset.load(dataset_folder), resamples=20, seed=0)
    for name in ("empathy", "warmth"):
        rows = [row for row in found if row.dimension == name]
        sizes = [row.pairs for row in rows]
        assert len(sizes) >= 2
        assert sizes == sorted(set(sizes))
        most, first = rows[-1], rows[0]
        assert most.behind is None
        assert first.behind.value == pytest.approx(most.spearman.value - first.spearman.value)
        assert most.spearman.n == len(PairDataset.load(dataset_folder).mean_scores()[name].dropna())
    words = ["plan", str(dataset_folder), "--learning", str(backbone_folder), "--resamples", "20"]
    assert PlanReport.model_validate_json(output_of(capsys, *words, "--json")).learning == found
    assert "what a probe on the frozen backbone learns" in output_of(capsys, *words)
    assert main(["plan", "--variance", "item=1", "residual=1", "--learning", "nano"]) == 2
    assert "--learning without clips; expected the folder of a pair dataset as pilot" in capsys.readouterr().err
