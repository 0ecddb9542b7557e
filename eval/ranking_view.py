"""What the terminal shows of several judges on the same items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from . import numerals
from .report_schema import ComparisonReport, RankingReport
from .terminal import new_table


def ranking_table(title: str, rankings: Mapping[str, RankingReport]) -> Table:
    """Judges in significance clusters, each with what separates it from the next one.

    Args:
        title: Of the table.
        rankings: Name of the dimension -> its judges.
    """
    table = new_table(title)
    table.add_column("judge", overflow="fold")
    for column in ("cluster", "Spearman", "ahead of the\nnext by (95 %)", "p (Holm)", "groups to\nseparate them"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, ranking in rankings.items():
        table.add_section()
        table.add_row(Text(name, style="bold"))
        gaps = _gaps(ranking)
        for judge in ranking["judges"]:
            if judge["cluster"] is None:
                table.add_row(Text(judge["judge"]), "none", "—", "", "", "")
                continue
            table.add_row(
                Text(judge["judge"]),
                str(judge["cluster"]),
                numerals.number(judge["spearman"]),
                *gaps.get(judge["judge"], ("", "", "")),
            )
    return table


def unranked(rankings: Mapping[str, RankingReport]) -> Iterator[str]:
    """Why judges are in no cluster."""
    for name, ranking in rankings.items():
        for judge in ranking["judges"]:
            if judge["cluster"] is None:
                yield f"{name}, {judge['judge']}: {judge['reason']}"


def _gaps(ranking: RankingReport) -> dict[str, tuple[str, str, str]]:
    """Judge -> difference to the next one, its p value, and the groups that would show it."""
    found = {(one["first"], one["second"]): one for one in ranking["comparisons"]}
    ranked = [judge["judge"] for judge in ranking["judges"] if judge["cluster"] is not None]
    return {
        better: _gap(found[better, next_] if (better, next_) in found else found[next_, better], better)
        for better, next_ in pairwise(ranked)
    }


def _gap(comparison: ComparisonReport, better: str) -> tuple[str, str, str]:
    difference = comparison["difference"]
    value, low, high = difference["value"], difference["low"], difference["high"]
    if comparison["first"] != better:
        value, low, high = (None if end is None else -end for end in (value, high, low))
    ahead = numerals.number(value) + ("" if low is None else f" [{numerals.number(low)}, {numerals.number(high)}]")
    needed = comparison["groups_needed"]
    p = "—" if comparison["p_adjusted"] is None else f"{comparison['p_adjusted']:.4f}"
    return ahead, p, "—" if needed is None else f"{needed} ({comparison['n_groups']} now)"
