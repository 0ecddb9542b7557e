"""The judge against the panel mean, as clinical studies report it, in rows for terminals, Markdown and pages.

Intraclass correlations (McGraw and Wong, 1996), bias and limits of agreement (Bland and Altman, 1986), of items and of
the means of systems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from . import numerals
from .report_schema import JudgeReport, SystemLevel
from .terminal import new_table

PANEL_HEAD = ("level", "n", "ICC(A,1) [95 %]", "ICC(C,1) [95 %]", "bias [95 %]", "limits of agreement")

PANEL_MEANS = (
    "Judge and panel mean as two raters. ICC(A,1): absolute agreement; ICC(C,1): consistency, a bias costs nothing. "
    "Bias and limits of agreement in rating points, judge minus people."
)


def panel_levels(own: JudgeReport) -> Iterator[tuple[str, JudgeReport | SystemLevel]]:
    """Items, and systems where there are two or more."""
    yield "items", own
    systems: SystemLevel | None = own["system_level"]  # null in a table without systems
    if systems is not None and systems["n_systems"] >= 2:
        yield "systems", systems


def panel_rows(own: JudgeReport) -> list[list[str]]:
    """A row of `PANEL_HEAD` for each level."""
    return [
        [
            level,
            str(found["icc_a1"]["n"]),
            numerals.ranged(found["icc_a1"]),
            numerals.ranged(found["icc_c1"]),
            numerals.ranged(found["bias"]),
            _limits(found),
        ]
        for level, found in panel_levels(own)
    ]


def panel_table(judges: Iterable[tuple[str, str, JudgeReport]]) -> Table:
    """What terminals show.

    Args:
        judges: Dimension, name and report of each judge, those of a dimension side by side.
    """
    table = new_table("judge and panel mean as two raters; bias and limits in rating points")
    table.add_column("judge", overflow="fold")
    for column in ("n", "ICC(A,1)\n(95 %)", "ICC(C,1)", "bias", "limits of\nagreement"):
        table.add_column(column, justify="right", no_wrap=True)
    last = None
    for dimension, judge, own in judges:
        if dimension != last:
            table.add_section()
            table.add_row(Text(dimension, style="bold"))
        last = dimension
        for level, found in panel_levels(own):
            table.add_row(
                Text(judge if level == "items" else f"{judge}, {level}"),
                str(found["icc_a1"]["n"]),
                numerals.ranged(found["icc_a1"]),
                numerals.number(found["icc_c1"]["value"]),
                numerals.signed(found["bias"]["value"]),
                _limits(found),
            )
    return table


def _limits(found: JudgeReport | SystemLevel) -> str:
    lower, upper = found["loa_lower"]["value"], found["loa_upper"]["value"]
    return numerals.NONE if lower is None else f"{numerals.signed(lower)} to {numerals.signed(upper)}"
