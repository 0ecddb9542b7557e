"""Every loss: what holds for all of them, then each against numbers by hand, plain loops and other implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    corn,
    faithful_nll,
    gaussian_nll,
    histogram_cross_entropy,
    mse,
    soft_spearman,
)
from scipy import stats
from torch import Tensor

ITEMS, DIMENSIONS, STEPS = 6, 2, 4
EXISTS = torch.tensor([[True] * 4, [True, True, True, False]])  # the second scale is shorter


@dataclass(frozen=True)
class Case:
    """A loss of (outputs of a model, target, mask)."""

    loss: Callable[..., Tensor]  # takes the outputs, then target and mask
    outputs: tuple[Tensor, ...]  # the model's outputs, float64, first axis: items
    target: Tensor  # labels, first axis: items
    twice: bool = True  # whether an item of weight 2 is the same as the item twice
    shift: bool = False  # whether adding a constant to all outputs changes nothing


def _scores(seed: int) -> Tensor:
    return torch.rand(ITEMS, DIMENSIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _logits(width: int) -> Tensor:
    return torch.randn(ITEMS, DIMENSIONS, width, dtype=torch.float64, generator=torch.Generator().manual_seed(width))


def _counts() -> Tensor:
    counts = torch.randint(0, 4, (ITEMS, DIMENSIONS, STEPS), generator=torch.Generator().manual_seed(9)) * EXISTS
    counts[..., 1] += 1  # every entry has raters
    return counts


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.masked_fill(~EXISTS, -torch.inf).log_softmax(-1)


OUTPUTS, LABELS = _scores(0), (4 * _scores(1)).round() / 4  # targets with ties
LEADS = torch.tensor([[0, 1], [1, 2], [3, 0], [1, 1], [2, 0], [0, 3]], dtype=torch.float64)
CASES = {
    "mse": Case(mse, (OUTPUTS,), LABELS),
    "gaussian_nll": Case(gaussian_nll, (OUTPUTS, 0.05 + _scores(2)), LABELS),
    "faithful_nll": Case(faithful_nll, (OUTPUTS, 0.05 + _scores(2)), LABELS),
    "ccc": Case(ccc, (OUTPUTS,), LABELS),
    "soft_spearman": Case(partial(soft_spearman, temperature=0.2), (OUTPUTS,), LABELS, twice=False, shift=True),
    "corn": Case(partial(corn, exists=EXISTS), (_logits(STEPS - 1),), _counts()),
    "histogram_cross_entropy": Case(
        lambda own, *given: histogram_cross_entropy(_log_probabilities(own), *given),
        (_logits(STEPS),),
        _counts(),
        shift=True,
    ),
    "bradley_terry": Case(partial(bradley_terry, temperature=0.3), (_scores(3), _scores(4)), LEADS, shift=True),
    "centring": Case(
        lambda chosen, rejected, _, mask: centring(chosen, rejected, mask), (_scores(3), _scores(4)), LEADS
    ),
}
COUNTED = torch.tensor([[1, 1], [1, 0], [0, 1], [1, 1], [1, 1], [0, 0]], dtype=torch.bool)
every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def _value_and_gradients(case: Case, mask: Tensor, target: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """At the outputs of the case; an output that a loss does not use has a gradient of 0."""
    outputs = [output.clone().requires_grad_() for output in case.outputs]
    value = case.loss(*outputs, case.target if target is None else target, mask)
    return value.detach(), list(torch.autograd.grad(value, outputs))


def _same(case: Case, outputs: list[Tensor], target: Tensor, mask: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(case.loss(*outputs, target, mask), expected, rtol=1e-10, atol=1e-12)


# faithful_nll holds a gradient back on purpose; its gradients are tested below
@pytest.mark.parametrize("case", [case for name, case in CASES.items() if name != "faithful_nll"])
def test_the_gradient_is_that_of_the_value(case):
    outputs = tuple(output.clone().requires_grad_() for output in case.outputs)
    assert torch.autograd.gradcheck(lambda *outputs: case.loss(*outputs, case.target, COUNTED), outputs)


@every_loss
def test_the_dtype_of_the_outputs_stays(case):
    narrow = [output.float() for output in case.outputs]
    value = case.loss(*narrow, case.target, COUNTED)
    assert value.dtype == torch.float32
    assert value.shape == ()
    torch.testing.assert_close(value.double(), case.loss(*case.outputs, case.target, COUNTED), rtol=1e-5, atol=1e-6)


@every_loss
def test_what_does_not_count_is_not_read(case):
    value, gradients = _value_and_gradients(case, COUNTED)
    target = case.target.clone()
    target[~COUNTED] = torch.nan if target.is_floating_point() else 7
    other, other_gradients = _value_and_gradients(case, COUNTED, target)
    torch.testing.assert_close(other, value, rtol=0, atol=0)
    torch.testing.assert_close(other_gradients, gradients, rtol=0, atol=0)
    assert all((gradient[~COUNTED] == 0).all() for gradient in gradients)
    assert all((gradient[COUNTED] != 0).any() for gradient in gradients)
    # and as if these items were not there: the last one counts nowhere
    _same(case, [output[:-1] for output in case.outputs], case.target[:-1], COUNTED[:-1], value)


@every_loss
def test_the_order_of_the_batch_does_not_matter(case):
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    value, _ = _value_and_gradients(case, COUNTED)
    _same(case, [output[order] for output in case.outputs], case.target[order], COUNTED[order], value)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_weight_two_is_the_item_twice(name):
    case = CASES[name]
    weights = COUNTED.double()
    weights[0] *= 2
    rows = torch.tensor([0, 0, 1, 2, 3, 4, 5])
    twice = case.loss(*(output[rows] for output in case.outputs), case.target[rows], COUNTED[rows])
    _same(case, list(case.outputs), case.target, weights, twice)
    plain = case.loss(*case.outputs, case.target, COUNTED)
    assert abs(plain - twice) > 1e-6  # the weight is used


@every_loss
def test_all_weights_can_be_scaled(case):
    value, _ = _value_and_gradients(case, COUNTED)
    _same(case, list(case.outputs), case.target, 0.01 * COUNTED.double(), value)
    _same(case, list(case.outputs), case.target, 3 * COUNTED.long(), value)


@every_loss
def test_a_shift_of_all_outputs(case):
    value, _ = _value_and_gradients(case, COUNTED)
    other = case.loss(*(output + 0.25 for output in case.outputs), case.target, COUNTED)
    assert (abs(other - value) < 1e-12) == case.shift


@every_loss
@pytest.mark.parametrize("items", [0, 1, ITEMS])
def test_nothing_counts(case, items):
    outputs = [output[:items].clone().requires_grad_() for output in case.outputs]
    target = case.target[:items].clone()
    target[:] = torch.nan if target.is_floating_point() else 0
    value = case.loss(*outputs, target, torch.zeros(items, DIMENSIONS))
    assert value.item() == 0
    for gradient in torch.autograd.grad(value, outputs):  # raises if the graph is cut
        assert (gradient == 0).all()


@every_loss
@pytest.mark.parametrize("items", [1, ITEMS])
@pytest.mark.parametrize("constant", ["outputs", "target", "both"])
def test_constant_batches_are_finite(case, items, constant):
    def first(values: Tensor, same: bool) -> Tensor:
        return (values[:1].expand_as(values) if same else values)[:items].clone()

    outputs = [first(output, constant != "target").float().requires_grad_() for output in case.outputs]
    value = case.loss(*outputs, first(case.target, constant != "outputs"), torch.ones(items, DIMENSIONS))
    assert value.isfinite()
    for gradient in torch.autograd.grad(value, outputs):
        assert gradient.abs().max() < 50


@every_loss
def test_other_shapes_are_refused(case):
    with pytest.raises(ValueError, match="expected"):
        case.loss(*case.outputs, case.target, COUNTED[:, :1])
    with pytest.raises(ValueError, match="expected"):
        case.loss(case.outputs[0][:-1], *case.outputs[1:], case.target, COUNTED)


# ---------------------------------------------------------------- each by itself


NAN = float("nan")
PREDICTION = torch.tensor([[0.5, 0.2], [0.9, 0.4]], dtype=torch.float64)
TARGET = torch.tensor([[0.6, NAN], [0.4, 0.7]], dtype=torch.float64)
WEIGHTS = torch.tensor([[1, 0], [2, 1]], dtype=torch.float64)


def test_mse_by_hand():
    assert mse(PREDICTION, TARGET, WEIGHTS).item() == pytest.approx((0.01 + 2 * 0.25 + 0.09) / 4)


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
    assert bradley_terry(CHOSEN, REJECTED, STRENGTH, MASK, 0.1).item() == pytest.approx(plain, abs=1e-6)


def test_one_dimension_is_one_column():
    chosen, rejected, strength, mask = (values[:, None] for values in (CHOSEN, REJECTED, STRENGTH, MASK))
    flat = bradley_terry(CHOSEN, REJECTED, STRENGTH, MASK, 0.1)
    assert bradley_terry(chosen, rejected, strength, mask, 0.1).item() == flat.item()
    assert centring(chosen, rejected, mask).item() == centring(CHOSEN, REJECTED, MASK).item()


def test_centring_by_hand():
    expected = ((0.6 - 0.5) ** 2 + 0 + (0.45 - 0.5) ** 2) / 3
    assert centring(CHOSEN, REJECTED, MASK).item() == pytest.approx(expected, abs=1e-7)


def test_far_scores_stay_finite():
    chosen = torch.tensor([-100.0], requires_grad=True)
    value = bradley_terry(chosen, torch.tensor([100.0]), torch.ones(1), torch.ones(1), 0.1)
    assert value.item() == pytest.approx(2000)
    assert torch.autograd.grad(value, chosen)[0].item() == pytest.approx(-10)


def _batch(seed: int, items: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions, targets with ties, and weights."""
    generator = np.random.default_rng(seed)
    prediction, target = generator.uniform(size=(items, 2)), generator.integers(0, 5, (items, 2)) / 4
    weights = generator.integers(0, 3, (items, 2)).astype(np.float64)
    target[weights == 0] = np.nan
    return torch.tensor(prediction), torch.tensor(target), torch.tensor(weights)


