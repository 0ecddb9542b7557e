"""Bradley-Terry with ties and margins, and the level that preferences leave open."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch
from empathy_judge.models.losses import bradley_terry, centring

NAN = float("nan")
CHOSEN, REJECTED = torch.tensor([0.7, 0.4, 0.5, 0.1]), torch.tensor([0.5, 0.6, 0.4, 0.2])
STRENGTH, MASK = torch.tensor([1.0, 2.0, 0.0, NAN]), torch.tensor([True, True, True, False])


def _surprise(logit: float) -> float:
    return log(1 + exp(-logit))


def test_bradley_terry_by_hand():
    tie = (_surprise(1) + _surprise(-1)) / 2
    plain = (_surprise(2) + _surprise(-2) + tie) / 3
    assert bradley_terry(CHOSEN, REJECTED, STRENGTH, MASK).item() == pytest.approx(plain, abs=1e-6)
    margin = (_surprise(1 - 0.3) + _surprise(-1 - 0.6) + (_surprise(0.5) + _surprise(-0.5)) / 2) / 3
    loss = bradley_terry(CHOSEN, REJECTED, STRENGTH, MASK, temperature=0.2, strength_margin=0.3)
    assert loss.item() == pytest.approx(margin, abs=1e-6)


def test_one_dimension_is_one_column():
    chosen, rejected, strength, mask = (values[:, None] for values in (CHOSEN, REJECTED, STRENGTH, MASK))
    flat = bradley_terry(CHOSEN, REJECTED, STRENGTH, MASK)
    assert bradley_terry(chosen, rejected, strength, mask).item() == flat.item()
    assert centring(chosen, rejected, mask).item() == centring(CHOSEN, REJECTED, MASK).item()


def test_a_tie_has_no_direction_and_is_least_at_equal_scores():
    none, one = torch.zeros(1), torch.ones(1)
    losses = [
        bradley_terry(torch.tensor([0.5 + lead]), one / 2, none, one, strength_margin=2).item()
        for lead in (-0.2, 0, 0.2)
    ]
    assert losses[0] == pytest.approx(losses[2], abs=1e-6)
    assert losses[1] == pytest.approx(log(2), abs=1e-6)
    assert losses[1] < losses[0]


def test_the_fit_gives_back_how_often_each_item_won():
    """Of ten comparisons the first item won six, lost two and two were ties: odds of 7 to 3 (ties: half a win each)."""
    scores = torch.tensor([np.log(7 / 3), 0], requires_grad=True)
    chosen = torch.tensor([0] * 6 + [1] * 2 + [0, 1])
    strength = torch.tensor([1.0] * 8 + [0.0] * 2)
    value = bradley_terry(scores[chosen], scores[1 - chosen], strength, torch.ones(10), temperature=1.0)
    (gradient,) = torch.autograd.grad(value, scores)  # 0 at the most likely scores
    torch.testing.assert_close(gradient, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)


def test_centring_by_hand():
    expected = ((0.6 - 0.5) ** 2 + 0 + (0.45 - 0.5) ** 2) / 3
    assert centring(CHOSEN, REJECTED, MASK).item() == pytest.approx(expected, abs=1e-7)


def test_far_scores_stay_finite():
    chosen = torch.tensor([-100.0], requires_grad=True)
    value = bradley_terry(chosen, torch.tensor([100.0]), torch.ones(1), torch.ones(1))
    assert value.item() == pytest.approx(2000)
    assert torch.autograd.grad(value, chosen)[0].item() == pytest.approx(-10)
