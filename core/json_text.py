"""JSON as the standard has it (RFC 8259): each name once in an object, and finite numbers."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from .errors import shown


def parse_json(text: str | bytes) -> Any:
    """The values of a text. `json` alone keeps the last of several values of one name, and reads NaN, Infinity, and
    numbers that no float can hold.

    Raises:
        ValueError: If it is not JSON, a name stands twice in an object (however deep), or a number is not finite.
        RecursionError: If it is nested too deep.
    """
    values = json.loads(text, object_pairs_hook=unique_object)
    # A stack of our own: the text may be nested as deep as `json` reads, deeper than calls may be.
    waiting: list[tuple[str, Any]] = [("", values)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{where}.{name}", own) for name, own in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{where}.{position}", own) for position, own in enumerate(value)]
        # Negated, so that NaN is refused, too.
        elif isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise ValueError(f"{where[1:]} {shown(value)}; expected a finite number".lstrip())
    return values


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are all different: of equal ones `json` would keep only the last value.

    Raises:
        ValueError: If they are not.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        name = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {shown(name)} stands twice in an object")
    return values
