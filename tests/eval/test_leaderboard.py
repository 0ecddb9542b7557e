"""Boards of systems from tables with a known order: what they say, and what they refuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge import leaderboard
from empathy_judge.core.errors import UserError
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.leaderboard import Leaderboard, failures
from empathy_judge.eval.report.others import StressReport, StressResult
from empathy_judge.eval.statistics.agreement import Statistic
from scipy import stats

SCALE = {"name": "warmth", "minimum": 1.0, "maximum": 5.0}
Change = Callable[[pd.DataFrame], pd.DataFrame]


def table(means: dict[str, float], contexts: int = 24, seed: int = 0) -> pd.DataFrame:
    """Scores around the means of systems, on contexts that all answer."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0, 0.5, contexts)
    rows = [
        {
            "pair_id": f"{system}/{n}", "group_id": f"c{n}", "system_id": system,
            "warmth": round(float(np.clip(mean + hard[n] + rng.normal(0, 0.2), 1, 5)), 6), "warmth_standard_error": 0.3,
            "warmth_label": "fair", "warnings": "unlike_training" if n == 0 else "", "seconds": 2.0, "status": "ok",
        }
        for system, mean in means.items()
        for n in range(contexts)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def write(tmp_path) -> Callable[..., str]:
    """Writes scores, with the summary that `score` leaves beside them unless the judge is None."""

    def write(rows: pd.DataFrame, name: str = "scores.csv", judge: str | None = "a" * 64, **facts: Any) -> str:
        path = tmp_path / name
        rows.to_csv(path, index=False)
        if judge is not None:
            identity = {"judge": judge, "backbone": "as in training"} | facts.pop("identity", {})
            out = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            said = {"dimensions": [SCALE | facts], "weights": None, "three_way": {}}
            summary = {"identity": identity, "out": out, "judge": said}
            path.with_name(f"{name}.summary.json").write_text(json.dumps(summary))
        return str(path)

    return write


def rated(rows: pd.DataFrame, contexts: int, shift: dict[str, float], path: Path) -> str:
    """Ratings by two people of the first contexts; they differ from the scores by system."""
    shown = rows.loc[rows["group_id"].isin([f"c{n}" for n in range(contexts)])]
    lines = [
        {"pair_id": row.pair_id, "rater_id": rater, "dimension": "warmth",
         "score": round(row.warmth + shift[row.system_id] + off, 6)}
        for row in shown.itertuples()
        for rater, off in (("ann", -0.1), ("bob", 0.1))
    ]  # fmt: skip
    pd.DataFrame(lines).to_csv(path, index=False)
    return str(path)


def only(found: Leaderboard):
    (board,) = found.report.boards
    return board


def test_the_judge_alone_orders_systems_in_clusters(write):
    rows = table({"v1": 3.0, "v2": 3.5, "v3": 3.52})
    board = only(leaderboard(write(rows), baseline="v1"))
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


def test_where_low_is_good_the_lowest_leads(write):
    board = only(leaderboard(write(table({"v1": 3.0, "v2": 3.5}), higher_is_better=False)))
    assert [row.system for row in board.systems] == ["v1", "v2"]
    (row,) = board.differences
    assert (row.first, row.better) == ("v1", True)
    assert row.difference.value == pytest.approx(-0.5, abs=0.2)
    assert board.against[0].verdict == "worse"


def test_ties_follow_the_preferences_of_the_judge(write, tmp_path):
    path = Path(write(table({"v1": 3.0, "v2": 3.3})))
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


def test_ratings_overrule_a_judge_that_is_biased_by_system(write, tmp_path):
    """The judge likes v2 by half a point; people like v1 by as much."""
    rows = table({"v1": 3.0, "v2": 3.5}, contexts=60)
    ratings = rated(rows, 15, {"v1": 0.5, "v2": -0.5}, tmp_path / "ratings.csv")
    assert only(leaderboard(write(rows))).systems[0].system == "v2"
    board = only(leaderboard(write(rows), ratings=ratings))
    assert (board.source, board.n_ratings, board.systems[0].system) == ("judge and ratings", 60, "v1")
    assert board.differences[0].better
    assert board.rater_noise == pytest.approx(np.sqrt(0.02))
    assert board.ratings_worth > 2
    assert board.systems[0].mean.standard_error < board.systems[0].ratings.standard_error
    assert "would have needed" in " ".join(board.text)
    assert board.text[0].startswith("Means and differences are those of people, by 60 ratings of 30 responses")


def test_a_file_for_each_system_will_do(write):
    rows = table({"v1": 3.0, "v2": 3.5})
    files = {name: write(own.drop(columns="system_id"), f"{name}.csv") for name, own in rows.groupby("system_id")}
    board = only(leaderboard(files))
    assert board.differences == only(leaderboard(write(rows))).differences
    assert board.differences == only(leaderboard([f"{name}={path}" for name, path in files.items()])).differences


def test_files_that_number_their_rows_alike_are_told_apart_unless_there_are_ratings(write, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5})
    own = {name: part.drop(columns="system_id").reset_index(drop=True) for name, part in rows.groupby("system_id")}
    numbered = {name: part.assign(pair_id=range(1, len(part) + 1)) for name, part in own.items()}
    named = {
        name: part.assign(pair_id=rows.loc[rows["system_id"] == name, "pair_id"].to_list())
        for name, part in own.items()
    }
    expected = leaderboard({name: write(part, f"named_{name}.csv") for name, part in named.items()})
    for kind, parts in {"numbered": numbered, "none": {n: p.drop(columns="pair_id") for n, p in own.items()}}.items():
        files = {name: write(part, f"{kind}_{name}.csv") for name, part in parts.items()}
        found = leaderboard(files)
        assert only(found).differences == only(expected).differences
        with pytest.raises(UserError, match=r"v\d\.csv: .*ratings could be of either.*pair_id.*or no --ratings"):
            leaderboard(files, ratings=rated(rows, 6, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    copies = [write(rows, name) for name in ("one.csv", "copy.csv")]
    with pytest.raises(UserError, match=r"copy\.csv, row 1 .*'v1/0' stands twice, also in .*one\.csv, row 1"):
        leaderboard(copies)


def test_contexts_that_only_some_answer_are_left_out_and_said(write):
    rows = table({"v1": 3.0, "v2": 3.5})
    board = only(leaderboard(write(rows.loc[~((rows["system_id"] == "v2") & rows["group_id"].isin(["c0", "c1"]))])))
    assert (board.n_contexts, board.n_shared, board.differences[0].difference.n_groups) == (24, 22, 22)
    assert any("those that two share, 22 or more" in sentence for sentence in board.text)


def test_few_contexts_have_no_interval(write):
    board = only(leaderboard(write(table({"v1": 3.0, "v2": 3.5}, contexts=4)), baseline="v1"))
    assert (board.systems[0].cluster, board.differences[0].difference.low) == (None, None)
    assert any("No order can be stated: 4 shared groups, at least 5 needed" in sentence for sentence in board.text)
    assert board.against[0].verdict == "cannot be told"


def test_equal_scores_tell_nothing_apart(write):
    board = only(leaderboard(write(table({"v1": 3.0, "v2": 3.5}).assign(warmth=2.0))))
    assert [row.cluster for row in board.systems] == [1, 1]
    assert not board.differences[0].better
    assert any("All means are equal" in sentence for sentence in board.text)


def test_the_gate_wants_a_certain_loss_of_more_than_the_margin(write):
    found = leaderboard(write(table({"v1": 3.5, "v2": 3.0, "v3": 3.49})), baseline="v1")
    (line,) = failures(found.report, 0.1)
    assert line.startswith("warmth: v2 is worse than v1 by 0.5")
    assert failures(found.report, 0.9) == []
    few = leaderboard(write(table({"v1": 3.5, "v2": 3.6}, contexts=4)), baseline="v1")
    (line,) = failures(few.report, 0.1)
    assert "is not told: 4 shared groups" in line


def no_group(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns="group_id")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_group, "no column 'group_id'.*copies it from the manifest"),
        (lambda rows: rows.drop(columns="system_id"), "no column 'system_id'.*NAME=FILE"),
        (lambda rows: rows.drop(columns="warmth_label"), "what is a dimension; it has .*; expected --dimension"),
        (lambda rows: rows.loc[rows["system_id"] == "v1"], "scores.csv: one system, 'v1'; expected two or more"),
        (lambda rows: pd.concat([rows, rows[:1]]), r"row 49.*'v1/0' stands twice, also in .*row 1"),
        (lambda rows: rows.assign(system_id=[None, *rows["system_id"][1:]]), "row 1 .*column 'system_id'"),
        (lambda rows: rows.assign(warmth=[None] * 24 + list(rows["warmth"][24:])), "1 of the systems have scores"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(write, change: Change, message):
    with pytest.raises(UserError, match=message) as refused:
        leaderboard(write(change(table({"v1": 3.0, "v2": 3.5}))))
    assert "\n" not in str(refused.value)


def test_scores_of_several_judges_are_refused_and_of_unknown_ones_said(write):
    first, second = table({"v1": 3.0}), table({"v2": 3.5})
    files = [write(first, "a.csv"), write(second, "b.csv", judge="b" * 64)]
    with pytest.raises(UserError, match=r"b\.csv: another judge \(bbbb.*a\.csv \(aaaa.*one judge"):
        leaderboard(files)
    files[1] = write(second, "b.csv", identity={"quantization": "nf4"})
    with pytest.raises(UserError, match="another quantization"):
        leaderboard(files)
    files[1] = write(second, "b.csv")
    known = leaderboard(files).report
    assert "judge@" in known.signature
    # A file that was changed since is no longer what its summary speaks of
    Path(files[1]).write_text(Path(files[1]).read_text() + "\n")
    found = leaderboard(files).report
    assert "judge:unknown" in found.signature
    assert any("do not all say which judge" in sentence for sentence in found.boards[0].text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.assign(pair_id="other"), "expected each pair_id, rater_id, dimension once; it .*row 1"),
        (lambda rows: rows.assign(pair_id=[f"x{n}" for n in range(len(rows))]), "rates none of the scored responses"),
        (lambda rows: rows.assign(score=7), r"column 'score': value 7; expected for warmth: 1 to 5 \(39 more\)"),
        (lambda rows: rows.assign(score="high"), "column 'score': value 'high'; expected a finite number"),
        (
            lambda rows: rows.drop(columns="rater_id"),
            "no column 'rater_id'; it has .*; expected pair_id, .* import table MANIFEST --ratings ratings.csv",
        ),
        (lambda rows: pd.concat([rows, rows[:1]]), "row 41.*'v1/0'; expected each .* once; it stands at .*row 1"),
    ],
)
def test_ratings_that_do_not_fit_are_refused(write, tmp_path, change: Change, message):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = Path(rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    change(pd.read_csv(ratings)).to_csv(ratings, index=False)
    with pytest.raises(UserError, match=message) as refused:
        leaderboard(write(rows), ratings=ratings)
    assert "\n" not in str(refused.value)


def by_people(rows: pd.DataFrame) -> pd.DataFrame:
    wide = rows.pivot(index="pair_id", columns="rater_id", values="score")
    return wide.rename(columns=lambda rater: f"warmth:{rater}").reset_index()


def published(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby("pair_id")["score"].agg(mean="mean", sd="std", n="count").reset_index()


@pytest.mark.parametrize(
    "change",
    [
        by_people,
        lambda rows: rows.rename(columns={"score": "warmth"}).drop(columns="dimension"),
        lambda rows: rows.rename(columns={"pair_id": "item", "rater_id": "annotator"}).drop(columns="dimension"),
        lambda rows: rows.assign(warmth=2.0),  # all of the long form: other columns may be called as dimensions are
        lambda rows: pd.concat([rows, rows[:1].assign(rater_id="cyd", score="N/A")]),
        published,
    ],
)
def test_ratings_in_any_layout_are_the_same_board(write, tmp_path, change: Change):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = Path(rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    expected = only(leaderboard(write(rows), ratings=ratings))
    changed = change(pd.read_csv(ratings))
    changed.to_csv(ratings, index=False)
    assert only(leaderboard(write(rows), ratings=ratings)) == expected
    if "score" not in changed:
        texts = changed.map(lambda value: str(value).replace(".", ",") if isinstance(value, float) else value)
        texts.to_csv(ratings, index=False, sep=";")
        assert only(leaderboard(write(rows), ratings=ratings)) == expected


def test_ratings_of_other_responses_are_counted(write, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = Path(rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    given = pd.read_csv(ratings)
    given["pair_id"] = given["pair_id"].replace("v1/0", "v9/0")
    given.to_csv(ratings, index=False)
    board = only(leaderboard(write(rows), ratings=ratings))
    assert board.n_ratings == 38
    assert any("2 ratings of other responses" in sentence for sentence in board.text)


def test_ratings_of_responses_without_a_score_do_not_count(write, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv")
    shown = rows["group_id"].isin([f"c{n}" for n in range(10)])
    with pytest.raises(UserError, match="rates none of the scored responses"):
        leaderboard(write(rows.assign(warmth=rows["warmth"].mask(shown))), ratings=ratings)
    one = rows.assign(warmth=rows["warmth"].mask(rows["pair_id"] == "v1/0"))
    board = only(leaderboard(write(one), ratings=ratings))
    assert (board.n_ratings, [row.n_rated for row in board.systems]) == (38, [10, 9])
    assert any("2 ratings of other responses, of ones without a score" in sentence for sentence in board.text)
    assert any("1 response of 48 had no score and did not count" in sentence for sentence in board.text)


def test_ratings_on_another_dimension_are_no_ratings_of_other_responses(write, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = Path(rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    given = pd.read_csv(ratings)
    pd.concat([given, given.assign(dimension="clarity")]).to_csv(ratings, index=False)
    board = only(leaderboard(write(rows), ratings=ratings))
    assert board.n_ratings == 40
    assert not any("other responses" in sentence for sentence in board.text)


def test_the_order_of_rows_does_not_show(write, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5, "v3": 3.2})
    ratings = Path(rated(rows, 10, {"v1": 0.1, "v2": -0.2, "v3": 0.0}, tmp_path / "ratings.csv"))
    given, boards = pd.read_csv(ratings), []
    for seed in range(4):
        given.sample(frac=1, random_state=seed).to_csv(ratings, index=False)
        boards.append(only(leaderboard(write(rows.sample(frac=1, random_state=seed)), ratings=ratings)))
    assert boards == boards[:1] * 4


@pytest.mark.parametrize("name", ["", " v1", "v\n1"])
def test_a_file_of_a_system_without_a_proper_name_is_refused(name, write):
    path = write(table({"v1": 3.0}))
    with pytest.raises(UserError, match="expected NAME=FILE"):
        leaderboard([f"{name}={path}"])
    with pytest.raises(UserError, match="expected NAME=FILE"):
        leaderboard({name: path})


@pytest.mark.parametrize("name", ["system", "warnings"])
def test_a_dimension_with_a_name_that_a_board_needs_is_refused(name, write):
    rows = table({"v1": 3.0, "v2": 3.5})
    with pytest.raises(UserError, match=f"'{name}' as a dimension"):
        leaderboard(write(rows.assign(**{name: 3.0})), dimensions=[name])


def test_a_baseline_that_nobody_is_and_a_scale_of_others(write, rated_dataset):
    rows = table({"v1": 3.0, "v2": 3.5})
    with pytest.raises(UserError, match="baseline 'v7': no such system; expected 'v1', 'v2'"):
        leaderboard(write(rows), baseline="v7")
    with pytest.raises(UserError, match="warmth from 0 to 10; the judge scores from 1 to 5"):
        leaderboard(write(rows), ratings=rated_dataset)


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
    noise, write, make_dataset, make_tone_judge, tmp_path
):
    judge = "constant" if noise is None else make_tone_judge(noise=noise)
    evaluate(judge, make_dataset(noise=0.3), split="test", resamples=50, checks=()).save(tmp_path / "report")
    rows = table({"v1": 3.0, "v2": 3.5}).rename(columns=lambda name: name.replace("warmth", "empathy"))
    found = leaderboard(write(rows, judge=None), report=tmp_path / "report", baseline="v1")
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


def test_what_raises_the_scores_of_the_judge_is_named(write, tmp_path):
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
    board = only(leaderboard(write(table({"v1": 3.0, "v2": 3.5})), stress=tmp_path))
    assert board.raised_by == ("louder",)
    assert any(sentence.startswith("These raise the judge's scores and should not: louder.") for sentence in board.text)
    of_calm = table({"v1": 3.0, "v2": 3.5}).rename(columns=lambda name: name.replace("warmth", "calm"))
    with pytest.raises(UserError, match=r"stress.json: measures 'warmth'; expected 'calm'"):
        leaderboard(write(of_calm), stress=tmp_path)


def test_a_lead_of_longer_responses_is_pointed_out(write):
    rows = table({"v1": 3.0, "v2": 3.5})
    rows["seconds"] = 2 * rows["warmth"]  # half a point for each second, within systems too
    board = only(leaderboard(write(rows)))
    (row,) = board.differences
    assert row.by_length == pytest.approx(row.difference.value)
    assert any("v2 would lead v1 by" in sentence and "100 % of the difference" in sentence for sentence in board.text)
    assert only(leaderboard(write(rows.assign(seconds=2.0)))).differences[0].by_length == 0.0


def test_a_baseline_without_a_score_is_refused(write):
    rows = table({"v1": 3.0, "v2": 3.5, "v3": 3.2})
    rows.loc[rows["system_id"] == "v1", "warmth"] = None
    with pytest.raises(UserError, match="warmth: baseline 'v1' has no score; expected one of 'v2', 'v3'"):
        leaderboard(write(rows), baseline="v1")
    board = only(leaderboard(write(rows)))
    assert [row.system for row in board.systems] == ["v2", "v3"]
    assert any("24 responses of 72 had no score" in sentence for sentence in board.text)
