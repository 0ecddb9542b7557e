"""JSON files that are parsed: read strictly with pydantic, refused in one line that names the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..data_modules.errors import UserError, shown

Values = TypeVar("Values")
STRICT = ConfigDict(strict=True, extra="forbid")
"""No value is converted (true is no number, "3" neither), and no field is passed over."""


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        UserError: If it is no JSON.
        FileNotFoundError: If there is none.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None


def validated(kind: type[Values], values: Any, where: str) -> Values:
    """Plain values as a (pydantic or standard) dataclass or model.

    Args:
        kind: With its constraints in annotations.
        values: As `json.loads` returns them.
        where: Where they are written, for messages.

    Raises:
        UserError: Naming the first field that is missing, unexpected or not one of its values.
    """
    try:
        # as JSON: there, strictly, a list may be a tuple and an integer a float
        return TypeAdapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: {_problem(field, first['type'], first['msg'], first['input'])}") from None
    except UserError as error:  # of a `__post_init__`
        raise UserError(f"{where}: {error}") from None


def _problem(field: str, kind: str, message: str, value: Any) -> str:
    if kind == "missing":
        return f"{field} is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unexpected {field}"
    if kind == "value_error":
        text = message.removeprefix("Value error, ")
        return f"{field}: {text}" if field else text
    message = message.replace("Input should be", "expected").replace("Tuple should have", "expected")
    return f"{field} {shown(value)}; {message}".lstrip()
