"""Scores drawn by lot, and one rater against the others."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.judges import OK, check_score_table
from empathy_judge.eval.judges.baselines.simple import ConstantJudge, HumanJudge, RandomJudge, without_raters
from scipy.stats import chisquare, spearmanr

STEPPED, FREE = Dimension("empathy", 1, 5, 1), Dimension("warmth", -2, 3)


def test_random_scores_depend_on_the_pair_alone(delivered):
    judge = RandomJudge([STEPPED, FREE], seed=3)
    table = judge.score(delivered.pairs)
    check_score_table(table, judge, delivered.pairs)
    whole = table.set_index(["pair_id", "dimension"])["score"]
    part = judge.score(delivered.subset("test").pairs[::-1]).set_index(["pair_id", "dimension"])["score"]
    pd.testing.assert_series_equal(part, whole.loc[part.index])
    other = RandomJudge([STEPPED, FREE], seed=4).score(delivered.pairs)["score"]
    assert (other.to_numpy() != table["score"].to_numpy()).mean() > 0.7


def test_random_scores_are_uniform_on_the_scale(delivered):
    pairs = [dataclasses.replace(delivered.pairs[0], pair_id=f"x{n}") for n in range(5000)]
    table = RandomJudge([STEPPED, FREE]).score(pairs)
    steps = Counter(table.loc[table["dimension"] == "empathy", "score"])
    assert set(steps) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert chisquare(list(steps.values())).pvalue > 0.01
    free = table.loc[table["dimension"] == "warmth", "score"]
    assert free.between(-2, 3).all()
    assert free.mean() == pytest.approx(0.5, abs=0.06)
    assert free.std() == pytest.approx(5 / 12**0.5, abs=0.05)
    assert abs(spearmanr(free, table.loc[table["dimension"] == "empathy", "score"])[0]) < 0.05


def test_a_rater_cannot_be_asked_again(make_dataset):
    dataset = make_dataset(noise=1.0)
    judge, others = HumanJudge(dataset, "rater-2"), without_raters(dataset, ["rater-2"])
    found = evaluate(judge, others, split="test", checks=("response_only",), resamples=20).report
    assert found.checks["response_only"]["empathy"].spearman.value is None
    own = found.dimensions["empathy"]
    assert (own.n_raters, own.n_ratings, own.n_items) == (3, 180, 60)


def test_what_a_rater_did_not_rate_has_a_status(delivered):
    ratings = delivered.ratings
    gone = (ratings["rater_id"] == "rater-0") & ratings["pair_id"].isin(["p0", "p5"])
    judge = HumanJudge(dataclasses.replace(delivered, ratings=ratings[~gone]), "rater-0")
    table = judge.score(delivered.pairs).set_index(["pair_id", "dimension"])
    assert table.loc[("p0", "empathy"), "status"] == "not rated by this rater"
    assert table.loc[("p1", "warmth"), "status"] == "not rated by this rater"
    assert table.loc[("p1", "empathy"), "status"] == OK
    given = ratings.set_index(["rater_id", "pair_id", "dimension"]).loc[("rater-0", "p1", "empathy"), "score"]
    assert table.loc[("p1", "empathy"), "score"] == given
    assert (table["status"] == OK).sum() == 72 - 2 + 48 - 2


def test_raters_take_their_preferences_along(delivered):
    preferences = pd.DataFrame(
        [("p0", "p1", f"rater-{rater}", "empathy", 1.0) for rater in range(3)],
        columns=["chosen_id", "rejected_id", "rater_id", "dimension", "strength"],
    )
    left = without_raters(dataclasses.replace(delivered, preferences=preferences), ["rater-0", "rater-2"])
    assert left.preferences["rater_id"].tolist() == ["rater-1"]
    assert set(left.ratings["rater_id"]) == {"rater-1"}
    assert len(left.ratings) == len(delivered.ratings) / 3
    assert (left.card, left.pairs) == (delivered.card, delivered.pairs)
    assert len(delivered.ratings) == 3 * len(left.ratings)  # untouched


def test_the_constant_judge_gives_the_mean_of_the_pairs_it_was_fitted_to(make_dataset):
    dataset = make_dataset(noise=0.3, dimensions=("empathy", "warmth"))
    train = dataset.subset("train")
    judge = ConstantJudge.fitted_to(train)
    table = judge.score(dataset.subset("test").pairs)
    assert judge.dimensions == ("empathy", "warmth")
    assert len(table) == 2 * 60
    expected = train.mean_scores().mean()
    for dimension in judge.dimensions:
        scores = table.loc[table["dimension"] == dimension, "score"]
        np.testing.assert_allclose(scores, expected[dimension])
