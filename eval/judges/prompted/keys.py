"""Keys come from the environment and go to the server alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ....data_modules.errors import UserError

# What keys of the vendors look like: servers repeat parts of a wrong key in their messages
_KEY = re.compile(r"\b(?:sk-|AIza|Bearer\s+)[\w*.-]{4,}")


def keys_of(*variables: str) -> list[str]:
    """The values of those variables that are set."""
    return [value for variable in variables if (value := os.environ.get(variable, "").strip())]


def keys_for(spec: str, elsewhere: bool, *variables: str) -> list[str]:
    """The keys to ask with: of the vendor, or of another server, which gets none of the vendor's and may want none.

    Raises:
        UserError: If the vendor is asked and none of the variables that hold its key is set.
    """
    if elsewhere:
        return keys_of("EMPATHY_JUDGE_API_KEY")
    keys = keys_of(*variables)
    if not keys:
        raise UserError(f"{spec}: the variable {variables[0]} is not set; accepted: your key, in it")
    return keys


def redact(text: str, keys: Sequence[str]) -> str:
    """The text without keys, whole or as vendors shorten them."""
    for key in keys:
        text = text.replace(key, "[key]")
    return _KEY.sub("[key]", text)
