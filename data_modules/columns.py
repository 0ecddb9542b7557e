"""Columns of a pair by their names: what splits are made and reports are sliced by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from .rows import TAG_PREFIX
from .schema import Pair

COLUMNS: Mapping[str, Callable[[Pair], str | None]] = MappingProxyType(
    {
        "group_id": lambda pair: pair.group_id,
        "context_speaker": lambda pair: pair.context_speaker,
        "response_speaker": lambda pair: pair.response_speaker,
        "system_id": lambda pair: pair.system_id,
        "setting": lambda pair: pair.setting,
        "language": lambda pair: pair.language,
        "situation": lambda pair: pair.situation,
        "context_text": lambda pair: pair.context_text,
        "response_text": lambda pair: pair.response_text,
    }
)
"""Those that every dataset can have; tags (``tag:NAME``) stand beside them."""


def is_column(name: str) -> bool:
    """Whether the name is one of `COLUMNS` or that of a tag."""
    return name in COLUMNS or name.startswith(TAG_PREFIX)


def read_column(pair: Pair, name: str) -> str | None:
    """The value of a column of which `is_column` holds; None where there is none."""
    return pair.tag(name.removeprefix(TAG_PREFIX)) if name.startswith(TAG_PREFIX) else COLUMNS[name](pair)


def value_number(pair: Pair, column: str | None, values: Sequence[str]) -> int:
    """Position in `values` of the pair's value of a column; -1 without a column.

    Raises:
        ValueError: If it is not among them.
    """
    return -1 if column is None else values.index(str(read_column(pair, column)))


def tag_columns(pairs: Iterable[Pair]) -> list[str]:
    """The names of all tags of these pairs as columns, sorted."""
    return sorted({f"{TAG_PREFIX}{name}" for pair in pairs for name, _ in pair.tags})


def accepted_columns(pairs: Iterable[Pair]) -> str:
    """The columns that these pairs can have, for messages."""
    return ", ".join([*COLUMNS, *tag_columns(pairs)])
