"""The sum of losses: what a head is trained with, which rows count, and that every combination learns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import get_args

import pytest
import torch
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.heads import Prediction, build_head
from empathy_judge.models.losses import logistic_ranking, mse
from empathy_judge.models.settings import HeadName
from empathy_judge.train import collate
from empathy_judge.train.objective import Labels, Objective
from empathy_judge.train.settings import DEFAULT_SETTINGS, NATURAL, LossSettings, LossWeights

SCALES = [Dimension("warmth", 1, 5, 1), Dimension("noise", 0, 2, 1, higher_is_better=False)]
SCORE_LOSSES = ("mse", "huber", "ccc", "margin_ranking", "logistic_ranking", "soft_spearman")
OWN_LOSSES: dict[HeadName, tuple[str, ...]] = {
    "regression": (), "gaussian": ("gaussian_nll",), "coral": ("ordinal", "histogram", "squared_emd"),
    "corn": ("ordinal", "histogram", "squared_emd"), "histogram": ("histogram", "squared_emd"),
}  # fmt: skip
PAIRINGS = [(head, loss) for head in get_args(HeadName) for loss in (*SCORE_LOSSES, *OWN_LOSSES[head])]


def said(targets: torch.Tensor, counts: torch.Tensor | None = None) -> Labels:
    rows = len(targets)
    return Labels(
        targets=targets, weights=(~targets.isnan()).float(), counts=counts,
        groups=torch.zeros(rows, dtype=torch.int64), raters=torch.full((rows,), -1),
        chosen=torch.tensor([], dtype=torch.int64), rejected=torch.tensor([], dtype=torch.int64),
        strengths=torch.zeros(0, targets.shape[1]),
    )  # fmt: skip


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


@pytest.mark.parametrize(("head", "own"), [("regression", "mse"), ("gaussian", "gaussian_nll"), ("coral", "ordinal"),
                                           ("corn", "ordinal"), ("histogram", "histogram")])  # fmt: skip
def test_without_losses_a_head_has_its_own(head, own):
    assert Objective(NATURAL, DEFAULT_SETTINGS, head, SCALES).weights == {own: 1, "bradley_terry": 1, "centring": 0.01}
    assert own in {f.name for f in fields(LossWeights)}


def test_the_sum_is_that_of_the_weighted_losses_on_shares_of_the_scale():
    torch.manual_seed(0)
    points = torch.tensor([[1.0, 0.0], [2.5, 1.5], [4.0, 2.0], [5.0, 1.0]], requires_grad=True)
    targets = torch.tensor([[2.0, torch.nan], [1.0, 2.0], [5.0, 0.0], [3.0, 1.0]])
    settings = LossSettings(temperature=0.2, compare="group")
    objective = Objective(LossWeights(mse=2.0, logistic_ranking=0.5), settings, "regression", SCALES)
    people = replace(said(targets), groups=torch.tensor([3, 3, -1, 3]))
    terms = objective.terms(Prediction(points), people)
    shares, wanted = (points - torch.tensor([1.0, 0])) / torch.tensor([4.0, 2]), targets / torch.tensor([4.0, 2])
    wanted = wanted - torch.tensor([0.25, 0])
    mask = ~targets.isnan()
    assert terms["mse"].item() == pytest.approx(2 * mse(shares, wanted, mask).item())
    ranked = logistic_ranking(shares, wanted, mask, people.groups, 0.2)
    assert terms["logistic_ranking"].item() == pytest.approx(0.5 * ranked.item())


def test_comparisons_count_on_the_dimensions_compared_and_towards_the_better_end():
    scores = torch.tensor([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0]], requires_grad=True)
    objective = Objective(replace(NATURAL, centring=0.0), DEFAULT_SETTINGS, "regression", SCALES)
    people = replace(
        said(torch.full((3, 2), torch.nan)),
        chosen=torch.tensor([1]),
        rejected=torch.tensor([2]),
        strengths=torch.tensor([[1.0, 1.0]]),
    )
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
        ({"huber": float("nan")}, "regression", r"objective\.losses\.huber nan; expected 0 or more"),
        ({"gaussian_nll": 1.0}, "regression", "gaussian_nll with judge.head regression; expected head gaussian"),
        ({"ordinal": 1.0}, "histogram", "ordinal with judge.head histogram; expected head coral or corn"),
        ({"squared_emd": 1.0}, "gaussian", "expected head coral or corn or histogram"),
    ],
)
def test_losses_that_do_not_fit_are_refused(weights, head, message):
    with pytest.raises(UserError, match=message):
        Objective(replace(NATURAL, **weights), DEFAULT_SETTINGS, head, SCALES)


def test_ranks_see_each_others_rows_and_carry_the_gradient_of_their_own(monkeypatch):
    """Two ranks of three rows each, one rated, and a comparison: together the loss and gradient of one process."""
    torch.manual_seed(0)
    objective = Objective(LossWeights(mse=1, logistic_ranking=1, ccc=1), DEFAULT_SETTINGS, "regression", SCALES)
    scores = 1 + torch.rand(2, 3, 2)
    people = [
        replace(
            said(torch.tensor([[2.0 + rank, 1.0 + rank], [torch.nan] * 2, [torch.nan] * 2])),
            chosen=torch.tensor([1]),
            rejected=torch.tensor([2]),
            strengths=torch.tensor([[1.0, float(rank)]]),
        )
        for rank in range(2)
    ]
    whole = replace(
        said(torch.cat([part.targets for part in people])),
        chosen=torch.tensor([1, 4]),
        rejected=torch.tensor([2, 5]),
        strengths=torch.cat([part.strengths for part in people]),
    )
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
