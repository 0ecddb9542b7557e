"""The table of scores, and files of scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.ratings import is_name
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval.judges import check_score_table, score_table
from empathy_judge.eval.judges.baselines.simple import ConstantJudge
from empathy_judge.eval.judges.scores_file import ScoresFile
from empathy_judge.eval.results import write_results
from empathy_judge.scoring.batch.scores import write_scores
from empathy_judge.scoring.score_table import SCORE_COLUMNS, Column, row_columns

SOUND = Clip(np.zeros(800, dtype=np.float32), 8000)
PAIRS = [Pair(name, SOUND) for name in ("a", "b", "c")]


def test_score_table_is_long_and_marks_what_is_not_finite():
    scores = np.array([[1.0, 2.0], [math.nan, 4.0], [5.0, math.inf]])
    table = score_table(PAIRS, ("empathy", "warmth"), scores, statuses=["ok", "ok", "refused"])
    assert tuple(table.columns) == SCORE_COLUMNS
    assert table["pair_id"].tolist() == ["a", "a", "b", "b", "c", "c"]
    assert table["dimension"].tolist() == ["empathy", "warmth"] * 3
    assert table["status"].tolist() == ["ok", "ok", "score is not finite", "ok", "refused", "refused"]
    np.testing.assert_array_equal(table["score"], [1.0, 2.0, math.nan, 4.0, math.nan, math.nan])
    check_score_table(table, ConstantJudge({"empathy": 3.0, "warmth": 3.0}), PAIRS)


def test_shares_of_raters_are_read_from_either_form_of_a_file(tmp_path):
    long = tmp_path / "long.csv"
    long.write_text("pair_id,dimension,score,levels\na,empathy,2.5,0.25;0.25;0.25;0.25\nb,empathy,1,\n")
    table = ScoresFile(long).score(PAIRS)
    assert table["levels"].tolist() == [(0.25,) * 4, None, None]
    wide = tmp_path / "wide.csv"
    wide.write_text("pair_id,empathy,empathy_levels,empathy_label,status\na,1.5,0.500000;0.500000,poor,ok\n")
    assert ScoresFile(wide).score(PAIRS)["levels"][0] == (0.5, 0.5)
    for cell in ("0.5;0.6", "0.5;x", "1;0.5;-0.5"):
        long.write_text(f"pair_id,dimension,score,levels\na,empathy,2.5,{cell}\n")
        with pytest.raises(DataError, match="expected shares of raters that sum to 1"):
            ScoresFile(long)


def test_score_table_refuses_another_shape():
    with pytest.raises(ValueError, match="for 3 pairs and 2 dimensions"):
        score_table(PAIRS, ("empathy", "warmth"), np.zeros((3, 1)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="status"), "no column 'status'"),
        (lambda table: table.assign(pair_id=["a", "b", "z"]), "row for pair_id 'z', which was not asked for"),
        (lambda table: table.assign(dimension="warmth"), "row for dimension 'warmth', which was not asked for"),
        (lambda table: table.assign(pair_id=["a", "b", "b"]), "two rows for pair 'b'"),
        (lambda table: table.assign(score=[1.0, math.nan, 1.0]), "pair 'b' has status 'ok' and score nan"),
        (lambda table: table.assign(status=["ok", "ok", "failed"]), "pair 'c' has status 'failed' and score 1.0"),
    ],
)
def test_a_judge_that_breaks_the_protocol_is_named(change, message):
    table = score_table(PAIRS, ("empathy",), np.ones((3, 1)))
    with pytest.raises(ValueError, match=f"judge constant: .*{message}"):
        check_score_table(change(table), ConstantJudge({"empathy": 3.0}), PAIRS)


ROWS = [
    {"pair_id": "a", "dimension": "empathy", "score": 2.5, "uncertainty": 0.5, "extra": "x"},
    {"pair_id": "c", "dimension": "empathy", "score": 4.0, "uncertainty": None, "extra": "y"},
    {"pair_id": "elsewhere", "dimension": "empathy", "score": 1.0, "uncertainty": None, "extra": "z"},
]


def written(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"scores{suffix}"
    if suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_scores_are_read_from_every_format(suffix, tmp_path):
    rows = [{**row, "uncertainty": 0.25} for row in ROWS] if suffix == ".parquet" else ROWS
    judge = ScoresFile(written(tmp_path, suffix, rows))
    assert (judge.name, judge.dimensions) == (f"scores:scores{suffix}", ("empathy",))
    table = judge.score(PAIRS)
    check_score_table(table, judge, PAIRS)
    np.testing.assert_array_equal(table["score"], [2.5, math.nan, 4.0])
    assert table["status"].tolist() == ["ok", f"no score in scores{suffix}", "ok"]
    assert table["uncertainty"].iloc[0] == (0.25 if suffix == ".parquet" else 0.5)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_file_of_score_manifest_is_read_as_it_is(suffix, tmp_path):
    names = ["empathy", "warmth", "empathy_standard_error", "empathy_low", "empathy_label", "warmth_label", "windows"]
    columns = [Column(name, "text" if name.endswith("label") else "number") for name in names]
    rows = [["a", 2.5, 3.0, 0.5, 1.0, "poor", "fair", 1.0, "ok"], ["b", *[None] * 7, "row 2: no such file"]]
    path = tmp_path / f"scores{suffix}"
    with open(path, "wb") as file:
        write_scores(suffix, row_columns(columns), [rows], file)
    judge = ScoresFile(path)
    assert judge.dimensions == ("empathy", "warmth")
    table = judge.score(PAIRS)
    check_score_table(table, judge, PAIRS)
    np.testing.assert_array_equal(table["score"], [2.5, 3.0, *[math.nan] * 4])
    np.testing.assert_array_equal(table["uncertainty"], [0.5, *[math.nan] * 5])
    assert table["status"].tolist() == ["ok", "ok", *[f"no score in scores{suffix}"] * 4]
    with open(path, "wb") as file:  # nothing could be scored
        write_scores(suffix, row_columns(columns), [rows[1:]], file)
    assert ScoresFile(path).dimensions == judge.dimensions


FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "@SUM(1)", "-2+3", "-0.5", "'=1", '=HYPERLINK("x","y")', "001"]
"""Ids that spreadsheets take for formulas or numbers."""


@pytest.mark.parametrize("name", ["items.csv", "scores.csv", "scores.tsv"])
def test_ids_that_a_spreadsheet_takes_for_formulas_come_back_as_they_are(name, tmp_path):
    """Whoever joins tables by them relies on that; the page on file formats says how to open such a file."""
    path, numbers = tmp_path / name, [-0.5 - number for number in range(len(FORMULAS))]
    if name == "items.csv":
        items = pd.DataFrame({"pair_id": FORMULAS, "dimension": "empathy", "score": numbers, "tag:cue": FORMULAS})
        write_results("evaluate", tmp_path, {name: items})
        again = pd.read_csv(path, dtype={"pair_id": str, "tag:cue": str})
        assert again["tag:cue"].tolist() == FORMULAS
    else:
        columns = row_columns(
            [Column("empathy", "number"), Column("empathy_label", "text"), Column("windows", "count")]
        )
        rows = [[pair_id, number, None, 1, "ok"] for pair_id, number in zip(FORMULAS, numbers, strict=True)]
        with open(path, "wb") as file:
            write_scores(path.suffix, columns, [rows], file)
        again = pd.read_csv(path, dtype={"pair_id": str}, sep="\t" if path.suffix == ".tsv" else ",")
    assert again["pair_id"].tolist() == FORMULAS
    assert (again["empathy"] if "empathy" in again else again["score"]).tolist() == numbers
    assert ScoresFile(path).score([Pair(pair_id, SOUND) for pair_id in FORMULAS])["score"].tolist() == numbers


@pytest.mark.parametrize("name", ["\t=1", "\r=1", "a\rb", " =1"])
def test_a_name_begins_with_no_space_and_holds_no_control_character(name):
    assert not is_name(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pair_id,score\na,1\n", "no column 'dimension'; it has 'pair_id', 'score'"),
        ("pair_id,dimension,score\na,empathy,good\n",
         r"row 1 \(line 2\), column 'score': value 'good'; expected a finite"),
        ("pair_id,dimension,score\na,empathy,1_0\n", "value '1_0'; expected a finite number"),
        ("pair_id,dimension,score\na,empathy,nan\n", "value 'nan'; expected a finite number"),
        ("pair_id,dimension,score\na,empathy,1e200\n", r"value .1e200.; expected a finite number, at most 1e\+50"),
        ("pair_id,dimension,score\n,empathy,1\n", "column 'pair_id': value None; expected text"),
        ("pair_id,dimension,score\na,empathy,1\na,empathy,2\n",
         r"row 2 \(line 3\), column 'pair_id': value 'a' has a score"),
        ("pair_id,dimension,score\n", "no rows"),
    ],
)  # fmt: skip
def test_a_bad_file_of_scores_is_refused_in_one_line(text, message, tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        ScoresFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


HEADER = "pair_id,dimension,score\n"


def test_rows_of_other_pairs_are_told(tmp_path, capsys):
    path = tmp_path / "scores.csv"
    path.write_text(HEADER + "007,warmth,4\nx,warmth,5\n7,warmth,1\n")
    ScoresFile(path, ["007", "008"])
    said = capsys.readouterr().err
    assert said == (
        f"warning: {path}, row 2 (line 3), column 'pair_id': value 'x'; no such pair in the dataset "
        "(2 such rows of 3 left out)\n"
    )
    ScoresFile(path, ["007", "x", "7", "8"])
    assert capsys.readouterr().err == ""


def test_a_file_of_other_pairs_is_refused(tmp_path):
    """Numbers that a spreadsheet made of ids: there would be a report without items."""
    path = tmp_path / "scores.csv"
    path.write_text(HEADER + "7,warmth,4\n8,warmth,5\n")
    expected = r"row 1 \(line 2\), column 'pair_id': value '7'; no such pair in the dataset, and so in all rows"
    with pytest.raises(DataError, match=expected):
        ScoresFile(path, ["007", "008"])
