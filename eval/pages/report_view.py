"""What the template of a report shows of one dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from ...data_modules.rows import TAG_PREFIX
from .. import numerals
from ..asking_words import length_sentences
from ..probes import PROBES
from ..report_schema import AgreementReport, CheckReport, DimensionReport, StatisticReport
from . import charts, wording
from .listening import listening_sentence
from .measures import error_rows, measure_groups
from .wording import uncertainty_view

WORST_ITEMS = 10
"""Items listed under the largest disagreements."""

SHOWN_SLICES = 20
"""Values of a column in its plot, those with the most items; the table has all."""

_EXPECTED = {
    "drop": (
        "Agreement must fall",
        "What people rate is taken away. A judge that keeps its agreement did not listen to it.",
    ),
    "keep": (
        "Agreement should stay",
        "What people rate is still there, in another sound. A judge that loses its agreement leaned on something else.",
    ),
    "same": ("Scores must not move", "Nothing that anybody could rate has changed."),
}


def dimension_view(name: str, report: AgreementReport, items: pd.DataFrame) -> dict[str, Any]:
    """The section of one dimension, without its largest disagreements (see `worst_items`).

    Args:
        name: Of the dimension.
        report: Of the judge.
        items: Of `evaluate.Evaluation`.
    """
    dimension = report["dimensions"][name]
    checks = checks_of(report, name)
    rows = judged_rows(name, items)
    score, human = rows["score"].to_numpy(np.float64), rows["human_mean"].to_numpy(np.float64)
    scale, curve = scale_of(dimension), dimension["calibration"]["curve"]
    return {
        "name": name,
        "report": dimension,
        "verdict": dimension["verdict"],
        "listening": listening_sentence(checks, dimension["spearman"]),
        "headline": wording.headline(report, dimension),
        "warnings": [*wording.warnings(dimension), *length_sentences(dimension)],
        "bars": Markup(_listening_chart(name, dimension, checks)) if checks else "",
        "checks": _check_groups(checks, dimension["spearman"]),
        "scatter": Markup(charts.scatter(score, human, scale, f"{name}: judge score against mean human score"))
        if len(rows)
        else "",
        "calibration": Markup(charts.calibration(curve, scale, f"{name}: mean human score by judge score"))
        if curve
        else "",
        "errors": error_rows(dimension),
        "uncertainty": uncertainty_view(name, report),
        "measures": measure_groups(dimension, report["voice_and_words"].get(name)),
        "slices": [
            _slice_view(name, column, {value: results[name] for value, results in values.items()}, dimension)
            for column, values in report["slices"].items()
        ],
        "systems": sorted(dimension["system_level"]["systems"], key=lambda system: -system["human"]),
    }


def worst_items(name: str, items: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of `items` on which judge and people differ most, at most `WORST_ITEMS`, the worst first."""
    rows = judged_rows(name, items)
    order = np.argsort(-np.abs((rows["score"] - rows["human_mean"]).to_numpy(np.float64)), kind="stable")
    return rows.iloc[order[:WORST_ITEMS]].to_dict("records")


def judged_rows(name: str, items: pd.DataFrame) -> pd.DataFrame:
    """The rows of a dimension that have a score and a rating."""
    return items.loc[(items["dimension"] == name) & items["score"].notna() & items["human_mean"].notna()]


def drawn_whole(report: AgreementReport) -> str:
    """What the intervals of a report draw whole, in the plural."""
    return f"{report['cluster'].removesuffix('_id').replace('_', ' ')}s"


def checks_of(report: AgreementReport, dimension: str) -> dict[str, CheckReport]:
    """The listening checks of a dimension."""
    return {check: results[dimension] for check, results in report["checks"].items()}


