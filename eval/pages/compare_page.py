"""Writes the comparison of several judges: its numbers, a page in significance clusters, and a table for a paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...data_modules.folders import replace_file
from .. import numerals
from ..asking_words import ASKED_HEAD, SECONDS_MEAN, asked_rows, length_sentences
from ..report_schema import AgreementReport, DimensionReport, RankingReport
from ..statistics.ranking import ALPHA
from ..views import PANEL_HEAD, PANEL_MEANS, panel_rows
from . import charts, wording
from .listening import listening_sentence
from .page import read, render
from .report import PAGE_FILE
from .report_tables import markdown_comparison
from .report_view import bar, ceiling_lines, checks_of, drawn_whole, in_words, origin_of, versions_of

NUMBERS_FILE = "comparison.json"
TABLE_FILE = "comparison.md"


def comparison_json(reports: Sequence[AgreementReport], rankings: Mapping[str, RankingReport]) -> str:
    """Reports and rankings as strict JSON.

    Raises:
        ValueError: If they hold NaN or infinity.
    """
    return json.dumps({"reports": reports, "rankings": rankings}, indent=2, ensure_ascii=False, allow_nan=False)


def write_comparison(reports: Sequence[AgreementReport], rankings: Mapping[str, RankingReport], out: Path) -> None:
    """Writes `NUMBERS_FILE`, the table `TABLE_FILE` and the page `PAGE_FILE` into `out`, each whole or not at all.

    Args:
        reports: One per judge, on the same pairs; at least one.
        rankings: Dimension -> its judges ranked, from `compare.compare`.
        out: Folder; made if it does not exist.

    Raises:
        ValueError: If a report holds NaN or infinity.
    """
    numbers = comparison_json(reports, rankings) + "\n"
    table, page = markdown_comparison(reports, rankings), render_comparison(reports, rankings)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / NUMBERS_FILE, lambda path: path.write_text(numbers, encoding="utf-8"))
    replace_file(out / TABLE_FILE, lambda path: path.write_text(table, encoding="utf-8"))
    replace_file(out / PAGE_FILE, lambda path: path.write_text(page, encoding="utf-8"))


def render_comparison(reports: Sequence[AgreementReport], rankings: Mapping[str, RankingReport]) -> str:
    """The page as HTML that needs no other file. Every value is escaped: names come from outside."""
    first = reports[0]
    return render(
        "compare",
        read("compare.css"),
        report=first,
        judges=[report["judge"] for report in reports],
        scored=wording.split_name(first),
        drawn=drawn_whole(first),
        dimensions=[_section(name, ranking, reports) for name, ranking in rankings.items()],
        alone=_scored_by_one(reports, rankings),
        panel_head=PANEL_HEAD,
        panel_means=PANEL_MEANS,
        asked_head=ASKED_HEAD,
        seconds_mean=SECONDS_MEAN,
        asked=asked_rows(reports),
        provenance=_provenance(reports),
    )


def _section(name: str, ranking: RankingReport, reports: Sequence[AgreementReport]) -> dict[str, Any]:
    by_judge = {report["judge"]: report for report in reports}
    found = {
        judge["judge"]: by_judge[judge["judge"]]["dimensions"][name]
        for judge in ranking["judges"]
        if judge["judge"] in by_judge and name in by_judge[judge["judge"]]["dimensions"]
    }
    entries = []
    for judge in ranking["judges"]:
        own = found.get(judge["judge"])
        checks = {} if own is None else checks_of(by_judge[judge["judge"]], name)
        entries.append(
            {
                **judge,
                "report": own,
                "listening": None if own is None else listening_sentence(checks, own["spearman"]),
                "length": [] if own is None else length_sentences(own),
            }
        )
    unranked = {judge["judge"] for judge in ranking["judges"] if judge["cluster"] is None}
    clusters = sorted({judge["cluster"] for judge in ranking["judges"] if judge["cluster"] is not None})
    return {
        "name": name,
        "words": comparison_words(ranking),
        "clusters": [
            {"number": number, "judges": [entry for entry in entries if entry["cluster"] == number]}
            for number in clusters
        ],
        "unranked": [entry for entry in entries if entry["cluster"] is None],
        "chart": _chart(name, [judge for judge in ranking["judges"] if judge["cluster"] is not None], found),
        "panel": [(judge, panel_rows(own)) for judge, own in found.items()],
        "comparisons": [
            _comparison_view(own) for own in ranking["comparisons"] if not unranked & {own["first"], own["second"]}
        ],
    }


def _chart(name: str, ranked: Sequence[dict[str, Any]], found: Mapping[str, DimensionReport]) -> Markup:
    """Judges in boxes, with the ceilings of the best one's items; empty without judges."""
    if not ranked:
        return Markup("")
    rows = [
        bar(judge["judge"], found[judge["judge"]]["spearman"])
        if judge["judge"] in found
        else charts.Bar(judge["judge"], judge["spearman"], None, None)
        for judge in ranked
    ]
    places: dict[int | None, list[int]] = {}
    for position, judge in enumerate(ranked):
        places.setdefault(judge["cluster"], []).append(position)
    boxes = [charts.Box(own[0], own[-1], f"cluster {number}") for number, own in places.items()]
    best = found.get(ranked[0]["judge"])
    lines = [] if best is None else ceiling_lines(best)
    return Markup(charts.dots(rows, lines, f"{name}, Spearman with people: {in_words(rows)}", boxes))


