"""Plots: inline SVG that takes its colours from the page (light or dark), and pixel images in light colours."""

from __future__ import annotations

import html
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..rendering import number, plain
from ..report.dimension import Verdicts
from ..report.distribution import LevelReliability
from ..statistics.agreement import Statistic
from ..statistics.calibration import CalibrationBin

# The page's light colours; in an SVG they become variables of its style sheet, which are other colours in the dark.
INK, MUTED, GRID, ACCENT, PALE = "#1b2330", "#5d6878", "#dfe3ea", "#2563c9", "#b9c7de"
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", ACCENT: "--accent", PALE: "--pale"}
PIXEL_BLUE = "#5b8def"  # points drawn as pixels cannot follow the page; this blue is visible on light and dark

STYLE: Any = {
    "svg.fonttype": "none",  # text stays text and takes the font of the page
    "font.size": 10,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
}


@contextmanager
def _any_letter() -> Iterator[None]:
    """Suppresses warnings about missing glyphs: pixel images show a box, and in an SVG the page's font draws them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@contextmanager
def plot(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Yields a figure of this size in inches; draw it and call `svg` inside, while the style of the page is set."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def pixels(figure: Figure) -> np.ndarray:
    """The figure as `(height, width, 3)`, uint8; draw it under `STYLE`."""
    canvas = FigureCanvasAgg(figure)
    with _any_letter():
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def png(figure: Figure, **how: Any) -> bytes:
    """The figure as the content of a PNG file; `how` as for `Figure.savefig`."""
    buffer = io.BytesIO()
    with _any_letter():
        figure.savefig(buffer, format="png", **how)
    return buffer.getvalue()


def svg(figure: Figure, alt: str) -> Markup:
    """The figure as an SVG element; equal figures give equal text."""
    buffer = io.StringIO()
    # Ids in an SVG are hashes with this salt, which else is random; two plots of one page share none
    with matplotlib.rc_context({"svg.hashsalt": alt}), _any_letter():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    element = text[text.index("<svg") :]
    for color, variable in _VARIABLES.items():
        element = element.replace(color, f"var({variable})")
    return Markup(element.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1))


MAX_VECTOR_POINTS = 2000
"""More points than this are drawn as pixels, so that the page stays small."""

LONGEST_LABEL = 24
"""Most letters of a line of a label beside a row; longer ones are shortened in the middle."""


class Row(NamedTuple):
    """A figure with what stands beside it, the note on a line of its own."""

    label: str
    statistic: Statistic
    note: str = ""

    @property
    def lines(self) -> list[str]:
        """Label and note."""
        return [self.label, self.note] if self.note else [self.label]


def rows_with_intervals(
    alt: str,
    rows: Sequence[Row],
    line: tuple[str, float | None],
    *,
    bars: bool = False,
    boxes: Sequence[tuple[int, int, str]] = (),
    gap: float = 0.6,
) -> Markup:
    """A dot, or a bar of which the first is emphasised, and its interval per row, with its label and value.

    A `line` of reference has a label and a value (None = no line); `boxes` frame rows that belong together: first row,
    last row and label; `gap` is the height of a row in inches; `alt` is the plot in words.
    """
    figures = [row.statistic for row in rows]
    # From 0 where nothing is below it, so that the length of a bar is its value
    lowest = min([0.0, *(s.value if s.low is None else s.low for s in figures if s.value is not None)])
    left = lowest - (0.03 if lowest < 0 else 0.0)
    with plot(5.2, 1.0 + gap * len(rows)) as (figure, axes):
        axes.set_xlim(left, 1.0)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.axvline(0, color=GRID, linewidth=0.8)
        label, value = line
        if value is not None:
            axes.axvline(value, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            side, offset = ("left", (4, 4)) if value < 0.5 else ("right", (-4, 4))
            _note(axes, f"{label} {number(value)}", (value, 1.0), offset, xycoords=("data", "axes fraction"), ha=side)
        for first, last, label in boxes:
            corner, height = (left, first - 0.44), last - first + 0.88
            axes.add_patch(Rectangle(corner, 1.0 - left, height, fill=False, edgecolor=MUTED, linewidth=1.2))
            _note(axes, label, corner, (3, -2), va="top", fontsize=8)
        beside: Any = {"xycoords": ("axes fraction", "data"), "va": "center", "fontweight": "bold", "color": INK}
        for position, statistic in enumerate(figures):
            value, low, high = statistic.value, statistic.low, statistic.high
            if value is None:
                not_run = bars and position and not statistic.n  # of listening checks, below the full input
                axes.text(0.02, position, "not run" if not_run else "undefined", va="center", color=MUTED)
                continue
            _note(axes, number(value), (1.0, position), (10, 0), **beside)
            if bars:
                axes.barh(position, value, height=0.56, color=PALE if position else ACCENT)
            if low is not None and high is not None:
                color = INK if bars else ACCENT
                axes.plot((low, high), [position, position], color=color, linewidth=1.6, solid_capstyle="butt")
            if not bars:
                axes.plot(value, position, "o", color=ACCENT, markersize=7)
        axes.set_yticks(range(len(rows)), ["\n".join(map(shortened, row.lines)) for row in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=_TICK_STEPS))  # quarters have labels too wide for it
        axes.set_xlabel("Spearman with the panel mean")
        words = "; ".join(f"{', '.join(row.lines)} {number(row.statistic.value)}" for row in rows)
        return svg(figure, f"{alt}: {words}")


def _note(axes: Axes, text: str, place: tuple[float, float], apart: tuple[float, float], **style: Any) -> None:
    """Text at an offset, in points, from a place."""
    axes.annotate(text, place, xytext=apart, textcoords="offset points", **{"color": MUTED, **style})


def shortened(name: str, longest: int = LONGEST_LABEL) -> str:
    """A name with an ellipsis in its middle where it is too long: paths differ at either end."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}\N{HORIZONTAL ELLIPSIS}{name[head + 1 - longest :]}"