def origin_of(report: AgreementReport) -> dict[str, str]:
    """What was measured on, and how: a row of the table of provenance each."""
    data = report["dataset"]
    return {
        "dataset": f"{data['name']} ({'synthetic ratings' if data['synthetic'] else 'human ratings'})",
        "source": data["source"],
        "licence": data["licence"],
        "content hash": data["content_hash"],
        "split": report["split"] or "all pairs",
        "split hash": report["split_hash"],
        "command": report["command"],
        "seed, resamples": f"{report['seed']}, {report['resamples']}",
        "intervals": f"95 %, {report['interval']}, draws of whole {drawn_whole(report)}",
    }


def versions_of(report: AgreementReport) -> str:
    """The versions of what measured, for the last row of that table."""
    return ", ".join(f"{name} {version}" for name, version in report["versions"].items())


def scale_of(dimension: DimensionReport) -> tuple[float, float]:
    """Lowest and highest rating."""
    return dimension["scale"]["minimum"], dimension["scale"]["maximum"]


def ceiling_lines(dimension: DimensionReport) -> list[tuple[str, float]]:
    """The reference line of a plot of agreement with the panel mean."""
    best = dimension["ceiling"]["panel_mean"]["value"]
    return [] if best is None else [("noise ceiling", best)]


def bar(label: str, own: StatisticReport) -> charts.Bar:
    """A statistic as a row of a plot."""
    return charts.Bar(label, own["value"], own["low"], own["high"], "undefined")


def in_words(rows: list[charts.Bar]) -> str:
    """A plot for readers who do not see it."""
    return "; ".join(f"{row.label} {numerals.number(row.value)}" for row in rows)


def _listening_chart(name: str, dimension: DimensionReport, checks: Mapping[str, CheckReport]) -> str:
    rows = [bar("Full input", dimension["spearman"])]
    rows += [
        bar(wording.CHECK_TITLES[check], result["spearman"])
        for check, result in checks.items()
        if result["expects"] != "same"
    ]
    return charts.bars(rows, ceiling_lines(dimension), f"{name}, Spearman with people: {in_words(rows)}")


def _check_groups(checks: Mapping[str, CheckReport], full: StatisticReport) -> list[dict[str, Any]]:
    """The checks by what they expect, in the order of `_EXPECTED`."""
    groups = []
    for expects, (title, meaning) in _EXPECTED.items():
        own = {name: check for name, check in checks.items() if check["expects"] == expects}
        if own:
            views = [
                {
                    "view": wording.check_view(name, check, full),
                    "removes": PROBES[name].removes,
                    "keeps": PROBES[name].keeps,
                    "failed": wording.counted(check["failed"]) if check["n"] else "",
                }
                for name, check in own.items()
            ]
            groups.append({"title": title, "meaning": meaning, "checks": views})
    return groups


def _slice_view(
    name: str, column: str, values: Mapping[str, dict[str, Any]], dimension: DimensionReport
) -> dict[str, Any]:
    largest = sorted(values, key=lambda value: -values[value]["n_items"])[:SHOWN_SLICES]
    shown = [value for value in values if value in largest]
    rows = [bar(_counted_label(value, values[value]["n_items"]), values[value]["spearman"]) for value in shown]
    overall = dimension["spearman"]["value"]
    lines = [] if overall is None else [("all items", overall)]
    alt = f"{name}, Spearman with people by {column}: {in_words(rows)}"
    return {
        "column": column.removeprefix(TAG_PREFIX),
        "chart": Markup(charts.dots(rows, lines, alt, gap=0.42)),
        "of_all": f" (the {len(shown)} of {len(values)} values with most items)" if len(shown) < len(values) else "",
        "checks": [wording.CHECK_TITLES[check] for check in next(iter(values.values()))["checks"]],
        "rows": [
            {"value": value, "report": own, "checks": list(own["checks"].values())} for value, own in values.items()
        ],
    }


def _counted_label(value: str, items: int) -> str:
    """A value with its number of items, which stays whole where the value is too long for a plot."""
    count = f", n = {items}"
    return charts.shortened(value, charts.LONGEST_LABEL - len(count)) + count