def test_all_ties():
    prediction, target = torch.tensor([[0.2], [0.7]], requires_grad=True), torch.full((2, 1), 0.5)
    loss = soft_spearman(prediction, target, torch.ones(2, 1), 0.1)
    assert loss.item() == 0
    assert (torch.autograd.grad(loss, prediction)[0] == 0).all()


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
    prediction, target, weights = _batch(3)
    expected = []
    for d in range(2):
        at = (weights[:, d] > 0).nonzero().flatten().tolist()
        x = prediction[:, d].tolist()
        soft = [0.5 + sum(1 / (1 + exp((x[j] - x[i]) / 0.3)) for j in at) for i in at]
        expected.append(1 - stats.pearsonr(soft, stats.rankdata(target[at, d].numpy()))[0])
    assert soft_spearman(prediction, target, weights, 0.3).item() == pytest.approx(np.mean(expected), rel=1e-10)
    assert soft_spearman(prediction, target, weights > 0, 0.3).item() == pytest.approx(np.mean(expected), rel=1e-10)


def test_a_dimension_of_equal_targets_does_not_count():
    prediction, target, _ = _batch(4)
    target = target.nan_to_num(0.1)
    alone = soft_spearman(prediction[:, :1], target[:, :1], torch.ones(12, 1), 0.1)
    target[:, 1] = 0.3
    assert soft_spearman(prediction, target, torch.ones(12, 2), 0.1).item() == pytest.approx(alone.item(), rel=1e-12)


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


