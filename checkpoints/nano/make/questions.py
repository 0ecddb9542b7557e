"""What the nano backbone is asked about delivery, and the right answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from empathy_judge.checkpoints.nano.make.clips import LABELS, MEASURES

_FIVE = ("very low", "low", "medium", "high", "very high")


@dataclass(frozen=True)
class Delivery:
    """Targets of one clip: `measures` as in `clips.MEASURES` (NaN = unknown), `labels` as in `clips.LABELS`."""

    measures: Sequence[float]
    labels: Sequence[int]


Answer = Callable[[Delivery | None, Delivery], str | None]
"""The right answer about context (None = there is none) and response; None where it is unknown."""


@dataclass(frozen=True)
class NamedQuestion:
    """A question with its name in reports."""

    name: str
    text: str
    answer: Answer


# Measure: question, words, and the edges between them (a value below the first edge is the first word)
SCALES = {
    "pitch": ("How high is the pitch of the {clip}?", _FIVE, (-0.5, -0.15, 0.25, 0.6)),
    "pitch_range": ("How wide is the pitch range of the {clip}?",
                    ("flat", "narrow", "medium", "wide", "very wide"), (1.0, 2.0, 3.0, 4.2)),
    "rate": ("How fast is the {clip}?", ("very slow", "slow", "medium", "fast", "very fast"), (3.0, 4.3, 5.5, 6.7)),
    "level": ("How loud is the {clip}?", ("very soft", "soft", "medium", "loud", "very loud"),
              (-36.0, -31.0, -26.0, -21.0)),
    "pitch_shift": ("Is the pitch of the {clip} lowered or raised for its speaker?",
                    ("lowered", "neutral", "raised"), (-1.7, 1.7)),
}  # fmt: skip
LABEL_QUESTIONS = {
    "quality": ("What is the voice quality of the {clip}?", LABELS["quality"]),
    "sex": ("Is the speaker of the {clip} female or male?", ("female", "male")),
    "recording": ("How is the recording of the {clip}?", LABELS["recording"]),
}
# Measure: question, and the difference below which two clips are the same
COMPARISONS = {
    "pitch": ("Which is higher in pitch?", 0.1),
    "pitch_range": ("Which is wider in pitch range?", 0.6),
    "rate": ("Which is faster?", 0.6),
    "level": ("Which is louder?", 2.5),
}


def _in_words(name: str, clip: Delivery | None) -> str | None:
    """A measure or label of a clip as a word; None where it is unknown."""
    if clip is None:
        return None
    if name in SCALES:
        _, words, edges = SCALES[name]
        value = clip.measures[MEASURES.index(name)]
        return None if math.isnan(value) else words[int(np.searchsorted(edges, value))]
    label = clip.labels[list(LABELS).index(name)]
    return None if label < 0 else LABEL_QUESTIONS[name][1][label]


def _about(clip: str) -> list[NamedQuestion]:
    def asked(name: str) -> Answer:
        return lambda context, response: _in_words(name, context if clip == "context" else response)

    texts = {name: entry[0] for name, entry in (SCALES | LABEL_QUESTIONS).items()}
    return [NamedQuestion(f"{name} of {clip}", text.format(clip=clip), asked(name)) for name, text in texts.items()]


def _comparing(measure: str) -> NamedQuestion:
    text, margin = COMPARISONS[measure]
    column = MEASURES.index(measure)

    def answer(context: Delivery | None, response: Delivery) -> str | None:
        difference = math.nan if context is None else response.measures[column] - context.measures[column]
        if math.isnan(difference):
            return None
        if abs(difference) < margin:
            return "same"
        return "response" if difference > 0 else "context"

    return NamedQuestion(f"more {measure}", text, answer)


def _describing(clip: str) -> NamedQuestion:
    def answer(context: Delivery | None, response: Delivery) -> str | None:
        delivery = context if clip == "context" else response
        parts = [
            f"{name.replace('_', ' ')} {word}"
            for name in (*SCALES, *LABELS)
            if (word := _in_words(name, delivery)) is not None
        ]
        return ", ".join(parts) if parts else None

    return NamedQuestion(f"describe {clip}", f"Describe the {clip}.", answer)


CLOSED = (*_about("context"), *_about("response"), *map(_comparing, COMPARISONS))
"""Questions with a small set of answers, on which accuracy is measured."""
OPEN = (_describing("context"), _describing("response"))
"""Questions answered with a list of everything that is known."""


def all_texts() -> list[str]:
    """Every question and every word of an answer, for the tokenizer to learn."""
    words = [word for _, values, _ in SCALES.values() for word in values]
    words += [word for _, values in LABEL_QUESTIONS.values() for word in values] + ["same", "response", "context"]
    names = [name.replace("_", " ") for name in SCALES] + list(LABELS)
    lists = [", ".join(f"{name} {word}" for name in names) for word in words]
    return [question.text for question in (*CLOSED, *OPEN)] + words + lists
