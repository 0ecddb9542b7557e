"""Pooling, head and loss on small tensors whose results are worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.heads import RegressionHead
from empathy_judge.models.losses import masked_mse
from empathy_judge.models.pooling import PoolingName, build_pooling

# two rows of four tokens, width 2; row 0 has padding on the right, row 1 on the left
HIDDEN = torch.tensor([[[1.0, 2], [3, 4], [5, 6], [9, 9]], [[9, 9], [1, 1], [2, 4], [4, 8]]])
REAL = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
RESPONSE = torch.tensor([[False, True, True, False], [False, False, True, False]])
EXPECTED: dict[PoolingName, list[list[float]]] = {
    "last_token": [[5.0, 6.0], [4.0, 8.0]],
    "response_mean": [[4.0, 5.0], [2.0, 4.0]],
    "attention": [[3.0, 4.0], [7 / 3, 13 / 3]],  # starts as the plain mean over real tokens
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("padding", [9.0, float("nan"), float("inf")])
def test_padding_does_not_count(name, padding):
    hidden = HIDDEN.clone()
    hidden[REAL == 0] = padding
    pooled = build_pooling(name, 2)(hidden, REAL, RESPONSE)
    torch.testing.assert_close(pooled, torch.tensor(EXPECTED[name]))


@pytest.mark.parametrize("name", EXPECTED)
def test_padding_gets_no_gradient(name):
    hidden = HIDDEN.clone()
    hidden[REAL == 0] = float("nan")
    hidden.requires_grad_()
    build_pooling(name, 2)(hidden, REAL, RESPONSE).sum().backward()
    assert hidden.grad is not None
    assert (hidden.grad[REAL == 0] == 0).all()
    assert hidden.grad.isfinite().all()
    assert hidden.grad.sum() == 4  # each of two rows and two columns passes on its whole gradient


def test_attention_weighs_tokens_by_a_softmax():
    pooling = build_pooling("attention", 2)
    with torch.no_grad():
        pooling.score.weight.copy_(torch.tensor([[math.log(2), 0.0]]))
    pooled = pooling(HIDDEN, REAL, RESPONSE)
    # row 0: weights 2^1, 2^3, 2^5 over 42; row 1: 2^1, 2^2, 2^4 over 22
    expected = [[(2 * 1 + 8 * 3 + 32 * 5) / 42, (2 * 2 + 8 * 4 + 32 * 6) / 42],
                [(2 * 1 + 4 * 2 + 16 * 4) / 22, (2 * 1 + 4 * 4 + 16 * 8) / 22]]  # fmt: skip
    torch.testing.assert_close(pooled, torch.tensor(expected))


def test_the_head_stays_inside_each_scale_and_starts_at_the_mean():
    head = RegressionHead(4, [Dimension("a", 1, 5), Dimension("b", -50, 50)])
    far = head(torch.tensor([[1e4, -1e4, 3e3, 0.0], [-1e4, 1e4, -3e3, 0.0]]))
    assert ((far >= torch.tensor([1.0, -50.0])) & (far <= torch.tensor([5.0, 50.0]))).all()
    torch.nn.init.zeros_(head.linear.weight)
    head.start_at(torch.tensor([2.5, 10.0]))
    torch.testing.assert_close(head(torch.randn(3, 4)), torch.tensor([[2.5, 10.0]]).expand(3, 2))
    head.start_at(torch.tensor([5.0, -50.0]))  # a mean at the end of the scale would be an infinite bias
    torch.testing.assert_close(head(torch.randn(1, 4)), torch.tensor([[4.92, -48.0]]))


def test_the_head_computes_in_float32_under_autocast():
    head = RegressionHead(4, [Dimension("a", 1, 5)])
    pooled = torch.randn(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(pooled), head(pooled.clone()))
        inside = head(pooled)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, head(pooled))


def test_the_scale_is_not_among_the_weights():
    assert set(RegressionHead(4, [Dimension("a", 1, 5)]).state_dict()) == {
        "norm.weight", "norm.bias", "linear.weight", "linear.bias",
    }  # fmt: skip


def test_the_loss_counts_rated_entries_only():
    prediction = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    target = torch.tensor([[2.0, float("nan")], [5.0, 4.0]])
    loss = masked_mse(prediction, target, ~target.isnan())
    assert loss.item() == pytest.approx((1 + 4 + 0) / 3)
    loss.backward()
    torch.testing.assert_close(prediction.grad, torch.tensor([[-2 / 3, 0.0], [-4 / 3, 0.0]]))


def test_a_batch_that_nobody_rated_gives_no_gradient():
    prediction = torch.tensor([[1.0], [3.0]], requires_grad=True)
    target = torch.full((2, 1), float("nan"))
    loss = masked_mse(prediction, target, ~target.isnan())
    loss.backward()
    assert loss.item() == 0
    torch.testing.assert_close(prediction.grad, torch.zeros(2, 1))
