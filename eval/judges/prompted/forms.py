"""The forms that an answer can have: what is asked for, and how it is read. Nothing unreadable becomes a score."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ....data_modules.errors import shown
from ....data_modules.ratings import STEP_TOLERANCE, Dimension

REASON = "reason"
"""The field in which a judge first says what it heard."""

_LONGEST = 20_000  # characters of an answer that are read; hostile ones can make reading slow

UNREADABLE, OUT_OF_RANGE = "unreadable answer", "score out of range"
"""How an answer without a score fails."""


class Unread(Exception):
    """An answer from which no score can be read.

    Attributes:
        kind: `UNREADABLE` or `OUT_OF_RANGE`.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Form(Protocol):
    """What an answer must hold: numbers by name."""

    def schema(self) -> dict[str, Any]:
        """As a JSON schema."""
        ...

    def in_words(self) -> str:
        """As an instruction, for models that take no schema."""
        ...

    def read(self, answer: str) -> dict[str, float]:
        """Name -> number.

        Raises:
            Unread: If the answer does not have the form.
        """
        ...


@dataclass(frozen=True)
class Scores:
    """A number for each dimension, on its scale (rating points).

    Numbers between the steps of a scale are taken as they are; numbers outside are not moved to its end.
    """

    dimensions: tuple[Dimension, ...]

    def schema(self) -> dict[str, Any]:
        """See `Form.schema`."""
        fields = {d.name: _number_between(d) for d in self.dimensions}
        return _object(
            {REASON: {"type": "string", "description": "what the voices sound like, one sentence"}, **fields}
        )

    def in_words(self) -> str:
        """See `Form.in_words`."""
        fields = ", ".join(f'"{d.name}": <{d.scale}>' for d in self.dimensions)
        return f'Answer with one JSON object and nothing else: {{"{REASON}": "<one sentence>", {fields}}}'

    def read(self, answer: str) -> dict[str, float]:
        """See `Form.read`."""
        found = json_object(answer, [d.name for d in self.dimensions])
        return {d.name: _on_scale(_number(found[d.name], d.name), d) for d in self.dimensions}


@dataclass(frozen=True)
class Number:
    """One number alone, for the expectation over what else might have been said (`expected_score`)."""

    dimension: Dimension

    def schema(self) -> dict[str, Any]:
        """See `Form.schema`."""
        return _object({self.dimension.name: {"type": "number"}})

    def in_words(self) -> str:
        """See `Form.in_words`."""
        return f"Answer with one number alone, {self.dimension.scale}."

    def read(self, answer: str) -> dict[str, float]:
        """See `Form.read`."""
        numbers = re.findall(r"-?\d+(?:\.\d+)?", answer)
        if len(numbers) != 1:
            raise Unread(UNREADABLE, f"{shown(answer)} is not one number")
        return {self.dimension.name: _on_scale(float(numbers[0]), self.dimension)}


FIRST, TIE, SECOND = "first", "tie", "second"
_PREFERENCE = {FIRST: 1.0, TIE: 0.0, SECOND: -1.0}


@dataclass(frozen=True)
class Preferred:
    """Which of two responses is better on each dimension: 1 the first, -1 the second, 0 neither."""

    dimensions: tuple[Dimension, ...]

    def schema(self) -> dict[str, Any]:
        """See `Form.schema`."""
        fields = {d.name: {"type": "string", "enum": [*_PREFERENCE]} for d in self.dimensions}
        return _object({REASON: {"type": "string", "description": "how the voices differ, one sentence"}, **fields})

    def in_words(self) -> str:
        """See `Form.in_words`."""
        fields = ", ".join(f'"{d.name}": "{FIRST}" or "{SECOND}" or "{TIE}"' for d in self.dimensions)
        return f'Answer with one JSON object and nothing else: {{"{REASON}": "<one sentence>", {fields}}}'

    def read(self, answer: str) -> dict[str, float]:
        """See `Form.read`."""
        found = json_object(answer, [d.name for d in self.dimensions])
        read = {}
        for dimension in self.dimensions:
            word = str(found[dimension.name]).strip().lower()
            if word not in _PREFERENCE:
                raise Unread(UNREADABLE, f"{dimension.name}: {shown(word)}; accepted: {', '.join(_PREFERENCE)}")
            read[dimension.name] = _PREFERENCE[word]
        return read


def json_object(text: str, names: Sequence[str]) -> Mapping[str, Any]:
    """The last JSON object in a text that has all names: models put prose and code fences around what they answer.

    Raises:
        Unread: If there is none.
    """
    found = [value for value in _objects(text[-_LONGEST:]) if all(name in value for name in names)]
    if not found:
        raise Unread(UNREADABLE, f"no JSON object with {', '.join(names)} in {shown(text)}")
    return found[-1]


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        yield value
        start = text.find("{", end)


def _number(value: Any, name: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Unread(UNREADABLE, f"{name}: {shown(value)} is no number")
    return number


def _on_scale(number: float, dimension: Dimension) -> float:
    slack = STEP_TOLERANCE * (dimension.maximum - dimension.minimum)
    if not dimension.minimum - slack <= number <= dimension.maximum + slack:
        raise Unread(OUT_OF_RANGE, f"{dimension.name}: {number:g}; accepted: {dimension.scale}")
    return number


def _whole(dimension: Dimension) -> bool:
    return dimension.step is not None and float(dimension.step).is_integer() and float(dimension.minimum).is_integer()


def _number_between(dimension: Dimension) -> dict[str, Any]:
    ends = dimension.minimum, dimension.maximum
    low, high = (int(end) if float(end).is_integer() else end for end in ends)
    kind = "integer" if _whole(dimension) else "number"
    return {"type": kind, "description": dimension.scale, "minimum": low, "maximum": high}


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


def expected_score(alternatives: Mapping[str, float], dimension: Dimension) -> float | None:
    """The mean of the scores that a first token could have begun, weighted by their probabilities (Liu et al., 2023,
    G-Eval), over those on the scale.

    Args:
        alternatives: Token -> natural logarithm of its probability.
        dimension: Its scale; every point must be a single digit or number that tokens spell whole.

    Returns:
        Rating points; None where no token is a score on the scale.
    """
    weights: dict[float, float] = {}
    for token, logarithm in alternatives.items():
        text = token.strip()
        if re.fullmatch(r"-?\d+", text) and dimension.minimum <= float(text) <= dimension.maximum:
            weights[float(text)] = weights.get(float(text), 0.0) + math.exp(logarithm)
    total = sum(weights.values())
    return sum(score * weight for score, weight in weights.items()) / total if total > 0 else None
