"""The page of an explanation, with a player for each clip that jumps to a stretch."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes

from ...audio.decode import decode
from ...core.errors import AudioError
from ...core.processes import progress
from ...core.written import write_files
from ...scoring.audio_inputs import Audio, clip
from ...scoring.scorer import Scorer
from ..checks.voice import RATE
from ..dimension_report import judged_rows
from ..evaluate import Results
from ..explain import Curve, Explanation, explain
from ..rendering import read, render
from .charts import ACCENT, GRID, INK, MUTED, PALE, plot, svg
from .report import worst_items
from .sound import embedded

EXPLANATIONS = "explanations"
"""Folder of explanations inside the folder of a report."""
_COLUMNS = 600  # of a waveform
_RULES = ".card h2 { margin-top: 0; } .card h3 { margin-top: 16px; } .scroll svg { min-width: 520px; }"


def write_page(explanation: Explanation, context: Audio | None, response: Audio, judge: str, file: Path) -> None:
    """The page, which needs no other file and no network.

    Raises:
        UserError: If a file of somebody else would be replaced.
        OSError: If it cannot be written.
    """
    samples, audio = _samples(context, response), {"context": context, "response": response}
    clips = []
    for name in samples:
        curves = [curve for curve in explanation.curves if curve.clip == name]
        clips.append((name, embedded(clip(audio[name])), [(curve, _picture(curve, samples[name])) for curve in curves]))
    page = render("explanation", read("sound.css") + _RULES, explanation=explanation, judge=judge, clips=clips)
    write_files("explain", file.parent, {file.name: page.encode()})


def explain_worst(results: Results, scorer: Scorer, folder: Path) -> None:
    """Explains the items that a report lists as its largest disagreements, with one page each in the report's folder.

    The column ``explanation`` of the items has the path of the page. It is empty for items without a page: those that
    are not listed, whose context has several turns, or whose clips cannot be used.
    """
    results.items["explanation"], items = "", results.items
    pairs = {pair.pair_id: pair for pair in results.dataset.pairs}
    parts = [worst_items(judged_rows(rows)) for _, rows in items.groupby("dimension")]
    worst = list(dict.fromkeys(pd.concat(parts)["pair_id"]))
    for pair_id in progress(worst, "explaining the largest disagreements", len(worst)):
        pair = pairs[pair_id]
        if len(pair.context) > 1:
            continue
        clips = pair.context[0].audio if pair.context else None, pair.response
        try:
            explanation = explain(scorer, *clips, situation=pair.situation)
        except AudioError:
            continue
        name = f"{EXPLANATIONS}/{hashlib.sha256(pair_id.encode()).hexdigest()[:16]}.html"
        write_page(explanation, *clips, results.report.judge, folder / name)
        items.loc[items["pair_id"] == pair_id, "explanation"] = name


def _samples(context: Audio | None, response: Audio) -> dict[str, np.ndarray]:
    clips = {"context": context, "response": response}
    return {name: decode(clip(audio), RATE) for name, audio in clips.items() if audio is not None}


def _picture(curve: Curve, samples: np.ndarray) -> Markup:
    with plot(8, 2.4) as (figure, axes):
        _draw(axes, curve, samples)
        reasons = "; ".join(span.reason for span in (*curve.worst, *curve.best)) or "nothing stands out"
        return svg(figure, f"What the seconds of the {curve.clip} contribute to {curve.dimension}: {reasons}")


def _draw(axes: Axes, curve: Curve, samples: np.ndarray) -> None:
    """The waveform, the null band, and the mean contribution of the windows around each moment."""
    starts, ends, values = (np.array(numbers) for numbers in (curve.starts, curve.ends, curve.contributions))
    time = np.linspace(0, curve.seconds, 200)
    # Each moment lies in several windows: the line is their mean. Rounding must not leave an end of the clip in none
    inside = (time[:, None] >= starts - 1e-9) & (time[:, None] <= ends + 1e-9)
    height = 1.3 * max(*np.abs(values), abs(curve.low), abs(curve.high))
    edges = np.linspace(0, len(samples), min(_COLUMNS, len(samples)) + 1).astype(int)
    peaks = np.maximum.reduceat(np.abs(samples), edges[:-1]) / max(float(np.abs(samples).max()), 1e-9)
    middle = (edges[:-1] + edges[1:]) / 2 / RATE
    axes.fill_between(middle, -0.9 * height * peaks, 0.9 * height * peaks, color=PALE, linewidth=0)
    axes.axhspan(curve.low, curve.high, color=GRID, alpha=0.6, linewidth=0)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.plot(time, inside @ values / inside.sum(1), color=ACCENT, linewidth=2)
    for index, span in enumerate((*curve.worst, *curve.best)):
        axes.plot([span.start, span.end], [span.contribution] * 2, color=INK, linewidth=3, solid_capstyle="butt")
        axes.annotate("worst" if index < len(curve.worst) else "best", (span.start, span.contribution), (0, 4),
                      textcoords="offset points", color=INK)  # fmt: skip
    axes.set(xlim=(0, curve.seconds), ylim=(-height, height), xlabel="seconds", ylabel="points")
