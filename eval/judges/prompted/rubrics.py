"""The rubrics of ``rubrics.yaml`` in words: for a model that writes, and as the questions of a decision model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from ....data_modules.ratings import LABELS, Dimension
from .settings import RubricName

CHOICES = ("first", "second")
"""The options of a question of type ``choice``: their order is also that of their names, by which Clef sorts them."""


@cache
def _rubrics() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("rubrics.yaml").read_text(encoding="utf-8"))


def describe(rubric: RubricName, dimensions: Sequence[Dimension]) -> str:
    """A rubric in words, each dimension with the anchored points of its scale.

    Anchors are placed on the nearest possible score; on short scales the inner ones are left out.
    """
    paragraphs = [_aim(rubric)]
    for dimension in dimensions:
        lines = _anchored(rubric, dimension)
        head = f'{dimension.name.replace("_", " ")} ("{dimension.name}"), {dimension.scale}:'
        paragraphs.append("\n".join([head, *(f"  {point} = {lines[point]}" for point in lines)]))
    return "\n\n".join(paragraphs)


def level_questions(rubric: RubricName, dimensions: Sequence[Dimension]) -> dict[str, dict[str, Any]]:
    """A question of type ``score`` for each dimension, as all decision models take it, by the dimension's name.

    ``instructions`` say what is judged, ``criteria`` are words for every step of the scale, lowest first, no two alike.
    A model may weigh each level by itself, so that one between two anchored points repeats the words of both.
    """
    questions = {}
    for dimension in dimensions:
        words = _anchored(rubric, dimension)
        points = [f"{dimension.minimum + number * (dimension.step or 0):g}" for number in range(dimension.steps)]
        places = [number for number, point in enumerate(points) if point in words]
        criteria = [f"{point}: {words.get(point)}" for point in points]
        for low, high in pairwise(places):
            for between in range(low + 1, high):
                ends = f'between "{words[points[low]]}" and "{words[points[high]]}"'
                criteria[between] = f"{points[between]}: {ends}"
        worse = "" if dimension.higher_is_better else " A higher level is worse."
        asked = f"Rate the response: {dimension.name.replace('_', ' ')}, {dimension.scale}.{worse}"
        questions[dimension.name] = {
            "type": "score",
            "instructions": f"{_aim(rubric)}\n\n{asked}",
            "criteria": criteria,
        }
    return questions


def choice_questions(rubric: RubricName, dimensions: Sequence[Dimension]) -> dict[str, dict[str, Any]]:
    """A question of type ``choice`` for each dimension, as all decision models take it: which of two responses."""
    questions = {}
    for dimension in dimensions:
        ends = [f"{point}: {words}" for point, words in _anchored(rubric, dimension).items()]
        worse = "" if dimension.higher_is_better else " A higher rating is worse."
        name = f"{dimension.name.replace('_', ' ')}, {dimension.scale} ({ends[0]}; {ends[-1]})"
        asked = f"Which response deserves the higher rating? Rated is: {name}.{worse}"
        questions[dimension.name] = {
            "type": "choice",
            "instructions": f"{_aim(rubric)}\n\n{asked}",
            "criteria": {choice: f"the {choice} response" for choice in CHOICES},
        }
    return questions


def _aim(rubric: RubricName) -> str:
    return _rubrics()[rubric]["aim"].replace("{delivery}", _rubrics()["delivery"])


def _anchored(rubric: RubricName, dimension: Dimension) -> dict[str, str]:
    """Points of the scale that have words, ascending: its ends always."""
    anchors = _rubrics()[rubric].get("anchors", LABELS)[:: 1 if dimension.higher_is_better else -1]
    lines: dict[str, str] = {}
    # The ends first, then the middle: on a short scale two anchors share a point, and the first one keeps it
    for position in (0, 4, 2, 1, 3):
        value = position / 4 * (dimension.maximum - dimension.minimum)
        if dimension.step is not None:
            value = round(value / dimension.step) * dimension.step
        lines.setdefault(f"{dimension.minimum + value:g}", anchors[position])
    return {point: lines[point] for point in sorted(lines, key=float)}
