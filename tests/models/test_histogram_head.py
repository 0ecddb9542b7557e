"""The head that predicts how raters spread: scores inside the scale, scales of different lengths, and its loss."""

from __future__ import annotations

import math

import pytest
import torch
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.heads import HistogramHead
from empathy_judge.models.losses import histogram_cross_entropy

SCALES = [Dimension("a", 1, 5, 1), Dimension("b", -1, 0, 0.5)]


def test_scores_are_means_of_distributions_over_the_steps_of_each_scale() -> None:
    torch.manual_seed(0)
    head = HistogramHead(8, SCALES)
    pooled = 20 * torch.randn(50, 8)
    probabilities = head.log_probabilities(pooled).exp()
    assert probabilities.shape == (50, 2, 5)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(50, 2))
    assert (probabilities[:, 1, 3:] == 0).all()
    expected = probabilities[:, 1, :3] @ torch.tensor([-1.0, -0.5, 0.0])
    torch.testing.assert_close(head(pooled)[:, 1], expected)
    assert head(pooled)[:, 0].min() >= 1
    assert head(pooled)[:, 0].max() <= 5
    assert head(pooled.bfloat16()).dtype == torch.float32


def test_an_untrained_head_begins_near_the_mean_of_each_scale() -> None:
    head = HistogramHead(8, SCALES)
    torch.nn.init.zeros_(head.linear.weight)
    head.start_at(torch.tensor([3.0, -0.5]))
    torch.testing.assert_close(head(torch.randn(4, 8)), torch.tensor([[3.0, -0.5]] * 4))
    head.start_at(torch.tensor([4.5, -0.1]))
    high = head(torch.randn(1, 8))[0]
    assert 3.7 < high[0] < 4.6
    assert -0.4 < high[1] < 0


def test_a_scale_without_steps_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="dimension warmth goes from 0 to 10; accepted: a scale with steps"):
        HistogramHead(8, [SCALES[0], Dimension("warmth", 0, 10)])


def test_cross_entropy_by_hand_and_what_nobody_rated() -> None:
    log_probabilities = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]]])).requires_grad_()
    counts = torch.tensor([[[2, 1, 1], [0, 0, 0]]])
    loss = histogram_cross_entropy(log_probabilities, counts)
    assert loss.item() == pytest.approx(-(0.5 * math.log(0.5) + 0.5 * math.log(0.25)), abs=1e-6)
    loss.backward()
    assert log_probabilities.grad is not None
    assert (log_probabilities.grad[0, 1] == 0).all()
    nothing = histogram_cross_entropy(log_probabilities, torch.zeros_like(counts))
    assert nothing.item() == 0


def test_steps_that_a_scale_does_not_have_give_no_nan() -> None:
    head = HistogramHead(4, SCALES)
    pooled = torch.randn(3, 4)
    counts = torch.zeros(3, 2, 5, dtype=torch.int64)
    counts[:, 0, 4], counts[:, 1, 2] = 3, 2
    loss = histogram_cross_entropy(head.log_probabilities(pooled), counts)
    loss.backward()
    assert loss.isfinite()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in head.parameters())
