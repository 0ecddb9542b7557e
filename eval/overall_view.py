"""What the terminal shows of judges over all dimensions of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from . import numerals
from .overall_words import turned
from .panel_view import panel_table
from .report_schema import JudgeReport, OverallReport
from .terminal import new_table
from .verdict import few_raters

_MARKS = {
    "better than one rater": "+",
    "not told apart from one rater": "=",
    "worse than one rater": "−",
    "too few items to tell": "?",
}


def table_comparison_views(found: Mapping[str, Any]) -> Iterator[Table | str]:
    """What ``compare --table`` prints: the judges over all dimensions, the answer in words, then each dimension.

    Args:
        found: From `agreement_table.measure_agreement`, with judges.
    """
    overall: OverallReport | None = found["overall"]
    if overall is not None:
        yield overall_table(overall)
        yield from overall["text"]
        yield from dict.fromkeys(filter(None, (few_raters(judge["like_for_like"]) for judge in overall["judges"])))
        yield ""
    yield _by_dimension(found)
    yield panel_table(
        (one["dimension"] if one["dataset"] is None else f"{one['dataset']}/{one['dimension']}", judge, own)
        for one in found["dimensions"]
        for judge, own in one["judges"].items()
    )
    if overall is None:
        for judge, own in found["dimensions"][0]["judges"].items():
            yield f"{judge}: {own['verdict']['text']}"


def overall_table(overall: OverallReport) -> Table:
    """Judges, best first, and the people below them."""
    title = f"judges over {overall['n_dimensions']} dimensions ({overall['n_groups']} groups)"
    table = new_table(title)
    table.add_column("judge", overflow="fold", min_width=14)
    columns = (
        "cluster",
        "mean Spearman\n(95 %)",
        "difference from\none person",
        "share of the\nbest possible",
        "p to next\n(Holm)",
    )
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    ranked = [judge["judge"] for judge in overall["judges"] if judge["cluster"] is not None]
    for judge in overall["judges"]:
        place = ranked.index(judge["judge"]) if judge["judge"] in ranked else len(ranked)
        p = turned(overall, judge["judge"], ranked[place + 1])["p_adjusted"] if place + 1 < len(ranked) else None
        table.add_row(
            Text(judge["judge"]),
            "none" if judge["cluster"] is None else str(judge["cluster"]),
            numerals.ranged(judge["spearman"]),
            numerals.signed_ranged(judge["like_for_like"]["difference"]),
            numerals.percent_ranged(judge["share_of_panel_ceiling"]),
            "" if p is None else f"{p:.3f}",
        )
    table.add_row("best possible", "", numerals.ranged(overall["people"]["panel_mean"]), "", "", "", style="bold")
    return table


def _by_dimension(found: Mapping[str, Any]) -> Table:
    """Spearman of each judge and the verdict beside one person, a row for each dimension."""
    marks = ", ".join(f"{mark} {verdict.replace('rater', 'person')}" for verdict, mark in _MARKS.items())
    table = new_table(f"Spearman with the mean of {', '.join(found['people'])} ({marks})")
    table.add_column("dimension", overflow="fold", min_width=14)
    for column in ("items", "best\npossible", *found["judges"]):
        table.add_column(Text(column, overflow="fold"), justify="right", no_wrap=True)
    dataset = None
    for one in found["dimensions"]:
        if one["dataset"] != dataset:
            dataset = one["dataset"]
            table.add_section()
            table.add_row(Text(dataset), style="bold")
        judges = [one["judges"].get(judge) for judge in found["judges"]]
        table.add_row(
            Text(one["dimension"]),
            str(one["people"]["n_items"]),
            numerals.number(one["people"]["panel_mean"]["value"]),
            *(numerals.NONE if own is None else _marked(own) for own in judges),
        )
    return table


def _marked(own: JudgeReport) -> str:
    return f"{numerals.ranged(own['spearman'])} {_MARKS[own['like_for_like']['verdict']]}"
