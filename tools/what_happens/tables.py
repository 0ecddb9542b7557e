"""The tables: what measures each, and how the page shows them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "what-happens.md"
Table = Mapping[str, Any]
"""What a measuring function returns: `versions` by package, `columns`, and `rows` of texts."""


def _of(module: str, function: str = "measure") -> Callable[[], dict[str, Any]]:
    return lambda: getattr(importlib.import_module(module), function)()  # most need packages that others do not


TABLES: dict[str, Callable[[], dict[str, Any]]] = {
    "decoders": _of("decoders"),
    "tokens": _of("families", "tokens"),
    "targets": _of("families", "targets"),
    "confidence": _of("confidence"),
    "missing_reward": _of("missing_reward"),
    "icc": _of("icc"),
}


def rendered(table: Table) -> str:
    """As Markdown, with the versions below."""
    rows = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    lines = [f"|{'|'.join(row)}|" for row in rows]
    versions = ", ".join(f"{name} {number}" for name, number in table["versions"].items())
    return "\n".join([*lines, "", f"Measured with {versions}."])


def with_table(page: str, name: str, table: Table) -> str:
    """The page with this table between its marks."""
    begin, end = f"<!-- table: {name} -->\n\n", "\n\n<!-- end -->"
    pattern = re.escape(begin) + r".*?" + re.escape(end.lstrip("\n"))
    changed, found = re.subn(pattern, lambda _: begin + rendered(table) + end, page, flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"{PAGE.name} has {found} places for the table {name}; expected 1")
    return changed