def scatter(score: np.ndarray, human: np.ndarray, scale: tuple[float, float], alt: str) -> Markup:
    """Judge score against human mean, one point per item; the axes hold the scale and scores beyond it."""
    with plot(4.3, 4.0) as (figure, axes):
        # the more points, the fainter each: about as many lie on each other
        pixels = len(score) > MAX_VECTOR_POINTS
        alpha = float(np.clip(6 / np.sqrt(max(len(score), 1)), 0.12, 0.75))
        color = PIXEL_BLUE if pixels else ACCENT
        axes.scatter(score, human, s=14, color=color, alpha=alpha, linewidths=0, rasterized=pixels, zorder=2)
        rating_axes(axes, score, human, scale)
        return svg(figure, alt)


def calibration(curve: Sequence[CalibrationBin], scale: tuple[float, float], alt: str) -> Markup:
    """Mean human score of items with neighbouring judge scores, with 95 % intervals (1.96 standard errors)."""
    score, human = np.array([point.score for point in curve]), np.array([point.human for point in curve])
    with plot(4.3, 4.0) as (figure, axes):
        axes.plot(score, human, color=PALE, linewidth=1.2, zorder=2)
        margins = [1.96 * (point.standard_error or 0.0) for point in curve]
        axes.errorbar(score, human, margins, fmt="o", color=ACCENT, markersize=6.5, elinewidth=1.6, zorder=3)
        rating_axes(axes, score, human, scale)
        return svg(figure, alt)


def reliability(levels: Sequence[LevelReliability], alt: str) -> Markup:
    """Shares of raters at a level or above by what was predicted, a line for each level, the highest the darkest."""
    with plot(4.3, 4.0) as (figure, axes):
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        for place, level in enumerate(levels, start=1):
            points = [own.score for own in level.curve], [own.human for own in level.curve]
            style: Any = {"color": ACCENT, "alpha": 0.2 + 0.8 * place / len(levels), "label": plain(level.at_least)}
            axes.plot(*points, "o-", linewidth=1.4, markersize=4.5, zorder=2, **style)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_aspect("equal")
        axes.grid(True, zorder=0)
        axes.tick_params(length=0)
        axes.set_xlabel("predicted share at the level or above")
        axes.set_ylabel("share of raters")
        axes.legend(title="at least", frameon=False, fontsize=9, loc="upper left")
        return svg(figure, alt)


