"""Reading a table of scores: what is wrong in it is named."""

from __future__ import annotations

import pytest
from empathy_judge.core.errors import DataError
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
