"""What scales of one quality have in common: points brought from one onto another, and words for points."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from .ratings import STEP_TOLERANCE, Dimension

_DECIMALS = 9  # of scores on a scale with steps
LABELS = ("very poor", "poor", "fair", "good", "excellent")
"""Words for five points evenly spaced over a scale, from its bad to its good end."""


def label(dimension: Dimension, score: float) -> str:
    """The nearest of `LABELS`; a score in the middle between two gets the better one.

    Args:
        dimension: Its scale; where low scores are good, the lowest is excellent.
        score: Rating points.
    """
    share = (score - dimension.minimum) / (dimension.maximum - dimension.minimum)
    share = share if dimension.higher_is_better else 1 - share
    return LABELS[int(np.clip(np.floor(share * (len(LABELS) - 1) + 0.5), 0, len(LABELS) - 1))]


def onto_first_scale(
    dimensions: Sequence[Dimension], scores: Sequence[np.ndarray]
) -> tuple[Dimension, list[np.ndarray]]:
    """Maps scores affinely onto the first scale: low end to low end, high end to high end.

    Where one scale is better high and the other better low, the ends are exchanged: what is good stays good. This makes
    numbers comparable, not raters: people use 1 to 7 otherwise than 1 to 5.

    Args:
        dimensions: The same quality as each part rated it.
        scores: Of each part, inside its scale, rating points `(ratings,)`.

    Returns:
        The first scale, without its step where a score of any part falls between its steps; and the scores on it,
        float64. Scores from a scale with the same ends and direction are not touched.
    """
    scale = dimensions[0]
    mapped = [_onto(scale, own, values) for own, values in zip(dimensions, scores, strict=True)]
    if scale.step is None:
        return scale, mapped
    steps = [(values - scale.minimum) / scale.step for values in mapped]
    if any((np.abs(own - np.round(own)) > STEP_TOLERANCE).any() for own in steps):
        return dataclasses.replace(scale, step=None), mapped
    # as people write them: statistics over categories would take 0.30000000000000004 for another one than 0.3
    snapped = [np.round(scale.minimum + scale.step * np.round(own), _DECIMALS) for own in steps]
    moved = [not same_range(own, scale) for own in dimensions]
    return scale, [new if was else old for new, old, was in zip(snapped, mapped, moved, strict=True)]


def same_range(one: Dimension, other: Dimension) -> bool:
    """Whether the same number means the same on both: ends and direction, whatever the steps."""
    ends = (one.minimum, one.maximum) == (other.minimum, other.maximum)
    return ends and one.higher_is_better == other.higher_is_better


def _onto(scale: Dimension, own: Dimension, scores: np.ndarray) -> np.ndarray:
    scores = scores.astype(np.float64)
    if same_range(own, scale):
        return scores
    share = (scores - own.minimum) / (own.maximum - own.minimum)
    share = share if own.higher_is_better == scale.higher_is_better else 1 - share
    return np.clip(scale.minimum + (scale.maximum - scale.minimum) * share, scale.minimum, scale.maximum)
