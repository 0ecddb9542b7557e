"""Options that several sources have. Those of a source are a dataclass in its module, `Options`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Annotated

from ..errors import shown

REPEATABLE = {"action": "append", "nargs": None}
"""Metadata of an option that is given again for each value."""


def named_folder(text: str) -> str:
    """A folder that is there."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{shown(text)}: expected a folder")
    return text


@dataclass(frozen=True)
class NoOptions:
    """A source that has none of its own."""


@dataclass(frozen=True, kw_only=True)
class AudioRoot:
    """The option for audio that lies elsewhere.

    Attributes:
        audio_root (DIR): another folder in which audio may lie: paths count from there, too, and symbolic links into it
            and in it are followed
    """

    audio_root: Annotated[str, named_folder] | None = None
