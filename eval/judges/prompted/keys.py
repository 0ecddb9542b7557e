"""Keys come from the environment and go to the server alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

# What keys of the vendors look like: servers repeat parts of a wrong key in their messages
_KEY = re.compile(r"\b(?:sk-|AIza|Bearer\s+)[\w*.-]{4,}")


def keys_of(*variables: str) -> list[str]:
    """The values of those variables that are set."""
    return [value for variable in variables if (value := os.environ.get(variable, "").strip())]


def redact(text: str, keys: Sequence[str]) -> str:
    """The text without keys, whole or as vendors shorten them."""
    for key in keys:
        text = text.replace(key, "[key]")
    return _KEY.sub("[key]", text)
