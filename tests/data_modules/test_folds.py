"""Folds of whole groups with even numbers of rows."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.data_modules.folds import even_folds
from sklearn.model_selection import GroupKFold


def _sizes(splits) -> list[int]:
    return [len(left_out) for _, left_out in splits]


def test_folds_are_even_where_groups_are_not():
    """scikit-learn 1.9.1 makes folds of 26 to 508 of these rows (median of 20 seeds: 12 to 1)."""
    sizes = np.random.default_rng(0).zipf(1.5, 40).clip(1, 200)
    groups = np.repeat(np.arange(40), sizes)
    drawn = [even_folds(groups, 5, seed) for seed in range(20)]
    for folds in drawn:
        assert max(_sizes(folds.split())) <= 1.25 * min(_sizes(folds.split()))
        assert all(len(set(folds.test_fold[groups == group])) == 1 for group in range(40))
        assert all(not set(kept) & set(left_out) for kept, left_out in folds.split())
    assert len({folds.test_fold.tobytes() for folds in drawn}) == 20
    assert even_folds(groups, 5, 3).test_fold.tolist() == drawn[3].test_fold.tolist()


def test_a_large_group_has_a_fold_to_itself():
    groups = ["large"] * 100 + ["a", "b", "c"]
    assert all(sorted(_sizes(even_folds(groups, 2, seed).split())) == [3, 100] for seed in range(10))


@pytest.mark.parametrize("count", [5, 23, 40])
def test_groups_of_one_size_are_dealt_as_by_scikit_learn(count):
    groups = np.random.default_rng(0).permutation(np.repeat([f"speaker {number}" for number in range(count)], 3))
    for seed in range(5):
        theirs = GroupKFold(5, shuffle=True, random_state=seed).split(groups, groups=groups)
        ours = even_folds(groups, 5, seed).split()
        assert [rows.tolist() for _, rows in ours] == [rows.tolist() for _, rows in theirs]


def test_the_order_of_rows_changes_nothing():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), rng.zipf(1.5, 30).clip(1, 50))
    order = rng.permutation(len(groups))
    for seed in range(5):
        folds = even_folds(groups, 4, seed).test_fold
        assert even_folds(groups[order], 4, seed).test_fold.tolist() == folds[order].tolist()


def test_fewer_groups_than_folds_are_refused():
    with pytest.raises(ValueError, match="number of groups"):
        even_folds(["a", "a", "b"], 3, 0)


def test_few_groups_within_a_factor_of_two_are_paired_off():
    """The ten speakers of Emo-DB, of which one draw makes a largest fold of 1.5 times the smallest (median)."""
    groups = np.repeat(np.arange(10), [49, 58, 43, 38, 55, 35, 61, 69, 56, 71])
    ratios = [max(sizes) / min(sizes) for seed in range(20) if (sizes := _sizes(even_folds(groups, 5, seed).split()))]
    assert max(ratios) < 1.3
    assert len({even_folds(groups, 5, seed).test_fold.tobytes() for seed in range(20)}) == 20
