"""What the `empathy-judge` command does: one function per command, and their options."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from typing import Any

from ..data_modules.parallel import say

DONE, FAILED_CHECKS, BAD_USAGE, A_BUG = 0, 1, 2, 70
"""Exit codes of commands; 70 is EX_SOFTWARE of sysexits.h."""


def tell(options: argparse.Namespace, found: Any, views: Callable[[Any], Iterable[Any]]) -> int:
    """Print what was found, as JSON or as its views: tables and text."""
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
        return DONE
    for view in views(found):
        say(view, stderr=False)
    return DONE


def first_given(options: argparse.Namespace, *names: str) -> str | None:
    """The first of some options that was given, as it is written; they may mean nothing beside others."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False and value != []:  # 0 was given
            return f"--{name.replace('_', '-')}"
    return None


def chosen(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Some options by name, those that the command has."""
    return {name: getattr(options, name) for name in names if hasattr(options, name)}
