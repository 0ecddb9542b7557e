"""What validation found of a dimension, drawn."""

from __future__ import annotations

from statistics import NormalDist

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..data_modules.schema import Dimension
from ..eval.pages.charts import ACCENT, LIGHT, LIGHT_STYLE, MUTED, PALE, pixels, rating_axes, shortened
from ..eval.statistics.calibration import calibration_curve

MAX_POINTS = 3000
"""Of more items a sample is drawn, the same one each time."""
NAMED_LEVEL = 0.9
_LEVELS = np.linspace(0.1, 0.9, 9)
# Inches, of 100 pixels: a panel's square and the room around it. A layout that measures its texts takes twice as long.
_SIDE, _LEFT, _RIGHT, _BELOW, _ABOVE = 2.8, 0.65, 0.15, 0.55, 0.65


def draw(
    dimension: Dimension,
    scores: np.ndarray,
    ratings: np.ndarray,
    deviations: np.ndarray,
    groups: np.ndarray,
    *,
    title: str,
) -> np.ndarray:
    """Predicted against rated, the calibration curve and, where a head says how far it may be off, how often it is.

    Args:
        dimension: What was rated.
        scores: Of the judge `(items,)`, rating points, finite.
        ratings: Mean human ones `(items,)`, finite.
        deviations: Standard deviations by the head `(items,)`; NaN = it has none.
        groups: Name of the group of each item `(items,)`.
        title: Stands above.

    Returns:
        Pixels `(height, width, 3)`, uint8.
    """
    known = bool(np.isfinite(deviations).all())
    panels = 3 if known else 2
    with matplotlib.rc_context(LIGHT_STYLE):
        width, height = panels * (_LEFT + _SIDE + _RIGHT), _BELOW + _SIDE + _ABOVE
        figure = Figure(figsize=(width, height), dpi=100)
        starts = [number * (_LEFT + _SIDE + _RIGHT) + _LEFT for number in range(panels)]
        squares = [(start / width, _BELOW / height, _SIDE / width, _SIDE / height) for start in starts]
        scatter, calibration, *rest = [figure.add_axes(square) for square in squares]
        scale = (dimension.minimum, dimension.maximum)
        _scatter(scatter, scores, ratings, scale)
        _calibration(calibration, scores, ratings, groups, scale)
        if known:
            _coverage(rest[0], np.abs(scores - ratings) / deviations)
        figure.suptitle(f"{shortened(dimension.name, 40)}: {title}", fontsize=11, y=0.98)
        return pixels(figure)


def coverage(distances: np.ndarray, level: float) -> float:
    """Share of items that lie inside their interval of this level, were errors normal.

    Args:
        distances: Absolute errors in standard deviations `(items,)`.
        level: Between 0 and 1.
    """
    return float(np.mean(distances <= NormalDist().inv_cdf(0.5 + level / 2)))


def _scatter(axes: Axes, scores: np.ndarray, ratings: np.ndarray, scale: tuple[float, float]) -> None:
    count = len(scores)
    if count > MAX_POINTS:
        chosen = np.random.default_rng(0).choice(count, MAX_POINTS, replace=False)
        scores, ratings = scores[chosen], ratings[chosen]
    alpha = float(np.clip(6 / np.sqrt(len(scores)), 0.15, 0.75))
    axes.scatter(scores, ratings, s=14, color=LIGHT[ACCENT], alpha=alpha, linewidths=0, zorder=2)
    rating_axes(axes, scores, ratings, scale, LIGHT[MUTED])
    shown = f"{len(scores):,} of {count:,}" if count > len(scores) else f"{count:,}"
    axes.set_title(f"{shown} pairs", color=LIGHT[MUTED], fontsize=10, y=1.02)


def _calibration(
    axes: Axes, scores: np.ndarray, ratings: np.ndarray, groups: np.ndarray, scale: tuple[float, float]
) -> None:
    curve = calibration_curve(scores, ratings, groups)
    x, y = np.array([own.score for own in curve]), np.array([own.human for own in curve])
    errors = [0.0 if own.standard_error is None else 1.96 * own.standard_error for own in curve]
    axes.plot(x, y, color=LIGHT[PALE], linewidth=1.2, zorder=2)
    axes.errorbar(x, y, errors, fmt="o", color=LIGHT[ACCENT], markersize=5, elinewidth=1.6, zorder=3)
    rating_axes(axes, x, y, scale, LIGHT[MUTED])
    axes.set_title("calibration, 95 % intervals", color=LIGHT[MUTED], fontsize=10, y=1.02)


def _coverage(axes: Axes, distances: np.ndarray) -> None:
    axes.plot([0, 1], [0, 1], color=LIGHT[MUTED], linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    found = [coverage(distances, level) for level in _LEVELS]
    axes.plot(_LEVELS, found, "o-", color=LIGHT[ACCENT], markersize=5, linewidth=1.2, zorder=2)
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal")
    axes.set(xlabel="level of the interval", ylabel="share of ratings inside")
    axes.grid(True, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    inside = f"{NAMED_LEVEL:.0%} intervals hold {coverage(distances, NAMED_LEVEL):.0%}".replace("%", " %")
    axes.set_title(inside, color=LIGHT[MUTED], fontsize=10, y=1.02)
