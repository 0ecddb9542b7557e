"""Whether adapters are ahead of the probe on pairs that neither was trained on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.heads import Prediction
from empathy_judge.train.left_out import AllPairs, can_decide, is_ahead


@pytest.mark.parametrize(
    ("groups", "shuffled", "ahead", "part"),
    [
        (12, True, True, "(90 % interval 1."),
        (12, False, True, "leads by 0.000 (90 % interval 0.000 to 0.000"),  # as good as the probe will do
        (4, True, False, "(no 90 % interval: it needs 5 groups, or speakers, and draws in which it is defined)"),
    ],
)
def test_adapters_are_ahead_where_the_interval_of_their_lead_does_not_reach_below_0(
    groups, shuffled, ahead, part, dataset_folder, capsys
):
    dataset = PairDataset.load(dataset_folder)
    means = dataset.mean_scores()
    right = {name: Prediction(torch.tensor(row)) for name, row in zip(means.index, means.to_numpy(), strict=True)}
    order = np.random.default_rng(0).permutation(means.index)
    other = {name: right[drawn] for name, drawn in zip(means.index, order, strict=True)} if shuffled else right
    pairs = AllPairs(dataset, np.arange(len(means)) % groups, dataset.pairs, {})
    assert is_ahead(pairs, right, other, 0) is ahead
    assert part in capsys.readouterr().err
    assert is_ahead(pairs, other, right, 0) is not shuffled


@pytest.mark.parametrize(
    ("groups", "advice"),
    [
        (7, "come from 3 groups (or speakers), at least 5 needed; expected more of these in the validation split, or"),
        (4, "come from 3 groups (or speakers), at least 5 needed; expected more of these\n"),  # for folds, too few
    ],
)
def test_folds_are_recommended_where_there_are_groups_for_them(groups, advice, dataset_folder, capsys):
    dataset = PairDataset.load(dataset_folder)
    pairs = AllPairs(dataset, np.arange(len(dataset.pairs)) % groups, dataset.pairs, {})
    scored = {dataset.pairs[row].pair_id: Prediction(torch.zeros(2)) for row in range(3)}
    assert not can_decide(pairs, scored)
    assert advice in capsys.readouterr().err
