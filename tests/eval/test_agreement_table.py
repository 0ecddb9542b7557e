"""People and judges on plain tables: against the plain statistics, odd judges, and published values of real ratings."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.eval.agreement_table import measure_agreement
from empathy_judge.eval.frame import Frame, read_frame
from empathy_judge.eval.report.others import TableDimension, TableReport
from empathy_judge.eval.statistics.agreement import STATISTICS, kendall, pearson, spearman, weighted_kappa

from ..conftest import output_of, real_data
from .conftest import assert_near, long_table
from .statistics.conftest import reliability

HEADER = "item,annotator,dimension,score"
PEOPLE = ("ann", "bob", "cy")
N_ITEMS, GROUP_SIZE, N_SYSTEMS = 40, 4, 4


def made(missing: float = 0.0) -> pd.DataFrame:
    """Three people and judges of known quality on forty items in groups of four, made by four systems."""
    rng = np.random.default_rng(5)
    truth = rng.normal(3, 1, N_ITEMS) + np.arange(N_ITEMS) % N_SYSTEMS / 2
    rounded = {name: np.clip(np.round(truth + rng.normal(0, 0.7, N_ITEMS)), 1, 7) for name in PEOPLE}
    scores = {
        **{name: np.where(rng.random(N_ITEMS) < missing, np.nan, own) for name, own in rounded.items()},
        "perfect": np.mean(list(rounded.values()), axis=0),
        "constant": np.full(N_ITEMS, 3.0),
        "silent": np.full(N_ITEMS, np.nan),
        "half": np.where(np.arange(N_ITEMS) < N_ITEMS // 2, truth, np.nan),
    }
    groups, systems = (np.arange(N_ITEMS) // GROUP_SIZE).astype(str), (np.arange(N_ITEMS) % N_SYSTEMS).astype(str)
    return long_table(scores, "warmth", group=groups, system=systems)


def table_of_scores(tmp_path: Path, frame: pd.DataFrame) -> Frame:
    path = tmp_path / "scores.csv"
    frame.to_csv(path, index=False)
    return read_frame(path, {})


def measured(tmp_path: Path, frame: pd.DataFrame, judges: Sequence[str] = (), **options: Any) -> Any:
    """The only dimension of a table."""
    found = measure_agreement(table_of_scores(tmp_path, frame), judges, **{"resamples": 100, **options})
    (one,) = TableReport.model_validate_json(json.dumps(found.as_json(), allow_nan=False)).dimensions
    return one


def wide(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.pivot(index="item", columns="annotator", values="score")


JUDGES = ("perfect", "constant", "silent", "half")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Any:
    """What is measured on `made()`."""
    return measured(tmp_path_factory.mktemp("whole"), made(), JUDGES)


# ---------------------------------------------------------------- statistics


def test_people_are_measured_as_the_raters_of_a_dataset_and_judges_with_their_mean(tmp_path):
    frame = made(missing=0.2)
    one = measured(tmp_path, frame, JUDGES)
    people = one.people
    own = frame.loc[frame["annotator"].isin(PEOPLE)].dropna()
    ratings = own.rename(columns={"item": "pair_id", "annotator": "rater_id"})
    scored = frame.dropna(subset="score")
    groups = dict(zip(scored["item"], scored["group"], strict=True))
    expected = reliability(ratings, "warmth", groups, resamples=100)
    assert people.as_json() == expected
    assert (people.n_raters, people.n_groups, people.n_ratings) == (3, 10, len(own))
    scores = wide(frame)
    human = scores[list(PEOPLE)].mean(axis=1)
    rated = human.notna()
    for judge in ("perfect", "half"):
        found = one.judges[judge]
        both = rated & scores[judge].notna()
        assert (found.n_items, found.n_unscored) == (both.sum(), rated.sum() - both.sum())
        for name, statistic in STATISTICS.items():
            assert_near(
                getattr(found, name), statistic(scores[judge][both].to_numpy(), human[both].to_numpy()), abs=1e-12
            )


def test_the_ceiling_of_a_judge_stands_on_its_own_items(whole, tmp_path):
    half, perfect = whole.judges["half"], whole.judges["perfect"]
    assert perfect.ceiling == whole.people.spearman
    assert perfect.panel_ceiling == whole.people.panel_mean
    frame = made()
    first = frame.loc[(frame["item"].str[1:].astype(int) < N_ITEMS // 2) & frame["annotator"].isin(PEOPLE)]
    alone = measured(tmp_path, first).people.spearman
    assert half.ceiling.value == pytest.approx(alone.value, abs=1e-12)
    assert half.ceiling.value != perfect.ceiling.value
    for judged in (half, perfect):
        share = judged.spearman.value / judged.panel_ceiling.value
        assert judged.share_of_panel_ceiling.value == pytest.approx(share, abs=1e-12)
        assert judged.like_for_like.rater.value == pytest.approx(judged.ceiling.value, abs=1e-12)


def test_perfect_constant_and_silent_judges(whole):
    judges = whole.judges
    assert whole.missing_scores == {"silent": N_ITEMS, "half": N_ITEMS // 2}
    assert judges["perfect"].spearman.value == pytest.approx(1.0)
    assert judges["perfect"].like_for_like.ratio.value > 1
    assert judges["perfect"].mae.value == pytest.approx(0.0, abs=1e-12)
    assert judges["constant"].spearman.value is None
    assert judges["constant"].spearman.reason == "the judge scores are constant"
    reason = "no rater can be compared: this rater, the judge or the mean of the others is constant"
    assert judges["constant"].like_for_like.difference.reason == reason
    assert judges["constant"].mae.value > 0.5
    assert judges["silent"].n_unscored == N_ITEMS
    assert (judges["silent"].mae.value, judges["silent"].mae.reason) == (None, "0 items")


@pytest.mark.parametrize("distance", ["scores", "ranks"])
def test_pairs_stand_on_common_items(tmp_path, distance):
    frame = made(missing=0.3)
    one = measured(tmp_path, frame, JUDGES, pairs=True, kappa_weights=distance)
    assert len(one.pairs) == 7 * 6 / 2
    scores = wide(frame)
    pair = next(pair for pair in one.pairs if (pair.first, pair.second) == ("ann", "half"))
    both = scores[["ann", "half"]].dropna()
    x, y = both["ann"].to_numpy(), both["half"].to_numpy()
    assert pair.n_items == len(both) < N_ITEMS / 2
    expected = {
        "spearman": spearman(x, y),
        "pearson": pearson(x, y),
        "kendall": kendall(x, y),
        "linear_kappa": weighted_kappa(x, y, "linear", distance),
        "quadratic_kappa": weighted_kappa(x, y, "quadratic", distance),
    }
    for name, statistic in expected.items():
        assert getattr(pair, name).value == pytest.approx(statistic, abs=1e-12), name
    constant = next(pair for pair in one.pairs if pair.second == "constant")
    assert constant.quadratic_kappa.value is None
    assert constant.quadratic_kappa.reason == "the scores by constant are constant"


def test_intervals_draw_groups(tmp_path):
    """Four equal items in a group tell no more than one of them."""
    frame = made()
    one = frame.loc[(frame["item"].str[1:].astype(int) % GROUP_SIZE == 0) & frame["annotator"].isin(["ann", "bob"])]
    copies = [one.assign(item=one["item"] + str(copy)) for copy in range(4)]
    grouped = measured(tmp_path, pd.concat(copies), pairs=True).pairs[0].spearman
    single = measured(tmp_path, one, pairs=True).pairs[0].spearman
    free = measured(tmp_path, pd.concat(copies).drop(columns="group"), pairs=True).pairs[0].spearman
    assert (grouped.low, grouped.high) == (pytest.approx(single.low), pytest.approx(single.high))
    assert free.high - free.low < 0.8 * (grouped.high - grouped.low)


def test_an_item_without_a_system_does_not_join_the_system_that_its_id_names(tmp_path):
    frame = made()
    frame["system"] = [None if item in ("i0", "i1") else "i0" for item in frame["item"]]
    found = measured(tmp_path, frame, ["perfect"], cluster="system").judges["perfect"]
    assert found.spearman.reason == "no interval: 3 groups, at least 5 needed"  # two items, and the system i0


def test_kendall_of_very_many_items_has_no_interval(tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=2001)
    frame = long_table({name: truth + rng.normal(size=2001) for name in ("ann", "j")}, "d")
    found = measured(tmp_path, frame, ["j"], resamples=20).judges["j"]
    assert found.kendall.value == pytest.approx(1 / 3, abs=0.05)  # 2 asin(r) / pi of r = 1/2
    assert found.kendall.low is None
    assert found.kendall.reason == "no interval: 2001 items; of Kendall's tau there is one up to 2000"
    assert found.spearman.low < found.spearman.value < found.spearman.high
    fewer = measured(tmp_path, frame.loc[frame["item"] != "i0"], ["j"], resamples=20).judges["j"]
    assert fewer.kendall.low < fewer.kendall.value < fewer.kendall.high


def test_the_same_item_of_two_datasets_is_two_items(tmp_path):
    frame = made().drop(columns=["group", "system"])
    other = frame.assign(dataset="b", score=8 - frame["score"])
    table = table_of_scores(tmp_path, pd.concat([frame.assign(dataset="a"), other]))
    found = measure_agreement(table, JUDGES, resamples=10).dimensions
    assert found[0].judges["perfect"].system_level is None
    assert [(one.dataset, one.people.n_items) for one in found] == [("a", N_ITEMS), ("b", N_ITEMS)]
    assert found[0].people.alpha["interval"].value == found[1].people.alpha["interval"].value


def test_nobody_scored_anything(tmp_path):
    one = measured(tmp_path, made().assign(score=np.nan), JUDGES, pairs=True)
    assert one.people.n_items == 0
    assert one.people.alpha["interval"].reason == "no item with at least two raters"
    assert one.judges["perfect"].spearman.reason == "0 items"
    assert one.pairs[0].spearman.reason == "0 items"


def test_one_person_has_no_ceiling(tmp_path):
    frame = made()
    judged = measured(tmp_path, frame.loc[frame["annotator"].isin(["ann", "half"])], ["half"]).judges["half"]
    assert judged.spearman.value > 0.5
    assert judged.like_for_like.ratio.value is None
    assert judged.like_for_like.ratio.reason == (
        "no rater can be compared: shares 0 items with other raters, at least 10 needed"
    )
    assert judged.verdict.kind == "no_rater_can_be_compared"


# ---------------------------------------------------------------- the table


def test_who_counts(tmp_path):
    table = table_of_scores(tmp_path, made())
    assert table.select([], ["cy"]).annotators == ("ann", "bob", "perfect", "constant", "silent", "half")
    assert table.select(["cy", "ann"], []).annotators == ("ann", "cy")
    with pytest.raises(UserError, match="--exclude leaves no annotator"):
        table.select(["ann"], ["ann"])
    with pytest.raises(UserError, match="--judges names every annotator"):
        measure_agreement(table, table.annotators)
    with pytest.raises(UserError, match="--resamples -1: expected 0 or more"):
        measure_agreement(table, [], resamples=-1)


# ---------------------------------------------------------------- published values


@pytest.fixture(scope="module")
def real() -> Path:
    return real_data("empathic_communication")


def printed(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> Sequence[TableDimension]:
    """The dimensions that the command prints for the real ratings."""
    table = [str(folder / "ratings_long.csv"), "--column", "item=conversation_id"]
    found = output_of(capsys, "agreement", *table, *words, "--resamples", "0", "--json")
    return TableReport.model_validate_json(found).dimensions


def published_alphas(folder: Path, column: int) -> dict[tuple[str, str], str]:
    """Dataset and dimension -> alpha as printed, out of the README beside the data."""
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {
        (row[0], row[1]): row[column] for row in cells if len(row) == 4 and re.fullmatch(r"-?\d\.\d{3}", row[column])
    }


def alphas(found: Sequence[TableDimension]) -> dict[tuple[str, str], str]:
    return {(one.dataset, one.dimension): f"{one.people.alpha['interval'].value:.3f}" for one in found}


@pytest.mark.long
def test_published_pairs_and_alphas_of_experts(real, capsys):
    """All 126 Spearman values and quadratic kappas of Kumar et al. (2026) to two decimals, 21 alphas to three."""
    names = {"experts": "experts_median", "llm": "gemini_2.5_pro"}
    judges = ["--judges", "crowd", *names.values(), "--exclude", "gpt_4o", "claude_3.7_sonnet"]
    found = printed(capsys, real, *judges, "--pairs", "--kappa-weights", "ranks")
    expected = published_alphas(real, 2)
    assert len(expected) == 21
    assert alphas(found) == expected
    pairs = {
        (one.dataset, one.dimension, frozenset((pair.first, pair.second))): pair for one in found for pair in one.pairs
    }
    with (real / "published_pairs_spearman_kappa.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 126
    for row in rows:
        dataset = row["Dataset"].lower().replace(" ", "_").replace("empathetic_d", "empatheticd")
        pair = frozenset(names.get(name, name) for name in ast.literal_eval(row["Annotator Pair"]))
        own = pairs[dataset, row["Dimension"], pair]
        assert own.n_items == 50
        assert f"{own.spearman.value:.2f}" == f"{float(row['Spearman Correlation']):.2f}", row
        kappa = float(row["Weighted Cohen's Kappa"])
        assert f"{own.quadratic_kappa.value:.2f}" == f"{kappa:.2f}", row


def test_published_alphas_of_models(real, capsys):
    """All 21, to three decimals."""
    expected = published_alphas(real, 3)
    assert len(expected) == 21
    assert alphas(printed(capsys, real, "--annotators", "gpt_4o", "claude_3.7_sonnet")) == expected


def test_a_judge_of_items_that_nobody_rated_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("item,annotator,score\nclip00,ann,3\nclip01,ann,4\nCLIP00,gpt,3\n")
    with pytest.raises(
        UserError, match="gpt scores none of the items that people rate, but 'CLIP00' and the like where"
    ):
        measure_agreement(read_frame(path, {}), ["gpt"], resamples=20)


def test_a_judge_of_a_dimension_that_nobody_rated_is_refused(tmp_path):
    """Means of a panel without a name of their dimension, and scores with one."""
    (tmp_path / "means.csv").write_text("item,mean,sd,n\na,1,0.5,4\nb,2,0.5,4\n")
    (tmp_path / "s.csv").write_text("item,score,dimension\na,1,calm\nb,2,calm\n")
    frame = read_frame([tmp_path / "means.csv", f"s={tmp_path / 's.csv'}"], {})
    with pytest.raises(
        UserError,
        match=r"s\.csv: s scores none of the dimensions that people rate, but 'calm' and .* have 'score'; exp",
    ):
        measure_agreement(frame, ["s"], resamples=20)
