"""Losses on how raters spread over the steps of a scale: thresholds and histograms, scales of different lengths."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch
from empathy_judge.models.losses import coral, corn, histogram_cross_entropy, squared_emd
from scipy import stats
from torch import Tensor

EXISTS = torch.tensor([[True] * 4, [True, True, True, False]])
COUNTS = torch.tensor([[[1, 0, 2, 1], [0, 3, 1, 0]], [[0, 0, 0, 5], [2, 0, 0, 0]], [[0, 0, 0, 0], [1, 1, 1, 0]]])
LOGITS = torch.randn(3, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.tensor([[1, 2], [1, 1], [5, 1]], dtype=torch.float64)  # entry (2, 0) has no raters: its 5 never counts


def _sigmoid(logit: float) -> float:
    return 1 / (1 + exp(-logit))


def _entries() -> list[tuple[int, int, int]]:
    """Item, dimension and number of thresholds of every entry with raters."""
    return [(i, d, (3, 2)[d]) for i in range(3) for d in range(2) if COUNTS[i, d].sum()]


def _mean(values: list[float]) -> float:
    return float(np.average(values, weights=[WEIGHTS[i, d] for i, d, _ in _entries()]))


def test_coral_by_a_loop_over_raters():
    values = []
    for i, d, thresholds in _entries():
        scores = np.repeat(np.arange(4), COUNTS[i, d])
        chances = [_sigmoid(LOGITS[i, d, k].item()) for k in range(thresholds)]
        costs = [-log(chances[k] if score > k else 1 - chances[k]) for k in range(thresholds) for score in scores]
        values.append(float(np.mean(costs)))
    assert coral(LOGITS, COUNTS, WEIGHTS, EXISTS).item() == pytest.approx(_mean(values), rel=1e-12)


def test_corn_is_the_likelihood_of_a_raters_score():
    values = []
    for i, d, thresholds in _entries():
        above = np.cumprod([1.0] + [_sigmoid(LOGITS[i, d, k].item()) for k in range(thresholds)])
        probabilities = -np.diff([*above, 0.0])  # of each step
        assert probabilities.sum() == pytest.approx(1)
        scores = np.repeat(np.arange(4), COUNTS[i, d])
        values.append(-np.log(probabilities[scores]).mean() / thresholds)
    assert corn(LOGITS, COUNTS, WEIGHTS, EXISTS).item() == pytest.approx(_mean(values), rel=1e-12)


@pytest.mark.parametrize("loss", [coral, corn])
def test_thresholds_far_from_the_raters_stay_finite(loss):
    """Sigmoid of 200 is 1 in float32: its complement has no logarithm, the loss has. 4 raters below every threshold."""
    logits = torch.full((1, 1, 3), 200.0, requires_grad=True)
    value = loss(logits, torch.tensor([[[4, 0, 0, 0]]]), torch.ones(1, 1), EXISTS[:1])
    assert value.item() == pytest.approx(200 if loss is coral else 200 / 3)
    (gradient,) = torch.autograd.grad(value, logits)
    expected = [1 / 3, 1 / 3, 1 / 3] if loss is coral else [1 / 3, 0, 0]  # CORN: nobody is left above the first
    torch.testing.assert_close(gradient, torch.tensor([[expected]]))


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("loss", [coral, corn])
def test_thresholds_that_a_scale_does_not_have_are_not_read(loss, garbage):
    logits = LOGITS.clone()
    logits[:, 1, 2] = garbage
    logits.requires_grad_()
    value = loss(logits, COUNTS, WEIGHTS, EXISTS)
    torch.testing.assert_close(value, loss(LOGITS, COUNTS, WEIGHTS, EXISTS))
    (gradient,) = torch.autograd.grad(value, logits)
    assert (gradient[:, 1, 2] == 0).all()
    assert (gradient[2, 0] == 0).all()  # nobody rated


def _log_probabilities() -> Tensor:
    logits = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return logits.masked_fill(~EXISTS, -torch.inf).log_softmax(-1)


def test_cross_entropy_is_the_likelihood_of_a_raters_score():
    """SciPy's entropy of the histogram and divergence from it add up to the same."""
    predicted = _log_probabilities()
    values = []
    for i, d, _ in _entries():
        share = COUNTS[i, d] / COUNTS[i, d].sum()
        values.append(float(stats.entropy(share) + stats.entropy(share.double(), predicted[i, d].exp())))
    assert histogram_cross_entropy(predicted, COUNTS, WEIGHTS).item() == pytest.approx(_mean(values), rel=1e-6)


def test_emd_by_a_loop():
    predicted = _log_probabilities()
    values = []
    for i, d, thresholds in _entries():
        share = (COUNTS[i, d] / COUNTS[i, d].sum()).double()
        gaps = [float(predicted[i, d, : k + 1].exp().sum() - share[: k + 1].sum()) for k in range(thresholds + 1)]
        values.append(float(np.mean(np.square(gaps))))
    assert squared_emd(predicted, COUNTS, WEIGHTS, EXISTS).item() == pytest.approx(_mean(values), rel=1e-6)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.0), (1, 1 / 4), (3, 3 / 4)])
def test_emd_knows_how_far_a_miss_is(step, expected):
    """All raters on the first of four steps, all probability on another: cross-entropy is the same for both misses."""
    predicted = torch.full((1, 1, 4), -torch.inf)
    predicted[..., step] = 0
    counts = torch.tensor([[[3, 0, 0, 0]]])
    assert squared_emd(predicted, counts, torch.ones(1, 1), EXISTS[:1]).item() == pytest.approx(expected)


def test_emd_does_not_read_steps_that_a_scale_does_not_have():
    """As a head has them: the lowest number. Or as a head leaves them: any."""
    expected = squared_emd(_log_probabilities(), COUNTS, WEIGHTS, EXISTS)
    for garbage in (torch.finfo(torch.float64).min, -1.0, torch.nan):
        predicted = _log_probabilities().masked_fill(~EXISTS, garbage).requires_grad_()
        value = squared_emd(predicted, COUNTS, WEIGHTS, EXISTS)
        assert value.item() == expected.item()
        (gradient,) = torch.autograd.grad(value, predicted)
        assert gradient.isfinite().all()
        assert (gradient[:, 1, 3] == 0).all()
