"""What is said in words of judges of known quality."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from empathy_judge.eval.agreement_table import measure_agreement
from empathy_judge.eval.frame import read_frame
from empathy_judge.eval.judge_report import verdict
from empathy_judge.eval.rendering import sentences
from empathy_judge.eval.report.others import TableDimension
from empathy_judge.eval.statistics.agreement import Statistic
from empathy_judge.eval.statistics.like_for_like import LikeForLike, Verdict

from .conftest import long_table

N, PER_GROUP = 300, 3
NONE = Statistic(None, n=9, reason="too few")

NEAR_0 = Statistic(0.3, -0.1, 0.6, n=9)


def beside(verdict: Verdict) -> LikeForLike:
    some = Statistic(0.1, n=9)
    return LikeForLike(some, some, some, some, some, None, verdict, 1, 2, 1, {})


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> TableDimension:
    """Six people of equal noise, and judges from nothing to everything, measured as a user would."""
    rng = np.random.default_rng(0)
    truth = rng.normal(3, 1, N)
    people = {f"person {number}": truth + rng.normal(0, 1.0, N) for number in range(6)}
    panel = np.mean(list(people.values()), axis=0)
    judges = {
        "constant": np.full(N, 3.0), "random": rng.normal(size=N), "nan": np.full(N, np.nan), "perfect": panel,
        "truth": truth, "another person": truth + rng.normal(0, 1.0, N), "deaf": truth + rng.normal(0, 4.0, N),
        "good": truth + rng.normal(0, 0.4, N), "backwards": -truth,
    }  # fmt: skip
    path: Path = tmp_path_factory.mktemp("verdict") / "scores.csv"
    long_table(people | judges, "warmth", group=np.arange(N) // PER_GROUP).to_csv(path, index=False)
    found = measure_agreement(read_frame(path, {}), list(judges), resamples=200)
    return found.dimensions[0]


@pytest.mark.parametrize(
    ("judge", "kind", "words"),
    [
        ("constant", "constant", "No verdict on agreement: the judge gives every item the same score"),
        ("random", "worse_than_one_rater", "Worse than one rater, not clearly better than chance: "),
        ("nan", "no_scores", "No verdict: no item has both a rating and a usable score."),
        ("perfect", "beyond_possible", "It has most likely seen these ratings."),
        ("truth", "better_than_one_rater", "Better than one rater: with the mean of the other raters 0.9"),
        ("another person", "not_told_apart_from_one_rater", "(300 items, 6 raters, 100 groups). Spearman with the"),
        ("deaf", "worse_than_one_rater", "Worse than one rater: with the mean of the other raters 0.1"),
        ("good", "better_than_one_rater", "Better than one rater: with the mean of the other raters 0.8"),
        ("backwards", "against", "Orders items against people: Spearman with the panel mean \N{MINUS SIGN}0."),
    ],
)
def test_known_judges(table, judge, kind, words):
    found = table.judges[judge].verdict
    assert found.kind == kind, found
    assert words in found.text
    assert (found.tone == "good") == (kind == "better_than_one_rater")


def test_ranking_of_known_judges(table):
    ranked = [(own.judge, own.cluster) for own in table.ranking.judges]
    assert ranked[:4] == [("perfect", 1), ("truth", 2), ("good", 3), ("another person", 4)]
    assert [name for name, _ in ranked[4:7]] == ["deaf", "random", "backwards"]
    assert {own.judge: own.reason for own in table.ranking.judges if own.cluster is None} == {
        "constant": "the judge scores are constant",
        "nan": f"0 items, {N} dropped as NaN",
    }
    effective = {name: own.like_for_like.effective_raters.value for name, own in table.judges.items()}
    assert effective["another person"] == pytest.approx(1, abs=0.4)
    assert effective["good"] == pytest.approx(1 / 0.4**2, abs=2)
    assert effective["backwards"] == 0


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"spearman": NONE}, "undefined"),
        ({"like_for_like": beside("too few items to tell")}, "too_few_items_to_tell"),
        ({"like_for_like": beside("not told apart from one rater")}, "not_told_apart_from_one_rater"),
        # Neither chance nor one rater is excluded
        ({"like_for_like": beside("not told apart from one rater"), "spearman": NEAR_0}, "too_few_items_to_tell"),
    ],
)
def test_what_cannot_be_told(table, changes, kind):
    own = table.judges["good"]
    correlation, compared = changes.get("spearman", own.spearman), changes.get("like_for_like", own.like_for_like)
    found = verdict(own.n_items, own.judge, correlation, own.share_of_panel_ceiling, compared)
    assert (found.kind, found.tone) == (kind, "none")
    assert "like_for_like" not in changes or "(1 item, 2 raters, 1 group)" in found.text


def test_few_raters_are_named_where_there_is_an_interval(table):
    own = table.judges["good"].like_for_like
    assert sentences("few_raters", found=own) == []
    few = sentences("few_raters", found=replace(own, n_raters=3))
    assert few == ["3 raters: the interval beside one rater holds for these, less surely for others."]
    assert sentences("few_raters", found=replace(own, n_raters=3, difference=NONE)) == []


def test_a_narrow_spread_is_not_said_to_lie_in_the_middle():
    """A judge that gives 5 to nearly everything has it too."""
    coverage = {"pairs": 9, "rated": 9, "scored": 9, "missing": 0, "failed": {}, "out_of_scale": 0}
    beside = {"difference": {"low": None}, "n_raters": 3}
    top = {"coverage": coverage, "judge": {"mean": 4.9, "sd": 0.1}, "human": {"mean": 3.0, "sd": 1.0}}
    assert sentences("warnings", dimension={**top, "like_for_like": beside}) == [
        "The judge's scores spread 10 % as much as people's."
    ]
