"""Every loss against numbers by hand, plain loops and other implementations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import exp, log

import numpy as np
import pytest
import torch
from empathy_judge.eval.statistics import agreement
from empathy_judge.models.losses import (
    bradley_terry,
    ccc,
    centring,
    coral,
    corn,
    faithful_nll,
    gaussian_nll,
    histogram_cross_entropy,
    huber,
    logistic_ranking,
    margin_ranking,
    mse,
    soft_spearman,
    squared_emd,
)
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


@pytest.mark.parametrize("level", [0.37, 0.7, 0.9])
def test_rounding_makes_no_gradient_of_ccc(level):
    """Equal up to the last bits: 0 by 0, which rounding would turn into a gradient of 100,000."""
    target = torch.full((7, 1), level)
    noise = torch.randn(7, 1, generator=torch.Generator().manual_seed(7))
    prediction = (target + 1e-7 * noise).requires_grad_()
    loss = ccc(prediction, target, torch.ones(7, 1))
    assert loss.item() == pytest.approx(1, abs=1e-6)
    assert torch.autograd.grad(loss, prediction)[0].abs().max() < 1e-3


CHOSEN, REJECTED = torch.tensor([0.7, 0.4, 0.5, 0.1]), torch.tensor([0.5, 0.6, 0.4, 0.2])
STRENGTH, MASK = torch.tensor([1.0, 2.0, 0.0, NAN]), torch.tensor([True, True, True, False])


def _surprise(logit: float) -> float:
    return log(1 + exp(-logit))


def test_bradley_terry_by_hand():
    tie = (_surprise(1) + _surprise(-1)) / 2
    plain = (_surprise(2) + _surprise(-2) + tie) / 3
    assert bradley_terry(CHOSEN, REJECTED, STRENGTH, MASK, 0.1, 0.0).item() == pytest.approx(plain, abs=1e-6)
    margin = (_surprise(1 - 0.3) + _surprise(-1 - 0.6) + (_surprise(0.5) + _surprise(-0.5)) / 2) / 3
    loss = bradley_terry(CHOSEN, REJECTED, STRENGTH, MASK, temperature=0.2, strength_margin=0.3)
    assert loss.item() == pytest.approx(margin, abs=1e-6)


def test_one_dimension_is_one_column():
    chosen, rejected, strength, mask = (values[:, None] for values in (CHOSEN, REJECTED, STRENGTH, MASK))
    flat = bradley_terry(CHOSEN, REJECTED, STRENGTH, MASK, 0.1, 0.0)
    assert bradley_terry(chosen, rejected, strength, mask, 0.1, 0.0).item() == flat.item()
    assert centring(chosen, rejected, mask).item() == centring(CHOSEN, REJECTED, MASK).item()


def test_centring_by_hand():
    expected = ((0.6 - 0.5) ** 2 + 0 + (0.45 - 0.5) ** 2) / 3
    assert centring(CHOSEN, REJECTED, MASK).item() == pytest.approx(expected, abs=1e-7)


def test_far_scores_stay_finite():
    chosen = torch.tensor([-100.0], requires_grad=True)
    value = bradley_terry(chosen, torch.tensor([100.0]), torch.ones(1), torch.ones(1), 0.1, 0.0)
    assert value.item() == pytest.approx(2000)
    assert torch.autograd.grad(value, chosen)[0].item() == pytest.approx(-10)


MARGIN, TEMPERATURE = 0.07, 0.2
RANKED = partial(logistic_ranking, temperature=TEMPERATURE, tie=0.0)


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
    hinge = margin_ranking(prediction, target, weights, used, margin=MARGIN, tie=tie)
    assert hinge.item() == pytest.approx(_loop(_hinge, batch, named, tie), rel=1e-12)
    entropy = logistic_ranking(prediction, target, weights, used, temperature=TEMPERATURE, tie=tie)
    assert entropy.item() == pytest.approx(_loop(_entropy, batch, named, tie), rel=1e-12)


def test_items_without_a_group_or_alone_in_one_get_no_gradient():
    prediction, target, _, _ = _batch(2, 5)
    groups = torch.tensor([-1, -1, 0, 1, 1])
    for loss in (partial(margin_ranking, margin=MARGIN, tie=0.0), RANKED):
        values = prediction.clone().requires_grad_()
        loss(values, target.nan_to_num(0.3), torch.ones(5, 2), groups).backward()
        assert (values.grad[:3] == 0).all()
    with pytest.raises(ValueError, match=r"groups \(3,\); expected the shape \(5,\)"):
        RANKED(prediction, target, torch.ones(5, 2), groups[:3])


def test_all_ties():
    prediction, target = torch.tensor([[0.2], [0.7]], requires_grad=True), torch.full((2, 1), 0.5)
    for loss in (
        margin_ranking(prediction, target, torch.ones(2, 1), margin=MARGIN, tie=0.0),
        soft_spearman(prediction, target, torch.ones(2, 1), 0.1),
    ):
        assert loss.item() == 0
        assert (torch.autograd.grad(loss, prediction)[0] == 0).all()
    # a tie draws the predictions together
    (gradient,) = torch.autograd.grad(RANKED(prediction, target, torch.ones(2, 1)), prediction)
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


EXISTS = torch.tensor([[True] * 4, [True, True, True, False]])
COUNTS = torch.tensor([[[1, 0, 2, 1], [0, 3, 1, 0]], [[0, 0, 0, 5], [2, 0, 0, 0]], [[0, 0, 0, 0], [1, 1, 1, 0]]])
LOGITS = torch.randn(3, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
RATER_WEIGHTS = torch.tensor(
    [[1, 2], [1, 1], [5, 1]], dtype=torch.float64
)  # entry (2, 0) has no raters: its 5 never counts


def _sigmoid(logit: float) -> float:
    return 1 / (1 + exp(-logit))


def _entries() -> list[tuple[int, int, int]]:
    """Item, dimension and number of thresholds of every entry with raters."""
    return [(i, d, (3, 2)[d]) for i in range(3) for d in range(2) if COUNTS[i, d].sum()]


def _mean(values: list[float]) -> float:
    return float(np.average(values, weights=[RATER_WEIGHTS[i, d] for i, d, _ in _entries()]))


def test_coral_by_a_loop_over_raters():
    values = []
    for i, d, thresholds in _entries():
        scores = np.repeat(np.arange(4), COUNTS[i, d])
        chances = [_sigmoid(LOGITS[i, d, k].item()) for k in range(thresholds)]
        costs = [-log(chances[k] if score > k else 1 - chances[k]) for k in range(thresholds) for score in scores]
        values.append(float(np.mean(costs)))
    assert coral(LOGITS, COUNTS, RATER_WEIGHTS, EXISTS).item() == pytest.approx(_mean(values), rel=1e-12)


def test_corn_is_the_likelihood_of_a_raters_score():
    values = []
    for i, d, thresholds in _entries():
        above = np.cumprod([1.0] + [_sigmoid(LOGITS[i, d, k].item()) for k in range(thresholds)])
        probabilities = -np.diff([*above, 0.0])  # of each step
        assert probabilities.sum() == pytest.approx(1)
        scores = np.repeat(np.arange(4), COUNTS[i, d])
        values.append(-np.log(probabilities[scores]).mean() / thresholds)
    assert corn(LOGITS, COUNTS, RATER_WEIGHTS, EXISTS).item() == pytest.approx(_mean(values), rel=1e-12)


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
    value = loss(logits, COUNTS, RATER_WEIGHTS, EXISTS)
    torch.testing.assert_close(value, loss(LOGITS, COUNTS, RATER_WEIGHTS, EXISTS))
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
    assert histogram_cross_entropy(predicted, COUNTS, RATER_WEIGHTS).item() == pytest.approx(_mean(values), rel=1e-6)


def test_emd_by_a_loop():
    predicted = _log_probabilities()
    values = []
    for i, d, thresholds in _entries():
        share = (COUNTS[i, d] / COUNTS[i, d].sum()).double()
        gaps = [float(predicted[i, d, : k + 1].exp().sum() - share[: k + 1].sum()) for k in range(thresholds + 1)]
        values.append(float(np.mean(np.square(gaps))))
    assert squared_emd(predicted, COUNTS, RATER_WEIGHTS, EXISTS).item() == pytest.approx(_mean(values), rel=1e-6)


def test_emd_does_not_read_steps_that_a_scale_does_not_have():
    """As a head has them: the lowest number. Or as a head leaves them: any."""
    expected = squared_emd(_log_probabilities(), COUNTS, RATER_WEIGHTS, EXISTS)
    for garbage in (torch.finfo(torch.float64).min, -1.0, torch.nan):
        predicted = _log_probabilities().masked_fill(~EXISTS, garbage).requires_grad_()
        value = squared_emd(predicted, COUNTS, RATER_WEIGHTS, EXISTS)
        assert value.item() == expected.item()
        (gradient,) = torch.autograd.grad(value, predicted)
        assert gradient.isfinite().all()
        assert (gradient[:, 1, 3] == 0).all()
