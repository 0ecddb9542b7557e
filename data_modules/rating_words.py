"""Scores as people write them: numbers, numbers with a word, words of a scale, and what stands for no score."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.errors import UserError, shown
from ..core.numerals import to_number
from .ratings import LABELS, Dimension
from .tables import parse_mapping, plain_text

NO_SCORE = frozenset(
    ["na", "n/a", "n.a.", "n. a.", "k.a.", "k. a.", "#n/a", "nan", "null", "#null!", "-", "--", "–", "—", ".", "?",
     "missing", "not rated", "no answer"]
)  # fmt: skip
"""Texts that say that there is no score, in lower case."""
SERIES: tuple[Sequence[str], ...] = (
    LABELS,
    ("bad", "poor", "fair", "good", "excellent"),
    ("very bad", "bad", "neutral", "good", "very good"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
    ("strongly disagree", "disagree", "neither agree nor disagree", "agree", "strongly agree"),
    ("strongly disagree", "somewhat disagree", "neither agree nor disagree", "somewhat agree", "strongly agree"),
    (
        "strongly disagree", "disagree", "somewhat disagree", "neither agree nor disagree", "somewhat agree", "agree",
        "strongly agree",
    ),
    (
        "strongly disagree", "disagree", "slightly disagree", "neither agree nor disagree", "slightly agree", "agree",
        "strongly agree",
    ),
    ("not at all", "slightly", "moderately", "very", "extremely"),
    ("not at all", "a little", "moderately", "quite a bit", "extremely"),
    ("never", "rarely", "sometimes", "often", "always"),
    ("very dissatisfied", "dissatisfied", "neutral", "satisfied", "very satisfied"),
    ("very low", "low", "medium", "high", "very high"),
)  # fmt: skip
"""Words of usual scales, from the lowest to the highest. ITU-T P.800 has the second, Qualtrics those of 5 and 7."""
_COMMA = re.compile(r"\s*[+-]?[0-9]+,[0-9]+\s*")
_MONTHS = (
    "jan|janv|ene|feb|févr|mar|mrz|mär|mars|apr|avr|abr|may|mai|jun|juin|jul|juil|aug|août|ago|sep|sept|oct|okt|nov|"
    "dec|dez|déc|dic"
)
_LABELLED = re.compile(
    rf"\s*([+-]?[0-9]+)\s*[-–—=:.()]+\s*(?!(?:{_MONTHS})\b\.?(?:\W*[0-9]+)?\s*$)[^\W\d].*", re.IGNORECASE
)
"""A number and the word that the scale has for it: ``4 - agree``, ``1 = not at all``, ``5 (excellent)``. Not a day, as
``03. Mai``, which Excel makes of 3.5."""


def parse_choices(items: Sequence[str]) -> dict[str, float]:
    """``["good=4"]`` of the command line as word -> score.

    Raises:
        UserError: If an item has another form, or a word stands twice.
    """
    choices: dict[str, float] = {}
    for word, text in parse_mapping(items, "--choice").items():
        number = math.nan if _plain(text) in NO_SCORE else to_number(text)
        if not isinstance(number, float):
            raise UserError(f"--choice {shown(f'{word}={text}')}: expected WORD=NUMBER, such as good=4, or WORD=NA")
        choices[_plain(word)] = number
    return choices


def _plain(word: str) -> str:
    return " ".join(word.casefold().split())


def as_score(value: Any, choices: Mapping[str, float], decimal_comma: bool) -> Any:
    """The score that a cell states: a number, NaN where it states none, or the value itself where it is a word that
    `numbers_of` may know, or wrong. `choices` count before all else."""
    if isinstance(value, str):
        plain = _plain(value)
        if plain in choices:
            return choices[plain]
        if plain == "" or plain in NO_SCORE:
            return math.nan
        if decimal_comma and _COMMA.fullmatch(value):
            return float(value.replace(",", "."))
        labelled = _LABELLED.fullmatch(value)
        return to_number(value) if labelled is None else float(labelled[1])
    return math.nan if plain_text(value) is None else to_number(value)


def numbers_of(words: Iterable[str], scale: Dimension | None) -> dict[str, float]:
    """Word -> score of the words on one dimension, if together they belong to a usual scale (`SERIES`), or are all of
    one; empty where they do not, or two scales give one of them different numbers.

    The scores are those of the `scale`, which has to have as many steps; without one they are 1, 2, 3 and so on. Then
    no word between them may be missing: six words of agreement are a scale of six as well as one of seven whose middle
    nobody chose.
    """
    plain = {word: _plain(word) for word in words}
    fitting = {
        tuple(series.index(word) for word in plain.values()): {*plain.values()} == {*series}
        for series in SERIES
        if {*plain.values()} <= {*series} and (scale is None or (scale.step and scale.steps == len(series)))
    }
    if scale is None:
        fitting = {key: whole for key, whole in fitting.items() if max(key) - min(key) == len({*key}) - 1}
    fitting = [key for key, whole in fitting.items() if whole] or [*fitting]
    if len(fitting) != 1:
        return {}
    low, step = (1, 1) if scale is None or scale.step is None else (scale.minimum, scale.step)
    return {word: float(low + step * number) for word, number in zip(plain, fitting[0], strict=True)}


def unknown_words(words: Iterable[str]) -> str:
    """What to expect in place of words that say no number: how all of them are mapped."""
    options = " ".join(shown(f"{word}=NUMBER") for word in dict.fromkeys(words))
    return f"a finite number, such as 3.5; or what each word stands for (NA = no score): --choice {options}"
