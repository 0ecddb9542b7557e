"""Curves between campaigns: the identity for the reference, monotone for all, and they find what was planted."""

from __future__ import annotations

import pytest
import torch
from empathy_judge.data_modules.errors import UserError
from empathy_judge.train.raters import MARGIN, ScaleAlignment
from torch import Tensor

CAMPAIGNS = ("lab", "crowd", "app")
ENDS = torch.tensor([0.0, 1e-6, MARGIN / 2, MARGIN, 0.5, 1 - MARGIN, 1 - MARGIN / 2, 1.0])


def _alignment(dimensions: int = 2, seed: int | None = None) -> ScaleAlignment:
    """With random curves where a seed is given."""
    alignment = ScaleAlignment(CAMPAIGNS, dimensions, "crowd")
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in alignment.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
    return alignment


def _of(name: str, count: int) -> Tensor:
    return torch.full((count,), CAMPAIGNS.index(name))


def _train(parameters: list[Tensor], loss, steps: int) -> None:
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def test_starts_as_the_identity_up_to_the_very_ends_of_the_scale() -> None:
    score = torch.cat([torch.rand(100), ENDS])[:, None].expand(-1, 2)
    for name in CAMPAIGNS:
        torch.testing.assert_close(_alignment()(score, _of(name, len(score))), score, rtol=2e-6, atol=1e-7)


def test_the_reference_stays_the_identity_to_the_bit_while_others_are_trained() -> None:
    alignment = _alignment()
    score, campaign = torch.rand(60, 2), torch.arange(60) % 3
    _train(list(alignment.parameters()), lambda: (alignment(score, campaign) - score**2).square().mean(), 20)
    aligned = alignment(score, campaign)
    assert torch.equal(aligned[campaign == 1], score[campaign == 1])
    assert (aligned - score)[campaign != 1].abs().mean() > 0.05


@pytest.mark.parametrize("seed", range(5))
def test_is_strictly_monotone_and_keeps_the_ends_whatever_the_parameters(seed: int) -> None:
    alignment = _alignment(seed=seed).double()
    score = torch.cat([torch.linspace(0, 1, 2001).double(), torch.logspace(-9, -3, 200).double()]).unique()
    for name in CAMPAIGNS:
        aligned = alignment(score[:, None].expand(-1, 2), _of(name, len(score)))
        assert (aligned.diff(dim=0) > 0).all()
        assert aligned[0].tolist() == [0, 0]
        assert aligned[-1].tolist() == [1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_finite_differences_and_finite_at_the_ends(seed: int) -> None:
    alignment = _alignment(seed=seed).double()
    score = torch.tensor([[MARGIN / 3, 0.2], [0.5, 0.9], [0.7, 1 - MARGIN / 3]], dtype=torch.float64)
    score.requires_grad_()

    def aligned(score: Tensor, *parameters: Tensor) -> Tensor:
        named: dict[str, Tensor] = dict(zip(("log_slope", "offset"), parameters, strict=True))
        return torch.func.functional_call(alignment, named, (score, torch.tensor([0, 1, 2])))

    parameters = (alignment.log_slope, alignment.offset)
    assert torch.autograd.gradcheck(aligned, (score, *parameters), eps=1e-7, atol=1e-5)
    ends = ENDS.clone()[:, None].expand(-1, 2).contiguous().requires_grad_()
    _alignment(seed=seed)(ends, _of("lab", len(ends))).sum().backward()
    assert ends.grad is not None
    assert ends.grad.isfinite().all()
    assert (ends.grad >= 0).all()  # 0 where a curve is so flat that float32 cannot tell


def test_recovers_a_planted_curve_per_campaign_and_dimension() -> None:
    planted, found = _alignment(seed=7), _alignment()
    generator = torch.Generator().manual_seed(1)
    score = torch.rand(300, 2, generator=generator)
    campaign = torch.randint(3, (300,), generator=generator)
    target = planted(score, campaign).detach()
    assert (target - score).abs().max() > 0.2
    _train(list(found.parameters()), lambda: (found(score, campaign) - target).square().mean(), 150)
    assert (found(score, campaign) - target).abs().max() < 0.02


def test_a_dimension_that_a_campaign_does_not_rate_keeps_its_curve() -> None:
    alignment = _alignment()
    alignment(torch.rand(30, 2), torch.arange(30) % 3)[:, 0].square().sum().backward()
    assert alignment.offset.grad is not None
    assert (alignment.offset.grad[:, 1] == 0).all()
    assert (alignment.offset.grad[[0, 2], 0] != 0).all()


def test_the_judge_learns_the_scale_of_the_reference_from_a_campaign_that_rates_otherwise() -> None:
    """A linear judge, 40 pairs of the reference and 200 of a stricter campaign; error on new pairs of the reference."""
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(12, 1, generator=generator) / 3
    features = torch.randn(440, 12, generator=generator)
    features[:, 0] = 1  # the bias
    truth = torch.sigmoid(features @ weights)
    planted = ScaleAlignment(("crowd", "lab"), 1, "crowd")
    with torch.no_grad():
        planted.offset[1], planted.log_slope[1] = -1.5, 0.4
    campaign = (torch.arange(440) >= 40).long()
    target = planted(truth, campaign).detach()[:240]

    def error(alignment: ScaleAlignment | None) -> float:
        learned = torch.zeros(12, 1, requires_grad=True)

        def loss() -> Tensor:
            score = torch.sigmoid(features[:240] @ learned)
            score = score if alignment is None else alignment(score, campaign[:240])
            return (score - target).square().mean()

        _train([learned, *(alignment.parameters() if alignment else ())], loss, 200)
        return float((torch.sigmoid(features[240:] @ learned.detach()) - truth[240:]).abs().mean())

    assert error(None) > 0.1
    assert error(ScaleAlignment(("crowd", "lab"), 1, "crowd")) < 0.02


def test_names_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(UserError, match=r"reference campaign 'web' does not exist; expected lab, crowd, app"):
        ScaleAlignment(CAMPAIGNS, 2, "web")
    with pytest.raises(UserError, match="one is named twice"):
        ScaleAlignment(("lab", "lab"), 2, "lab")
    with pytest.raises(IndexError):
        _alignment()(torch.rand(1, 2), torch.tensor([-1]))
