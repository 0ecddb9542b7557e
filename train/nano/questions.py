"""What the nano backbone is asked about delivery, and the right answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .corpus import LABELS, MEASURES

_FIVE = ("very low", "low", "medium", "high", "very high")


@dataclass(frozen=True)
class Delivery:
    """Targets of one clip: `measures` as in `corpus.MEASURES` (NaN = unknown), `labels` as in `corpus.LABELS`."""

    measures: Sequence[float]
    labels: Sequence[int]


@dataclass(frozen=True)
class Scale:
    """A measure in words: value below `edges[0]` is `words[0]`, and so on."""

    measure: str
    question: str
    words: tuple[str, ...]
    edges: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Which of two clips has more of a measure; closer than `margin` is the same."""

    measure: str
    question: str
    margin: float


@dataclass(frozen=True)
class Question:
    """A question with its name in reports. `answer` gives None where the answer is unknown."""

    name: str
    text: str
    answer: Callable[[Delivery | None, Delivery], str | None]


SCALES = (
    Scale("pitch", "How high is the pitch of the {clip}?", _FIVE, (-0.5, -0.15, 0.25, 0.6)),
    Scale("pitch_range", "How wide is the pitch range of the {clip}?",
          ("flat", "narrow", "medium", "wide", "very wide"), (1.0, 2.0, 3.0, 4.2)),
    Scale("rate", "How fast is the {clip}?",
          ("very slow", "slow", "medium", "fast", "very fast"), (3.0, 4.3, 5.5, 6.7)),
    Scale("level", "How loud is the {clip}?", ("very soft", "soft", "medium", "loud", "very loud"),
          (-36.0, -31.0, -26.0, -21.0)),
    Scale("pitch_shift", "Is the pitch of the {clip} lowered or raised for its speaker?",
          ("lowered", "neutral", "raised"), (-1.7, 1.7)),
)  # fmt: skip
LABEL_QUESTIONS = {
    "quality": "What is the voice quality of the {clip}?",
    "sex": "Is the speaker of the {clip} female or male?",
    "recording": "How is the recording of the {clip}?",
}
LABEL_WORDS = {"quality": LABELS["quality"], "sex": ("female", "male"), "recording": LABELS["recording"]}
COMPARISONS = (
    Comparison("pitch", "Which is higher in pitch?", 0.1),
    Comparison("pitch_range", "Which is wider in pitch range?", 0.6),
    Comparison("rate", "Which is faster?", 0.6),
    Comparison("level", "Which is louder?", 2.5),
)
DESCRIBE = "Describe the {clip}."


def _scale_answer(scale: Scale, of_context: bool, context: Delivery | None, response: Delivery) -> str | None:
    clip = context if of_context else response
    value = math.nan if clip is None else clip.measures[MEASURES.index(scale.measure)]
    return None if math.isnan(value) else scale.words[int(np.searchsorted(scale.edges, value))]


def _label_answer(name: str, of_context: bool, context: Delivery | None, response: Delivery) -> str | None:
    clip = context if of_context else response
    value = -1 if clip is None else clip.labels[list(LABELS).index(name)]
    return None if value < 0 else LABEL_WORDS[name][value]


def _comparison_answer(comparison: Comparison, context: Delivery | None, response: Delivery) -> str | None:
    if context is None:
        return None
    column = MEASURES.index(comparison.measure)
    difference = response.measures[column] - context.measures[column]
    if math.isnan(difference):
        return None
    if abs(difference) < comparison.margin:
        return "same"
    return "response" if difference > 0 else "context"


def _description(of_context: bool, context: Delivery | None, response: Delivery) -> str | None:
    parts = [(scale.measure.replace("_", " "), _scale_answer(scale, of_context, context, response)) for scale in SCALES]
    parts += [(name, _label_answer(name, of_context, context, response)) for name in LABELS]
    known = [f"{name} {answer}" for name, answer in parts if answer is not None]
    return ", ".join(known) if known else None


def _about(clip: str) -> list[Question]:
    of_context = clip == "context"
    made = [
        Question(f"{s.measure} of {clip}", s.question.format(clip=clip), partial(_scale_answer, s, of_context))
        for s in SCALES
    ]
    made += [
        Question(f"{name} of {clip}", text.format(clip=clip), partial(_label_answer, name, of_context))
        for name, text in LABEL_QUESTIONS.items()
    ]
    return made


CLOSED = (
    *_about("context"),
    *_about("response"),
    *(Question(f"more {c.measure}", c.question, partial(_comparison_answer, c)) for c in COMPARISONS),
)
"""Questions with a small set of answers, on which accuracy is measured."""
OPEN = tuple(
    Question(f"describe {clip}", DESCRIBE.format(clip=clip), partial(_description, clip == "context"))
    for clip in ("context", "response")
)
"""Questions answered with a list of everything that is known."""


def all_texts() -> list[str]:
    """Every question and every word of an answer, for the tokenizer to learn."""
    words = [word for scale in SCALES for word in scale.words]
    words += [word for values in LABEL_WORDS.values() for word in values] + ["same", "response", "context"]
    names = [scale.measure.replace("_", " ") for scale in SCALES] + list(LABELS)
    lists = [", ".join(f"{name} {word}" for name in names) for word in words]
    return [question.text for question in (*CLOSED, *OPEN)] + words + lists
