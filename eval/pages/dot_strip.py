"""The ratings of one item as dots on their scale, for pages on which one can listen to it."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from ..numerals import plain

_STRIP_ENDS = (4.0, 96.0)  # percent of the width
_DOT = 4.5  # radius in pixels
_STACK_HEIGHT = 66.0  # pixels; taller stacks are pushed together


def dot_strip(ratings: Sequence[tuple[str, float]], scale: tuple[float, float], ticks: Sequence[float]) -> Markup:
    """The ratings of one item as dots on the scale, equal ones on top of each other, with a line at their mean.

    Written out instead of plotted: places in percent let the strip grow and shrink with the page while dots and
    letters keep their size.

    Args:
        ratings: Rater and score in rising order of scores; at least one.
        scale: Lowest and highest rating.
        ticks: Ratings to write below the line.
    """
    stacks = _stacks([score for _, score in ratings], (scale[1] - scale[0]) / 45)
    tallest = max(place for place in stacks) + 1
    step = min(2 * _DOT, _STACK_HEIGHT / tallest)
    ground = 8 + 2 * _DOT + step * (tallest - 1)

    def across(value: float) -> str:
        share = (min(max(value, scale[0]), scale[1]) - scale[0]) / (scale[1] - scale[0])
        return f"{_STRIP_ENDS[0] + share * (_STRIP_ENDS[1] - _STRIP_ENDS[0]):.2f}%"

    mean = float(np.mean([score for _, score in ratings]))
    parts = [
        f'<line class="axis" x1="{_STRIP_ENDS[0]}%" x2="{_STRIP_ENDS[1]}%" y1="{ground}" y2="{ground}"/>',
        *(
            f'<text x="{across(tick)}" y="{ground + 16}" text-anchor="middle">{plain(tick)}</text>'
            f'<line class="axis" x1="{across(tick)}" x2="{across(tick)}" y1="{ground}" y2="{ground + 4}"/>'
            for tick in ticks
        ),
        *(
            f'<circle cx="{across(score)}" cy="{ground - 2 - _DOT - place * step:g}" r="{_DOT}">'
            f"<title>{html.escape(rater)}: {plain(score)}</title></circle>"
            for (rater, score), place in zip(ratings, stacks, strict=True)
        ),
        f'<line class="mean" x1="{across(mean)}" x2="{across(mean)}" y1="2" y2="{ground + 4}"/>',
    ]
    scores = ", ".join(plain(score) for _, score in ratings)
    alt = f"{len(ratings)} ratings on a scale from {plain(scale[0])} to {plain(scale[1])}: {scores}; mean {mean:.2f}"
    return Markup(
        f'<svg class="strip" role="img" aria-label="{alt}" width="100%" height="{ground + 20}">{"".join(parts)}</svg>'
    )


def _stacks(scores: Sequence[float], width: float) -> list[int]:
    """How many dots lie below each: scores closer than `width` to the first of a stack are on that stack."""
    places, start = [], float("-inf")
    for score in scores:
        if score - start < width:
            places.append(places[-1] + 1)
        else:
            places.append(0)
            start = score
    return places
