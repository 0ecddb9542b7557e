"""Score files with rows for pairs that the dataset does not have."""

from __future__ import annotations

import pytest
from empathy_judge.data_modules.errors import DataError
from empathy_judge.eval.judges.scores_file import ScoresFile

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
