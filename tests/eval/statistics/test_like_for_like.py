"""A judge that is one more rater has a ratio of 1, whatever the panel; by hand and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.like_for_like import (
    AS_GOOD_AS_TRUE_SCORES,
    HALVINGS,
    HeldOut,
    compared,
    held_out,
    like_for_like,
    pooled,
)
from empathy_judge.eval.statistics.reliability import leave_one_rater_out
from scipy.stats import spearmanr, t

from .conftest import NAN, table_of


def people(n: int, raters: int, rng: np.random.Generator, differ: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Ratings (raters, n), groups of 4 items that resemble each other; severities and noises of raters differ."""
    groups = np.arange(n) // 4
    truth = 0.5 * rng.normal(size=groups[-1] + 1)[groups] + np.sqrt(0.75) * rng.normal(size=n)
    severity, noise = 0.5 * rng.normal(size=raters), rng.uniform(1 - differ, 1 + differ, raters)
    return truth + severity[:, None] + noise[:, None] * rng.normal(size=(raters, n)), groups


def thinned(scores: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Each item keeps k of its ratings."""
    place = rng.permuted(np.broadcast_to(np.arange(len(scores))[:, None], scores.shape), axis=0)
    return np.where(place < k, scores, NAN)


OFTEN = [(2, 2), (3, 3), (5, 5), (8, 8), (2, 20), (3, 20), (5, 20)]


@pytest.mark.parametrize(
    ("k", "pool", "simulations", "ratio", "least", "most"),
    [
        *((k, pool, 120, 0.04, 0.0, 0.12) for k, pool in ((2, 2), (3, 3), (2, 10))),
        *(pytest.param(k, pool, 400, 0.01, 0.03, 0.07, marks=pytest.mark.long) for k, pool in OFTEN),
    ],
)
def test_a_judge_that_is_one_more_rater_is_told_apart_as_seldom_as_promised(k, pool, simulations, ratio, least, most):
    """In 5 % give or take 2, with all raters or some of them at each item.

    With the mean of all raters as the judge's target the ratio would be 1.16 and 1.06.
    """
    found = []
    for seed in range(simulations):
        rng = np.random.default_rng([k, pool, seed])
        scores, groups = people(200, pool + 1, rng)
        table = table_of(thinned(scores[1:], k, rng))
        found.append(like_for_like(scores[0], table, Resamples.sample(groups, 200, seed)))
    judge, rater = (np.mean([getattr(own, side).value for own in found]) for side in ("judge", "rater"))
    assert judge / rater == pytest.approx(1, abs=ratio)
    told = [own.verdict != "not told apart from one rater" for own in found]
    assert least <= np.mean(told) <= most
    for own, apart in zip(found, told, strict=True):
        assert apart == (own.p is not None and own.p < 0.05)
        if own.ratio.low is not None and own.ratio.high is not None:
            assert apart == (not own.ratio.low <= 1 <= own.ratio.high)


def test_by_hand_with_missing_scores_and_a_rater_who_is_left_out():
    rng = np.random.default_rng(0)
    scores, groups = people(40, 4, rng)
    judge = people(40, 1, rng)[0][0]
    judge[:5] = NAN
    scores[0, 14:] = NAN  # nine scored items are left
    scores[1, 30:] = NAN
    found = like_for_like(judge, table_of(scores), Resamples.sample(groups, 100, 0))
    own, theirs, items = [], [], []
    for r in (1, 2, 3):
        kept = ~np.isnan(scores[r]) & ~np.isnan(judge)
        others = np.nanmean(np.delete(scores, r, axis=0), axis=0)[kept]
        own.append(spearmanr(judge[kept], others)[0])
        theirs.append(spearmanr(scores[r, kept], others)[0])
        items.append(kept.sum())
    assert found.judge.value == pytest.approx(np.average(own, weights=items), abs=1e-12)
    assert found.rater.value == pytest.approx(np.average(theirs, weights=items), abs=1e-12)
    assert found.difference.value == pytest.approx(np.average(np.subtract(own, theirs), weights=items), abs=1e-12)
    assert found.ratio.value == pytest.approx((found.judge.value or NAN) / (found.rater.value or NAN), abs=1e-12)
    assert (found.n_items, found.n_raters, found.n_groups) == (35, 3, 9)
    assert found.left_out == {"r0": "shares 9 items with other raters, at least 10 needed"}


def test_the_raters_side_is_the_leave_one_out_agreement():
    scores, groups = people(60, 5, np.random.default_rng(1))
    table, draws = table_of(scores), Resamples.sample(groups, 50, 0)
    found = held_out(scores.mean(axis=0), table, draws)
    together = leave_one_rater_out(table, draws)[0]
    rater = (found.rater * found.weights).sum(axis=0) / found.weights.sum(axis=0)
    assert rater[0] == pytest.approx(together.value, abs=1e-12)
    np.testing.assert_allclose(rater[1:51], together.draws, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_mean_of_k_raters_is_worth_k_also_beside_two_raters(k):
    found = []
    for seed in range(4):
        scores, groups = people(8000, 2 + k, np.random.default_rng([k, seed]), differ=0.0)
        judge = scores[2:].mean(axis=0)
        found.append(like_for_like(judge, table_of(scores[:2]), Resamples.sample(groups, 0, 0)).effective_raters)
    assert np.mean([own.value or NAN for own in found]) == pytest.approx(k, rel=0.15)


def test_a_judge_that_knows_the_true_scores_is_worth_more_raters_than_there_are():
    rng = np.random.default_rng(3)
    truth = rng.normal(size=400)
    scores = truth + 0.2 * rng.normal(size=(4, 400))
    judge = scores.mean(axis=0)  # it has seen the ratings
    found = like_for_like(judge, table_of(scores), Resamples.sample(np.arange(400), 50, 0)).effective_raters
    assert (found.value, found.reason) == (None, AS_GOOD_AS_TRUE_SCORES)
    assert (found.low or NAN) > 4


def test_too_few_items_groups_or_raters():
    scores, groups = people(40, 3, np.random.default_rng(4))
    judge, table = scores.mean(axis=0), table_of(scores)
    few = like_for_like(judge[:9], table_of(scores[:, :9]), Resamples.sample(groups[:9], 20, 0))
    assert few.difference.reason == ("no rater can be compared: shares 9 items with other raters, at least 10 needed")
    one_group = like_for_like(judge, table, Resamples.sample(np.zeros(40, int), 20, 0))
    assert one_group.difference.value is not None
    assert (one_group.difference.reason or "").startswith("no interval: 1 group, at least")
    scores[1, ::2] = scores[2, 1::2] = NAN  # both share with the first rater alone, each at other items
    scores[1, 18:] = scores[2, 18:] = NAN
    lonely = like_for_like(judge, table_of(scores), Resamples.sample(groups, 20, 0))
    assert lonely.difference.value is not None
    assert lonely.difference.reason == "no interval: 1 rater can be compared, at least 2 needed"
    constant = like_for_like(np.ones(40), table, Resamples.sample(groups, 20, 0))
    assert constant.difference.reason == (
        "no rater can be compared: this rater, the judge or the mean of the others is constant"
    )
    for own in (few, one_group, lonely, constant):
        assert (own.verdict, own.p, own.difference.low) == ("too few items to tell", None, None)


def test_raters_whose_differences_come_out_as_0_are_not_known_to_be_alike():
    """By hand: all variance is of the items, but its degrees of freedom are fewer than theirs."""
    groups, ours = 20, np.array([0.3, 0.1, 0.2])  # judge - rater of 3 raters, items of each alike
    draws = Resamples.sample(np.arange(groups), 4, 0)
    drawn = 0.2 + np.array([0.1, -0.1, 0.2, -0.2])
    apart = np.array([0.1, -0.1, 0.0])  # what half of the groups say, the other half denies
    difference = np.column_stack([ours, np.tile(drawn, (3, 1)), np.tile(np.column_stack([apart, -apart]), HALVINGS)])
    whole = np.ones_like(difference)
    found = HeldOut(
        ("a", "b", "c"), 0.5 + difference, 0.5 * whole, 20 * whole, {}, np.arange(groups), groups, 0.5, groups
    )
    own = compared(found, draws)
    variance = 0.1 / 3 * groups / (groups - 1)
    spread = 0.01 * (1 + 1 / 3)  # of a further rater and the mean of three, chance included
    assert spread < variance
    freedom = variance**2 / (variance**2 / (groups - 1) + (spread / 2) ** 2 / 2)
    assert own.p == pytest.approx(2 * t.sf(0.2 / variance**0.5, freedom), rel=1e-9)
    assert own.difference.high == pytest.approx(0.2 + t.ppf(0.975, freedom) * variance**0.5, rel=1e-9)


def test_dimensions_count_alike_and_a_rater_of_both_is_one_rater():
    scores, groups = people(80, 4, np.random.default_rng(5))
    judge, draws = scores[0], Resamples.sample(groups, 100, 0)
    first = held_out(judge, table_of(scores[1:3]), draws)
    second = held_out(judge[:40], table_of(scores[1:, :40]), draws.select(np.arange(40)))
    both = compared(pooled([first, second]), draws, n=2)
    one, other = compared(first, draws), compared(second, draws)
    for side in ("judge", "rater", "difference"):
        mean = np.mean([getattr(own, side).value for own in (one, other)])
        assert getattr(both, side).value == pytest.approx(mean, abs=1e-12)
    assert (both.n_raters, both.judge.n, both.n_groups) == (3, 2, 20)
    assert both.p is not None
    assert compared(pooled([]), draws).verdict == "no rater can be compared"


def test_rounding_of_a_mean_orders_nothing():
    """Means of others are taken from sums: (3 + 1.48) - 1.48 is not 3, and 1.1 + 2.2 + 3.3 depends on the order."""
    rng = np.random.default_rng(0)
    other = rng.uniform(1, 5, 40)
    constant = table_of(np.stack([np.full(40, 3.0), other]))
    found = held_out(rng.normal(size=40), constant, Resamples.sample(np.arange(40).astype(str), 20, 0))
    assert set(found.left_out) == {"r0", "r1"}  # one rater is constant, beside the other the rest is

    steps = rng.integers(10, 51, (4, 60))
    exact, written = table_of(steps.astype(float)), table_of(steps / 10)  # whole numbers have exact sums
    score, draws = rng.normal(size=60), Resamples.sample(np.arange(60).astype(str), 20, 0)
    first, second = (held_out(score, table, draws) for table in (exact, written))
    np.testing.assert_allclose(second.judge[:, 0], first.judge[:, 0], rtol=1e-12)
    np.testing.assert_allclose(second.rater[:, 0], first.rater[:, 0], rtol=1e-12)
    assert len(np.unique(written.means)) == len(np.unique(steps.sum(axis=0)))


def test_correlations_differ_by_at_most_2():
    """Two raters: one degree of freedom, whose quantile is 12.7."""
    rng = np.random.default_rng(1)
    raters, draws = rng.normal(size=(2, 30)), Resamples.sample(np.arange(30), 200, 0)
    found = like_for_like(raters[0] + 0.1 * rng.normal(size=30), table_of(raters), draws)
    assert (found.difference.low, found.difference.high) == (-2.0, 2.0)
