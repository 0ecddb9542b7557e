"""Writes a report: ``agreement.json``, ``items.csv``, ``index.html`` and a table for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from ..data_modules.folders import replace_file
from . import charts, wording
from .page import render
from .report_schema import AgreementReport, DimensionReport
from .report_template import TEMPLATE

REPORT_FILE = "agreement.json"
ITEMS_FILE = "items.csv"
PAGE_FILE = "index.html"

WORST_ITEMS = 10
"""Items listed under the largest disagreements."""


def write_report(report: AgreementReport, items: pd.DataFrame, out: Path) -> None:
    """Writes the three files into `out`, each complete or not at all; the page last.

    Args:
        report: From `evaluate.evaluate`.
        items: Its table of items.
        out: Folder; made if it does not exist.

    Raises:
        ValueError: If the report holds NaN or infinity.
    """
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    page = render_page(report, items)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / REPORT_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    replace_file(out / ITEMS_FILE, lambda path: items.to_csv(path, index=False, lineterminator="\n"))
    replace_file(out / PAGE_FILE, lambda path: path.write_text(page, encoding="utf-8"))


def render_page(report: AgreementReport, items: pd.DataFrame) -> str:
    """The page as HTML that needs no other file. Every value is escaped: names and ids come from outside."""
    return render(
        TEMPLATE,
        report=report,
        dimensions=[_section(name, report, items) for name in report["dimensions"]],
        scored=wording.split_name(report),
        provenance=_provenance(report),
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
        "Spearman": lambda d: wording.ranged(d["spearman"]),
        "best possible (panel mean)": lambda d: wording.ranged(d["ceiling"]["panel_mean"]),
        "share of the best possible": lambda d: wording.percent(d["share_of_panel_ceiling"]["value"]),
        "one rater against the others": lambda d: wording.ranged(d["ceiling"]["spearman"]),
        "CCC": lambda d: wording.ranged(d["ccc"]),
        "mean absolute error": lambda d: wording.ranged(d["mae"]),
    }
    for label, cell in rows.items():
        table.add_row(label, *(Text(cell(d)) for d in report["dimensions"].values()))
    for check, results in report["checks"].items():
        label = f"{wording.CHECK_TITLES[check].lower()}: Spearman"
        table.add_row(label, *(Text(wording.ranged(results[name]["spearman"])) for name in report["dimensions"]))
    return table


def _section(name: str, report: AgreementReport, items: pd.DataFrame) -> dict[str, Any]:
    """What the template needs for one dimension."""
    dimension = report["dimensions"][name]
    checks = {check: results[name] for check, results in report["checks"].items()}
    rows = items.loc[(items["dimension"] == name) & items["score"].notna() & items["human_mean"].notna()]
    score, human = rows["score"].to_numpy(np.float64), rows["human_mean"].to_numpy(np.float64)
    scale = (dimension["scale"]["minimum"], dimension["scale"]["maximum"])
    worst = rows.iloc[np.argsort(-np.abs(score - human), kind="stable")[:WORST_ITEMS]]
    return {
        "name": name,
        "report": dimension,
        "headline": wording.headline(report, dimension),
        "warnings": wording.warnings(dimension),
        "bars": Markup(_listening_chart(name, dimension, report)) if checks else "",
        "checks": [wording.check_view(check, result, dimension["spearman"]) for check, result in checks.items()],
        "scatter": Markup(charts.scatter(score, human, scale, f"{name}: judge score against mean human score"))
        if len(rows)
        else "",
        "calibration": Markup(charts.calibration(score, human, scale, f"{name}: mean human score by judge score"))
        if len(rows)
        else "",
        "measures": {
            "The judge": wording.judge_measures(dimension),
            "The raters": wording.panel_measures(dimension),
        },
        "slices": [
            {
                "column": column,
                "value": value,
                "report": results[name],
                "width": round(100 * max(0.0, results[name]["spearman"]["value"] or 0.0)),
            }
            for column, values in report["slices"].items()
            for value, results in values.items()
        ],
        "systems": sorted(dimension["system_level"]["systems"], key=lambda system: -system["human"]),
        "worst": worst.to_dict("records"),
    }


def _listening_chart(name: str, dimension: DimensionReport, report: AgreementReport) -> str:
    statistics = {"Full input": dimension["spearman"]}
    statistics |= {
        wording.CHECK_TITLES[check]: results[name]["spearman"] for check, results in report["checks"].items()
    }
    rows = [
        charts.Bar(label, own["value"], own["low"], own["high"], f"undefined: {own['reason']}")
        for label, own in statistics.items()
    ]
    ceilings = {
        "one rater": dimension["ceiling"]["spearman"],
        "best possible": dimension["ceiling"]["panel_mean"],
    }
    lines = [(label, own["value"]) for label, own in ceilings.items() if own["value"] is not None]
    words = "; ".join(f"{row.label} {wording.number(row.value)}" for row in rows)
    return charts.bars(rows, lines, f"{name}, Spearman with people: {words}")


def _provenance(report: AgreementReport) -> list[tuple[str, str]]:
    dataset = report["dataset"]
    rows = {
        "judge": report["judge"],
        "dataset": f"{dataset['name']} ({'synthetic ratings' if dataset['synthetic'] else 'human ratings'})",
        "source": dataset["source"],
        "licence": dataset["licence"],
        "content hash": dataset["content_hash"],
        "split": report["split"] or "all pairs",
        "split hash": report["split_hash"],
        "command": report["command"],
        "seed, resamples": f"{report['seed']}, {report['resamples']}",
        "rated but not judged": ", ".join(report["left_out"]["not_judged"]),
        "judged but not rated": ", ".join(report["left_out"]["not_rated"]),
        **{
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in report["provenance"].items()
        },
        "versions": ", ".join(f"{name} {version}" for name, version in report["versions"].items()),
    }
    return [(name, value) for name, value in rows.items() if value]
