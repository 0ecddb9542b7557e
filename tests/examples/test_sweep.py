"""The example that searches settings with Optuna."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from empathy_judge.core.errors import UserError
from empathy_judge.models.weight_files import read_checkpoint

from ..conftest import loaded
from ..train.conftest import BEST_FILE

optuna = pytest.importorskip("optuna")
EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep.py"


def test_the_example_trains_each_trial_and_prints_the_best(
    dataset_folder, backbone_folder, tmp_path, monkeypatch, capsys
):
    example, out = loaded(EXAMPLE), tmp_path / "out"
    trainer = {"max_epochs": 1, "limit_train_batches": 1, "logger": False}
    recipe = {"judge": {"backbone": str(backbone_folder)}, "data": {"batch_size": 4}, "trainer": trainer}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = [str(dataset_folder), "--config", str(tmp_path / "recipe.yaml"), "--trials", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["sweep.py", *words])
    example.main()
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{out / 'trials.db'}")
    for trial in study.trials:
        config = yaml.safe_load((out / f"trial{trial.number}" / "config.yaml").read_text())
        assert config["optimizer"]["learning_rate"] == trial.params["learning_rate"]
        assert config["judge"]["lora"]["rank"] == trial.params["rank"]
        checkpoint = read_checkpoint(out / f"trial{trial.number}" / BEST_FILE)
        assert trial.value == pytest.approx(checkpoint["agreement"])
    assert len(study.trials) == 2
    best, run = capsys.readouterr().out.splitlines()[-2:]
    assert best.startswith(f"best of 2 trials: Spearman {study.best_value:.3f} with the validation ratings, ")
    assert run == f"run: {out / f'trial{study.best_trial.number}'}"


def test_a_trial_without_a_score_does_not_end_the_search(tmp_path, monkeypatch):
    example, results = loaded(EXAMPLE), [{"d": None}, UserError("no such data"), {"d": 0.5, "e": 0.7}]

    def train(config, data, run):
        result = results.pop(0)
        if isinstance(result, UserError):
            raise result
        return SimpleNamespace(agreement=result)

    monkeypatch.setattr(example, "train", train)
    monkeypatch.setattr(sys, "argv", ["sweep.py", "data", "--trials", "2", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="error: no trial has a score"):
        example.main()
    study = example.search("nano", "data", 1, tmp_path / "out")
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "FAIL", "COMPLETE"]
    assert study.best_value == pytest.approx(0.6)
