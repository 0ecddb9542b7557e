"""The trained judge as a judge of evaluations."""

from __future__ import annotations

import pytest
from empathy_judge import PairDataset, Scorer
from empathy_judge.eval.judges.trained import TrainedJudge
from empathy_judge.eval.measurement import Loading


def test_it_scores_as_a_scorer_does(judge_folder, dataset_folder, device):
    pairs = PairDataset.load(dataset_folder).pairs
    scorer = Scorer.from_pretrained(judge_folder, device=device.type, batch_size=3)
    table = TrainedJudge.load(judge_folder, Loading(device="cpu")).score(pairs)
    table = table.set_index(["pair_id", "dimension"])["score"]
    for pair, found in zip(pairs, scorer.assess_pairs(pairs), strict=True):
        for name, value in found.points.items():
            assert table[(pair.pair_id, name)] == pytest.approx(value, abs=1e-5)
