"""Reading a table of scores: what is wrong in it is named."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.core.errors import DataError, UserError
from empathy_judge.eval.agreement_table import measure_agreement
from empathy_judge.eval.frame import read_frame

HEADER = "item,annotator,dimension,score"


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (HEADER, "a,x,d,good", "row 1 (line 2), column 'score': value 'good'; expected a finite number"),
        (HEADER, "a,x,d,1_0", "row 1 (line 2), column 'score': value '1_0'; expected a finite number"),
        (HEADER, "a,x,d,inf", "row 1 (line 2), column 'score': value 'inf'; expected a finite number"),
        (HEADER, "a,x,d,1e200", "row 1 (line 2), column 'score': value 1e+200; expected a finite number, at most"),
        (HEADER, "a,x,d,9007199254740993", "row 1 (line 2), column 'score': value 9007199254740993; expected a num"),
        (HEADER, "a,x,d,1\n,x,d,1", "row 2 (line 3), column 'item': value None; expected text"),
        (HEADER, "a,x,d,1\nb,x,d,1\na,x,d,2", "row 3 (line 4), column 'item': x scores item 'a' on d again, as"),
        (HEADER + ",group", "a,x,d,1,g\na,y,d,1,h", "row 2 (line 3), column 'group': value 'h'; expected one group"),
        (HEADER + ",system", "a,x,d,1,\na,y,d,1,s", "row 2 (line 3), column 'system': value 's'; expected one system"),
        ("item,mean,sd,n", "a,2,1,3\nb,3,-1,3", "row 2 (line 3), column 'sd': value -1; expected the standard"),
        ("item,mean,sd,n", "a,2,1,3\nb,3,1,", "row 2 (line 3), column 'n': value nan; expected sd and n of every mean"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, header, rows, message):
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n{rows}\n")
    with pytest.raises(DataError) as found:
        read_frame(path, {})
    assert str(found.value).startswith(f"{path}, {message}")


def test_scores_whose_squares_would_be_lost_are_refused(tmp_path):
    """With all scores of 1e-300, agreement ended in a division by zero."""
    path = tmp_path / "t.csv"
    path.write_text(f"{HEADER}\na,x,d,1\nb,x,d,2\na,y,d,1e-300\nb,y,d,2e-300\n")
    with pytest.raises(DataError, match="all scores of y on d lie within 1e-50"):
        read_frame(path, {})
    path.write_text(f"{HEADER}\na,x,d,1e-300\nb,x,d,2\na,y,d,0\nb,y,d,0\n")
    assert read_frame(path, {}).rows["score"].tolist() == [1e-300, 2, 0, 0]


def test_a_row_that_sums_up_is_named_and_a_clip_of_two_systems_is_no_item(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("item,ann,ben\na,1,2\nb,2,3\nMean,1.5,2.5\n")
    assert len(read_frame(path, {}, ["ann", "ben"]).rows) == 6
    assert "t.csv, row 3 (line 4): 'Mean' counts as an item; delete the row" in capsys.readouterr().err
    path.write_text(f"{HEADER},system\na,x,d,1,A\na,x,d,2,B\n")
    with pytest.raises(DataError, match=r"row 2 \(line 3\), column 'system': value 'B'; expected one system per item"):
        read_frame(path, {})


def test_published_means_have_a_ceiling_and_judges_beside_them(tmp_path):
    """Wright and Masters (1982): 1 - the mean of SD^2 / n over the variance of the means."""
    means, judge = tmp_path / "means.csv", tmp_path / "judge.csv"
    means.write_text("item,mean,sd,n,group\na,1,0.6,4,g\nb,2,0.8,4,g\nc,3.5,1,5,h\nd,5,0.6,9,h\n")
    judge.write_text("item,score\na,1\nb,3\nc,2\nd,4\n")
    frame = read_frame([means, f"gpt={judge}"], {})
    assert frame.rows["group_id"].tolist() == 2 * ["group g", "group g", "group h", "group h"]
    (own,) = measure_agreement(frame, ["gpt"], resamples=0).dimensions
    expected = 1 - np.mean([0.36 / 4, 0.64 / 4, 1 / 5, 0.36 / 9]) / np.var([1, 2, 3.5, 5], ddof=1)
    assert own.people.panel_mean.value == pytest.approx(np.sqrt(expected))
    assert (own.people.n_raters, own.people.spearman.reason) == (0, "only means of the ratings are known")
    assert own.judges["gpt"].spearman.value == pytest.approx(0.8)
    assert own.judges["gpt"].verdict.text.startswith("No rater can be compared")
    with pytest.raises(UserError, match="score has published means, and scores by 'gpt'; expected --judges 'gpt', or"):
        measure_agreement(frame, [])
    means.write_text("item,mean,sd,n\na,1,0.6,4\nb,2,,\nc,3.5,1,5\nd,5,0.6,9\n")
    message = "score has published means, and of item 'b' one without sd and n; expected sd and n of all$"
    with pytest.raises(UserError, match=message):
        measure_agreement(read_frame([means, f"gpt={judge}"], {}), ["gpt"])
