"""The plots of the report page, as inline SVG that takes its colours from the page (light or dark)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .drawing import ACCENT, GRID, INK, MUTED, PALE, PIXEL_BLUE, STYLE, svg

MAX_VECTOR_POINTS = 2000
"""More points than this are drawn as pixels, so that the page stays small."""

BINS = 8
"""Bins of the calibration plot, with equal numbers of items."""


@dataclass(frozen=True)
class Bar:
    """One bar: its label, value (None = undefined), interval if any, and what to write without a value."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    note: str = ""


def bars(rows: Sequence[Bar], lines: Sequence[tuple[str, float]], alt: str) -> str:
    """Horizontal bars with intervals, the first one emphasised.

    Args:
        rows: From top to bottom.
        lines: Reference lines: label and value.
        alt: The plot in words, for readers who do not see it.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 1.0 + 0.6 * len(rows)), layout="constrained")
        axes = figure.subplots()
        lowest = min([0.0, *(row.value if row.low is None else row.low for row in rows if row.value is not None)])
        axes.set_xlim(lowest - (0.03 if lowest < 0 else 0.0), 1.0)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.axvline(0, color=GRID, linewidth=0.8)
        for position, row in enumerate(rows):
            _bar(axes, position, row)
        for place, (label, value) in zip(("right", "left"), sorted(lines, key=lambda line: line[1]), strict=False):
            axes.axvline(value, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{label} {value:.2f}",
                (value, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(4 if place == "left" else -4, 4),
                textcoords="offset points",
                ha=place,
                color=MUTED,
            )
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("Spearman with the panel mean")
        return svg(figure, alt)


def _bar(axes: Axes, position: int, row: Bar) -> None:
    if row.value is None:
        axes.text(0.02, position, row.note, va="center", color=MUTED)
        return
    axes.barh(position, row.value, height=0.56, color=PALE if position else ACCENT)
    if row.low is not None and row.high is not None:
        axes.plot([row.low, row.high], [position, position], color=INK, linewidth=1.6, solid_capstyle="butt")
    beside = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    text = f"{row.value:.2f}".replace("-", "\N{MINUS SIGN}")
    axes.annotate(text, (1.0, position), xytext=(10, 0), fontweight="bold", **beside)


def scatter(score: np.ndarray, human: np.ndarray, scale: tuple[float, float], alt: str) -> str:
    """Judge score against human mean, one point per item.

    Args:
        score: Shape (n,), finite, rating points.
        human: Shape (n,), finite, rating points.
        scale: Lowest and highest rating; the axes also hold scores beyond.
        alt: The plot in words.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.3, 4.0), layout="constrained")
        axes = figure.subplots()
        pixels = len(score) > MAX_VECTOR_POINTS
        alpha = float(np.clip(6 / np.sqrt(max(len(score), 1)), 0.12, 0.75))
        color = PIXEL_BLUE if pixels else ACCENT
        axes.scatter(score, human, s=14, color=color, alpha=alpha, linewidths=0, rasterized=pixels, zorder=2)
        _rating_axes(axes, score, human, scale)
        return svg(figure, alt)


def calibration(score: np.ndarray, human: np.ndarray, scale: tuple[float, float], alt: str) -> str:
    """Mean human score in bins of the judge score, with 95 % intervals (1.96 standard errors of items).

    Args:
        score: Shape (n,), finite, rating points.
        human: Shape (n,), finite, rating points.
        scale: Lowest and highest rating.
        alt: The plot in words.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.3, 4.0), layout="constrained")
        axes = figure.subplots()
        for chosen in np.array_split(np.argsort(score, kind="stable"), min(BINS, len(score))):
            x, y = score[chosen].mean(), human[chosen].mean()
            if len(chosen) > 1:
                half = 1.96 * human[chosen].std(ddof=1) / np.sqrt(len(chosen))
                axes.plot([x, x], [y - half, y + half], color=ACCENT, linewidth=1.6, zorder=2)
            axes.plot(x, y, "o", color=ACCENT, markersize=6.5, zorder=3)
        _rating_axes(axes, score, human, scale)
        return svg(figure, alt)


def _rating_axes(axes: Axes, score: np.ndarray, human: np.ndarray, scale: tuple[float, float]) -> None:
    low, high = min(scale[0], *score, *human), max(scale[1], *score, *human)
    margin = 0.04 * (high - low)
    axes.plot([low, high], [low, high], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(low - margin, high + margin)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=high - low >= 4))
    axes.grid(True, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.set_xlabel("judge score")
    axes.set_ylabel("mean human score")
