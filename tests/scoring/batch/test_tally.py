"""What scores say together."""

from __future__ import annotations

from empathy_judge.scoring.batch.tally import Tally, in_words
from empathy_judge.scoring.score_table import Column, row_columns

COLUMNS = row_columns(
    [
        Column("system_id", "text"), Column("warmth", "number"), Column("warmth_label", "text"),
        Column("warnings", "text"), Column("windows", "count"), Column("seconds", "number"),
    ]
)  # fmt: skip


def test_a_summary_by_system_and_by_warning():
    tally = Tally(COLUMNS)
    tally.add([["p", "a", 2.0, "fair", "unlike_training;short", 1, 30.0, "ok"]])
    tally.add([["q", "a", 4.0, "good", "unlike_training", 2, 60.0, "ok"], ["r", "b", 3.0, "fair", "", 1, 30.0, "ok"]])
    tally.add([["s", "b", None, None, None, None, None, "no such file"]])
    assert (tally.rows, tally.windowed, tally.seconds) == (4, 1, 120.0)
    assert list(in_words(tally.rows, tally.seconds, tally.systems, tally.warnings)) == [
        "responses: 2.0 minutes",
        "warmth, a: mean 3.00, from 2.00 to 4.00 (2 rows)",
        "warmth, b: mean 3.00, from 3.00 to 3.00 (1 row)",
        "2 of 4 are unlike the clips that this judge was calibrated on: it may be wrong there (unlike_training)",
        "1 of 4 are very short (short)",
    ]


def test_a_system_for_each_row_is_none():
    tally = Tally(COLUMNS)
    tally.add([[f"p{n}", f"clip{n}", float(n), "fair", "", 1, 1.0, "ok"] for n in range(60)])
    assert tally.systems == {"": {"warmth": {"rows": 60, "mean": 29.5, "lowest": 0.0, "highest": 59.0}}}
