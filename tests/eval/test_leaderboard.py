"""Boards of systems from tables with a known order: what they say, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from empathy_judge import leaderboard
from empathy_judge.core.errors import UserError
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.leaderboard import failures
from empathy_judge.eval.report.others import StressReport, StressResult
from empathy_judge.eval.statistics.agreement import Statistic

from .conftest import only, table
from .test_system_scores import rated

Change = Callable[[pd.DataFrame], pd.DataFrame]


def test_the_gate_wants_a_certain_loss_of_more_than_the_margin(write_scores):
    found = leaderboard(write_scores(table({"v1": 3.5, "v2": 3.0, "v3": 3.49})), baseline="v1")
    (line,) = failures(found.report, 0.1)
    assert line.startswith("warmth: v2 is worse than v1 by 0.5")
    assert failures(found.report, 0.9) == []
    few = leaderboard(write_scores(table({"v1": 3.5, "v2": 3.6}, contexts=4)), baseline="v1")
    (line,) = failures(few.report, 0.1)
    assert "is not told: 4 shared groups" in line


def test_the_order_of_rows_does_not_show(write_scores, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5, "v3": 3.2})
    ratings = Path(rated(rows, 10, {"v1": 0.1, "v2": -0.2, "v3": 0.0}, tmp_path / "ratings.csv"))
    given, boards = pd.read_csv(ratings), []
    for seed in range(4):
        given.sample(frac=1, random_state=seed).to_csv(ratings, index=False)
        boards.append(only(leaderboard(write_scores(rows.sample(frac=1, random_state=seed)), ratings=ratings)))
    assert boards == boards[:1] * 4


def test_a_baseline_that_nobody_is_and_a_scale_of_others(write_scores, rated_dataset):
    rows = table({"v1": 3.0, "v2": 3.5})
    with pytest.raises(UserError, match="baseline 'v7': no such system; expected 'v1', 'v2'"):
        leaderboard(write_scores(rows), baseline="v7")
    with pytest.raises(UserError, match="warmth from 0 to 10; the judge scores from 1 to 5"):
        leaderboard(write_scores(rows), ratings=rated_dataset)


@pytest.fixture
def rated_dataset(tmp_path, make_tone) -> Path:
    """A pair dataset whose raters used another scale."""
    import soundfile
    from empathy_judge.cli import main

    soundfile.write(tmp_path / "r.wav", make_tone(0.5, 200, 0.1), 16_000)
    (tmp_path / "pairs.csv").write_text("pair_id,response_audio\nv1/0,r.wav\n")
    (tmp_path / "given.csv").write_text("pair_id,rater_id,dimension,score\nv1/0,ann,warmth,7\n")
    words = ["import", "table", str(tmp_path / "pairs.csv"), "--ratings", str(tmp_path / "given.csv")]
    assert main([*words, "--dimension", "warmth=0:10", "--out", str(tmp_path / "data")]) == 0
    return tmp_path / "data"


@pytest.mark.parametrize("noise", [0.3, None])
def test_a_report_says_what_the_order_is_worth_and_a_judge_without_worth_is_refused(
    noise, write_scores, make_dataset, make_tone_judge, tmp_path
):
    judge = "constant" if noise is None else make_tone_judge(noise=noise)
    evaluate(judge, make_dataset(noise=0.3), split="test", resamples=50, checks=()).save(tmp_path / "report")
    rows = table({"v1": 3.0, "v2": 3.5}).rename(columns=lambda name: name.replace("warmth", "empathy"))
    found = leaderboard(write_scores(rows, judge=None), report=tmp_path / "report", baseline="v1")
    board = only(found)
    if noise is None:
        assert board.text[0].startswith("No order is stated: this judge cannot carry one, as its agreement")
        assert [row.cluster for row in board.systems] == [None, None]
        assert (board.differences[0].better, board.against[0].verdict) == (False, "cannot be told")
        assert "its agreement with people" in failures(found.report, 5.0)[0]
    else:
        assert board.refused is None
        assert f"its Spearman with simulated raters is {board.measured.spearman.value:.2f}" in board.text[1]
        assert board.systems[1].cluster == 2


def test_what_raises_the_scores_of_the_judge_is_named(write_scores, tmp_path):
    result = {"gain": Statistic(0.4, n=20), "raised": Statistic(0.6, n=20), "caught": 0.0, "failed": 0}
    results = {
        name: StressResult(**result, verdict=verdict, reason=None)
        for name, verdict in (("louder", "rises"), ("twice", "holds"))
    }
    found = StressReport(
        schema_version=3, judge="j", split="test", n_pairs=20, left_out={}, signature="judge:j", unit="standard error",
        raised=("louder",), text="", dimensions={"warmth": results},
    )  # fmt: skip
    (tmp_path / "stress.json").write_text(json.dumps(found.as_json()))
    board = only(leaderboard(write_scores(table({"v1": 3.0, "v2": 3.5})), stress=tmp_path))
    assert board.raised_by == ("louder",)
    assert any(sentence.startswith("These raise the judge's scores and should not: louder.") for sentence in board.text)
    of_calm = table({"v1": 3.0, "v2": 3.5}).rename(columns=lambda name: name.replace("warmth", "calm"))
    with pytest.raises(UserError, match=r"stress.json: measures 'warmth'; expected 'calm'"):
        leaderboard(write_scores(of_calm), stress=tmp_path)
