"""What all reports have in common, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from ...core.errors import UserError, first_problem, problem_of, shown, system_errors
from ...core.json_text import parse_json
from ..statistics.agreement import IN_REPORTS

Version = Literal[3]
SCHEMA_VERSION: Version = get_args(Version)[0]

Share = Annotated[float, Field(ge=0, le=1)]
Count = NonNegativeInt


def is_none(value: object) -> bool:
    """Of fields that are left out where there is nothing."""
    return value is None


class Part(BaseModel):
    """A report, or a part of it."""

    model_config = IN_REPORTS

    def as_json(self) -> dict[str, Any]:
        """The part as it stands in JSON: dicts, lists, numbers and texts."""
        return self.model_dump(mode="json")


class Versioned(Part):
    """A whole report."""

    schema_version: Version
    """Version of the format; a report of another version is not read."""


Kind = TypeVar("Kind", bound=Versioned)


def read_report(path: Path, kind: type[Kind]) -> Kind:
    """Read and check a report that a command wrote.

    Raises:
        UserError: If the file cannot be read, is of another version, or a field is missing, unknown or out of range.
    """
    with system_errors(path, "read"):
        text = path.read_text(encoding="utf-8")
    try:
        return kind.model_validate(parse_json(text))
    except ValidationError as error:
        where, problem, _, version = problem_of(error)
        if where == "schema_version" and problem != "missing":
            again = f"expected {SCHEMA_VERSION}: measure again"
            raise UserError(f"{path}: schema_version {shown(version)}; {again}") from None
        raise UserError(f"{path}: not a report as it was written: {first_problem(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None
