"""Boards of systems from tables with a known order: their order, clusters, wins and baselines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from empathy_judge import leaderboard
from empathy_judge.core.errors import UserError
from scipy import stats

from .conftest import only, table
from .test_system_scores import rated


def test_the_judge_alone_orders_systems_in_clusters(write_scores):
    rows = table({"v1": 3.0, "v2": 3.5, "v3": 3.52})
    board = only(leaderboard(write_scores(rows), baseline="v1"))
    assert [(row.system, row.cluster) for row in board.systems] == [("v3", 1), ("v2", 1), ("v1", 2)]
    assert (board.source, board.n_contexts, board.n_shared, board.refused) == ("judge", 24, 24, None)
    wide = rows.pivot(index="group_id", columns="system_id", values="warmth")
    apart = wide["v2"] - wide["v1"]
    versus = {row.system: row for row in board.against}["v2"]
    assert versus.difference.value == pytest.approx(apart.mean())
    # The judge's own noise, 0.3 for each score, adds to what contexts show
    error = np.sqrt(apart.var(ddof=1) / 24 + 2 * 0.3**2 / 24)
    assert versus.difference.standard_error == pytest.approx(error)
    assert versus.difference.high - versus.difference.low == pytest.approx(2 * stats.t.ppf(0.975, 23) * error)
    assert versus.verdict == "better"
    wins = {(row.first, row.second): (row.wins, row.losses) for row in board.differences}
    assert wins["v2", "v1"] == ((apart > 0).mean(), (apart < 0).mean())
    assert board.systems[0].unlike_training == pytest.approx(1 / 24)
    text = " ".join(board.text)
    assert board.text[0].startswith("This is the opinion of the judge")
    assert "By this judge, v3 is better than v1; it is not told apart from v2. 2 of 3 pairs of systems differ" in text
    assert "3 responses of 72 are unlike" in text


def test_where_low_is_good_the_lowest_leads(write_scores):
    board = only(leaderboard(write_scores(table({"v1": 3.0, "v2": 3.5}), higher_is_better=False)))
    assert [row.system for row in board.systems] == ["v1", "v2"]
    (row,) = board.differences
    assert (row.first, row.better) == ("v1", True)
    assert row.difference.value == pytest.approx(-0.5, abs=0.2)
    assert board.against[0].verdict == "worse"


def test_ties_follow_the_preferences_of_the_judge(write_scores, tmp_path):
    path = Path(write_scores(table({"v1": 3.0, "v2": 3.3})))
    summary = path.with_name(f"{path.name}.summary.json")
    found = json.loads(summary.read_text())
    model = {"n": 50, "groups": 50, "factor": 1.0, "tie_width": 0.4, "decided_above": [None] * 6, "uses_error": True}
    found["judge"]["three_way"] = {"warmth": model}
    summary.write_text(json.dumps(found))
    board = only(leaderboard(str(path)))
    (row,) = board.differences
    lead = np.array(leaderboard(str(path)).answers.rows.pivot(index="group_id", columns="system", values="warmth"))
    lead = lead[:, 1] - lead[:, 0]
    assert board.ties
    assert row.wins == pytest.approx(stats.norm.cdf((lead - 0.4) / (0.3 * np.sqrt(2))).mean())
    assert 0.2 < 1 - row.wins - row.losses < 0.7


def test_ratings_overrule_a_judge_that_is_biased_by_system(write_scores, tmp_path):
    """The judge likes v2 by half a point; people like v1 by as much."""
    rows = table({"v1": 3.0, "v2": 3.5}, contexts=60)
    ratings = rated(rows, 15, {"v1": 0.5, "v2": -0.5}, tmp_path / "ratings.csv")
    assert only(leaderboard(write_scores(rows))).systems[0].system == "v2"
    board = only(leaderboard(write_scores(rows), ratings=ratings))
    assert (board.source, board.n_ratings, board.systems[0].system) == ("judge and ratings", 60, "v1")
    assert board.differences[0].better
    assert board.rater_noise == pytest.approx(np.sqrt(0.02))
    assert board.ratings_worth > 2
    assert board.systems[0].mean.standard_error < board.systems[0].ratings.standard_error
    assert "would have needed" in " ".join(board.text)
    assert board.text[0].startswith("Means and differences are those of people, by 60 ratings of 30 responses")


def test_contexts_that_only_some_answer_are_left_out_and_said(write_scores):
    rows = table({"v1": 3.0, "v2": 3.5})
    board = only(
        leaderboard(write_scores(rows.loc[~((rows["system_id"] == "v2") & rows["group_id"].isin(["c0", "c1"]))]))
    )
    assert (board.n_contexts, board.n_shared, board.differences[0].difference.n_groups) == (24, 22, 22)
    assert any("those that two share, 22 or more" in sentence for sentence in board.text)


def test_few_contexts_have_no_interval(write_scores):
    board = only(leaderboard(write_scores(table({"v1": 3.0, "v2": 3.5}, contexts=4)), baseline="v1"))
    assert (board.systems[0].cluster, board.differences[0].difference.low) == (None, None)
    assert any("No order can be stated: 4 shared groups, at least 5 needed" in sentence for sentence in board.text)
    assert board.against[0].verdict == "cannot be told"


def test_equal_scores_tell_nothing_apart(write_scores):
    board = only(leaderboard(write_scores(table({"v1": 3.0, "v2": 3.5}).assign(warmth=2.0))))
    assert [row.cluster for row in board.systems] == [1, 1]
    assert not board.differences[0].better
    assert any("All means are equal" in sentence for sentence in board.text)


def test_a_lead_of_longer_responses_is_pointed_out(write_scores):
    rows = table({"v1": 3.0, "v2": 3.5})
    rows["seconds"] = 2 * rows["warmth"]  # half a point for each second, within systems too
    board = only(leaderboard(write_scores(rows)))
    (row,) = board.differences
    assert row.by_length == pytest.approx(row.difference.value)
    assert any("v2 would lead v1 by" in sentence and "100 % of the difference" in sentence for sentence in board.text)
    assert only(leaderboard(write_scores(rows.assign(seconds=2.0)))).differences[0].by_length == 0.0


def test_a_baseline_without_a_score_is_refused(write_scores):
    rows = table({"v1": 3.0, "v2": 3.5, "v3": 3.2})
    rows.loc[rows["system_id"] == "v1", "warmth"] = None
    with pytest.raises(UserError, match="warmth: baseline 'v1' has no score; expected one of 'v2', 'v3'"):
        leaderboard(write_scores(rows), baseline="v1")
    board = only(leaderboard(write_scores(rows)))
    assert [row.system for row in board.systems] == ["v2", "v3"]
    assert any("24 responses of 72 had no score" in sentence for sentence in board.text)
