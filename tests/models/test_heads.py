"""Every head: scores inside each scale, a start at the mean, distributions that are some, gradients without NaN."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.heads import Head, build_head
from empathy_judge.models.settings import HeadName
from scipy.stats import spearmanr

SCALES = [Dimension("a", 1, 5, 1), Dimension("b", -50, 0, 25)]
HEADS = get_args(HeadName)
OVER_STEPS = ("corn", "histogram")


def fresh(name: HeadName, loud: float = 1.0) -> Head:
    torch.manual_seed(0)
    head = build_head(name, 8, SCALES)
    with torch.no_grad():
        head.linear.weight.mul_(loud)
    return head


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("loud", [0.0, 1.0, 1e6])
def test_scores_stay_inside_each_scale_and_gradients_are_finite(name, loud):
    head = fresh(name, loud)
    pooled = torch.randn(20, 8, requires_grad=True)
    found = head(pooled)
    assert found.score.shape == (20, 2)
    assert ((found.score >= torch.tensor([1.0, -50.0])) & (found.score <= torch.tensor([5.0, 0.0]))).all()
    values = [value for value in (found.score, found.deviation, found.log_probabilities) if value is not None]
    sum(value.clamp(min=-1e3).sum() for value in values).backward()
    assert pooled.grad.isfinite().all()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in head.parameters())


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("means", [(3.0, -25.0), (4.5, -2.0), (1.3, -45.0), (5.0, 0.0)])
def test_an_untrained_head_begins_near_the_mean_rating(name, means):
    head = fresh(name, 0.0)
    head.start_at(torch.tensor(means))
    # a bell over steps leans inwards at the ends of the scale; a sigmoid stays 2 % away from them
    tolerance = 0.19 if name in OVER_STEPS else 0.021
    away = (head(torch.randn(3, 8)).score - torch.tensor(means)).abs() / torch.tensor([4.0, 50.0])
    assert away.max() < tolerance


@pytest.mark.parametrize("name", OVER_STEPS)
def test_score_and_deviation_are_those_of_a_distribution_over_the_steps(name):
    found = fresh(name, 50.0)(torch.randn(30, 8))
    probabilities = found.log_probabilities.exp().double()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(30, 2).double(), rtol=0, atol=1e-5)
    assert (probabilities[:, 1, 3:] == 0).all()
    for column, values in enumerate(([1.0, 2, 3, 4, 5], [-50.0, -25, 0])):
        steps = torch.tensor(values).double()
        shares = probabilities[:, column, : len(values)]
        mean = shares @ steps
        spread = ((shares * (steps - mean[:, None]) ** 2).sum(-1)).sqrt()
        torch.testing.assert_close(found.score[:, column].double(), mean, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.deviation[:, column].double(), spread, rtol=0, atol=0.02)


@pytest.mark.parametrize("name", OVER_STEPS)
def test_levels_are_the_shares_of_the_steps_that_a_scale_has(name):
    found = fresh(name, 50.0)(torch.randn(3, 8))
    each = found.each()
    assert len(each) == 3
    for row, own in enumerate(each):
        levels = own.levels(SCALES)
        assert [len(levels[scale.name]) for scale in SCALES] == [5, 3]
        for column, (scale, shares) in enumerate(zip(SCALES, levels.values(), strict=True)):
            assert sum(shares) == pytest.approx(1, abs=1e-15)
            mean = scale.minimum + (scale.step or 0) * sum(step * share for step, share in enumerate(shares))
            assert mean == pytest.approx(found.score[row, column].item(), abs=1e-4)


def test_heads_of_a_number_have_no_levels():
    assert fresh("regression")(torch.randn(1, 8)).each()[0].levels(SCALES) is None
    assert fresh("gaussian")(torch.randn(1, 8)).each()[0].levels(SCALES) is None


def test_corn_thresholds_are_conditional():
    found = fresh("corn", 20.0)(torch.randn(9, 8))
    further = torch.sigmoid(found.thresholds[:, 1, :2])  # a scale of three steps
    first, second = further.unbind(-1)
    expected = torch.stack([1 - first, first * (1 - second), first * second], dim=-1)
    torch.testing.assert_close(found.log_probabilities[:, 1, :3].exp(), expected, rtol=0, atol=1e-5)


def test_a_gaussian_head_starts_a_sixth_of_the_scale_wide_and_never_certain():
    head = fresh("gaussian", 0.0)
    head.start_at(torch.tensor([3.0, -20.0]))
    torch.testing.assert_close(head(torch.randn(1, 8)).deviation, torch.tensor([[0.6, 7.5]]))
    torch.nn.init.constant_(head.linear.bias, -1e4)
    torch.testing.assert_close(head(torch.randn(1, 8)).deviation, torch.tensor([[0.04, 0.5]]))


def test_the_deviation_of_a_gaussian_head_teaches_the_layers_below_nothing():
    head, pooled = fresh("gaussian"), torch.randn(5, 8, requires_grad=True)
    found = head(pooled)
    of_deviation = torch.autograd.grad(found.deviation.sum(), head.linear.weight, retain_graph=True)[0]
    assert of_deviation.unflatten(0, (2, 2))[:, 1].abs().min() > 0
    assert torch.autograd.grad(found.deviation.sum(), pooled, allow_unused=True, retain_graph=True) == (None,)
    assert torch.autograd.grad(found.score.sum(), pooled)[0].abs().min() > 0


@pytest.mark.parametrize("name", OVER_STEPS)
def test_a_scale_without_steps_is_refused_by_name(name):
    with pytest.raises(
        UserError, match=f"{name} head: dimension warmth goes from 0 to 10; expected a scale with steps"
    ):
        build_head(name, 8, [SCALES[0], Dimension("warmth", 0, 10)])


@pytest.mark.parametrize("name", HEADS)
def test_heads_compute_in_float32_under_autocast(name):
    head, pooled = fresh(name), torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        inside = head(pooled).score
    assert inside.dtype == head(pooled.bfloat16()).score.dtype == torch.float32
    assert torch.equal(inside, head(pooled).score)


@pytest.mark.parametrize("name", ["regression", "gaussian", "histogram", "corn"])
def test_every_head_starts_where_a_regression_has_ended(name):
    torch.manual_seed(0)
    scales = [Dimension("one", 1, 5, 1), Dimension("two", 1, 5, 1)]
    features, weights = torch.randn(200, 6), 0.3 * torch.randn(6, len(scales))
    means = torch.tensor([3.2, 2.6])
    head = build_head(name, 6, scales, standardised=True)
    head.start_from(weights, means + 0.1, means)
    found = head(features).score.detach()
    line = means + 0.1 + features @ weights
    for column in range(2):
        assert spearmanr(found[:, column], line[:, column]).statistic > 0.9999
    near = (line - means).abs().amax(1) < 0.3
    tolerance = 0.05 if name in ("regression", "gaussian") else 0.35
    assert near.sum() > 5
    assert (found - line)[near].abs().max() < tolerance


@pytest.mark.parametrize("name", ["histogram", "corn"])
@pytest.mark.parametrize("spread", [0.3, 0.7, 1.2])
def test_the_shares_at_the_start_are_as_wide_as_ratings_lie_around_the_regression(name, spread):
    """Of scores in the middle of a scale, as its ends cut a bell off; a bell over steps has a least width."""
    torch.manual_seed(0)
    scales, features, weights = [Dimension("warmth", 1, 7, 0.5)], torch.randn(50, 6), 0.05 * torch.randn(6, 1)
    head = build_head(name, 6, scales, standardised=True)
    head.start_from(weights, torch.tensor([4.0]), torch.tensor([4.0]), torch.tensor([spread]))
    with torch.no_grad():
        found = head(features)
    assert found.deviation.mean().item() == pytest.approx(spread, rel=0.15)
    assert (found.score[:, 0] - 4 - (features @ weights)[:, 0]).abs().max() < 0.2