def _comparison_view(own: dict[str, Any]) -> dict[str, Any]:
    """A pair with the better judge first."""
    value = own["difference"]["value"]
    turned = value is not None and value < 0
    difference = own["difference"]
    if turned:
        difference = {
            **difference,
            "value": -value if value is not None else None,
            "low": None if difference["high"] is None else -difference["high"],
            "high": None if difference["low"] is None else -difference["low"],
        }
    needed = own["groups_needed"]
    low, high = own["groups_low"], own["groups_high"]
    between = f"{low or '?'} to {high or 'any number'}" if needed is not None and (low or high) else ""
    return {
        "better": own["second"] if turned else own["first"],
        "worse": own["first"] if turned else own["second"],
        "difference": difference,
        "p": numerals.p_value(own["p"]),
        "p_adjusted": numerals.p_value(own["p_adjusted"]),
        "told_apart": own["p_adjusted"] is not None and own["p_adjusted"] < ALPHA,
        "needed": numerals.NONE if needed is None else f"{needed:,}",
        "between": between,
        "n_items": own["n_items"],
        "n_groups": own["n_groups"],
    }


def _scored_by_one(
    reports: Sequence[AgreementReport], rankings: Mapping[str, RankingReport]
) -> list[tuple[str, str, str]]:
    """Dimensions that only one judge scores: name, judge, verdict."""
    return [
        (name, report["judge"], own["verdict"]["text"])
        for report in reports
        for name, own in report["dimensions"].items()
        if name not in rankings
    ]


def _provenance(reports: Sequence[AgreementReport]) -> list[tuple[str, str]]:
    first = reports[0]
    rows = {
        "judges": "; ".join(report["judge"] for report in reports),
        "raters left out, as they are judges here": ", ".join(first["provenance"].get("raters_left_out", [])),
        **origin_of(first),
        "versions": versions_of(first),
    }
    return [(name, value) for name, value in rows.items() if value]


def comparison_words(ranking: RankingReport) -> str:
    """One short paragraph on a ranking.

    It names the first cluster, what is behind it, the groups that would tell the two best judges apart where they are
    not, and how many judges have no rank.
    """
    ranked = [judge for judge in ranking["judges"] if judge["cluster"] is not None]
    left_out = len(ranking["judges"]) - len(ranked)
    end = f" {left_out} judge{'s have' if left_out > 1 else ' has'} no rank." if left_out else ""
    if not ranked:
        return f"No judge can be ranked.{end}"
    best = ranked[0]
    said = f"(Spearman {numerals.number(best['spearman'])})"
    if len(ranked) == 1:
        return f"Only {best['judge']} {said} can be ranked.{end}"
    clusters: dict[int | None, list[str]] = {}
    for judge in ranked:
        clusters.setdefault(judge["cluster"], []).append(judge["judge"])
    first, *others = clusters.values()
    tied = [_listed(cluster) for cluster in others if len(cluster) > 1]
    if len(first) == 1:
        text = f"{best['judge']} agrees best with people {said}, clearly better than "
        text += "the other." if len(ranked) == 2 else "all others."
        behind = " Behind it, "
    else:
        close = [name for name in first[1:] if not _told_apart(ranking, first[0], name)] or first[1:]
        text = f"{_listed(first)} form one cluster: {best['judge']} is highest {said}, but not clearly better than "
        text += f"{_listed(close, 'or')}.{_needed(ranking, first[0], close[0])}"
        text += " All others are clearly worse." if others else ""
        behind = " Behind them, "
    if tied:
        text += f"{behind}{'; so do '.join([f'{tied[0]} form one cluster', *tied[1:]])}."
    return text + end


def _between(ranking: RankingReport, first: str, second: str) -> dict[str, Any] | None:
    return next((own for own in ranking["comparisons"] if {own["first"], own["second"]} == {first, second}), None)


def _told_apart(ranking: RankingReport, first: str, second: str) -> bool:
    found = _between(ranking, first, second)
    return found is not None and found["p_adjusted"] is not None and found["p_adjusted"] < ALPHA


def _needed(ranking: RankingReport, first: str, second: str) -> str:
    """How much data the difference of two judges would take."""
    found = _between(ranking, first, second)
    if found is None or found["groups_needed"] is None:
        return ""
    needed, here = f"{found['groups_needed']:,}", found["n_groups"]
    return f" To tell {first} and {second} apart would take about {needed} groups; here are {here}."


def _listed(names: Sequence[str], last: str = "and") -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else names[0]
