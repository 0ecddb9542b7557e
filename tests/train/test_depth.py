"""A run whose judge reads half of its backbone."""

from __future__ import annotations

import json

import torch
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.artifact import load_any, load_run
from empathy_judge.models.scoring import PairScorer
from empathy_judge.train.run import train


def scores_of(judge, pairs, batch_size) -> torch.Tensor:
    return torch.stack([found.score for _, found in PairScorer(judge, batch_size).predict(pairs)])


def test_a_run_at_half_depth_is_exported_merged_and_scores_the_same_in_any_batch(
    train_arguments, dataset_folder, tmp_path
):
    run = tmp_path / "run"
    train(train_arguments(run, judge__depth=0.5, trainer__max_epochs=1))
    trained = load_run(run).judge
    assert trained.settings.depth == len(trained.backbone.layers) == 2
    pairs = PairDataset.load(dataset_folder).subset(["validation"]).pairs
    expected = scores_of(trained, pairs, 4)
    assert main(["export", str(run), "--out", str(tmp_path / "judge")]) == 0
    assert main(["export", str(run), "--out", str(tmp_path / "whole"), "--form", "merged"]) == 0
    for name in ("judge", "whole"):
        assert json.loads((tmp_path / name / "judge.json").read_text())["settings"]["depth"] == 2
        assert "depth: the first 2 layers of the language model" in (tmp_path / name / "README.md").read_text()
        judge = load_any(tmp_path / name).judge
        assert len(judge.backbone.layers) == 2
        for batch_size in (1, 4):
            assert (scores_of(judge, pairs, batch_size) - expected).abs().max() < 1e-5
