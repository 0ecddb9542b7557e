"""The one reader of numbers: what a text, a cell of a table or an option says, everywhere the same.

A number is written in ASCII digits, with a point and an exponent where there are any: ``3``, ``-0.5``, ``1e-4``. Python
also takes ``1_0`` for 10, ``nan``, ``inf`` and the digits of other scripts; here these are text. A number is missing
where a cell is empty, null, or NaN as a number (Parquet, JSON, pandas); the text ``NaN`` is refused as any other.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
PLAIN = re.compile(r"[+-]?((0|[1-9][0-9]*)|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)")
_WHOLE = re.compile(r"\s*[+-]?(0|[1-9][0-9]{0,17})\s*")
EXACT = 2**53
"""Up to here float64 holds every whole number; beyond, neighbours would become one."""


def parse_number(text: str) -> float:
    """The number that a text spells.

    Raises:
        ValueError: If it spells none, or one that is too large.
    """
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is no number")
    return number


def parse_whole(text: str) -> int:
    """The whole number that a text spells, without zeros before it: to some programs 010 is 8.

    Raises:
        ValueError: If it spells none.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def is_plain(text: str) -> bool:
    """Whether a text is a number that every program reads as the same one: 012 is 10 in YAML 1.1 and 12 in YAML 1.2."""
    return PLAIN.fullmatch(text) is not None


def to_number(value: Any) -> Any:
    """The number in a cell of a table, as int or float; else the value itself, to be checked later.

    Text that spells a number counts, numbers of NumPy and pandas, and `Decimal`.
    """
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            return value
        number = float(value)
        return int(value) if EXACT <= abs(number) < math.inf and value.strip().lstrip("+-").isdigit() else number
    if isinstance(value, Decimal):
        if value.is_nan():
            return math.nan
        return int(value) if EXACT <= abs(value) < 10**60 and value == value.to_integral_value() else float(value)
    # By attribute and not by type: NumPy takes 0.1 s to load, and the help of commands reads numbers as well.
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def as_float(value: object) -> float:
    """A number as float64; NaN for what is none, text included, for what is too large, and for a whole number that
    float64 does not hold."""
    if isinstance(value, Decimal):
        value = to_number(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if number == value or not isinstance(value, Integral) else math.nan
