"""The report of a judge, and the comparison of several, as a page and as Markdown.

The texts of the pages are in ``templates/report.html.j2`` and ``templates/compare.html.j2``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...data_modules.schema import PairDataset
from ...data_modules.storage import TAG_PREFIX
from ...models.description import start_in_words
from .. import views
from ..checks import CHECKS
from ..dimension_report import judged_rows
from ..listening import Listening, check_view
from ..overall import is_significant, oriented
from ..rendering import number, read, render, sentences
from ..report.dataset import RankedJudge, Ranking, Report
from ..report.dimension import DimensionReport, SliceReport
from ..results import joined
from . import charts
from .sound import EMBEDDED_RULE, disagreements

PAGE_FILE = "index.html"

WORST_ITEMS = 10
"""Items listed under the largest disagreements."""

FEW_ROWS = 8
"""With more bars than this, the gaps between them are smaller."""

SHOWN_SLICES = 20
"""Most values of a column in its plot, those with the most items; the table has all."""


def markdown_report(report: Report) -> str:
    """Agreement per dimension as a table, the verdicts below it, and the listening checks as a second table."""
    return render("agreement.md", views=views, CHECKS=CHECKS, report=report).rstrip("\n") + "\n"


def markdown_comparison(reports: Sequence[Report], rankings: Mapping[str, Ranking]) -> str:
    """A table of the judges of each dimension, measured on the same pairs, in their significance clusters."""
    by_judge = {report.judge: report for report in reports}
    dimensions = list(dict.fromkeys(name for report in reports for name in report.dimensions))
    text = render("comparison.md", views=views, reports=by_judge, rankings=rankings, dimensions=dimensions)
    return text.rstrip("\n") + "\n"


def render_page(report: Report, items: pd.DataFrame, dataset: PairDataset) -> str:
    """The page as HTML that needs no other file and no network; it has players for the items on which judge and people
    differ most."""
    sections = []
    for name, dimension in report.dimensions.items():
        rows = judged_rows(items.loc[items["dimension"] == name])
        worst = worst_items(rows).to_dict("records")
        scale = dimension.scale.minimum, dimension.scale.maximum
        largest = disagreements(worst, name, scale, dataset)
        systems = dimension.system_level
        more = {"disagreements": largest, "systems": systems is not None and len(systems.systems) >= 2}
        sections.append(_dimension_view(name, report, rows) | more)
    return render(
        "report",
        read("sound.css") + read("report.css"),
        views=views,
        CHECKS=CHECKS,
        report=report,
        dimensions=sections,
        check_view=check_view,
        plainly=plainly,
        parts=_PARTS,
        provenance=_provenance(report),
        audio_rule=EMBEDDED_RULE if any(section["disagreements"] for section in sections) else "",
    )


def worst_items(rows: pd.DataFrame) -> pd.DataFrame:
    """The judged items of a dimension on which judge and people differ most."""
    difference = (rows["score"] - rows["human_mean"]).to_numpy(np.float64)
    return rows.iloc[np.argsort(-np.abs(difference), kind="stable")[:WORST_ITEMS]]


def _origin_of(report: Report) -> dict[str, str]:
    """Data and method of a report: the rows of its table of provenance."""
    data = report.dataset
    return {
        "signature": report.signature,
        "hashes": "the signature has hashes of those of data and split below: other digits for the same",
        "dataset": f"{data.name} ({'synthetic ratings' if data.synthetic else 'human ratings'})",
        "source": data.source,
        "licence": data.licence,
        "content hash": data.content_hash,
        "split": report.split or "all pairs",
        "split hash": report.split_hash,
        "command": report.command,
        "seed, resamples": f"{report.seed}, {report.resamples}",
        "intervals": f"95 %, {report.interval}, draws of whole {views.cluster_label(report)}",
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
    }


def _provenance(report: Report) -> list[tuple[str, str]]:
    origin = _origin_of(report)
    versions, trained = origin.pop("versions"), report.provenance.get("provenance")
    rows = {
        "judge": report.judge,
        **origin,
        "where training began": "; ".join(start_in_words(trained) if trained else []),
        "rated but not judged": ", ".join(report.left_out.not_judged),
        "judged but not rated": ", ".join(report.left_out.not_rated),
        **{name: _in_words(value) for name, value in report.provenance.items()},
        "versions": versions,
    }
    return [(name, value) for name, value in rows.items() if value]


_PARTS = (
    ("listens", "Does it listen?", "checks"), ("items", "Every item", "scatter"),
    ("statistics", "All statistics", "report"), ("systems", "System by system", "systems"),
    ("disagreements", "Largest disagreements", "disagreements"),
)  # fmt: skip
"""Of a dimension on a page: anchor, title, and the field of its section without which it is left out."""


def _in_words(value: Any) -> str:
    """What a judge says of itself, as text: no JSON on a page."""
    if isinstance(value, Mapping):
        named = ((str(name).replace("_", " "), _in_words(own)) for name, own in value.items())
        return "; ".join(f"{name}: {text}" for name, text in named if text)
    if isinstance(value, list | tuple):
        return ", ".join(_in_words(own) for own in value)
    return "" if value is None else str(value)


_PLAIN = {
    "better_than_one_rater": "Agrees with people better than one more person would",
    "not_told_apart_from_one_rater": "Agrees with people about as well as one more person would",
    "worse_than_one_rater": "Agrees with people less well than one more person would",
    "too_few_items_to_tell": "There are too few items to tell whether it agrees with people",
    "against": "Orders the responses against people",
    "beyond_possible": "Agrees better than is possible without having seen these ratings",
    "constant": "Gives every response the same score",
}


def plainly(dimension: DimensionReport) -> str:
    """The verdict for whoever knows no statistics, with the interval of the agreement."""
    own, said = dimension.spearman, _PLAIN.get(dimension.verdict.kind, "No verdict")
    if own.value is None or own.low is None or own.high is None:
        return f"{said}."
    return f"{said}: Spearman {number(own.value)} ({number(own.low)} to {number(own.high)})."


def _dimension_view(name: str, report: Report, rows: pd.DataFrame) -> dict[str, Any]:
    """The section of one dimension; `rows` are its judged items."""
    dimension, checks = report.dimensions[name], report.checks_of(name)
    score, human = rows["score"].to_numpy(np.float64), rows["human_mean"].to_numpy(np.float64)
    scale, curve = (dimension.scale.minimum, dimension.scale.maximum), dimension.calibration.curve
    view: dict[str, Any] = {"name": name, "report": dimension, "checks": checks}
    view["listening"] = views.listening(report, name)
    bars = [charts.Row("Full input", dimension.spearman)]
    # A check that must change nothing is read from how far scores move, not from the agreement
    bars += [charts.Row(CHECKS[key].title, check.spearman) for key, check in checks.items() if check.expects != "same"]
    ceiling = "noise ceiling", dimension.ceiling.panel_mean.value
    alt, gap = f"{name}, Spearman with people", 0.6 if len(bars) <= FEW_ROWS else 0.4
    view["bars"] = charts.rows_with_intervals(alt, bars, ceiling, bars=True, gap=gap) if checks else ""
    alt = f"{name}: judge score against mean human score"
    view["scatter"] = charts.scatter(score, human, scale, alt) if len(rows) else ""
    alt = f"{name}: mean human score by judge score"
    view["calibration"] = charts.calibration(curve, scale, alt) if curve else ""
    alt, shares = f"{name}: shares of raters, predicted and as they were", dimension.rating_distribution
    view["levels"] = charts.reliability(shares.reliability, alt) if shares else ""
    alt = f"{name}: share of wrong verdicts on two responses by the share that is given"
    view["risk"] = charts.risk_coverage(dimension.verdicts, alt) if dimension.verdicts else ""
    view["slices"] = [
        _slice_view(name, column, {value: results[name] for value, results in values.items()}, dimension)
        for column, values in report.slices.items()
    ]
    return view


def _slice_view(
    name: str, column: str, values: Mapping[str, SliceReport], dimension: DimensionReport
) -> dict[str, Any]:
    largest = sorted(values, key=lambda value: -values[value].n_items)[:SHOWN_SLICES]
    # In the order of the table below the chart
    shown = [value for value in values if value in largest]
    rows = [charts.Row(value, values[value].spearman, f"n = {values[value].n_items}") for value in shown]
    alt, overall = f"{name}, Spearman with people by {column}", ("all items", dimension.spearman.value)
    return {
        "column": column.removeprefix(TAG_PREFIX),
        "chart": charts.rows_with_intervals(alt, rows, overall, gap=0.42),
        "of_all": f" (the {len(shown)} of {len(values)} values with most items)" if len(shown) < len(values) else "",
        "checks": [CHECKS[check].title for check in next(iter(values.values())).checks],
        "rows": values,
    }


# ---------------------------------------------------------------- several judges


def render_comparison(reports: Sequence[Report], rankings: Mapping[str, Ranking]) -> str:
    """The page as HTML that needs no other file."""
    first = reports[0]
    provenance = {
        "judges": "; ".join(report.judge for report in reports),
        "raters left out, as they are judges here": ", ".join(first.provenance.get("raters_left_out", [])),
        **_origin_of(first),
        "signature": joined([report.signature for report in reports]),
    }
    return render(
        "compare",
        read("compare.css"),
        views=views,
        reports=reports,
        dimensions=[_comparison_view(name, ranking, reports) for name, ranking in rankings.items()],
        alone=[  # dimensions that only one judge scores
            (name, report.judge, dimension.verdict.text)
            for report in reports
            for name, dimension in report.dimensions.items()
            if name not in rankings
        ],
        provenance=[(name, value) for name, value in provenance.items() if value],
    )


class _Entry(NamedTuple):
    """A judge in its cluster."""

    ranked: RankedJudge
    report: DimensionReport
    listening: Listening


def _comparison_view(name: str, ranking: Ranking, reports: Sequence[Report]) -> dict[str, Any]:
    """The section of one dimension."""
    by_judge = {report.judge: report for report in reports if name in report.dimensions}
    entries = [
        _Entry(ranked, by_judge[judge].dimensions[name], views.listening(by_judge[judge], name))
        for ranked in ranking.judges
        if (judge := ranked.judge) in by_judge
    ]
    ranked = {entry.ranked.judge: entry for entry in entries if entry.ranked.cluster is not None}
    clusters: dict[int, list[_Entry]] = {}
    for entry in ranked.values():
        clusters.setdefault(entry.ranked.cluster or 0, []).append(entry)
    # Who leads may still be no better than chance
    titles = {
        cluster: f"cluster {cluster}"
        if any((one.report.spearman.low or 0) > 0 for one in members)
        else "not above chance"
        for cluster, members in clusters.items()
    }
    chart = ""
    if ranked:
        rows = [charts.Row(judge, entry.report.spearman) for judge, entry in ranked.items()]
        ends = np.cumsum([len(members) for members in clusters.values()]).tolist()
        boxes = [
            (end - len(members), end - 1, titles[cluster])
            for end, (cluster, members) in zip(ends, clusters.items(), strict=True)
        ]
        best = next(iter(ranked.values())).report
        ceiling = "noise ceiling", best.ceiling.panel_mean.value
        chart = charts.rows_with_intervals(f"{name}, Spearman with people", rows, ceiling, boxes=boxes)
    # Each comparison is written from the better judge, so that differences are above 0
    better_first = [
        oriented(ranking.comparisons, pair.second, pair.first) if (pair.difference.value or 0.0) < 0 else pair
        for pair in ranking.comparisons
        if {pair.first, pair.second} <= set(ranked)
    ]
    return {
        "name": name,
        "words": " ".join(sentences("ranking", ranking=ranking)),
        "clusters": clusters,
        "titles": titles,
        "unranked": [entry for entry in entries if entry.ranked.cluster is None],
        "chart": chart,
        "panel": [(entry.ranked.judge, views.panel_rows(entry.report)) for entry in entries],
        "comparisons": [(pair, is_significant(pair)) for pair in better_first],
    }
