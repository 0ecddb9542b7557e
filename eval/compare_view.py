"""What `empathy-judge compare` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from . import numerals
from .asking_words import ASKED_HEAD, SECONDS_MEAN, AskedRow, asked_rows, length_sentences
from .compare import Comparison
from .ranking_view import ranking_table, raters_worth, unranked
from .terminal import new_table


def comparison_views(found: Comparison) -> Iterator[Table | str]:
    """The judges beside their ceilings, their ranking, and a verdict on each."""
    yield _agreement(found)
    if found.rankings:
        yield ranking_table("judge against judge", found.rankings)
        yield from unranked(found.rankings)
    rows = asked_rows(found.reports)
    if rows:
        yield _asked(rows)
        yield SECONDS_MEAN
    for report in found.reports:
        for name, own in report["dimensions"].items():
            yield " ".join([f"{report['judge']}, {name}: {own['verdict']['text']}", *length_sentences(own)])


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
    """One row per judge and dimension; the last rows are the human ceilings."""
    table = Table("judge", "dimension", "items", "Spearman (95 %)", "share of the\nbest possible", "worth in raters")
    for report in found.reports:
        for name, own in report["dimensions"].items():
            table.add_row(
                Text(report["judge"]),
                Text(name),
                str(own["n_items"]),
                numerals.ranged(own["spearman"]),
                numerals.percent(own["share_of_panel_ceiling"]["value"]),
                raters_worth(own["raters_worth"]),
            )
    for name, own in found.reports[0]["dimensions"].items():
        for label, ceiling in (("one rater", "spearman"), ("best possible", "panel_mean")):
            statistic = own["ceiling"][ceiling]
            table.add_row(label, Text(name), str(own["n_items"]), numerals.ranged(statistic), "", "", style="bold")
    return table
