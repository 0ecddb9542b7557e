"""The plots of the inspection page: histograms, and one strip per rater."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..pages.charts import ACCENT, GRID, INK, MUTED, STYLE, shortened, svg
from ..rendering import plain

MAX_LABELLED_BARS = 11
"""A histogram with at most so many bars has a tick and a percentage at each."""
MAX_STRIPS = 60
"""Raters that have a strip of their own; of more raters those with the most ratings."""
_LONGEST_LABEL = 16
_TICK_STEPS = (1, 2, 5, 10)


def histogram(
    edges: Sequence[float],
    counts: Sequence[int],
    label: str,
    alt: str,
    *,
    ticks: Sequence[float] | None = None,
    logarithmic: bool = False,
) -> Markup:
    """Bars over bins.

    Args:
        edges: Of the bins, ascending; at least one is wider than 0.
        counts: In each bin.
        label: What lies on the axis, with its unit.
        alt: The plot in words.
        ticks: One value per bin, where a bin stands for one value. With at most `MAX_LABELLED_BARS` of them every bar
            has its percentage; otherwise an axis counts.
        logarithmic: Bins of equal ratio are drawn equally wide.
    """
    labelled, left = ticks is not None and len(counts) <= MAX_LABELLED_BARS, np.array(edges[:-1])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.3, 2.3), layout="constrained")
        axes = figure.subplots()
        gap = 0.12 if labelled else 0.04
        widths = np.diff(edges)
        axes.bar(left + gap / 2 * widths, counts, width=(1 - gap) * widths, align="edge", color=ACCENT)
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
            axes.xaxis.set_minor_formatter(NullFormatter())
        elif labelled and ticks is not None:
            axes.set_xticks(ticks, [plain(tick) for tick in ticks])
        else:
            axes.xaxis.set_major_locator(MaxNLocator(7, steps=_TICK_STEPS))
        if labelled:
            for x, count in zip(left + widths / 2, counts, strict=True):
                share = count / sum(counts)
                text = "0" if not count else "<1 %" if share < 0.005 else f"{100 * share:.0f} %"
                axes.annotate(text, (x, count), xytext=(0, 3), textcoords="offset points", ha="center", color=INK)
            axes.yaxis.set_visible(False)
            axes.spines["left"].set_visible(False)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=_TICK_STEPS, integer=True))
            axes.grid(True, axis="y")
            axes.set_axisbelow(True)
            axes.spines["left"].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xlabel(label)
        axes.margins(x=0.02, y=0.12 if labelled else 0.05)
        return svg(figure, alt)


def rater_strips(
    rows: Sequence[tuple[str, Sequence[float], float, float]],
    edges: Sequence[float],
    panel_mean: float,
    alt: str,
    *,
    ticks: Sequence[float] | None = None,
) -> Markup:
    """One line per rater: how often each part of the scale was used, the mean, and a deviation to either side.

    Args:
        rows: From top to bottom, of each rater its name, the share of its ratings in each bin, mean and deviation.
        edges: Of the bins.
        panel_mean: Mean of all ratings; a dashed line.
        alt: The plot in words.
        ticks: One value per bin, where a bin stands for one value; at most `MAX_LABELLED_BARS` are written.
    """
    small = len(rows) > 24
    height, size = (0.16, 8) if small else (0.26, 10)
    centres, width = (np.array(edges[:-1]) + np.array(edges[1:])) / 2, edges[1] - edges[0]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.3, 0.65 + height * len(rows)), layout="constrained")
        axes = figure.subplots()
        for position, (_, shares, mean, sd) in enumerate(rows):
            for centre, part in zip(centres, shares, strict=True):
                if part == 0:
                    continue
                # Never without any ink, and by the square root: a single rating is seen, whatever the number of bins
                shade = 0.08 + 0.7 * part**0.5
                axes.barh(position, 0.94 * width, 0.84, centre - 0.47 * width, color=ACCENT, alpha=shade)
            axes.plot([mean - sd, mean + sd], [position, position], color=INK, linewidth=1.0)
            axes.plot(mean, position, "o", color=INK, markersize=3 if small else 4.5)
        axes.axvline(panel_mean, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(rows)), [shortened(row[0], _LONGEST_LABEL) for row in rows], fontsize=size)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(edges[0], edges[-1])
        if ticks is not None and len(ticks) <= MAX_LABELLED_BARS:
            axes.set_xticks(ticks, [plain(tick) for tick in ticks])
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=_TICK_STEPS))
        axes.tick_params(length=0)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_color(GRID)
        axes.set_xlabel("rating")
        return svg(figure, alt)
