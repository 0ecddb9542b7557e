"""Files of scores and ratings as boards are made of them: which are read, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from empathy_judge import leaderboard
from empathy_judge.core.errors import UserError

from .conftest import only, table

Change = Callable[[pd.DataFrame], pd.DataFrame]


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


def test_a_file_for_each_system_will_do(write_scores):
    rows = table({"v1": 3.0, "v2": 3.5})
    files = {
        name: write_scores(own.drop(columns="system_id"), f"{name}.csv") for name, own in rows.groupby("system_id")
    }
    board = only(leaderboard(files))
    assert board.differences == only(leaderboard(write_scores(rows))).differences
    assert board.differences == only(leaderboard([f"{name}={path}" for name, path in files.items()])).differences


def test_files_that_number_their_rows_alike_are_told_apart_unless_there_are_ratings(write_scores, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5})
    own = {name: part.drop(columns="system_id").reset_index(drop=True) for name, part in rows.groupby("system_id")}
    numbered = {name: part.assign(pair_id=range(1, len(part) + 1)) for name, part in own.items()}
    named = {
        name: part.assign(pair_id=rows.loc[rows["system_id"] == name, "pair_id"].to_list())
        for name, part in own.items()
    }
    expected = leaderboard({name: write_scores(part, f"named_{name}.csv") for name, part in named.items()})
    for kind, parts in {"numbered": numbered, "none": {n: p.drop(columns="pair_id") for n, p in own.items()}}.items():
        files = {name: write_scores(part, f"{kind}_{name}.csv") for name, part in parts.items()}
        found = leaderboard(files)
        assert only(found).differences == only(expected).differences
        with pytest.raises(UserError, match=r"v\d\.csv: .*ratings could be of either.*pair_id.*or no --ratings"):
            leaderboard(files, ratings=rated(rows, 6, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    copies = [write_scores(rows, name) for name in ("one.csv", "copy.csv")]
    with pytest.raises(UserError, match=r"copy\.csv, row 1 .*'v1/0' stands twice, also in .*one\.csv, row 1"):
        leaderboard(copies)


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
def test_scores_that_cannot_be_compared_are_refused(write_scores, change: Change, message):
    with pytest.raises(UserError, match=message) as refused:
        leaderboard(write_scores(change(table({"v1": 3.0, "v2": 3.5}))))
    assert "\n" not in str(refused.value)


def test_scores_of_several_judges_are_refused_and_of_unknown_ones_said(write_scores):
    first, second = table({"v1": 3.0}), table({"v2": 3.5})
    files = [write_scores(first, "a.csv"), write_scores(second, "b.csv", judge="b" * 64)]
    with pytest.raises(UserError, match=r"b\.csv: another judge \(bbbb.*a\.csv \(aaaa.*one judge"):
        leaderboard(files)
    files[1] = write_scores(second, "b.csv", identity={"quantization": "nf4"})
    with pytest.raises(UserError, match="another quantization"):
        leaderboard(files)
    files[1] = write_scores(second, "b.csv")
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
def test_ratings_that_do_not_fit_are_refused(write_scores, tmp_path, change: Change, message):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = Path(rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    change(pd.read_csv(ratings)).to_csv(ratings, index=False)
    with pytest.raises(UserError, match=message) as refused:
        leaderboard(write_scores(rows), ratings=ratings)
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
def test_ratings_in_any_layout_are_the_same_board(write_scores, tmp_path, change: Change):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = Path(rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    expected = only(leaderboard(write_scores(rows), ratings=ratings))
    changed = change(pd.read_csv(ratings))
    changed.to_csv(ratings, index=False)
    assert only(leaderboard(write_scores(rows), ratings=ratings)) == expected
    if "score" not in changed:
        texts = changed.map(lambda value: str(value).replace(".", ",") if isinstance(value, float) else value)
        texts.to_csv(ratings, index=False, sep=";")
        assert only(leaderboard(write_scores(rows), ratings=ratings)) == expected


def test_ratings_of_other_responses_are_counted(write_scores, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = Path(rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    given = pd.read_csv(ratings)
    given["pair_id"] = given["pair_id"].replace("v1/0", "v9/0")
    given.to_csv(ratings, index=False)
    board = only(leaderboard(write_scores(rows), ratings=ratings))
    assert board.n_ratings == 38
    assert any("2 ratings of other responses" in sentence for sentence in board.text)


def test_ratings_of_responses_without_a_score_do_not_count(write_scores, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv")
    shown = rows["group_id"].isin([f"c{n}" for n in range(10)])
    with pytest.raises(UserError, match="rates none of the scored responses"):
        leaderboard(write_scores(rows.assign(warmth=rows["warmth"].mask(shown))), ratings=ratings)
    one = rows.assign(warmth=rows["warmth"].mask(rows["pair_id"] == "v1/0"))
    board = only(leaderboard(write_scores(one), ratings=ratings))
    assert (board.n_ratings, [row.n_rated for row in board.systems]) == (38, [10, 9])
    assert any("2 ratings of other responses, of ones without a score" in sentence for sentence in board.text)
    assert any("1 response of 48 had no score and did not count" in sentence for sentence in board.text)


def test_ratings_on_another_dimension_are_no_ratings_of_other_responses(write_scores, tmp_path):
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = Path(rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv"))
    given = pd.read_csv(ratings)
    pd.concat([given, given.assign(dimension="clarity")]).to_csv(ratings, index=False)
    board = only(leaderboard(write_scores(rows), ratings=ratings))
    assert board.n_ratings == 40
    assert not any("other responses" in sentence for sentence in board.text)


@pytest.mark.parametrize("name", ["", " v1", "v\n1"])
def test_a_file_of_a_system_without_a_proper_name_is_refused(name, write_scores):
    path = write_scores(table({"v1": 3.0}))
    with pytest.raises(UserError, match="expected NAME=FILE"):
        leaderboard([f"{name}={path}"])
    with pytest.raises(UserError, match="expected NAME=FILE"):
        leaderboard({name: path})


@pytest.mark.parametrize("name", ["system", "warnings"])
def test_a_dimension_with_a_name_that_a_board_needs_is_refused(name, write_scores):
    rows = table({"v1": 3.0, "v2": 3.5})
    with pytest.raises(UserError, match=f"'{name}' as a dimension"):
        leaderboard(write_scores(rows.assign(**{name: 3.0})), dimensions=[name])
