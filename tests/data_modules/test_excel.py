"""Sheets of Excel: which one is read, and what formulas leave."""

from __future__ import annotations

import re
from pathlib import Path
from zipfile import ZipFile

import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.eval.frame import read_frame

from .test_layouts import LONG, WANTED, found


def test_excel(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["item", "annotator", None, "dimension", "score"])
    for line in LONG.splitlines()[1:]:
        item, annotator, dimension, score = line.split(",")
        book.active.append([item, annotator, None, dimension, score.replace(".", ",") if "." in score else int(score)])
    book.active.append([None, "", None])
    book.create_sheet("notes")
    book.save(tmp_path / "t.xlsx")
    assert found(tmp_path / "t.xlsx") == WANTED
    book["notes"].append(["x"])
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match=r"t\.xlsx: sheets that hold something: 'Sheet', 'notes'; expected one"):
        read_frame(tmp_path / "t.xlsx", {})
    (tmp_path / "u.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"u\.xlsx: not readable as Excel \(BadZipFile"):
        read_frame(tmp_path / "u.xlsx", {})


def test_a_formula_that_nobody_computed_is_no_missing_rating(tmp_path):
    """openpyxl stores no value of a formula; Excel does, also an empty text."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["item", "annotator", "score"], ["a", "r", 3], ["b", "r", "=1+3"]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match=r"t\.xlsx: the formula in C3 has no stored value; expected a file that a"):
        read_frame(tmp_path / "t.xlsx", {})

    def saved(attribute: str, value: str) -> Path:
        """As Excel stores the cell."""
        with ZipFile(tmp_path / "t.xlsx") as old, ZipFile(tmp_path / "u.xlsx", "w") as new:
            for part in old.namelist():
                data = old.read(part)
                cell = f'<c r="C3"{attribute}><f>1+3</f><v>{value}</v></c>'.encode()
                new.writestr(part, re.sub(rb'<c r="C3".*?</c>', cell, data))
        return tmp_path / "u.xlsx"

    assert read_frame(saved("", "4"), {}).rows["score"].tolist() == [3, 4]
    assert read_frame(saved(' t="str"', ""), {}).rows["score"].isna().tolist() == [False, True]
