"""What `empathy-judge compare` prints."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from . import numerals
from .compare import Comparison
from .ranking_view import ranking_table, raters_worth, unranked


def comparison_views(found: Comparison) -> Iterator[Table | str]:
    """The judges beside their ceilings, their ranking, and a verdict on each."""
    yield _agreement(found)
    if found.rankings:
        yield ranking_table("judge against judge", found.rankings)
        yield from unranked(found.rankings)
    for report in found.reports:
        for name, own in report["dimensions"].items():
            yield f"{report['judge']}, {name}: {own['verdict']['text']}"


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
