"""docs/reference/what-happens.md shows what was measured, and this package still does what its column says."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
from empathy_judge.models.backbones import FAMILIES
from empathy_judge.serving.systemone import confidence

from ..conftest import loaded
from ..pages import ROOT

PROGRAM = ROOT / "tools" / "what_happens"
FOUND = json.loads((PROGRAM / "results.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "reference" / "what-happens.md").read_text("utf-8")


def column(table: str, name: str) -> list[str]:
    place = FOUND[table]["columns"].index(name)
    return [row[place] for row in FOUND[table]["rows"]]


def test_the_page_shows_what_was_measured():
    tables = loaded(PROGRAM / "tables.py")
    assert set(FOUND) == set(tables.TABLES)
    page = PAGE
    for name, table in FOUND.items():
        page = tables.with_table(page, name, table)
    assert page == PAGE
    assert PAGE.count("<!-- table: ") == len(FOUND)
    with pytest.raises(ValueError, match="has 0 places for the table other"):
        tables.with_table(PAGE, "other", FOUND["icc"])


def test_tests_that_the_page_names_exist():
    """A name without a folder is in the folder of the one before it."""
    folder = path = Path()
    named = re.findall(r"`([\w/]*test_\w+\.py)`|`(test_\w+)`", PAGE)
    assert len(named) > 12
    for file, function in named:
        if file:
            folder = Path(file).parent if "/" in file else folder
            path = ROOT / folder / Path(file).name
            assert path.is_file(), file
        else:
            names = {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
            assert function in names


def test_the_confidence_of_the_service():
    shares = [list(map(float, name.split(": ")[1].split())) for name in FOUND["confidence"]["columns"][1:]]
    (row,) = [row for row in FOUND["confidence"]["rows"] if row[0].startswith("this package")]
    assert [f"{confidence(own):.2f}" for own in shares] == row[1:] == ["0.33", "0.00", "0.58"]


def test_icc_with_and_without_a_cell():
    icc = loaded(PROGRAM / "icc.py")
    whole = np.array(icc.WHOLE, float)
    assert [f"{value:.3f}" for value in icc.by_us(whole)] == column("icc", "whole: all three")
    whole[0, 0] = np.nan
    assert [f"{value:.3f}" for value in icc.by_us(whole)] == column("icc", "gap: this package")


CELLS = {name: row[1:] for row in FOUND["tokens"]["rows"] for name in re.findall(r"`(\w+)`", row[0])}


def test_every_family_has_its_tokens_and_targets():
    for table in ("tokens", "targets"):
        named = [name for row in FOUND[table]["rows"] for name in re.findall(r"`(\w+)`", row[0])]
        assert sorted(named) == sorted(FAMILIES)


@pytest.mark.parametrize("name", CELLS)
def test_audio_tokens_of_the_size_of_the_hub(name, tmp_path):
    families = loaded(PROGRAM / "families.py")
    _, backbone, _ = families.miniature(name, tmp_path, full_size=True)
    for samples, cell in zip(families.LENGTHS, CELLS[name], strict=True):
        if cell:
            heard, *whole = [int(number.replace(",", "")) for number in cell.split(" of ")]
            assert backbone.real_audio_tokens(samples) == heard
            # Whisper has no prompt, and its states of silence are dropped
            assert backbone.audio_tokens(samples) == (heard if name == "whisper" else max(whole, default=heard))
