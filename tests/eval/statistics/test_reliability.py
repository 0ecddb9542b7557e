"""Ceilings against published values, hand counts and simulated raters of known reliability."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.reliability import (
    MIN_RATER_ITEMS,
    Reliability,
    average_single_reliability,
    measure,
    rated_items,
    raters_ceiling,
)
from scipy.stats import spearmanr

from ...conftest import real_data
from .conftest import NAN, SHROUT_FLEISS, long, reliability, simulated, table_of


def groups_of(n_items: int, size: int = 1) -> dict[str, str]:
    return {f"p{item}": f"g{item // size}" for item in range(n_items)}


def test_leave_one_rater_out_is_the_mean_over_raters_weighted_by_their_items():
    _, scores = simulated(40, 4, bias=0.5, noise=1.0, missing=0.0, seed=0)
    scores[0, 12:] = NAN  # rater 0 rated 12 items
    scores[1:, 39] = NAN  # and nobody rated the last item
    result = reliability(long(scores), "d", groups_of(40), resamples=0)
    expected = []
    for rater in range(4):
        others = np.nanmean(np.delete(scores, rater, axis=0)[:, :39], axis=0)
        own = scores[rater, :39]
        both = ~np.isnan(own) & ~np.isnan(others)
        expected.append((spearmanr(own[both], others[both])[0], int(both.sum())))
    values, sizes = map(np.array, zip(*expected, strict=True))
    assert sizes.tolist() == [12, 39, 39, 39]
    assert [rater["n"] for rater in result["raters"]] == sizes.tolist()
    assert [rater["spearman"] for rater in result["raters"]] == pytest.approx(values)
    assert result["spearman"]["value"] == pytest.approx((values * sizes).sum() / sizes.sum())
    assert (result["n_items"], result["n_raters"], result["n_ratings"]) == (39, 4, 12 + 3 * 39)


def drawn(sizes: np.ndarray, raters: int, rng: np.random.Generator) -> np.ndarray:
    return np.stack([rng.permutation(raters) < size for size in sizes], axis=1)


PANELS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "all of 3": lambda n, rng: np.ones((3, n), bool),
    "all of 7": lambda n, rng: np.ones((7, n), bool),
    "2 of 20": lambda n, rng: drawn(np.full(n, 2), 20, rng),
    "half of 5": lambda n, rng: rng.random((5, n)) < 0.5,  # some items have a single rating
    "1 or 8 of 20": lambda n, rng: drawn(np.where(np.arange(n) % 2, 8, 1), 20, rng),
    "ten panels of 4": lambda n, rng: np.arange(40)[:, None] // 4 == np.arange(n)[None] * 10 // n,
}
"""Who rates what, shape (raters, items)."""


@pytest.mark.parametrize(
    ("pattern", "bias", "noise"),
    [
        *(("all of 3", 1.0, 0.5), ("all of 7", 0.0, 2.0), ("2 of 20", 0.5, 1.0), ("half of 5", 0.5, 1.0)),
        *(("1 or 8 of 20", 0.0, 0.5), ("ten panels of 4", 0.5, 1.0)),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("all of 3", 0.0, 1.0), ("all of 7", 1.0, 0.5), ("2 of 20", 0.0, 1.0), ("half of 5", 0.0, 1.0))
        ),
    ],
)
def test_the_panel_ceiling_is_what_the_true_scores_reach(pattern, bias, noise):
    differences, reached = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        truth = rng.normal(size=600)
        scores = truth + bias * rng.normal(size=(40, 1)) + noise * rng.normal(size=(40, 600))
        rated = PANELS[pattern](600, rng)
        scores = np.where(rated, scores[: len(rated)], NAN)
        truth, scores = truth[rated.any(axis=0)], scores[:, rated.any(axis=0)]
        ids = [f"p{item}" for item in range(len(truth))]
        table = RatingTable.of(long(scores), "d", ids)
        ceiling = measure(table, Resamples.sample(ids, 0, 0), seed).panel_mean.value
        reached.append(spearmanr(truth, np.nanmean(scores, axis=0))[0])
        differences.append(ceiling - reached[-1])
    assert np.mean(differences) == pytest.approx(0, abs=0.02), np.mean(reached)


def test_spearman_brown_where_halves_are_equal_and_horst_where_they_are_not():
    _, scores = simulated(200, 6, 0.0, 1.0, 0.0, seed=2)
    even = reliability(long(scores), "d", groups_of(200), resamples=50)
    half, whole = even["split_half"]["value"], even["panel_reliability"]["value"]
    assert whole == pytest.approx(2 * half / (1 + half))
    assert even["panel_mean"]["value"] == pytest.approx(whole**0.5)
    assert even["panel_reliability"]["low"] == pytest.approx(
        2 * even["split_half"]["low"] / (1 + even["split_half"]["low"])
    )
    # Noise l times the truth, halves of 1 and 2 of 3 raters: r = 1 / sqrt((1 + l) (1 + l / 2)), whole 1 / (1 + l / 3).
    odd = reliability(long(scores[:3]), "d", groups_of(200), resamples=0)
    noise = 3 * (1 / odd["panel_reliability"]["value"] - 1)
    assert odd["split_half"]["value"] == pytest.approx(1 / np.sqrt((1 + noise) * (1 + noise / 2)))
    # The same halves, and as many items again with one rating: the mean of 1 / ratings rises from 1/6 to 7/12.
    more = np.concatenate([scores, np.full_like(scores, NAN)], axis=1)
    more[0, 200:] = np.arange(200) % 5
    mixed = reliability(long(more), "d", groups_of(400), resamples=0)
    half = mixed["split_half"]["value"]
    assert half == pytest.approx(even["split_half"]["value"], abs=0.01)
    noise = 6 * (1 / (2 * half / (1 + half)) - 1)
    assert mixed["panel_reliability"]["value"] == pytest.approx(1 / (1 + noise * 7 / 12))


def test_constant_biases_of_raters_who_rate_everything_cost_the_panel_nothing():
    _, scores = simulated(200, 6, bias=0.0, noise=1.0, missing=0.0, seed=3)
    biased = scores + np.arange(6)[:, None] * 3
    fair, skewed = (reliability(long(s), "d", groups_of(200), resamples=0) for s in (scores, biased))
    assert skewed["panel_mean"]["value"] == pytest.approx(fair["panel_mean"]["value"], abs=1e-9)
    assert skewed["spearman"]["value"] == pytest.approx(fair["spearman"]["value"], abs=1e-9)
    assert skewed["krippendorff_alpha"]["value"] < fair["krippendorff_alpha"]["value"] / 2


def test_raters_who_cannot_be_compared_are_listed_with_the_reason():
    _, scores = simulated(30, 4, 0.0, 0.5, 0.0, seed=6)
    scores[0, MIN_RATER_ITEMS - 1 :] = NAN
    scores[1] = 3.0
    result = reliability(long(scores), "d", groups_of(30), resamples=0)
    few, constant, *others = result["raters"]
    assert (few["spearman"], few["reason"]) == (None, "shares 9 items with other raters, at least 10 needed")
    assert (constant["spearman"], constant["reason"]) == (None, "this rater or the mean of the others is constant")
    assert result["spearman"]["value"] == pytest.approx(np.mean([rater["spearman"] for rater in others]))


def test_raters_who_disagree_leave_no_panel_ceiling():
    scores = np.stack([np.arange(20.0), -np.arange(20.0)])
    result = reliability(long(scores), "d", groups_of(20), resamples=20)
    assert result["spearman"]["value"] == pytest.approx(-1.0)
    assert result["split_half"]["value"] == pytest.approx(-1.0)
    assert result["panel_mean"]["value"] is None
    assert result["panel_mean"]["reason"] == "the two parts of the panel do not agree (Spearman -1.000)"


@pytest.mark.parametrize(("reference", "half"), [(False, 0.61), (True, 0.74)])
def test_split_half_of_the_mushra_ratings(reference, half):
    # The README beside the data halves the raters of each clip at random 1000 times; "full" is Spearman-Brown of that.
    folder = real_data("mushra_codec")
    pairs = pd.read_csv(folder / "pairs.csv")
    groups = {row.pair_id: row.group_id for row in pairs.itertuples() if reference or row.system_id != "Reference"}
    result = reliability(pd.read_csv(folder / "ratings.csv"), "fidelity", groups, resamples=0)
    assert len(groups) == (128 if reference else 112)
    assert result["split_half_by_item"]["value"] == pytest.approx(half, abs=0.02)
    # The same raters rate all systems of a sentence: halving the panel does not count their biases as noise.
    assert 0.01 < result["split_half"]["value"] - result["split_half_by_item"]["value"] < 0.05


def test_very_many_groups_are_drawn_less_often():
    ratings = long(np.random.default_rng(0).normal(size=(2, 25_000)))
    table, draws = rated_items(ratings, "d", groups_of(25_000), 1000, 0)
    assert (table.n_items, len(draws.counts)) == (25_000, 400)
    assert len(rated_items(ratings, "d", groups_of(25_000, size=5), 1000, 0)[1].counts) == 1000
    assert len(rated_items(ratings, "d", groups_of(25_000), 200, 0)[1].counts) == 200


# ---------------------------------------------------------------- the mean of several raters


def ceilings(scores: np.ndarray, *ks: int) -> tuple[Reliability, dict[int, Any]]:
    """Of the panel and of the mean of k raters, from ratings of shape (raters, items)."""
    table, draws = table_of(scores), Resamples.sample(np.arange(scores.shape[1]), 30, 0)
    panel = measure(table, draws, 0)
    return panel, {k: raters_ceiling(table, panel.panel_reliability, draws, k, seed=0) for k in ks}


def test_measured_ceiling_equals_all_choices_by_hand():
    scores = simulated(40, 5, 0.3, 1.0, 0.0, seed=4)[1].round(0)
    panel, found = ceilings(scores, 1, 2)
    assert found[1]["measured"].value == pytest.approx(panel.leave_one_rater_out.value, abs=1e-12)
    both = [
        spearmanr(scores[[i, j]].mean(axis=0), np.delete(scores, [i, j], axis=0).mean(axis=0)).statistic
        for i in range(5)
        for j in range(i)
    ]
    assert found[2]["measured"].value == pytest.approx(np.mean(both), abs=1e-12)


def test_an_incomplete_panel_leaves_out_the_items_with_too_few_raters():
    _, scores = simulated(60, 6, 0.3, 1.0, 0.0, seed=5)
    scores[1:, :15] = NAN  # one rating
    scores[3:, 15:30] = NAN  # three
    scores[0, 30:] = NAN  # five
    panel, found = ceilings(scores, 1, 2, 4, 5)
    assert [found[k]["measured"].n for k in (1, 2, 4, 5)] == [45, 45, 30, 0]
    assert found[5]["measured"].reason == "0 items with more than 5 raters, at least 10 needed"
    c, whole = (1 / (~np.isnan(scores)).sum(axis=0)).mean(), panel.panel_reliability.value
    single = whole * c / (1 - whole + whole * c)  # Spearman-Brown, backwards

    def reliable(ratings: float) -> float:
        return ratings * single / (1 + (ratings - 1) * single)

    # Two of three raters leave one, two of five leave three: 1.5 on (harmonic) average.
    expected = found[2]["expected"].value
    assert expected == pytest.approx(np.sqrt(reliable(2) * reliable(1 / ((15 / 1 + 30 / 3) / 45))), abs=1e-12)
    # Four of the same five raters, or the one left over, are the same division; the first rater, who did not rate these
    # items, makes some of these choices more frequent than others.
    rest = ceilings(scores[1:, 30:], 1)[1][1]["measured"]
    assert found[4]["measured"].value == pytest.approx(rest.value, abs=0.05)


def test_one_rater_constant_ratings_and_no_ratings():
    for scores in (np.arange(20.0)[None], np.full((3, 20), 4.0), np.full((3, 0), 4.0)):
        ceiling = ceilings(scores, 1)[1][1]
        assert ceiling["measured"].value is None
        assert ceiling["measured"].reason
        assert ceiling["expected"].reason


def test_a_rater_who_is_constant_does_not_count_in_the_mean_over_choices():
    _, scores = simulated(40, 4, 0.3, 1.0, 0.0, seed=10)
    scores[2] = 3.0
    found = ceilings(scores, 1)[1][1]["measured"]
    others = [spearmanr(scores[i], np.delete(scores, i, axis=0).mean(axis=0)).statistic for i in (0, 1, 3)]
    assert found.value == pytest.approx(np.mean(others), abs=1e-12)
    assert found.low is not None


def test_the_reliability_of_an_average_dimension():
    rng = np.random.default_rng(3)
    tables = []
    for noise in (0.5, 1.0, 2.0):
        scores = rng.normal(size=(1500, 1)) + rng.normal(0, noise, (1500, 3))
        items, raters = np.divmod(np.arange(4500), 3)
        tables.append(RatingTable(items, raters, scores.ravel(), 1500, ("a", "b", "c")))
    draws = Resamples.sample([str(one) for one in range(1500)], 50, 0)
    panels = [(measure(table, draws, 0), table) for table in tables]
    alone = [average_single_reliability([one]).value for one in panels]
    assert alone == pytest.approx([0.78, 0.48, 0.19], abs=0.04)
    together = average_single_reliability(panels)
    assert together.value == pytest.approx(np.mean(alone), abs=0.02)
    assert together.low < together.value < together.high


def test_a_draw_in_which_no_dimension_is_defined_is_no_warning(recwarn):
    """As happens with three items."""
    rng = np.random.default_rng(0)
    items, raters = np.divmod(np.arange(9), 3)
    table = RatingTable(items, raters, (items + rng.normal(0, 0.3, 9)).round(1), 3, ("a", "b", "c"))
    own = measure(table, Resamples.sample(["0", "1", "2"], 50, 0), 0)
    assert np.isnan(own.split_half.draws).any()
    average_single_reliability([(own, table)] * 2)
    assert not recwarn.list


def published(scores: np.ndarray) -> pd.DataFrame:
    """Mean, standard deviation and number of the ratings of each item, from shape (raters, items)."""
    means, sd, n = np.nanmean(scores, 0), np.nanstd(scores, 0, ddof=1), (~np.isnan(scores)).sum(0)
    names = [f"p{item}" for item in range(scores.shape[1])]
    return pd.DataFrame({"pair_id": names, "rater_id": "panel", "dimension": "d", "score": means, "sd": sd, "n": n})


def test_means_with_their_deviations_have_the_icc_of_one_way():
    """Shrout and Fleiss (1979), table 2: ICC(1,4) is 0.44."""
    found = reliability(published(SHROUT_FLEISS.T), "d", groups_of(6), resamples=0)
    assert found["panel_reliability"]["value"] == pytest.approx(0.4428, abs=1e-4)
    from_ratings = reliability(long(SHROUT_FLEISS.T), "d", groups_of(6), resamples=0)["icc"]["ICC(1,k)"]["value"]
    assert found["panel_reliability"]["value"] == pytest.approx(from_ratings)
    assert found["panel_mean"]["value"] == pytest.approx(np.sqrt(from_ratings))
    assert (found["n_items"], found["n_raters"]) == (6, 0)


def test_the_ceiling_of_published_means_is_what_the_truth_reaches():
    """Of raters who differ from item to item, 2 to 12 of each; the interval draws whole groups."""
    truths, ceilings = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth = np.repeat(rng.normal(size=30), 10) + 0.3 * rng.normal(size=300)
        scores = truth + 1.2 * rng.normal(size=(12, 300))
        scores[np.arange(12)[:, None] >= rng.integers(2, 13, 300)] = NAN
        found = reliability(published(scores), "d", groups_of(300, 10), resamples=200 if seed == 0 else 0)
        ceilings.append(found["panel_mean"])
        truths.append(np.corrcoef(truth, np.nanmean(scores, 0))[0, 1])
    assert np.mean([ceiling["value"] for ceiling in ceilings]) == pytest.approx(np.mean(truths), abs=0.005)
    assert ceilings[0]["low"] < truths[0] < ceilings[0]["high"]
    alone = reliability(published(scores), "d", groups_of(300), resamples=200)["panel_mean"]
    whole = reliability(published(scores), "d", groups_of(300, 10), resamples=200)["panel_mean"]
    assert whole["high"] - whole["low"] > 1.2 * (alone["high"] - alone["low"])


def test_means_that_say_nothing_have_no_ceiling():
    noise = np.random.default_rng(1).normal(size=(3, 40))
    table = published(noise - noise.mean(0))
    found = reliability(table, "d", groups_of(40), resamples=0)["panel_mean"]
    assert (found["value"], found["reason"]) == (None, "the published means vary no more than their standard errors")
    equal = reliability(table.assign(score=3.0), "d", groups_of(40), resamples=0)["panel_mean"]
    assert (equal["value"], equal["reason"]) == (None, "fewer than 3 items, or all means are equal")
