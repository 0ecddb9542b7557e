"""The tables: what measures each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")


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
"""By name, functions that return `versions` by package, `columns`, and `rows` of texts."""
