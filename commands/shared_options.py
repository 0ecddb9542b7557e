"""Options that several commands have, and what their values may be."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from inspect import cleandoc
from pathlib import Path
from typing import Any, NoReturn

from ..data_modules.errors import UserError, nearest
from ..data_modules.numerals import parse_number, parse_whole

Command = Callable[[argparse.Namespace], int]
"""A function from the options of a command to its exit code."""
Functions = Mapping[str, Command]
"""Those of all commands, by name."""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the nearest right name, and not a page of usage; options may stand
    anywhere between the other words."""

    _one_after_the_other = False

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] of overloads
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """As that of `argparse`; an unknown option is named before an option that is missing, which it may stand for.

        Raises:
            UserError: If an option is not known, or a folder that it names cannot be written.
        """
        if self._subparsers is not None or self._one_after_the_other:
            return super().parse_known_args(args, namespace)
        if args is not None:
            for word in args:
                if word == "--":
                    break
                name = word.partition("=")[0]
                if name.startswith("--") and not any(known.startswith(name) for known in self._option_string_actions):
                    self.error(f"{name}: no such option{did_you_mean(name, self._option_string_actions)}")
        self._one_after_the_other = True  # before Python 3.13, optional words count as missing before the first option
        try:
            parsed, left = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._one_after_the_other = False
        for name in [action.dest for action in self._actions if action.type is output_folder]:
            if getattr(parsed, name) is not None and not getattr(parsed, "dry_run", False):
                from ..data_modules.folders import check_writable

                check_writable(getattr(parsed, name))
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """Refuse in one line.

        Raises:
            UserError: Always.
        """
        raise UserError(f"{message}; see {self.prog} --help")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The nearest of some names, to be put after the wrong one; empty if none is near."""
    near = nearest(word, known)
    return "" if near is None else f" (did you mean {near}?)"


def add(to: argparse._ActionsContainer, name: str, text: str, kind: Any = str, default: Any = None, **how: Any) -> None:
    """An option or argument. Its help is the text and, of an option that has one, its default.

    `kind` makes a value of a word; or it is bool, of an option without a value, or a list of all values. `many` is what
    a value is called of which several may follow; the rest is as for `argparse`.
    """
    if kind is bool:
        to.add_argument(name, action="store_true", help=text, **how)
        return
    how |= {"choices": kind} if isinstance(kind, list) else {"type": kind} if kind is not str else {}
    if (many := how.pop("many", None)) is not None:
        how |= {"nargs": "+", "metavar": many}
    if default is not None and default != []:
        text = f"{text} (default: {default})"
    to.add_argument(name, default=default, help=text, **how)


def add_command(
    commands: Any, run: Functions, name: str, example: str, json: str | None = "print JSON", raw: bool = False
) -> argparse.ArgumentParser:
    """A subcommand, whose help is the docstring of its function, and an example; `json` is the help of ``--json``. With
    `raw` the lines of the docstring stay as they are."""
    text, example = cleandoc(run[name].__doc__ or ""), f"example: empathy-judge {name} {example}".rstrip()
    parser = commands.add_parser(name, help=text.splitlines()[0], description=text, epilog=example)
    parser.set_defaults(run=run[name])
    if raw:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
    if json is not None:
        add(parser, "--json", json, bool)
    return parser


def add_data_option(one: argparse._ActionsContainer, split: str | None = None, required: bool = True) -> None:
    """`--data`, and `--split` where there is a usual one."""
    add(one, "--data", "folder of a pair dataset, or its address (hf://datasets/...)", required=required)
    if split is not None:
        add_split_option(one, split)


def add_split_option(one: argparse._ActionsContainer, usual: str) -> None:
    """`--split`."""
    add(one, "--split", "which pairs" if usual == "all" else "which pairs; all = every pair", split_name, usual)


def add_device_options(one: argparse.ArgumentParser) -> None:
    """Where and how a backbone is loaded."""
    where = "cpu, cuda, ...; auto = all GPUs, then main memory (default: a GPU if there is one)"
    add(one, "--device", where, device_name)
    add(one, "--backbone", "where the backbone lies now, if not where the judge found it")
    small = "nf4 = language model in 4 bits, for small GPUs; scores change a little (default: as in training)"
    add(one, "--quantization", small, ["none", "nf4"])


def add_loading_options(one: argparse.ArgumentParser, cache: bool = True) -> None:
    """How long clips are heard, `add_device_options`, and where what the audio tower makes is kept."""
    one.add_argument(
        "--no-windows", dest="windows", action="store_false",
        help="refuse clips that are longer than the judge hears at once (default: they are heard in windows)",
    )  # fmt: skip
    add_device_options(one)
    if cache:
        kept = (
            "keep what the audio tower makes of clips here, for other commands and for training with --cache.folder "
            "(at most 100 GB; default: not kept)"
        )
        add(one, "--cache", kept, metavar="FOLDER")


def _number(kind: Callable[[str], float], least: float, most: float, expected: str) -> Callable[[str], Any]:
    """Return the function that parses a number in a range from the text of an option; NaN is refused, too."""

    def convert(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
        return number

    return convert


whole_number = _number(parse_whole, 1, 10**12, "a whole number, 1 or more")
random_seed = _number(parse_whole, 0, 2**32 - 1, "a whole number from 0 to 4294967295")  # as NumPy takes them
resamples = _number(parse_whole, 0, 10**6, "a whole number from 0 (no intervals) to 1000000")
process_count = _number(
    parse_whole, 1, 1024, "a number of processes, 1 to 1024"
)  # more would end the machine, not the work
port_number = _number(parse_whole, 0, 2**16 - 1, "a port, 0 to 65535")
seconds = _number(parse_number, 0, 1e6, "seconds, 0 or more")
dollars = _number(parse_number, 0, 1e9, "dollars, 0 or more")
share = _number(parse_number, 0, 1, "a share, 0 to 1")

any_number = _number(parse_number, -1e12, 1e12, "a number")
any_whole = _number(parse_whole, -(10**12), 10**12, "a whole number")


def output_folder(text: str) -> Path:
    """A folder to write into. `OneLineParser` checks that it can be written before anything is read or loaded."""
    return Path(text)


def split_name(text: str) -> str | None:
    """The name of a split; None for ``all``."""
    return None if text == "all" else text


def device_name(text: str) -> str:
    """The name of a device. Torch checks later whether this machine has it; `meta` is refused, it holds no numbers."""
    if not re.fullmatch(r"(?!meta)[a-z]+(:\d{1,4})?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected auto, cpu, cuda, cuda:1, ...")
    return text
