"""What all plots share: for pages colours that the page chooses (light or dark) and SVG that stands in it, for others
pixels in the light colours."""

from __future__ import annotations

import html
import io
import warnings
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Placeholders that never occur as real colours -> variables of the page's style sheet.
INK, MUTED, GRID, ACCENT, PALE = "#010201", "#010202", "#010203", "#010204", "#010205"
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", ACCENT: "--accent", PALE: "--pale"}
PIXEL_BLUE = "#5b8def"  # points drawn as pixels cannot follow the page; this one reads on light and dark

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

LIGHT = {INK: "#1b2330", MUTED: "#5d6878", GRID: "#dfe3ea", ACCENT: "#2563c9", PALE: "#b9c7de"}
"""The page's light colours."""
LIGHT_STYLE: Any = {name: LIGHT.get(value, value) for name, value in STYLE.items()}
"""`STYLE` for `pixels`."""


def pixels(figure: Figure) -> np.ndarray:
    """The figure as `(height, width, 3)`, uint8; draw it under `LIGHT_STYLE`, in colours of `LIGHT`."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands in its place
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def svg(figure: Figure, alt: str) -> str:
    """The figure as an SVG element; equal figures give equal text."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": alt}), warnings.catch_warnings():
        # The page's font draws the letters; matplotlib only measures them, and lacks many scripts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    element = text[text.index("<svg") :]
    for placeholder, variable in _VARIABLES.items():
        element = element.replace(placeholder, f"var({variable})")
    return element.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1)
