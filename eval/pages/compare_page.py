"""Writes the comparison of several judges: its numbers, a page in significance clusters, and a table for a paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..rendering import negated, read, render, sentences
from ..results import Report, joined, results_frame
from ..statistics.ranking import ALPHA
from ..views import PANEL_HEAD, PROMPTED_HEAD, panel_rows, prompted_rows, split_name
from . import charts
from .report import (
    PAGE_FILE,
    RESULTS_FILE,
    as_csv,
    bar,
    ceiling_lines,
    drawn_whole,
    in_words,
    listening,
    origin_of,
    render_markdown,
    write_files,
)

NUMBERS_FILE = "comparison.json"
TABLE_FILE = "comparison.md"


def comparison_json(reports: Sequence[Report], rankings: Mapping[str, Report]) -> str:
    """Reports and rankings as strict JSON.

    Raises:
        ValueError: If they hold NaN or infinity.
    """
    return json.dumps({"reports": reports, "rankings": rankings}, indent=2, ensure_ascii=False, allow_nan=False)


def write_comparison(reports: Sequence[Report], rankings: Mapping[str, Report], out: Path) -> None:
    """Writes `NUMBERS_FILE`, `RESULTS_FILE`, the table `TABLE_FILE` and the page `PAGE_FILE`, each whole or not at all.

    Args:
        reports: One per judge, on the same pairs; at least one.
        rankings: Dimension -> its judges ranked, from `compare.compare`.
        out: Folder; made if it does not exist.

    Raises:
        ValueError: If a report holds NaN or infinity.
    """
    files = {
        NUMBERS_FILE: comparison_json(reports, rankings) + "\n",
        RESULTS_FILE: as_csv(results_frame(reports, rankings)),
        TABLE_FILE: markdown_comparison(reports, rankings),
        PAGE_FILE: render_comparison(reports, rankings),
    }
    write_files(out, files)


def markdown_comparison(reports: Sequence[Report], rankings: Mapping[str, Report]) -> str:
    """Judges per dimension in their significance clusters as a table; arguments as for `write_comparison`."""
    return render_markdown(
        "comparison.md",
        reports={report["judge"]: report for report in reports},
        rankings=rankings,
        dimensions=list(dict.fromkeys(name for report in reports for name in report["dimensions"])),
        prompted=prompted_rows(reports),
        prompted_head=PROMPTED_HEAD,
    )


def render_comparison(reports: Sequence[Report], rankings: Mapping[str, Report]) -> str:
    """The page as HTML that needs no other file. Every value is escaped: names come from outside."""
    first = reports[0]
    provenance = {
        "judges": "; ".join(report["judge"] for report in reports),
        "raters left out, as they are judges here": ", ".join(first["provenance"].get("raters_left_out", [])),
        **origin_of(first),
        "signature": joined([report["signature"] for report in reports]),
    }
    return render(
        "compare",
        read("compare.css"),
        reports=reports,
        scored=split_name(first),
        drawn=drawn_whole(first),
        dimensions=[_section(name, ranking, reports) for name, ranking in rankings.items()],
        alone=[  # dimensions that only one judge scores
            (name, report["judge"], own["verdict"]["text"])
            for report in reports
            for name, own in report["dimensions"].items()
            if name not in rankings
        ],
        panel_head=PANEL_HEAD,
        prompted=prompted_rows(reports),
        prompted_head=PROMPTED_HEAD,
        provenance=[(name, value) for name, value in provenance.items() if value],
    )


def _section(name: str, ranking: Report, reports: Sequence[Report]) -> dict[str, Any]:
    by_judge = {report["judge"]: report for report in reports if name in report["dimensions"]}
    judges = [own for own in ranking["judges"] if own["judge"] in by_judge]
    found = {own["judge"]: by_judge[own["judge"]]["dimensions"][name] for own in judges}
    ranked = [own for own in judges if own["cluster"] is not None]
    clusters: dict[int, list[str]] = {}
    for own in ranked:
        clusters.setdefault(own["cluster"], []).append(own["judge"])
    entries = {
        own["judge"]: {**own, "report": found[own["judge"]], "listening": listening(by_judge[own["judge"]], name)}
        for own in judges
    }
    chart = ""
    if ranked:
        rows = [bar(own["judge"], found[own["judge"]]["spearman"]) for own in ranked]
        boxes, first = [], 0
        for number, names in clusters.items():
            boxes.append(charts.Box(first, first + len(names) - 1, f"cluster {number}"))
            first += len(names)
        lines = ceiling_lines(found[ranked[0]["judge"]])  # of the items of the best judge
        chart = charts.dots(rows, lines, f"{name}, Spearman with people: {in_words(rows)}", boxes)
    return {
        "name": name,
        "words": " ".join(sentences("ranking", ranking=ranking)),
        "clusters": {number: [entries[judge] for judge in names] for number, names in clusters.items()},
        "unranked": [entries[own["judge"]] for own in judges if own["cluster"] is None],
        "chart": Markup(chart),
        "panel": [(judge, panel_rows(own)) for judge, own in found.items()],
        "comparisons": [
            _better_first(own)
            for own in ranking["comparisons"]
            if all(entries[own[side]]["cluster"] is not None for side in ("first", "second"))
        ],
    }


def _better_first(own: Report) -> Report:
    value, told_apart = own["difference"]["value"], own["p_adjusted"] is not None and own["p_adjusted"] < ALPHA
    if value is None or value >= 0:
        return {**own, "told_apart": told_apart}
    turned = {"first": own["second"], "second": own["first"], "difference": negated(own["difference"])}
    return {**own, **turned, "told_apart": told_apart}
