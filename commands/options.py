"""Options of commands, read into dataclasses: a command is a dataclass, its fields are its options.

The docstring of the class is the help of the command, ``Attributes:`` in it that of its options, as in
``batch_size (PAIRS): pairs per forward pass``; what is in brackets stands for the value. A field that may be given by
position in Python is given by position here, too. Fields of base classes come after those of the class.

`train` reads trees of settings, files over files, with jsonargparse; this here reads words with argparse. Of words
jsonargparse 4.53 makes something else: flags need a value (``--json true``) and lists are YAML (``--by '[a, b]'``);
where positional words may be missing, an option between them is an error (``score J --device cpu - a.wav``); the text
``null`` becomes None; an error is a page; and it takes 0.07 s to load, ``--help`` without it 0.1 s.
"""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from inspect import cleandoc, get_annotations
from itertools import takewhile
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ..core.errors import UserError, nearest
from ..core.option_values import NO_OPTION, output_folder


class Command(Protocol):
    """What a user asks for. `EXAMPLE` is what may follow its name."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    EXAMPLE: ClassVar[str]

    def run(self) -> int:
        """Do it; the exit code."""
        ...


AnyCommand = TypeVar("AnyCommand", bound=Command)


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the nearest right name, and not a page of usage."""

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """What words say, and nothing of what they leave out; options may stand anywhere between the other words.

        Raises:
            UserError: If they say what no option takes, or a folder to write into cannot be written.
        """
        # argparse would report a missing option first, although a misspelt one may stand for it
        for word in takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and not any(known.startswith(name) for known in self._option_string_actions):
                self.error(f"{name}: no such option{did_you_mean(name, self._option_string_actions)}")
        values = vars(self.parse_intermixed_args(words))
        for action in self._actions:
            if action.type is output_folder and action.dest in values and not values.get("dry_run"):
                from ..core.files import check_writable

                check_writable(values[action.dest])
        return values

    def error(self, message: str) -> NoReturn:
        """Refuse in one line.

        Raises:
            UserError: Always.
        """
        raise UserError(f"{message}; see {self.prog} --help")


class _Paragraphs(argparse.HelpFormatter):
    """Help whose paragraphs are filled, and whose indented ones stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        # Without breaks at hyphens: an option such as --audio-root stays whole, to be copied
        fill = partial(textwrap.fill, width=width, break_on_hyphens=False)
        return "\n\n".join(part if "\n  " in part else fill(" ".join(part.split())) for part in parts)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The nearest of some names, to be put after the wrong one; empty if none is near."""
    near = nearest(word, known)
    return "" if near is None else f" (did you mean {near}?)"


def first_given(command: Command, *names: str) -> str | None:
    """The first of some options that is not left at its default, as it is written: others may rule it out."""
    defaults = {one.name: one.default for one in fields(command)}
    return next((_spelled(name) for name in names if getattr(command, name) != defaults[name]), None)


def read(name: str, command: type[AnyCommand], words: Sequence[str]) -> AnyCommand:
    """The command that words say.

    Raises:
        UserError: If they say none, or a folder to write into cannot be written.
    """
    parser = parser_of(name, command)
    values = parser.read(words)
    if any(one.name == "command" for one in fields(command)):  # reports keep the command as it was typed
        values["command"] = shlex.join(["empathy-judge", *name.split(), *words])
    return command(**values)


def parser_of(name: str, command: type[Command]) -> OneLineParser:
    """The parser of a command."""
    parser = OneLineParser(
        prog=f"empathy-judge {name}",
        description=summary_and_more(command),
        epilog=f"example: empathy-judge {name} {command.EXAMPLE}".rstrip(),
        formatter_class=_Paragraphs,
    )
    add_options(parser, command)
    return parser


def add_options(parser: argparse.ArgumentParser, options: type[Any]) -> None:
    """Add the options of a dataclass. What is not given is left out: defaults are those of the class."""
    parser.argument_default = argparse.SUPPRESS
    helps = {name: help for base in reversed(options.__mro__) for name, help in _helps(base)}
    hints = get_type_hints(options, include_extras=True)
    left = {one.name: one for one in fields(options) if one.metadata != NO_OPTION}
    groups: dict[str | None, argparse._ActionsContainer] = {None: parser}
    for base in options.__mro__:
        names = [name for name in get_annotations(base) if name in left]
        title = base.__dict__.get("TITLE")
        if names and title not in groups:
            groups[title] = parser.add_argument_group(title)
        for name in names:
            # Python -OO drops docstrings: commands work without help, too
            value, text = helps.get(name, (None, ""))
            _add(groups[title], left.pop(name), hints[name], value, text)


def summary_and_more(command: type[Command]) -> str:
    """The docstring of a command without its options."""
    return cleandoc(command.__doc__ or "").partition("\n\nAttributes:\n")[0]


def _helps(base: type) -> Iterator[tuple[str, tuple[str | None, str]]]:
    """What a docstring says of each field: what stands for its value, and its help."""
    _, _, attributes = cleandoc(base.__doc__ or "").partition("Attributes:\n")
    entry = r"^ {4}(\w+(?:, \w+)*)(?: \((.+?)\))?: (.+(?:\n {8}.+)*)"
    for names, value, text in re.findall(entry, attributes, re.MULTILINE):
        for name in names.split(", "):
            yield name, (value or None, " ".join(text.split()).replace("%", "%%"))


def _add(to: argparse._ActionsContainer, one: Field[Any], hint: Any, value: str | None, text: str) -> None:
    """Add the option, or argument, of a field."""
    if hint is bool:
        name, action = (f"no_{one.name}", "store_false") if one.default else (one.name, "store_true")
        to.add_argument(_spelled(name), dest=one.name, action=action, help=text)
        return
    how = {**_taken(hint), **one.metadata}
    if value is not None:
        how["metavar"] = tuple(value.split()) if isinstance(how.get("nargs"), int) else value
    is_required = one.default is MISSING
    if not is_required and one.default not in (None, ()):
        text = f"{text} (default: {one.default})"
    if one.kw_only:
        to.add_argument(_spelled(one.name), required=is_required, help=text, **how)
    elif is_required:
        to.add_argument(one.name, help=text, **how)
    else:
        to.add_argument(one.name, help=text, default=one.default, **{**how, "nargs": "*" if "nargs" in how else "?"})


def _taken(hint: Any) -> dict[str, Any]:
    """How argparse takes values of a type."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    kinds = get_args(hint)
    if get_origin(hint) is Annotated:  # with its function, and perhaps the values there are
        return {"type": kinds[1], **({"choices": kinds[2]} if kinds[2:] else {})}
    if get_origin(hint) is Literal:
        return {"choices": kinds}
    if get_origin(hint) is tuple:
        return {**_taken(kinds[0]), "nargs": len(kinds)}
    if get_origin(hint) is Sequence:
        return {**_taken(kinds[0]), "nargs": "+"}
    return {} if hint is str else {"type": hint}


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"
