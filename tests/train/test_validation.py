"""Agreement of the whole validation split, and what training has added to the start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.data_modules.training_items import RatedPairs
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.models.heads import Prediction
from empathy_judge.train.validation import Validation, lead_interval
from scipy.stats import spearmanr, t


@pytest.fixture
def validation(dataset_folder) -> Validation:
    """Of the nine validation pairs of the tiny dataset."""
    pairs = RatedPairs(PairDataset.load(dataset_folder).subset("validation"))
    return Validation(pairs, [], (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10)))


def collected(validation: Validation, step: int, scores: np.ndarray, deviations: np.ndarray | None = None) -> None:
    validation.clear()
    parts = (None if values is None else torch.from_numpy(values) for values in (scores, deviations))
    validation.add(torch.arange(len(scores)), Prediction(*parts))
    validation.agreement(step)


def test_what_training_added_has_an_interval_over_groups(validation):
    draw = np.random.default_rng(0)
    validation.targets[:, 0] = np.arange(9.0)
    trained = np.stack([np.arange(9.0), draw.normal(size=9)], 1)
    start = np.stack([draw.normal(size=9), trained[:, 1]], 1)
    start[8, 0] = np.nan  # not scored then: left out of both
    collected(validation, 0, start)
    collected(validation, 3, trained)
    found = validation.added(np.arange(9) // 1.5)
    before = spearmanr(start[:8, 0], np.arange(8)).statistic
    assert (found["empathy"]["probe"], found["empathy"]["added"]) == pytest.approx((before, 1 - before))
    assert found["empathy"]["low"] < 1 - before < found["empathy"]["high"]
    assert found["empathy"]["low"] + found["empathy"]["high"] == pytest.approx(2 * (1 - before))
    assert [found["warmth"][name] for name in ("added", "low", "high")] == [0, 0, 0]
    few = validation.added(np.arange(9) // 3)
    assert few["empathy"] == {**found["empathy"], "low": None, "high": None}
    validation.targets[:, 0] = np.nan
    assert set(validation.added(np.arange(9))["empathy"].values()) == {None}


def test_the_interval_of_a_lead_is_wider_where_groups_are_few():
    leads = np.append(np.random.default_rng(0).normal(0.02, 0.01, 400), np.nan)
    for groups in (5, 10, 100):
        low, high = lead_interval(Resamples.sample(np.arange(groups), 2, 0), leads, 0.03)
        half = t.ppf(0.95, groups - 1) * leads[:-1].std(ddof=1) * (groups / (groups - 1)) ** 0.5
        assert (low, high) == pytest.approx((0.03 - half, 0.03 + half), rel=1e-9)
    assert lead_interval(Resamples.sample(np.arange(4), 2, 0), leads, 0.03) == (None, None)
    assert lead_interval(Resamples.sample(np.arange(5), 2, 0), leads[-2:], 0.03) == (None, None)


@pytest.mark.long
def test_of_leads_that_are_none_one_in_twenty_begins_above_0():
    """Two judges that hear five groups equally well, each with errors of its own in each group."""
    draw = np.random.default_rng(0)
    groups, above = np.repeat(np.arange(5), 20), np.zeros((600, 2))
    for row in range(len(above)):
        human = draw.normal(size=100) + 0.5 * draw.normal(size=5).repeat(20)
        one, other = (human + 0.3 * draw.normal(size=5).repeat(20) + 0.7 * draw.normal(size=100) for _ in range(2))
        draws = Resamples.sample(groups, 400, row)
        leads = draws.compute(spearman, one, human) - draws.compute(spearman, other, human)
        low, _ = lead_interval(draws, leads, spearman(one, human) - spearman(other, human))
        above[row] = low >= 0, np.quantile(leads, 0.05) >= 0
    now, quantiles = above.mean(0)  # standard error 0.009
    assert now < 0.055 < 0.07 < quantiles


def test_items_take_the_validation_that_other_groups_choose(validation):
    human = np.array([1.0, 2, 3, 1, 2, 3, 1, 2, 3])
    groups = np.repeat([0, 1, 2], 3)
    validation.targets[:] = human[:, None]
    start = np.where(groups == 0, -human, human)  # wrong on the first group
    later = np.where(groups == 0, human, [1.0, 2, 3, 1, 2, 3, 3, 2, 1])  # wrong on the last
    for step, scores in ((0, start), (4, later)):
        collected(validation, step, np.stack([scores] * 2, 1), np.full((9, 2), 0.5 + step))
    left_out = validation.left_out(groups)
    # without the first group the start is perfect, and without the last what came later
    np.testing.assert_array_equal(left_out[groups == 0, :, 0], -human[:3, None].repeat(2, 1))
    np.testing.assert_array_equal(left_out[groups == 2, :, 0], human[:3, None][::-1].repeat(2, 1))
    assert set(left_out[groups == 0, :, 1].flat) == {0.5}
    assert set(left_out[groups == 2, :, 1].flat) == {4.5}
    # a single group can only choose for itself
    agreed = [spearmanr(scores, human).statistic for scores in (start, later)]
    best = (start, later)[int(np.argmax(agreed))]
    np.testing.assert_array_equal(validation.left_out(np.zeros(9))[:, 0, 0], best)


def test_the_best_of_many_equal_epochs_is_not_said_to_lead(dataset_folder):
    """Twelve epochs as good as the start, 60 times: the best leads by 0.1 on the pairs that chose it."""
    draw, dimension = np.random.default_rng(0), (Dimension("empathy", 1, 5),)
    pairs = RatedPairs(PairDataset.load(dataset_folder).subset("validation"))
    groups, best, left_out = np.repeat(np.arange(12), 8), [], []
    for _ in range(60):
        validation = Validation(pairs, [], dimension)
        quality = draw.normal(size=96)
        validation.targets = (quality + draw.normal(size=96))[:, None]
        epochs = [quality + draw.normal(size=96) for _ in range(13)]
        validation.history = {step: np.stack([scores, scores], 1)[:, None] for step, scores in enumerate(epochs)}
        agreed = [spearmanr(scores, validation.targets[:, 0]).statistic for scores in epochs]
        best.append(max(agreed) - agreed[0])
        left_out.append(validation.added(groups)["empathy"]["added"])
    error = np.std(left_out) / np.sqrt(len(left_out))
    assert np.mean(best) > 0.09
    assert abs(np.mean(left_out)) < 3 * error < 0.05


def test_deviations_are_gathered_with_the_scores(validation):
    scores, deviations = torch.rand(9, 2), torch.rand(9, 2)
    for rows in (torch.arange(5, 9), torch.arange(5)):
        validation.add(rows, Prediction(scores[rows], deviations[rows]))
    validation.agreement(1)
    assert np.array_equal(validation.history[1], torch.stack([scores, deviations], -1).double().numpy())
    validation.clear()
    validation.add(torch.arange(9), Prediction(scores))
    validation.agreement(2)
    assert np.isnan(validation.history[2][..., 1]).all()
