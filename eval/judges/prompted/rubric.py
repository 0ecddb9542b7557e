"""What a prompted judge is told to listen for, with anchors for the points of the scale.

All wording is ours. The constructs follow what published rubrics measure: their scales put a flat delivery in different
places, so scores of one construct say nothing about another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from ....data_modules.ratings import LABELS, Dimension
from .settings import RubricName

RUBRICS: tuple[RubricName, ...] = get_args(RubricName)
"""``vocal``: does the voice fit, flatness in the middle. ``attunement``: as EchoMind's vocal empathy score, flatness at
the bottom. ``support``: as VStyle's empathy, words first and voice last. ``plain``: the dimension and its scale."""


@dataclass(frozen=True)
class Rubric:
    """A construct.

    Attributes:
        aim: What is judged, and what is not.
        anchors: What deserves 0, 25, 50, 75 and 100 % of a scale where higher is better.
    """

    aim: str
    anchors: tuple[str, str, str, str, str]


_DELIVERY_ALONE = (
    "Judge the delivery alone: pitch and its movement, pace, pauses, loudness, breath, voice quality, sighs and "
    "laughter. Whether the words are kind or helpful must not count. Nor may loudness as such, the quality of the "
    "recording, or the age, sex or accent of the voice."
)

_RUBRICS: dict[RubricName, Rubric] = {
    "vocal": Rubric(
        "Judge how empathic the voice of the response sounds to the person who is answered: does the way it is spoken "
        f"fit the state that can be heard in the context? {_DELIVERY_ALONE}",
        (
            "the voice contradicts what the person needs: cheerful to grief, harsh to fear, cold to joy",
            "the tone is somewhat beside what the person needs",
            "clear but read out: flat, neither fitting nor hurting",
            "warm and fitting for most of the response",
            "it follows the person's state throughout, as a close and trusted person would",
        ),
    ),
    "attunement": Rubric(
        "Judge how far the delivery of the response is attuned to the state of the person who is answered. "
        f"{_DELIVERY_ALONE}",
        (
            "flat: no feeling can be heard in the voice",
            "a feeling can be heard, but it is the wrong or the opposite one",
            "the right direction, but too weak",
            "fitting, with small gaps",
            "fully attuned: the voice meets the person and cares",
        ),
    ),
    "support": Rubric(
        "Judge the empathy of the response as a whole, in three steps: was the person's feeling understood, are the "
        "words right for it, and does the manner of speaking fit? Mere expressiveness, the speaker's sex and the "
        "quality of the recording must not count; a natural delivery does.",
        (
            "beside the point, in another language, or the roles are confused",
            "on the subject, but hardly any support",
            "some support, thin in content",
            "full emotional support in its words, while the delivery adds little",
            "full emotional support, and spoken naturally in a manner that fits",
        ),
    ),
    "plain": Rubric(
        "Judge the response in its context on the named qualities.",
        LABELS,
    ),
}


def describe(rubric: RubricName, dimensions: Sequence[Dimension]) -> str:
    """The rubric in words, each dimension with the anchored points of its scale."""
    chosen = _RUBRICS[rubric]
    return "\n\n".join([chosen.aim, *(_scale(chosen, dimension) for dimension in dimensions)])


def _scale(rubric: Rubric, dimension: Dimension) -> str:
    """Anchors are put on the nearest score that can be given; on short scales the inner ones are left out."""
    anchors = rubric.anchors if dimension.higher_is_better else rubric.anchors[::-1]
    fractions = np.linspace(0, 1, len(anchors))
    lines: dict[str, str] = {}
    for place in (0, 4, 2, 1, 3):  # the ends count most
        value = fractions[place] * (dimension.maximum - dimension.minimum)
        if dimension.step is not None:
            value = round(value / dimension.step) * dimension.step
        lines.setdefault(f"{dimension.minimum + value:g}", anchors[place])
    head = f'{dimension.name.replace("_", " ")} ("{dimension.name}"), {dimension.scale}:'
    return "\n".join([head, *(f"  {point} = {lines[point]}" for point in sorted(lines, key=float))])
