"""What the value of an option may be: a type for each kind, with the function that reads it from a word.

Options are fields of dataclasses, which `commands.options` reads; this here loads nothing heavy."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from .numerals import parse_number, parse_whole

NO_OPTION = {"option": False}
"""Metadata of a field that is no option."""


def number_between(kind: Callable[[str], float], least: float, most: float, expected: str) -> Callable[[str], Any]:
    """Return the function that parses a number in a range from the text of an option; NaN is refused, too."""

    def convert(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            # Out of range, so that text that is no number gets the same message
            number = least - 1
        if not least <= number <= most:
            raise ArgumentTypeError(f"{text!r}: expected {expected}")
        return number

    return convert


def output_folder(text: str) -> Path:
    """A folder to write into. `options.read` checks that it can be written before anything is read or loaded."""
    if not text.strip():  # an unset variable of a shell; the path of an empty text is the current folder
        raise ArgumentTypeError(f"{text!r}: expected a folder; . is the current one")
    return Path(text)


def split_name(text: str) -> str | None:
    """The name of a split; None for ``all``."""
    return None if text == "all" else text


def device_name(text: str) -> str:
    """The name of a device. Torch checks later whether this machine has it; `meta` is refused, it holds no numbers."""
    if not re.fullmatch(r"(?!meta)[a-z]+(:\d{1,4})?", text):
        raise ArgumentTypeError(f"{text!r}: expected auto, cpu, cuda, cuda:1, ...")
    return text


whole_number = number_between(parse_whole, 1, 10**12, "a whole number, 1 or more")
random_seed = number_between(parse_whole, 0, 2**32 - 1, "a whole number from 0 to 4294967295")  # as NumPy takes them
resamples = number_between(parse_whole, 0, 10**6, "a whole number from 0 (no intervals) to 1000000")
process_count = number_between(parse_whole, 1, 1024, "a number of processes, 1 to 1024")  # more would end the machine
port_number = number_between(parse_whole, 0, 2**16 - 1, "a port, 0 to 65535")
seconds = number_between(parse_number, 0, 1e6, "seconds, 0 or more")
dollars = number_between(parse_number, 0, 1e9, "dollars, 0 or more")
share = number_between(parse_number, 0, 1, "a share, 0 to 1")
any_number = number_between(parse_number, -1e12, 1e12, "a number")
any_whole = number_between(parse_whole, -(10**12), 10**12, "a whole number")

Whole = Annotated[int, whole_number]
Seed = Annotated[int, random_seed]
Resamples = Annotated[int, resamples]
Processes = Annotated[int, process_count]
Port = Annotated[int, port_number]
Seconds = Annotated[float, seconds]
Dollars = Annotated[float, dollars]
Share = Annotated[float, share]
AnyNumber = Annotated[float, any_number]
AnyWhole = Annotated[int, any_whole]
OutputFolder = Annotated[Path, output_folder]
SplitName = Annotated[str | None, split_name]
Device = Annotated[str, device_name]
