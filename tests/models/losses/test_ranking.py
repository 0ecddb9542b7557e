"""Ranking losses against loops over pairs, scikit-learn's and SciPy's figures, and what order alone leaves open."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import numpy as np
import pytest
import torch
from empathy_judge.models.losses import logistic_ranking, margin_ranking, soft_spearman
from scipy import stats
from torch import Tensor

MARGIN, TEMPERATURE = 0.07, 0.2


def _batch(seed: int, items: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Predictions, targets with ties, weights and groups of which one is negative."""
    generator = np.random.default_rng(seed)
    prediction, target = generator.uniform(size=(items, 2)), generator.integers(0, 5, (items, 2)) / 4
    weights = generator.integers(0, 3, (items, 2)).astype(np.float64)
    target[weights == 0] = np.nan
    groups = generator.integers(-1, 3, items)
    return torch.tensor(prediction), torch.tensor(target), torch.tensor(weights), torch.tensor(groups)


def _hinge(lead: float, rated: float, tie: float) -> float | None:
    if abs(rated) <= tie:
        return None
    return max(0.0, MARGIN - lead if rated > 0 else MARGIN + lead)


def _entropy(lead: float, rated: float, tie: float) -> float:
    wins, first = 0.5 if abs(rated) <= tie else float(rated > 0), 1 / (1 + exp(-lead / TEMPERATURE))
    return -wins * log(first) - (1 - wins) * log(1 - first)


def _loop(
    cost: Callable[[float, float, float], float | None], batch: tuple[Tensor, ...], groups: list[int] | None, tie: float
) -> float:
    prediction, target, weights = (values.tolist() for values in batch[:3])
    total = weight = 0.0
    for i in range(len(prediction)):
        for j in range(i):
            if groups is not None and (groups[i] != groups[j] or groups[i] < 0):
                continue
            for d in range(2):
                pair = weights[i][d] * weights[j][d]
                if not pair:
                    continue
                value = cost(prediction[i][d] - prediction[j][d], target[i][d] - target[j][d], tie)
                if value is not None:
                    total, weight = total + pair * value, weight + pair
    return total / weight


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("tie", [0.0, 0.25])
def test_a_loop_over_pairs(grouped, tie):
    prediction, target, weights, groups = batch = _batch(1)
    used, named = (groups, groups.tolist()) if grouped else (None, None)
    hinge = margin_ranking(prediction, target, weights, used, MARGIN, tie)
    assert hinge.item() == pytest.approx(_loop(_hinge, batch, named, tie), rel=1e-12)
    entropy = logistic_ranking(prediction, target, weights, used, TEMPERATURE, tie)
    assert entropy.item() == pytest.approx(_loop(_entropy, batch, named, tie), rel=1e-12)


def test_items_without_a_group_or_alone_in_one_get_no_gradient():
    prediction, target, _, _ = _batch(2, 5)
    groups = torch.tensor([-1, -1, 0, 1, 1])
    for loss in (margin_ranking, logistic_ranking):
        values = prediction.clone().requires_grad_()
        loss(values, target.nan_to_num(0.3), torch.ones(5, 2), groups).backward()
        assert (values.grad[:3] == 0).all()
    with pytest.raises(ValueError, match=r"groups \(3,\); expected the shape \(5,\)"):
        logistic_ranking(prediction, target, torch.ones(5, 2), groups[:3])


def test_all_ties():
    prediction, target = torch.tensor([[0.2], [0.7]], requires_grad=True), torch.full((2, 1), 0.5)
    for loss in (
        margin_ranking(prediction, target, torch.ones(2, 1)),
        soft_spearman(prediction, target, torch.ones(2, 1), 0.1),
    ):
        assert loss.item() == 0
        assert (torch.autograd.grad(loss, prediction)[0] == 0).all()
    # a tie draws the predictions together
    (gradient,) = torch.autograd.grad(logistic_ranking(prediction, target, torch.ones(2, 1)), prediction)
    assert gradient[0] < 0 < gradient[1]


@pytest.mark.parametrize("seed", range(3))
def test_soft_spearman_becomes_spearman(seed):
    generator = np.random.default_rng(seed)
    prediction, target = generator.integers(0, 9, (40, 2)) / 8, generator.integers(0, 5, (40, 2)) / 4  # ties on both
    mask = generator.uniform(size=(40, 2)) < 0.8
    columns = [stats.spearmanr(prediction[mask[:, d], d], target[mask[:, d], d])[0] for d in range(2)]
    target[~mask] = np.nan
    arguments = torch.tensor(prediction), torch.tensor(target), torch.tensor(mask)
    assert soft_spearman(*arguments, temperature=1e-4).item() == pytest.approx(1 - np.mean(columns), abs=1e-6)


def test_soft_ranks_by_a_loop_and_weights_that_only_select():
    prediction, target, weights, _ = _batch(3)
    expected = []
    for d in range(2):
        at = (weights[:, d] > 0).nonzero().flatten().tolist()
        x = prediction[:, d].tolist()
        soft = [0.5 + sum(1 / (1 + exp((x[j] - x[i]) / 0.3)) for j in at) for i in at]
        expected.append(1 - stats.pearsonr(soft, stats.rankdata(target[at, d].numpy()))[0])
    assert soft_spearman(prediction, target, weights, 0.3).item() == pytest.approx(np.mean(expected), rel=1e-10)
    assert soft_spearman(prediction, target, weights > 0, 0.3).item() == pytest.approx(np.mean(expected), rel=1e-10)


def test_a_dimension_of_equal_targets_does_not_count():
    prediction, target, _, _ = _batch(4)
    target = target.nan_to_num(0.1)
    alone = soft_spearman(prediction[:, :1], target[:, :1], torch.ones(12, 1), 0.1)
    target[:, 1] = 0.3
    assert soft_spearman(prediction, target, torch.ones(12, 2), 0.1).item() == pytest.approx(alone.item(), rel=1e-12)