def risk_coverage(verdicts: Verdicts, alt: str) -> Markup:
    """Share of wrong verdicts among the surest ones (El-Yaniv and Wiener, 2010), from a report's ``verdicts``."""
    with plot(4.3, 3.4) as (figure, axes):
        shares, risks = zip(*((point.coverage, point.risk) for point in verdicts.curve), strict=True)
        axes.plot(shares, risks, color=ACCENT, linewidth=1.6)
        for promise in verdicts.risk_bounds.values():
            if promise.given.value is not None and promise.wrong.value is not None:
                xy = promise.given.value, promise.wrong.value
                axes.plot(*xy, "o", color=ACCENT, markersize=6.5)
                _note(axes, f"{promise.max_error:g}", xy, (0, -14), ha="center")
        rater = verdicts.vs_single_rater.rater.value
        if rater is not None:
            axes.axhline(1 - rater, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            _note(axes, "one rater", (0, 1 - rater), (4, 4))
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.1 * max(*risks, 0.1, 1 - (rater or 1)))
        axes.grid(True)
        axes.tick_params(length=0)
        axes.set_xlabel("share of verdicts given, the surest first")
        axes.set_ylabel("share of these that is wrong")
        return svg(figure, alt)


def rating_axes(axes: Axes, score: np.ndarray, human: np.ndarray, scale: tuple[float, float]) -> None:
    """Square axes of judge and human scores with the line where they agree."""
    # Scores of a file may lie beyond the scale: points must not be cut off in silence
    low, high = min(scale[0], *score, *human), max(scale[1], *score, *human)
    margin = 0.04 * (high - low)
    axes.plot([low, high], [low, high], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(low - margin, high + margin)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        # On a usual scale ratings are whole; on one of 0 to 1 whole ticks would be its two ends
        axis.set_major_locator(MaxNLocator(6, integer=high - low >= 4))
    axes.grid(True, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.set_xlabel("judge score")
    axes.set_ylabel("mean human score")


# ---------------------------------------------------------------- of a dataset

MAX_LABELLED_BARS = 11
"""A histogram with at most this many bars has a tick and a percentage at each."""
MAX_STRIPS = 60
"""Most raters with a strip; of more raters, those with the most ratings are shown."""
_LONGEST_NAME = 16  # of a rater
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

    Where a bin stands for one value, `ticks` has these. With at most `MAX_LABELLED_BARS` of them every bar has its
    percentage; otherwise there is an axis of counts. Where bins grow, `logarithmic` draws them equally wide.
    """
    labelled, left = ticks is not None and len(counts) <= MAX_LABELLED_BARS, np.array(edges[:-1])
    with plot(4.3, 2.3) as (figure, axes):
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

    A row has the rater's name, the share of its ratings in each bin, mean and standard deviation. The mean of the panel
    is a dashed line; `ticks` are as for `histogram`.
    """
    small = len(rows) > 24
    height, size = (0.16, 8) if small else (0.26, 10)
    centres, width = (np.array(edges[:-1]) + np.array(edges[1:])) / 2, edges[1] - edges[0]
    with plot(4.3, 0.65 + height * len(rows)) as (figure, axes):
        for position, (_, shares, mean, sd) in enumerate(rows):
            for centre, part in zip(centres, shares, strict=True):
                if part == 0:
                    continue
                # A minimum and the square root keep a single rating visible, whatever the number of bins
                shade = 0.08 + 0.7 * part**0.5
                axes.barh(position, 0.94 * width, 0.84, centre - 0.47 * width, color=ACCENT, alpha=shade)
            axes.plot([mean - sd, mean + sd], [position, position], color=INK, linewidth=1.0)
            axes.plot(mean, position, "o", color=INK, markersize=3 if small else 4.5)
        axes.axvline(panel_mean, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(rows)), [shortened(row[0], _LONGEST_NAME) for row in rows], fontsize=size)
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
