"""Numbers in texts, cells and options."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.core.numerals import as_float, parse_number, parse_whole, to_number
from empathy_judge.eval.frame import read_frame
from empathy_judge.eval.judges.scores_file import ScoresFile

NO_NUMBERS = [
    "",
    " ",
    "1_0",
    "nan",
    "NaN",
    "inf",
    "-Infinity",
    "１",
    "١",
    "0x10",
    "1,5",
    "1:30",
    "true",
    "1e",
    ".",
    "+",
    "--1",
]


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), (" -0.5 ", -0.5), ("+1.", 1), (".5", 0.5), ("1e-4", 1e-4), ("2E3", 2000), ("007", 7), ("1.10", 1.1)],
)
def test_texts_that_are_numbers(text, number):
    assert parse_number(text) == number
    assert to_number(text) == number


@pytest.mark.parametrize("text", [*NO_NUMBERS, "1e999"])
def test_texts_that_are_none(text):
    with pytest.raises(ValueError, match="is no number"):
        parse_number(text)
    assert math.isnan(as_float(text))


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_text_stays_text_in_a_cell(text):
    assert to_number(text) == text


def test_whole_numbers():
    assert [parse_whole(text) for text in ("0", "-3", " 12 ", "+5", "4294967295")] == [0, -3, 12, 5, 4294967295]
    for text in [*NO_NUMBERS, "012", "00", "-08", "1.0", "1e3", "9" * 40]:
        with pytest.raises(ValueError, match="is no whole number"):
            parse_whole(text)


@pytest.mark.parametrize(
    "value", [1.5, np.float64(1.5), np.float32(1.5), np.float16(1.5), Decimal("1.5"), Fraction(3, 2), np.array(1.5)[()]]
)
def test_numbers_of_all_types(value):
    assert as_float(value) == 1.5
    assert as_float(to_number(value)) == 1.5


@pytest.mark.parametrize(
    "value", [None, "1", True, np.True_, math.nan, np.float32("nan"), Decimal("nan"), Decimal("snan"), 10**400, [1], 1j]
)
def test_what_is_no_number(value):
    assert math.isnan(as_float(value))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_missing_score_is_missing_in_every_table(tmp_path, suffix):
    """Empty or null, and NaN where the format has it as a number: the same in `agreement` and in ``scores:FILE``."""
    scores = [2.0, None, 4.0] if suffix == ".csv" else [2.0, math.nan, 4.0]
    rows = [{"i": pair, "annotator": "x", "dimension": "d", "score": s} for pair, s in zip("abc", scores, strict=True)]
    path = tmp_path / f"t{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        frame = pd.DataFrame(rows)
        frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    np.testing.assert_array_equal(read_frame(path, {"item": "i"}).rows["score"], [2.0, math.nan, 4.0])
    renamed = tmp_path / f"s{suffix}"
    if suffix == ".parquet":
        pd.DataFrame(rows).rename(columns={"i": "pair_id"}).to_parquet(renamed)
    else:
        renamed.write_text(path.read_text().replace('"i"', '"pair_id"').replace("i,anno", "pair_id,anno"))
    np.testing.assert_array_equal([*ScoresFile(renamed)._scores.values()], [2.0, math.nan, 4.0])


@pytest.mark.parametrize("text", ["NaN", "nan", "1_0", "inf", "NA", "１"])
def test_other_texts_are_refused_in_every_table(tmp_path, text):
    """In ratings by people, texts that stand for no score are none."""
    (tmp_path / "t.csv").write_text(f"item,pair_id,annotator,dimension,score\na,a,x,d,{text}\n")
    for read in ([] if text in ("NaN", "nan", "NA") else [lambda path: read_frame(path, {})]) + [ScoresFile]:
        with pytest.raises(DataError, match=r"t\.csv, row 1 \(line 2\), column 'score': value .*; expected a finite"):
            read(tmp_path / "t.csv")


@pytest.mark.parametrize("spelled", [str, int, Decimal, np.uint64], ids=lambda kind: kind.__name__)
def test_a_whole_number_that_float64_does_not_hold_is_none(spelled):
    """2**60 + 1 and 2**60 + 2 were one number, and the ratings constant."""
    assert as_float(to_number(spelled(2**60))) == 2.0**60
    assert math.isnan(as_float(to_number(spelled(2**60 + 1))))
