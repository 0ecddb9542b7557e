"""Reads YAML files. What YAML would read as something else than is written is refused."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import yaml

from .errors import DataError, system_errors
from .files import DataPath
from .numerals import PLAIN

MAX_YAML_VALUES = 1_000_000
ODD_NUMBER = "is not the same number everywhere; expected decimal digits without zeros before them, '_' or ':'"
_YAML_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_ODD_NUMBER = re.compile(r"[-+]?(\d[\d_]*|[\d_]*\.[\d_]*\d|\d[\d_]*\.[\d_]*)([eE][-+]?\d+)?")
"""What Python reads as a number; ``\\d`` are the digits of all scripts."""


def check_yaml(text: str, as_typed: bool = False) -> None:
    """Refuses what YAML would read as something else than is written, and a short text whose aliases stand for a huge
    value. A key that stands twice in a mapping would have the last value. 012, 1:30 and 1_0 are 10, 90 and 10 in YAML
    1.1, and other numbers or texts elsewhere. `as_typed`: of a person, so that 08, a text in YAML 1.1, is meant as a
    number.

    Raises:
        yaml.YAMLError: If there is one, or the text is not YAML.
    """
    nodes: list[Any] = [yaml.compose(text, yaml.SafeLoader)]
    for count in itertools.count():
        if not nodes:
            return
        if count > MAX_YAML_VALUES:
            raise yaml.YAMLError(f"more than {MAX_YAML_VALUES} values, those that aliases stand for included")
        node = nodes.pop()
        if isinstance(node, yaml.ScalarNode):
            text = node.value
            is_number = node.tag in _YAML_NUMBERS and not text.lower().endswith((".inf", ".nan"))
            is_meant = is_number or (as_typed and _ODD_NUMBER.fullmatch(text))
            if node.style is None and is_meant and not PLAIN.fullmatch(text):
                raise yaml.YAMLError(f"{text} {ODD_NUMBER}, or quotes around a text, {_place(node.start_mark)}")
            # No name of a file may hold one, and C ends a text there.
            if "\0" in text:
                raise yaml.YAMLError(f"a text holds a zero byte, {_place(node.start_mark)}")
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            repeated = next((key for key, times in keys.items() if times > 1), None)
            if repeated is not None:
                raise yaml.YAMLError(f"key {repeated!r} stands twice in a mapping, {_place(node.start_mark)}")
            nodes += [part for pair in node.value for part in pair]


def _yaml_reason(error: Exception) -> str:
    """Why a text is not YAML, with line and column where the parser knows them, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}, {_place(error.problem_mark)}"
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def read_yaml(path: DataPath) -> Any:
    """The content of a YAML file in UTF-8. Nothing in it is run.

    Raises:
        DataError: If it cannot be read, a key stands twice in a mapping, or a number is written so that programs read
            different ones.
    """
    try:
        with system_errors(path, "read"):
            text = path.read_bytes().decode()
        check_yaml(text)
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as YAML ({_yaml_reason(error)})") from None
