"""What `empathy-judge compare` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from . import numerals
from .asking_words import ASKED_HEAD, SECONDS_MEAN, AskedRow, asked_rows, length_sentences
from .compare import Comparison
from .panel_view import panel_table
from .ranking_view import ranking_table, unranked
from .terminal import new_table
from .verdict import few_raters


def comparison_views(found: Comparison) -> Iterator[Table | str]:
    """The judges beside their ceilings, their ranking, and a verdict on each."""
    yield _agreement(found)
    yield panel_table(
        (name, report["judge"], report["dimensions"][name])
        for name in _dimensions(found)
        for report in found.reports
        if name in report["dimensions"]
    )
    if found.rankings:
        yield ranking_table("judge against judge", found.rankings)
        yield from unranked(found.rankings)
    rows = asked_rows(found.reports)
    if rows:
        yield _asked(rows)
        yield SECONDS_MEAN
    notes: dict[str, None] = {}
    for report in found.reports:
        for name, own in report["dimensions"].items():
            yield " ".join([f"{report['judge']}, {name}: {own['verdict']['text']}", *length_sentences(own)])
            if few := few_raters(own["like_for_like"]):
                notes[few] = None
    yield from notes


def _asked(rows: Sequence[AskedRow]) -> Table:
    """What judges took, and whether they stand by their answers."""
    table = new_table("what asking took")
    for position, column in enumerate(ASKED_HEAD):
        numeric = position >= 2
        table.add_column(
            column, justify="right" if numeric else "left", overflow="fold", min_width=6 if numeric else 12
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _agreement(found: Comparison) -> Table:
    """One row per judge under each dimension; below them the best possible."""
    table = new_table("judges and people")
    table.add_column("judge", overflow="fold")
    for column in (
        "Spearman\n(95 %)",
        "share of\nthe best\npossible",
        "difference from\none rater (95 %)",
        "effective\nnumber\nof raters",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for name in _dimensions(found):
        table.add_section()
        table.add_row(Text(name, style="bold"))
        judged = [(report["judge"], report["dimensions"].get(name)) for report in found.reports]
        for judge, own in judged:
            if own is not None:
                table.add_row(
                    Text(judge),
                    numerals.ranged(own["spearman"]),
                    numerals.percent(own["share_of_panel_ceiling"]["value"]),
                    numerals.signed_ranged(own["like_for_like"]["difference"]),
                    numerals.effective_raters(own["like_for_like"]["effective_raters"]),
                )
        ceiling = next(own["ceiling"]["panel_mean"] for _, own in judged if own is not None)
        table.add_row("best possible", numerals.ranged(ceiling), "", "", "", style="bold")
    return table


def _dimensions(found: Comparison) -> list[str]:
    return list(dict.fromkeys(name for report in found.reports for name in report["dimensions"]))
