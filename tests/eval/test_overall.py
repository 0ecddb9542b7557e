"""Judges over all dimensions of a table: against computations by hand, simulations, and real ratings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.eval.agreement_table import measure_agreement
from empathy_judge.eval.frame import read_frame
from empathy_judge.eval.views import agreement_views
from scipy.stats import spearmanr

from ..conftest import output_of
from .conftest import assert_near, long_table, printed_at

PEOPLE = ("ann", "bob", "cy")


def ratings(items: int, seed: int, noise: dict[str, float], dataset: str, dimensions: int) -> pd.DataFrame:
    """Three people and judges of known noise on the same items in several dimensions."""
    rng = np.random.default_rng(seed)
    parts = []
    for dimension in range(dimensions):
        truth = rng.normal(size=items)
        spreads = {**dict.fromkeys(PEOPLE, 0.7), **noise}
        scores = {name: truth + own * rng.normal(size=items) for name, own in spreads.items()}
        parts.append(long_table(scores, f"d{dimension}", dataset=dataset))
    return pd.concat(parts)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """Two datasets of 30 and 40 items, two and three dimensions, a good, a nearly as good and a bad judge."""
    path = tmp_path_factory.mktemp("toy") / "scores.csv"
    noise = {"good": 0.5, "near": 0.55, "bad": 3.0}
    pd.concat([ratings(30, 1, noise, "a", 2), ratings(40, 2, noise, "b", 3)]).to_csv(path, index=False)
    return path


def found_in(path: Path, judges: tuple[str, ...] = ("good", "near", "bad"), **options: Any) -> Any:
    return measure_agreement(read_frame(path, {}), judges, **{"resamples": 300, **options})


@pytest.fixture(scope="module")
def found(toy) -> Any:
    return found_in(toy)


@pytest.fixture(scope="module")
def overall(found) -> Any:
    return found.overall


def by_hand(frame: pd.DataFrame, judge: str) -> list[float]:
    """Spearman with the mean of the people, per dataset and dimension."""
    found = []
    for _, own in frame.groupby(["dataset", "dimension"]):
        wide = own.pivot(index="item", columns="annotator", values="score")
        found.append(spearmanr(wide[judge], wide[list(PEOPLE)].mean(axis=1))[0])
    return found


def beside_by_hand(frame: pd.DataFrame, judge: str) -> tuple[float, float]:
    """Mean Spearman of the judge, and of each person, with the mean of the other two."""
    found = []
    for _, own in frame.groupby(["dataset", "dimension"]):
        wide = own.pivot(index="item", columns="annotator", values="score")
        for person in PEOPLE:
            others = wide[[name for name in PEOPLE if name != person]].mean(axis=1)
            found.append([spearmanr(wide[name], others)[0] for name in (judge, person)])
    one, other = np.mean(found, axis=0)
    return float(one), float(other)


def test_the_mean_over_dimensions_beside_people(toy, found):
    frame, overall = pd.read_csv(toy), found.overall
    report = {judge.judge: judge for judge in overall.judges}
    for name, own in report.items():
        assert own.spearman.value == pytest.approx(np.mean(by_hand(frame, name)), abs=1e-12)
        assert own.n_dimensions == own.spearman.n == 5
        expected = own.spearman.value / overall.people.panel_mean.value
        assert_near(own.share_of_panel_ceiling, expected, abs=1e-12)
        beside, judge, person = own.like_for_like, *beside_by_hand(frame, name)
        assert (beside.judge.value, beside.rater.value) == pytest.approx((judge, person), abs=1e-12)
        assert beside.difference.value == pytest.approx(judge - person, abs=1e-12)
        assert beside.ratio.value == pytest.approx(judge / person, abs=1e-12)
        assert (beside.n_items, beside.n_raters, beside.n_groups) == (70, 3, 70)
    people = [one.people.spearman.value for one in found.dimensions]
    assert overall.people.spearman.value == pytest.approx(np.mean(people), abs=1e-12)
    assert (overall.n_dimensions, overall.n_groups) == (5, 70)


def test_differences_are_paired_and_corrected(toy, overall):
    """The same draws by hand: items of each dataset with replacement, once for all of its dimensions."""
    frame = pd.read_csv(toy)
    pairs = {(own.first, own.second): own for own in overall.comparisons}
    assert list(pairs) == [("good", "near"), ("good", "bad"), ("near", "bad")]
    difference = pairs["good", "near"].difference
    assert difference.value == pytest.approx(np.mean(by_hand(frame, "good")) - np.mean(by_hand(frame, "near")))
    rng = np.random.default_rng(7)
    wide = frame.pivot_table(index=["dataset", "item"], columns=["dimension", "annotator"], values="score")
    drawn = []
    for _ in range(100):
        parts = []
        for _, own in wide.groupby(level="dataset"):
            own = own.dropna(axis=1).iloc[rng.integers(len(own), size=len(own))]
            for dimension in own.columns.get_level_values("dimension").unique():
                scores = own[dimension]
                human = scores[list(PEOPLE)].mean(axis=1)
                parts.append(scores["good"].corr(human, "spearman") - scores["near"].corr(human, "spearman"))
        drawn.append(np.mean(parts))
    assert difference.high - difference.low == pytest.approx(np.ptp(np.percentile(drawn, [2.5, 97.5])), rel=0.25)
    p = sorted(own.p for own in pairs.values())
    assert p[:2] == [pytest.approx(2 / 301)] * 2
    adjusted = [pairs["good", "bad"].p_adjusted, pairs["near", "bad"].p_adjusted]
    assert adjusted == [pytest.approx(6 / 301)] * 2
    assert pairs["good", "near"].p_adjusted == pairs["good", "near"].p > 0.05


def test_the_table_says_p_to_the_next_judge(found):
    table = printed_at(120, agreement_views(found)).partition("judges over 5 dimensions")[2]
    rows = [line.split() for line in table.partition("Over 5 dimensions")[0].splitlines()]
    last = {row[0]: row[-1] for row in rows if row}
    assert last["near"] == "0.020"
    assert float(last["good"]) > 0.05
    assert last["bad"].endswith("]")  # nobody is next


def test_the_answer_in_words(overall):
    assert [(own.judge, own.cluster) for own in overall.judges] == [("good", 1), ("near", 1), ("bad", 2)]
    best, *each = overall.text
    assert best.startswith("Over 5 dimensions good is highest (mean Spearman 0.8")
    assert "clearly better than bad (by 0.61 [" in best
    assert "but not clearly better than near (by" in best
    assert [sentence.split()[0] for sentence in each] == ["good", "near", "bad"]
    assert each[0].startswith("good is not told apart from one person: with the mean of the other raters 0.79, one of")
    assert "worse than one person" in each[2]
    assert "(70 items, 3 raters, 70 groups) and reaches" in each[2]


def test_items_that_a_judge_left_out_are_left_out_of_its_comparisons(toy, tmp_path):
    """A judge without one dataset is compared on the other; its mean over fewer dimensions has no place among those of
    all."""
    frame = pd.read_csv(toy)
    gone = (frame["annotator"] == "near") & (frame["dataset"] == "b")
    some = (frame["annotator"] == "good") & frame["item"].isin(["i0", "i1", "i2", "i3"])
    frame.loc[gone | some, "score"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = found_in(tmp_path / "t.csv", resamples=10).overall
    report = {judge.judge: judge for judge in found.judges}
    kept = frame.loc[~frame["item"].isin(["i0", "i1", "i2", "i3"])]
    here = kept.loc[kept["dataset"] == "a"]
    assert report["good"].spearman.value == pytest.approx(np.mean(by_hand(kept, "good")))
    assert (report["near"].n_dimensions, report["near"].spearman.dropped) == (2, 3)
    own = found.comparisons[0]
    assert (own.first, own.second, own.n_dimensions) == ("good", "near", 2)
    assert own.difference.value == pytest.approx(np.mean(by_hand(here, "good")) - np.mean(by_hand(here, "near")))
    assert [judge.judge for judge in found.judges if judge.cluster is not None] == ["good", "bad"]
    assert found.text[0].startswith("Over 5 dimensions good is highest")
    assert found.text[-1] == "near has no rank: its mean is not over the dimensions of the others."


def test_one_dimension_or_no_judge_has_nothing_over_all_and_a_constant_judge_no_rank(toy, tmp_path):
    frame = pd.read_csv(toy)
    frame.loc[(frame["dataset"] == "a") & (frame["dimension"] == "d0")].to_csv(tmp_path / "t.csv", index=False)
    assert found_in(tmp_path / "t.csv", resamples=10).overall is None
    assert found_in(toy, (), resamples=0).overall is None
    frame.loc[frame["annotator"] == "bad", "score"] = 2.0
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = found_in(tmp_path / "t.csv", resamples=10).overall
    assert found.judges[-1].cluster is None
    assert found.text[-1] == "bad has no rank: the judge scores are constant."
    json.dumps(found.as_json(), allow_nan=False)


# ---------------------------------------------------------------- the command


def test_compare_a_table_prints_the_answer(toy, capsys):
    words = ["compare", "--table", str(toy), "good", "bad", "--exclude", "near", "--resamples", "60"]
    printed = " ".join(output_of(capsys, *words).split())
    assert "Over 5 dimensions good agrees best with people" in printed
    assert "judges over 5 dimensions (70 groups)" in printed
    found = json.loads(output_of(capsys, *words, "--json"))
    assert found["left_out"] == ["near"]
    same = json.loads(
        output_of(
            capsys, "agreement", toy, "--judges", "good", "bad", "--exclude", "near", "--resamples", "60", "--json"
        )
    )
    assert {**found, "command": ""} == {**same, "command": ""}
