"""Plots of a report and of a dataset."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from empathy_judge.eval.pages import charts
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ..conftest import statistic


@pytest.mark.parametrize("lowest", [0.0, -0.3, -0.6, -0.7, -1.0])
def test_labels_of_an_axis_stay_apart(lowest, monkeypatch):
    """Quarters such as -0.25 have labels so wide that they touched where the axis reached to -0.6 or so."""
    labels = []
    draw = charts.svg

    def drawn(figure, alt):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        (axes,) = figure.axes
        ticks = [label for label in axes.get_xticklabels() if axes.viewLim.x0 <= label.get_position()[0] <= 1]
        boxes = sorted((label.get_window_extent(canvas.get_renderer()) for label in ticks), key=lambda box: box.x0)
        labels.extend((72 * box.x0 / figure.dpi, 72 * box.x1 / figure.dpi) for box in boxes)
        return draw(figure, alt)

    monkeypatch.setattr(charts, "svg", drawn)
    charts.rows_with_intervals(
        "plot", [charts.Row("medium_length_judge", statistic(0.5, lowest, 0.7))], ("ceiling", 0.8)
    )
    assert len(labels) >= 3
    assert min(after[0] - before[1] for before, after in pairwise(labels)) > 8  # points, at letters of 10


def test_a_check_that_was_not_run_is_not_called_undefined():
    full, constant = statistic(0.5, 0.3, 0.7), statistic(None, None, None)
    given = {"Full input": full, "Both silent": constant, "Context swapped": replace(constant, n=0)}
    rows = [charts.Row(label, own) for label, own in given.items()]
    plot = charts.rows_with_intervals("plot", rows, ("ceiling", 0.8), bars=True)
    assert (plot.count(">undefined<"), plot.count(">not run<")) == (1, 1)
    no_scores = [charts.Row("Full input", replace(constant, n=0))]
    assert ">undefined<" in charts.rows_with_intervals("plot", no_scores, ("ceiling", 0.8), bars=True)
    assert ">undefined<" in charts.rows_with_intervals("of a slice", no_scores, ("all items", 0.8))


def test_a_histogram_writes_shares_that_are_those_of_its_counts():
    chart = charts.histogram((0.5, 1.5, 2.5, 3.5), (30, 0, 10), "rating", "in <words>", ticks=(1, 2, 3))
    texts = [text for text in re.findall(r">([^<]*)</text>", chart) if text]
    assert texts == ["1", "2", "3", "rating", "75 %", "0", "25 %"]
    assert 'aria-label="in &lt;words&gt;"' in chart
