"""Files that are there under another spelling of their path, which another system wrote."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from itertools import product
from typing import Literal

from .errors import shown

_FORMS: tuple[Literal["NFC", "NFD"] | None, ...] = (None, "NFC", "NFD")


def spelling_hint(path: str, is_file: Callable[[str], bool] = os.path.isfile) -> str:
    r"""What to add to a message that there is no such file; empty = no other spelling is there either.

    Windows writes `\` between folders. macOS may write an accent as a character of its own (NFD) where other systems
    have one for both (NFC): the names look the same and are two.
    """
    for separator, form in product(("\\", "/"), _FORMS):
        other = path.replace("\\", separator)
        other = other if form is None else unicodedata.normalize(form, other)
        if other == path or not _is_file(other, is_file):
            continue
        hint = f"; did you mean {shown(other)}?" if separator == "/" and "\\" in path else ""
        if form is None:
            return hint
        return f"{hint or '; a file is there whose name looks the same:'} write it in the Unicode form {form}"
    return ""


def _is_file(path: str, is_file: Callable[[str], bool]) -> bool:
    try:
        return is_file(path)
    except (OSError, ValueError):  # no permission, a zero byte
        return False
