"""Rater embeddings: no change at the start and for the mean rater, and severity does not end up in the judge."""

from __future__ import annotations

import pytest
import torch
from empathy_judge.train.objective import RaterEmbedding
from torch import Tensor, nn


def _trained(counts: Tensor, hidden: int = 6) -> RaterEmbedding:
    """With maps that are not zero any more."""
    raters = RaterEmbedding(counts, hidden, size=3)
    for parameter in raters.parameters():
        nn.init.normal_(parameter)
    return raters


def test_starts_as_the_identity_and_everything_is_trained_from_the_second_step_on():
    torch.manual_seed(0)
    raters = RaterEmbedding(torch.tensor([3, 5, 1]), 6)
    pooled, rater, target = torch.randn(9, 6), torch.arange(9) % 3, torch.randn(9, 6)
    assert torch.equal(raters(pooled, rater), pooled)
    before = {name: parameter.detach().clone() for name, parameter in raters.named_parameters()}
    optimizer = torch.optim.Adam(raters.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        (raters(pooled, rater) - target).square().mean().backward()
        optimizer.step()
    for name, parameter in raters.named_parameters():
        assert ((parameter - before[name]).abs() > 1e-4).all(), name
    assert not torch.allclose(raters(pooled, rater), pooled)


def test_an_unknown_rater_changes_nothing_to_the_bit():
    raters = _trained(torch.tensor([3, 5, 1]))
    pooled, rater = torch.randn(4, 6), torch.tensor([-1, 0, -1, 2])
    heard = raters(pooled, rater)
    assert torch.equal(heard[[0, 2]], pooled[[0, 2]])
    assert ((heard - pooled)[[1, 3]].abs() > 1e-4).all()


def test_the_mean_over_all_ratings_is_the_mean_rater_and_one_who_rated_nothing_does_not_count():
    counts = torch.tensor([3, 5, 0, 1])
    raters = _trained(counts).double()
    rater = torch.arange(4).repeat_interleave(counts)
    pooled = torch.randn(1, 6, dtype=torch.float64)
    heard = raters(pooled.expand(len(rater), -1), rater)
    torch.testing.assert_close(heard.mean(0, keepdim=True), pooled, rtol=0, atol=1e-6)  # shares are float32
    alone = _trained(torch.tensor([4]))
    torch.testing.assert_close(alone(pooled.float(), torch.tensor([0])), pooled.float())


def _prediction(features: Tensor, scores: Tensor, rater: Tensor, counts: Tensor | None, new: Tensor) -> Tensor:
    """Of a linear judge for new pairs, trained on single ratings; with rater embeddings where counts are given."""
    head = nn.Linear(features.shape[1], 1)
    raters = None if counts is None else RaterEmbedding(counts, features.shape[1])
    optimizer = torch.optim.Adam([*head.parameters(), *(raters.parameters() if raters else ())], lr=0.04)
    for _ in range(100):
        optimizer.zero_grad()
        heard = features if raters is None else raters(features, rater)
        (head(heard)[:, 0] - scores).square().mean().backward()
        optimizer.step()
    return head(new)[:, 0].detach()


@pytest.mark.parametrize("seed", range(2))
def test_severe_raters_who_get_one_kind_of_pairs_do_not_mislead_the_judge(seed):
    """12 raters with 20 pairs each; severity varies as much as quality does. The more severe a rater, the more of the
    first feature, which says nothing of quality, have the pairs that they see. Correlation with the truth on new pairs.
    """
    torch.manual_seed(seed)
    weights = torch.tensor([0.0, *[7**-0.5] * 7])
    severity = torch.linspace(-1.7, 1.7, 12)
    rater = torch.arange(12).repeat_interleave(20)
    features, new = torch.randn(240, 8), torch.randn(500, 8)
    features[:, 0] += severity[rater]
    scores = features @ weights - severity[rater] + 0.3 * torch.randn(240)

    def correlation(counts: Tensor | None) -> float:
        predicted = _prediction(features, scores, rater, counts, new)
        return float(torch.corrcoef(torch.stack([predicted, new @ weights]))[0, 1])

    without, with_raters = correlation(None), correlation(torch.bincount(rater))
    assert with_raters > 0.98
    assert with_raters > without + 0.05
