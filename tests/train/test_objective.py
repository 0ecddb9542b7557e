"""The sum of losses: what a head is trained with, which rows count, and that every combination learns; and rater
embeddings: no change at the start and for the mean rater, and severity does not end up in the judge."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import get_args

import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.heads import Prediction, build_head
from empathy_judge.models.losses import mse, soft_spearman
from empathy_judge.models.settings import HeadName
from empathy_judge.train import collate
from empathy_judge.train.objective import Labels, Objective, RaterEmbedding
from empathy_judge.train.settings import DEFAULT_SETTINGS, NATURAL, LossSettings, LossWeights
from torch import Tensor, nn

SCALES = [Dimension("warmth", 1, 5, 1), Dimension("noise", 0, 2, 1, higher_is_better=False)]
SCORE_LOSSES = ("mse", "ccc", "soft_spearman")
OWN_LOSSES: dict[HeadName, tuple[str, ...]] = {
    "regression": (),
    "gaussian": ("gaussian_nll",),
    "corn": ("ordinal", "histogram"),
    "histogram": ("histogram",),
}
PAIRINGS = [(head, loss) for head in get_args(HeadName) for loss in (*SCORE_LOSSES, *OWN_LOSSES[head])]


def said(targets: torch.Tensor, counts: torch.Tensor | None = None) -> Labels:
    rows = len(targets)
    return Labels(
        targets=targets, weights=(~targets.isnan()).float(), counts=counts,
        raters=torch.full((rows,), -1),
        chosen=torch.tensor([], dtype=torch.int64), rejected=torch.tensor([], dtype=torch.int64),
        strengths=torch.zeros(0, targets.shape[1]),
    )  # fmt: skip


def compared(targets: torch.Tensor, chosen: list[int], rejected: list[int], strengths: torch.Tensor) -> Labels:
    indices = {"chosen": torch.tensor(chosen), "rejected": torch.tensor(rejected)}
    return replace(said(targets), **indices, strengths=strengths)


def rated(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features `(count, 12)` of which two directions tell the ratings, mean ratings and counts of six raters."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 12, generator=rng)
    counts = torch.zeros(count, 2, 5, dtype=torch.int64)
    for column, (scale, width) in enumerate(zip(SCALES, (5, 3), strict=True)):
        middle, step = (width - 1) / 2, scale.step or 1
        quality = middle + step * (width / 4) * (features[:, column] - 0.5 * features[:, column + 4])
        heard = quality[:, None] + 0.4 * torch.randn(count, 6, generator=rng)
        steps = heard.round().clamp(0, width - 1).long()
        counts[:, column] = torch.nn.functional.one_hot(steps, 5).sum(1)
    points = torch.tensor([[1.0, 2, 3, 4, 5], [0, 1, 2, 0, 0]])
    return features, (counts * points).sum(-1) / 6, counts


@pytest.mark.parametrize(("head", "loss"), PAIRINGS)
def test_every_head_learns_from_every_loss(head, loss):
    """On 80 other items the trained head is 0.3 above its untrained self in Spearman, and above 0.75, on both scales.

    A tenth of the targets is missing.
    """
    torch.manual_seed(0)
    model = build_head(head, 12, SCALES)
    objective = Objective(replace(NATURAL, **{loss: 1.0}), DEFAULT_SETTINGS, head, SCALES)
    assert list(objective.weights) == [loss, "bradley_terry", "centring"]
    features, targets, counts = rated(96, 0)
    missing = torch.rand(targets.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    targets, counts = targets.masked_fill(missing, torch.nan), counts.masked_fill(missing[..., None], 0)
    model.start_at(targets.nanmean(0))
    fresh_features, fresh_targets, _ = rated(80, 2)
    untrained = model(fresh_features).score.detach()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(30):
        terms = objective.terms(model(features), said(targets, counts))
        assert list(terms) == [loss]
        optimizer.zero_grad()
        terms[loss].backward()
        optimizer.step()
    trained = model(fresh_features).score.detach()
    for column in range(2):
        before, after = (
            spearman(scores[:, column].double().numpy(), fresh_targets[:, column].double().numpy())
            for scores in (untrained, trained)
        )
        assert after > 0.75
        assert after > before + 0.3


@pytest.mark.parametrize("head", ["histogram", "corn"])
def test_two_raters_who_differ_are_two_halves(head):
    """Of three pairs whose raters gave 1 and 5, twice 2, and 3, 3, 3, 4, the head learns the shares."""
    given = [[1, 0, 0, 0, 1], [0, 2, 0, 0, 0], [0, 0, 3, 1, 0]]
    model, objective = build_head(head, 3, SCALES[:1], True), Objective(NATURAL, DEFAULT_SETTINGS, head, SCALES[:1])
    counts, features = torch.tensor(given)[:, None], 3 * torch.eye(3)
    labels = said((counts * torch.arange(1, 6)).sum(-1) / counts.sum(-1), counts)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        sum(objective.terms(model(features), labels).values()).backward()
        optimizer.step()
    for prediction, own in zip(model(features).each(), given, strict=True):
        shares = prediction.levels(SCALES[:1])["warmth"]
        assert shares == pytest.approx([count / sum(own) for count in own], abs=0.01)


@pytest.mark.parametrize(("head", "own"), [("regression", "mse"), ("gaussian", "gaussian_nll"), ("corn", "ordinal"),
                                           ("histogram", "histogram")])  # fmt: skip
def test_without_losses_a_head_has_its_own(head, own):
    assert Objective(NATURAL, DEFAULT_SETTINGS, head, SCALES).weights == {own: 1, "bradley_terry": 1, "centring": 0.01}
    assert own in {f.name for f in fields(LossWeights)}


def test_the_sum_is_that_of_the_weighted_losses_on_shares_of_the_scale():
    torch.manual_seed(0)
    points = torch.tensor([[1.0, 0.0], [2.5, 1.5], [4.0, 2.0], [5.0, 1.0]], requires_grad=True)
    targets = torch.tensor([[2.0, torch.nan], [1.0, 2.0], [5.0, 0.0], [3.0, 1.0]])
    objective = Objective(LossWeights(mse=2.0, soft_spearman=0.5), LossSettings(temperature=0.2), "regression", SCALES)
    terms = objective.terms(Prediction(points), said(targets))
    shares, wanted = (points - torch.tensor([1.0, 0])) / torch.tensor([4.0, 2]), targets / torch.tensor([4.0, 2])
    wanted = wanted - torch.tensor([0.25, 0])
    mask = ~targets.isnan()
    assert terms["mse"].item() == pytest.approx(2 * mse(shares, wanted, mask).item())
    ranked = soft_spearman(shares, wanted, mask, temperature=0.2)
    assert terms["soft_spearman"].item() == pytest.approx(0.5 * ranked.item())


def test_comparisons_count_on_the_dimensions_compared_and_towards_the_better_end():
    scores = torch.tensor([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0]], requires_grad=True)
    objective = Objective(NATURAL, DEFAULT_SETTINGS, "regression", SCALES)
    people = compared(torch.full((3, 2), torch.nan), [1], [2], torch.tensor([[1.0, 1.0]]))
    terms = objective.terms(Prediction(scores), people)
    assert terms["mse"].item() == 0
    assert terms["bradley_terry"].item() == pytest.approx(torch.log(torch.tensor(2.0)).item())
    terms["bradley_terry"].backward()
    pull = -scores.grad
    assert (pull[0] == 0).all()
    # warmth of the chosen rises, its noise falls; the rejected the other way
    assert (pull[1].sign() == torch.tensor([1, -1])).all()
    assert torch.equal(pull[1], -pull[2])
    alone = replace(people, strengths=torch.tensor([[1.0, torch.nan]]))
    scores.grad = None
    objective.terms(Prediction(scores), alone)["bradley_terry"].backward()
    assert scores.grad[1, 0] < 0
    assert (scores.grad[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("weights", "head", "message"),
    [
        ({"mse": -1.0}, "regression", r"objective\.losses\.mse -1; expected 0 or more"),
        ({"ccc": float("nan")}, "regression", r"objective\.losses\.ccc nan; expected 0 or more"),
        ({"gaussian_nll": 1.0}, "regression", "gaussian_nll with judge.head regression; expected head gaussian"),
        ({"ordinal": 1.0}, "histogram", "ordinal with judge.head histogram; expected head corn"),
        ({"histogram": 1.0}, "gaussian", "expected head corn or histogram"),
    ],
)
def test_losses_that_do_not_fit_are_refused(weights, head, message):
    with pytest.raises(UserError, match=message):
        Objective(replace(NATURAL, **weights), DEFAULT_SETTINGS, head, SCALES)


def test_ranks_see_each_others_rows_and_carry_the_gradient_of_their_own(monkeypatch):
    """Two ranks of three rows each, one rated, and a comparison: together the loss and gradient of one process."""
    torch.manual_seed(0)
    objective = Objective(LossWeights(mse=1, soft_spearman=1, ccc=1), DEFAULT_SETTINGS, "regression", SCALES)
    scores = 1 + torch.rand(2, 3, 2)
    people = [
        compared(
            torch.tensor([[2.0 + rank, 1.0 + rank], [torch.nan] * 2, [torch.nan] * 2]), [1], [2],
            torch.tensor([[1.0, float(rank)]]),
        )
        for rank in range(2)
    ]  # fmt: skip
    targets, strengths = (torch.cat([getattr(part, name) for part in people]) for name in ("targets", "strengths"))
    whole = compared(targets, [1, 4], [2, 5], strengths)
    together = scores.reshape(6, 2).clone().requires_grad_()
    expected = sum(objective.terms(Prediction(together), whole).values())
    expected.backward()
    assert together.grad is not None
    both, sent, this = threading.Barrier(2, timeout=30), [torch.empty(0)] * 2, threading.local()

    def all_gather(parts, mine):
        sent[this.rank] = mine
        both.wait()
        for part, words in zip(parts, sent, strict=True):
            part.copy_(words)

    def step(rank: int) -> torch.Tensor:
        this.rank, own = rank, scores[rank].clone().requires_grad_()
        loss = sum(objective.terms(*collate.gather(Prediction(own), people[rank])).values())
        assert loss.item() == pytest.approx(expected.item())
        loss.backward()
        return own.grad

    monkeypatch.setattr(collate.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(collate.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(collate.dist, "get_rank", lambda: this.rank)
    monkeypatch.setattr(collate.dist, "all_gather", all_gather)
    with ThreadPoolExecutor(2) as ranks:
        found = torch.cat(list(ranks.map(step, range(2))))
    torch.testing.assert_close(found, together.grad)


# ---------------------------------------------------------------- raters


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
