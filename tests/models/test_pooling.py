"""Pooling on small tensors whose results are worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from empathy_judge.models.head_input import build_pooling
from empathy_judge.models.settings import PoolingName

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
    pooled = build_pooling(name, 2, 1)(hidden, REAL, RESPONSE)
    torch.testing.assert_close(pooled, torch.tensor(EXPECTED[name]))


@pytest.mark.parametrize("name", EXPECTED)
def test_padding_gets_no_gradient(name):
    hidden = HIDDEN.clone()
    hidden[REAL == 0] = float("nan")
    hidden.requires_grad_()
    build_pooling(name, 2, 1)(hidden, REAL, RESPONSE).sum().backward()
    assert (hidden.grad[REAL == 0] == 0).all()
    assert hidden.grad.isfinite().all()
    assert hidden.grad.sum() == 4  # each of two rows and two columns passes on its whole gradient


def test_attention_weighs_tokens_by_a_softmax():
    pooling = build_pooling("attention", 2, 1)
    with torch.no_grad():
        pooling.score.weight.copy_(torch.tensor([[math.log(2), 0.0]]))
    pooled = pooling(HIDDEN, REAL, RESPONSE)
    # row 0: weights 2^1, 2^3, 2^5 over 42; row 1: 2^1, 2^2, 2^4 over 22
    expected = [[(2 * 1 + 8 * 3 + 32 * 5) / 42, (2 * 2 + 8 * 4 + 32 * 6) / 42],
                [(2 * 1 + 4 * 2 + 16 * 4) / 22, (2 * 1 + 4 * 4 + 16 * 8) / 22]]  # fmt: skip
    torch.testing.assert_close(pooled, torch.tensor(expected))
