"""Squared error, Huber, normal likelihood and concordance against numbers by hand and other implementations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from empathy_judge.eval.statistics import agreement
from empathy_judge.models.losses import ccc, faithful_nll, gaussian_nll, huber, mse
from scipy import stats
from torch import Tensor

NAN = float("nan")
PREDICTION = torch.tensor([[0.5, 0.2], [0.9, 0.4]], dtype=torch.float64)
TARGET = torch.tensor([[0.6, NAN], [0.4, 0.7]], dtype=torch.float64)
WEIGHTS = torch.tensor([[1, 0], [2, 1]], dtype=torch.float64)


def test_mse_by_hand():
    assert mse(PREDICTION, TARGET, WEIGHTS).item() == pytest.approx((0.01 + 2 * 0.25 + 0.09) / 4)


def test_huber_by_hand():
    """0.1 lies within delta, 0.5 and 0.3 beyond."""
    expected = (0.1**2 / 2 + 2 * 0.2 * (0.5 - 0.1) + 0.2 * (0.3 - 0.1)) / 4
    assert huber(PREDICTION, TARGET, WEIGHTS, delta=0.2).item() == pytest.approx(expected)


def test_gaussian_nll_is_scipys_without_the_constant():
    variance = torch.tensor([[0.04, 0.5], [0.01, 0.2]], dtype=torch.float64)
    expected = sum(
        weight * (-stats.norm.logpdf(target, mean, np.sqrt(spread)) - np.log(2 * np.pi) / 2)
        for weight, target, mean, spread in [(1, 0.6, 0.5, 0.04), (2, 0.4, 0.9, 0.01), (1, 0.7, 0.4, 0.2)]
    )
    assert gaussian_nll(PREDICTION, variance, TARGET, WEIGHTS).item() == pytest.approx(expected / 4)


def test_the_mean_of_faithful_nll_learns_from_the_squared_error_and_the_variance_from_the_likelihood():
    def gradients(loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor | None, Tensor | None]:
        mean = PREDICTION.clone().requires_grad_()
        variance = torch.tensor([[0.04, 0.5], [0.01, 0.2]], dtype=torch.float64, requires_grad=True)
        loss(mean, variance).backward()
        return mean.grad, variance.grad

    of_mean, of_variance = gradients(lambda mean, variance: faithful_nll(mean, variance, TARGET, WEIGHTS))
    half_the_square, _ = gradients(lambda mean, _: mse(mean, TARGET, WEIGHTS) / 2)
    _, likelihood = gradients(lambda mean, variance: gaussian_nll(mean, variance, TARGET, WEIGHTS))
    torch.testing.assert_close(of_mean, half_the_square, rtol=0, atol=0)
    torch.testing.assert_close(of_variance, likelihood, rtol=0, atol=0)


def test_ccc_is_one_minus_the_statistic_of_reports():
    generator = np.random.default_rng(0)
    target = generator.uniform(size=(30, 3))
    prediction = 0.3 + 0.5 * target + 0.1 * generator.normal(size=(30, 3))
    mask = generator.uniform(size=(30, 3)) < 0.7
    mask[:, 2] = np.arange(30) == 4  # one item: not a dimension
    columns = [agreement.ccc(prediction[mask[:, d], d], target[mask[:, d], d]) for d in range(2)]
    target[~mask] = np.nan
    loss = ccc(torch.tensor(prediction), torch.tensor(target), torch.tensor(mask))
    assert loss.item() == pytest.approx(1 - np.mean([column for column in columns if column is not None]), abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [([0.1, 0.5, 0.9], 0.0), ([0.9, 0.5, 0.1], 2.0), ([0.5, 0.5, 0.5], 1.0), ([0.3, 0.7, 1.1], 1 - 16 / 19)],
    ids=["equal", "reversed", "constant", "shifted"],
)
def test_ccc_of_levels_and_order(prediction, expected):
    """Shifted by 0.2: 2 * 8/75 / (2 * 8/75 + 0.04) = 16/19."""
    target = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.float64)
    values = torch.tensor(prediction, dtype=torch.float64)[:, None]
    assert ccc(values, target, torch.ones(3, 1)).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("level", [0.37, 0.7, 0.9])
def test_rounding_makes_no_gradient_of_ccc(level):
    """Equal up to the last bits: 0 by 0, which rounding would turn into a gradient of 100,000."""
    target = torch.full((7, 1), level)
    noise = torch.randn(7, 1, generator=torch.Generator().manual_seed(7))
    prediction = (target + 1e-7 * noise).requires_grad_()
    loss = ccc(prediction, target, torch.ones(7, 1))
    assert loss.item() == pytest.approx(1, abs=1e-6)
    assert torch.autograd.grad(loss, prediction)[0].abs().max() < 1e-3
