"""What holds for every loss: gradients, gaps, weights, order of the batch, empty and constant batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from empathy_judge.models import losses
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


PREDICTION, TARGET = _scores(0), (4 * _scores(1)).round() / 4  # targets with ties
STRENGTH = torch.tensor([[0, 1], [1, 2], [3, 0], [1, 1], [2, 0], [0, 3]], dtype=torch.float64)
CASES = {
    "mse": Case(losses.mse, (PREDICTION,), TARGET),
    "gaussian_nll": Case(losses.gaussian_nll, (PREDICTION, 0.05 + _scores(2)), TARGET),
    "faithful_nll": Case(losses.faithful_nll, (PREDICTION, 0.05 + _scores(2)), TARGET),
    "ccc": Case(losses.ccc, (PREDICTION,), TARGET),
    "soft_spearman": Case(
        partial(losses.soft_spearman, temperature=0.2), (PREDICTION,), TARGET, twice=False, shift=True
    ),
    "corn": Case(partial(losses.corn, exists=EXISTS), (_logits(STEPS - 1),), _counts()),
    "histogram_cross_entropy": Case(
        lambda own, *given: losses.histogram_cross_entropy(_log_probabilities(own), *given),
        (_logits(STEPS),),
        _counts(),
        shift=True,
    ),
    "bradley_terry": Case(
        partial(losses.bradley_terry, temperature=0.3),
        (_scores(3), _scores(4)),
        STRENGTH,
        shift=True,
    ),
    "centring": Case(
        lambda chosen, rejected, _, mask: losses.centring(chosen, rejected, mask),
        (_scores(3), _scores(4)),
        STRENGTH,
    ),
}
MASK = torch.tensor([[1, 1], [1, 0], [0, 1], [1, 1], [1, 1], [0, 0]], dtype=torch.bool)
every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def _value_and_gradients(case: Case, mask: Tensor, target: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """At the outputs of the case; an output that a loss does not use has a gradient of 0."""
    outputs = [output.clone().requires_grad_() for output in case.outputs]
    value = case.loss(*outputs, case.target if target is None else target, mask)
    return value.detach(), list(torch.autograd.grad(value, outputs))


def _same(case: Case, outputs: list[Tensor], target: Tensor, mask: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(case.loss(*outputs, target, mask), expected, rtol=1e-10, atol=1e-12)


# faithful_nll holds a gradient back on purpose; test_values.py has its gradients
@pytest.mark.parametrize("case", [case for name, case in CASES.items() if name != "faithful_nll"])
def test_the_gradient_is_that_of_the_value(case):
    outputs = tuple(output.clone().requires_grad_() for output in case.outputs)
    assert torch.autograd.gradcheck(lambda *outputs: case.loss(*outputs, case.target, MASK), outputs)


@every_loss
def test_the_dtype_of_the_outputs_stays(case):
    narrow = [output.float() for output in case.outputs]
    value = case.loss(*narrow, case.target, MASK)
    assert value.dtype == torch.float32
    assert value.shape == ()
    torch.testing.assert_close(value.double(), case.loss(*case.outputs, case.target, MASK), rtol=1e-5, atol=1e-6)


@every_loss
def test_what_does_not_count_is_not_read(case):
    value, gradients = _value_and_gradients(case, MASK)
    target = case.target.clone()
    target[~MASK] = torch.nan if target.is_floating_point() else 7
    other, other_gradients = _value_and_gradients(case, MASK, target)
    torch.testing.assert_close(other, value, rtol=0, atol=0)
    torch.testing.assert_close(other_gradients, gradients, rtol=0, atol=0)
    assert all((gradient[~MASK] == 0).all() for gradient in gradients)
    assert all((gradient[MASK] != 0).any() for gradient in gradients)
    # and as if these items were not there: the last one counts nowhere
    _same(case, [output[:-1] for output in case.outputs], case.target[:-1], MASK[:-1], value)


@every_loss
def test_the_order_of_the_batch_does_not_matter(case):
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    value, _ = _value_and_gradients(case, MASK)
    _same(case, [output[order] for output in case.outputs], case.target[order], MASK[order], value)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_weight_two_is_the_item_twice(name):
    case = CASES[name]
    weights = MASK.double()
    weights[0] *= 2
    rows = torch.tensor([0, 0, 1, 2, 3, 4, 5])
    twice = case.loss(*(output[rows] for output in case.outputs), case.target[rows], MASK[rows])
    _same(case, list(case.outputs), case.target, weights, twice)
    plain = case.loss(*case.outputs, case.target, MASK)
    assert abs(plain - twice) > 1e-6  # the weight is used


@every_loss
def test_all_weights_can_be_scaled(case):
    value, _ = _value_and_gradients(case, MASK)
    _same(case, list(case.outputs), case.target, 0.01 * MASK.double(), value)
    _same(case, list(case.outputs), case.target, 3 * MASK.long(), value)


@every_loss
def test_a_shift_of_all_outputs(case):
    value, _ = _value_and_gradients(case, MASK)
    other = case.loss(*(output + 0.25 for output in case.outputs), case.target, MASK)
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
        case.loss(*case.outputs, case.target, MASK[:, :1])
    with pytest.raises(ValueError, match="expected"):
        case.loss(case.outputs[0][:-1], *case.outputs[1:], case.target, MASK)
