"""The files of a plan: its table, its report, and a plot of what more items and raters give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..report.others import PlanReport
from ..results import write_results
from .charts import INK, STYLE, png


def save_plan(report: PlanReport, folder: Path) -> None:
    """Writes ``plan.csv``, ``plan.json`` and ``plan.png``."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw(left, report, "standard_error", "standard error of a judge's Spearman")
        _draw(right, report, "power", f"power for a difference of {report.difference:g}")
        right.axhline(report.power, color=INK, linewidth=0.8, linestyle=":")
        right.set_ylim(0, 1.02)
        figure.suptitle(f"{report.sentence}\n{report.assumption}", fontsize=8, color=INK, wrap=True)
        image = png(figure, facecolor="white")
    write_results("plan", folder, {"plan.csv": _frame(report), "plan.json": report, "plan.png": image})


def _frame(report: PlanReport) -> pd.DataFrame:
    return pd.DataFrame([row.as_json() for row in report.rows])


def _draw(axes: Axes, report: PlanReport, column: str, label: str) -> None:
    rows = _frame(report)
    colours = matplotlib.colormaps["viridis"](np.linspace(0.85, 0.1, len(report.needed)))
    for colour, (k, curve) in zip(colours, rows.groupby("raters"), strict=True):
        axes.plot(
            curve["items"],
            curve[column],
            marker="o",
            markersize=3,
            color=colour,
            label=f"{k} per item, ceiling {curve['ceiling'].iloc[0]:.2f}",
        )
    ticks: Any = sorted(rows["items"].unique())
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("items")
    axes.set_ylabel(label)
    axes.grid(visible=True)
    if column == "standard_error":
        axes.legend(fontsize=8, frameon=False, title="ratings", loc="upper right")
