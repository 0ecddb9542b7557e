"""Numbers, names and tables as they are written."""

from __future__ import annotations

import re

import pytest
from empathy_judge.commands.shared import Printing
from empathy_judge.eval import rendering
from empathy_judge.eval.rendering import dollars, seconds

from .conftest import printed_at


def test_amounts_and_times():
    assert [dollars(amount) for amount in (None, 0.0, 0.0042, 1234.5)] == ["—", "0.00", "0.0042", "1,234.50"]
    assert [seconds(value) for value in (0.0, 0.0001, 0.25, 9.94, 12345.0)] == [
        "0", "<0.01", "0.25", "9.9", "12,345",
    ]  # fmt: skip


def test_what_rounds_to_zero_has_no_minus_sign():
    assert [rendering.number(value) for value in (-0.001, -0.006, None)] == ["0.00", "−0.01", "—"]
    assert [rendering.signed(value) for value in (-0.001, 0.004, -1.5)] == ["+0.00", "+0.00", "−1.50"]


@pytest.mark.parametrize(
    ("value", "high", "shown"),
    [(4.0, 9.0, "4.00 2.31 to 9.00"), (4.0, None, "4.00 2.31 and more"), (None, None, "at least 2.31 why")],
)
def test_an_interval_without_an_upper_end_is_said_on_the_page(value, high, shown):
    template = '{% from "pieces" import statistic %}{{ statistic(s) }}'
    page = rendering.render(template, s={"value": value, "low": 2.31, "high": high, "reason": "why"})
    assert re.sub(r"\s+|<[^>]+>", " ", page).split() == shown.split()


def test_many_kinds_of_failure_are_counted_not_all_named():
    statuses = {f"clip {number} is damaged": 1 for number in range(40)}
    text = rendering.counted_statuses({"refused": 7} | statuses)
    assert text.startswith("7 x refused; 1 x clip 0 is damaged; ")
    assert text.endswith("; and 36 more kinds (see items.csv)")


def test_p_values_are_never_zero():
    assert [rendering.p_value(p) for p in (None, 0.0002, 0.0123)] == ["—", "<0.001", "0.012"]


def test_a_name_that_is_wider_than_its_column_leaves_no_line_empty():
    table = rendering.filled_table("", ("judge", "n"), [("empatheticdialogues/empathy", [("gpt", "1")])], min_width=13)
    lines = [line.split("  ")[0].strip() for line in printed_at(17, [table]).splitlines()]
    assert lines[lines.index("logues/") + 1] == "empathy"


def test_numbers_of_a_table_are_never_cut(capsys, monkeypatch):
    """In a pipe there are 80 columns, and an interval without its end would say something else."""
    monkeypatch.setenv("COLUMNS", "50")
    numbers = ["−0.73 [−1.40, −0.07]", "0.2 [0.0, 1.3]", "−0.03 [−0.61, 0.57]"]
    head = ("judge", "Spearman", "effective\nnumber", "difference")
    table = rendering.filled_table("judges", head, [("warmth", [("runs/mine", *numbers)])])
    assert Printing().tell(None, lambda _: [table]) == 0
    shown = capsys.readouterr().out
    assert all(number in shown for number in (*numbers, "effective"))