def test_corn_is_the_likelihood_of_a_raters_score():
    values = []
    for i, d, thresholds in _entries():
        above = np.cumprod([1.0] + [_sigmoid(LOGITS[i, d, k].item()) for k in range(thresholds)])
        probabilities = -np.diff([*above, 0.0])  # of each step
        assert probabilities.sum() == pytest.approx(1)
        scores = np.repeat(np.arange(4), COUNTS[i, d])
        values.append(-np.log(probabilities[scores]).mean() / thresholds)
    assert corn(LOGITS, COUNTS, RATER_WEIGHTS, EXISTS).item() == pytest.approx(_mean(values), rel=1e-12)


def test_thresholds_far_from_the_raters_stay_finite():
    """Sigmoid of 200 is 1 in float32: its complement has no logarithm, the loss has. 4 raters below every threshold."""
    logits = torch.full((1, 1, 3), 200.0, requires_grad=True)
    value = corn(logits, torch.tensor([[[4, 0, 0, 0]]]), torch.ones(1, 1), EXISTS[:1])
    assert value.item() == pytest.approx(200 / 3)
    (gradient,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(gradient, torch.tensor([[[1 / 3, 0, 0]]]))  # nobody is left above the first


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
def test_thresholds_that_a_scale_does_not_have_are_not_read(garbage):
    logits = LOGITS.clone()
    logits[:, 1, 2] = garbage
    logits.requires_grad_()
    value = corn(logits, COUNTS, RATER_WEIGHTS, EXISTS)
    torch.testing.assert_close(value, corn(LOGITS, COUNTS, RATER_WEIGHTS, EXISTS))
    (gradient,) = torch.autograd.grad(value, logits)
    assert (gradient[:, 1, 2] == 0).all()
    assert (gradient[2, 0] == 0).all()  # nobody rated


def _raters_log_probabilities() -> Tensor:
    logits = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return logits.masked_fill(~EXISTS, -torch.inf).log_softmax(-1)


def test_cross_entropy_is_the_likelihood_of_a_raters_score():
    """SciPy's entropy of the histogram and divergence from it add up to the same."""
    predicted = _raters_log_probabilities()
    values = []
    for i, d, _ in _entries():
        share = COUNTS[i, d] / COUNTS[i, d].sum()
        values.append(float(stats.entropy(share) + stats.entropy(share.double(), predicted[i, d].exp())))
    assert histogram_cross_entropy(predicted, COUNTS, RATER_WEIGHTS).item() == pytest.approx(_mean(values), rel=1e-6)
