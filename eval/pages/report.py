"""Writes a report: its numbers as JSON, CSV and Markdown, its page, and a table for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from rich.table import Table
from rich.text import Text

from ...data_modules.folders import replace_file
from ...data_modules.schema import PairDataset
from .. import numerals
from ..asking_words import asking_sentences
from ..report_schema import AgreementReport, DimensionReport
from . import wording
from .page import read, render
from .report_tables import markdown_report, statistics_table
from .report_view import dimension_view, drawn_whole, origin_of, scale_of, versions_of, worst_items
from .sound import EMBEDDED_RULE, EmbeddedClips, disagreements
from .wording import MAIN, percent_ranged

REPORT_FILE = "agreement.json"
ITEMS_FILE = "items.csv"
TABLE_FILE = "agreement.md"
STATISTICS_FILE = "agreement.csv"
PAGE_FILE = "index.html"


def write_report(report: AgreementReport, items: pd.DataFrame, out: Path, dataset: PairDataset | None = None) -> None:
    """Writes the files of a report into `out`, each complete or not at all; the page last.

    `REPORT_FILE`, `ITEMS_FILE`, `TABLE_FILE` (Markdown), `STATISTICS_FILE` (a row per statistic) and `PAGE_FILE`.

    Args:
        report: From `evaluate.evaluate`.
        items: Its table of items.
        out: Folder; made if it does not exist.
        dataset: What was judged: the page then plays the items on which judge and people differ most.

    Raises:
        ValueError: If the report holds NaN or infinity.
    """
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    table, statistics = markdown_report(report), statistics_table(report)
    out.mkdir(parents=True, exist_ok=True)
    page = render_page(report, items, dataset)
    replace_file(out / REPORT_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    replace_file(out / ITEMS_FILE, lambda path: items.to_csv(path, index=False, lineterminator="\n"))
    replace_file(out / TABLE_FILE, lambda path: path.write_text(table, encoding="utf-8"))
    replace_file(out / STATISTICS_FILE, lambda path: statistics.to_csv(path, index=False, lineterminator="\n"))
    replace_file(out / PAGE_FILE, lambda path: path.write_text(page, encoding="utf-8"))


def render_page(report: AgreementReport, items: pd.DataFrame, dataset: PairDataset | None = None) -> str:
    """The page as HTML that needs no other file and no network. Every value is escaped: names come from outside.

    Args:
        report: From `evaluate.evaluate`.
        items: Its table of items.
        dataset: What was judged, for players; the clips stand in the page.
    """
    sections = []
    for name, dimension in report["dimensions"].items():
        worst, section = worst_items(name, items), dimension_view(name, report, items)
        section |= {"worst": worst, "heard": []}
        if dataset is not None:
            section["heard"] = disagreements(worst, name, scale_of(dimension), dataset, EmbeddedClips())
        sections.append(section)
    return render(
        "report",
        read("sound.css") + read("report.css"),
        report=report,
        dimensions=sections,
        scored=wording.split_name(report),
        drawn=drawn_whole(report),
        asking=asking_sentences(report),
        provenance=_provenance(report),
        audio_rule=EMBEDDED_RULE if any(section["heard"] for section in sections) else "",
    )


def terminal_table(report: AgreementReport) -> Table:
    """A short table: one column per dimension."""
    title = f"{report['judge']} on {report['dataset']['name']}, {wording.split_name(report)}"
    if report["dataset"]["synthetic"]:
        title += " (synthetic ratings)"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("")
    for name in report["dimensions"]:
        table.add_column(Text(name), justify="right")
    rows: dict[str, Callable[[DimensionReport], str]] = {
        "items / groups / raters": lambda d: f"{d['n_items']} / {d['n_groups']} / {d['n_raters']}",
        "Spearman": lambda d: numerals.ranged(d["spearman"]),
        "noise ceiling (panel mean)": lambda d: numerals.ranged(d["ceiling"]["panel_mean"]),
        "share of the noise ceiling": lambda d: numerals.percent(d["share_of_panel_ceiling"]["value"]),
        "difference from one rater": lambda d: numerals.signed_ranged(d["like_for_like"]["difference"]),
        "effective number of raters": lambda d: numerals.effective_raters(d["like_for_like"]["effective_raters"]),
        "CCC": lambda d: numerals.ranged(d["ccc"]),
        "mean absolute error": lambda d: numerals.ranged(d["mae"]),
    }
    if any(_covered(own) for own in report["dimensions"].values()):
        rows[f"{MAIN} % intervals cover"] = _covered
    for label, cell in rows.items():
        table.add_row(label, *(Text(cell(d)) for d in report["dimensions"].values()))
    for check, results in report["checks"].items():
        label = f"{wording.CHECK_TITLES[check].lower()}: Spearman"
        table.add_row(label, *(Text(numerals.ranged(results[name]["spearman"])) for name in report["dimensions"]))
    return table


def _covered(dimension: DimensionReport) -> str:
    """How many of the mean ratings its intervals hold; empty where it gives none."""
    own = (dimension["uncertainty"] or {"intervals": {}})["intervals"].get(MAIN)
    return "" if own is None else percent_ranged(own["covered"])


def _provenance(report: AgreementReport) -> list[tuple[str, str]]:
    rows = {
        "judge": report["judge"],
        **origin_of(report),
        "rated but not judged": ", ".join(report["left_out"]["not_judged"]),
        "judged but not rated": ", ".join(report["left_out"]["not_rated"]),
        **{
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in report["provenance"].items()
        },
        "versions": versions_of(report),
    }
    return [(name, value) for name, value in rows.items() if value]
