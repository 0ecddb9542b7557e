"""The columns of tables of scores, and what stands in them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from empathy_judge.scoring.assessment import Assessment, Caution, Scale, Score
from empathy_judge.scoring.score_table import LongCells, flat_scores, long_cells, row_columns, score_columns

NAMES = ["empathy", "warmth"]
CALIBRATED = ["standard_error", "low", "high"]


def columns(kinds: list[str]) -> list[str]:
    """Names of the columns of a judge whose dimensions have these, beside score and label."""
    own = [f"{name}_{kind}" for name in NAMES for kind in kinds]
    return [*NAMES, *own, "empathy_label", "warmth_label", "warnings", "windows", "seconds"]


@pytest.mark.parametrize(
    ("calibration", "kinds"),
    [
        (None, []),
        (SimpleNamespace(abstains=False), CALIBRATED),
        (SimpleNamespace(abstains=True), [*CALIBRATED, "abstained"]),
    ],
)
def test_a_table_has_what_the_calibration_knows(calibration, kinds):
    found = score_columns(NAMES, calibration)
    assert [column.name for column in found] == columns(kinds)
    assert [column.name for column in row_columns(found)] == ["pair_id", *columns(kinds), "status"]


def test_shares_of_raters_are_one_cell():
    names = [column.name for column in score_columns(NAMES, None, levels=True)]
    assert names[2:6] == ["empathy_levels", "warmth_levels", "empathy_label", "warmth_label"]
    found = Assessment({"warmth": Score(1.75, Scale(1.0, 3.0))}, levels={"warmth": (1 / 3, 0.583333333, 1 / 12)})
    values = flat_scores(found, score_columns(["warmth"], None, levels=True))
    assert values["warmth_levels"] == "0.333333;0.583333;0.083333"


def test_numbers_are_rounded_and_what_is_unknown_stays_empty():
    score = Score(2.123456789, Scale(1.0, 5.0), 0.5, None, None, False, "poor")
    warnings = (Caution("short", "", "response"), Caution("no_speech", "", "context"))
    found = Assessment({"warmth": score}, warnings, 3, 25.00000004)
    values = flat_scores(found, score_columns(["warmth"], None))
    assert values == {
        "warmth": 2.123457, "warmth_label": "poor", "warnings": "short;no_speech", "windows": 3, "seconds": 25.0,
    }  # fmt: skip


def test_a_row_of_either_form_says_the_same_of_a_dimension():
    wide = ["pair_id", *columns(CALIBRATED), "status"]
    own = [LongCells(name, name, f"{name}_standard_error", f"{name}_levels") for name in NAMES]
    assert long_cells(wide, []) == own
    assert long_cells(["pair_id", "dimension", "score", "status"], []) == [
        LongCells(None, "score", "uncertainty", "levels")
    ]
    # Of the manifest: its own labels, and scores that were scored again
    copied = ["emotion", "emotion_label", "manifest_warmth", "manifest_warmth_label"]
    rows = [{"emotion_label": None, "warmth_label": "poor"}, {"emotion_label": "2: sad", "warmth_label": None}]
    assert long_cells([*copied, *wide], rows) == own
