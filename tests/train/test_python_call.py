"""`train` from Python: what it takes beside words, and the `Run` that comes back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from empathy_judge import PairDataset, Scorer, train
from empathy_judge.data_modules.errors import UserError
from empathy_judge.models.weight_files import read_checkpoint


@pytest.fixture
def recipe(backbone_folder) -> dict[str, Any]:
    return {
        "config": "nano",
        "judge": {"backbone": str(backbone_folder), "lora": {"rank": 4}},
        "data": {"batch_size": 4, "eval_batch_size": 4},
        "trainer": {"max_epochs": 1, "logger": False},
    }


def test_a_run_knows_what_it_reached_and_scores_and_exports(recipe, dataset_folder, tmp_path):
    dataset = PairDataset.load(dataset_folder)
    run = train(recipe, dataset, tmp_path / "run")
    assert run.folder == tmp_path / "run"
    checkpoint = read_checkpoint(run.checkpoint)
    assert run.checkpoint == run.folder / "checkpoints" / "best.ckpt"
    known = [value for value in run.agreement.values() if value is not None]
    assert checkpoint["agreement"] == pytest.approx(sum(known) / len(known), abs=1e-12)
    assert run.calibration == (path if (path := run.folder / "calibration.json").is_file() else None)
    # the same by words
    words = ["--config", str(run.folder / "config.yaml"), "--run", str(tmp_path / "again")]
    assert train(words).agreement == run.agreement

    pair = dataset.pairs[0]
    scorer = run.scorer(device="cpu")  # a run folder is a judge, too
    assert (scorer.description["provenance"]["dataset"], list(run.agreement)) == ("tones", ["empathy", "warmth"])
    scores = scorer.score(pair.context[0].audio, pair.response)
    folder = run.export(tmp_path / "judge")
    assert json.loads((folder / "judge.json").read_text())["provenance"]["validation"] == run.agreement
    assert Scorer.from_pretrained(folder, device="cpu").score(pair.context[0].audio, pair.response) == scores


def test_a_dataset_that_is_not_its_folder_is_refused(recipe, dataset_folder, tmp_path):
    whole = PairDataset.load(dataset_folder)
    fewer = dataclasses.replace(whole, ratings=whole.ratings.iloc[1:].reset_index(drop=True))
    for changed in (whole.subset(["train", "validation"]), fewer):
        with pytest.raises(UserError, match=r"the PairDataset is not what .* holds"):
            train(recipe, changed, tmp_path / "run")


def test_a_dry_run_has_no_run(recipe, tmp_path, capsys):
    assert train({**recipe, "dry_run": True}, tmp_path / "no such data", tmp_path / "run") is None
    assert "A step on 4 pairs" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
