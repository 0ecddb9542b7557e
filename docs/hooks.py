"""What `make docs` adds to the pages: the command reference, and the package for the Python reference."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "build" / "package" / "empathy_judge"
MARK = "<!-- commands -->"
_WIDTH = "5000"
_NO_CODE = {"benchmarks", "build", "docs", "examples", "tests"}


def on_pre_build(config: Any) -> None:
    """Copy the package to where its folder has its name: in a checkout that folder may be called anything."""
    shutil.rmtree(PACKAGE, ignore_errors=True)
    PACKAGE.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.suffix == ".py":
            shutil.copy(entry, PACKAGE)
        elif entry.name not in _NO_CODE and (entry / "__init__.py").is_file():
            shutil.copytree(entry, PACKAGE / entry.name, ignore=shutil.ignore_patterns("__pycache__"))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the commands where the page has the mark."""
    return markdown.replace(MARK, commands_page()) if MARK in markdown else markdown


def commands_page() -> str:
    """Every command with its options, as Markdown."""
    from empathy_judge.cli import COMMANDS
    from empathy_judge.commands.options import build_parser

    parser = build_parser(COMMANDS)
    (subparsers,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    sections = []
    for name, one in subparsers.choices.items():
        if name == "import":
            sections.append(_import_section())
        elif name == "train":
            sections.append(_train_section())
        else:
            sections.append("\n".join([f"## {name}", "", *_about(one)]))
    return "\n\n".join(sections)


def _about(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Description, options and example of a parser."""
    description = parser.description or ""
    if parser.formatter_class is argparse.RawDescriptionHelpFormatter:  # its layout means something
        yield from (_markdown(description), "")
    elif description:
        yield from (_prose(description.split("\n\n")), "")
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if not actions:
            continue
        if group.title not in ("positional arguments", "options"):
            yield from (f"**{group.title}**", "")
        yield from (f"| {'option' if actions[0].option_strings else 'argument'} | meaning |", "|---|---|")
        yield from (_row(parser, action) for action in actions)
        yield ""
    if parser.epilog:
        yield f"`{parser.epilog.removeprefix('example: ')}`"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
    if action.option_strings:
        value = "" if action.nargs == 0 else _value(action)
        return _table_row(", ".join(action.option_strings), value, meaning + " (required)" * action.required)
    meaning += ": " + ", ".join(action.choices) if action.choices else ""
    return _table_row(str(action.metavar or action.dest), "", meaning)


def _table_row(names: str, value: str, meaning: str) -> str:
    name = f"`{names}` {_escaped(value.strip()).replace(',', ', ')}".strip()
    return f"| {name} | {_escaped(meaning)} |"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar:
        return action.metavar + (" ..." if action.nargs in ("+", "*") else "")
    if action.choices:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return action.dest.upper() + (" ..." if action.nargs in ("+", "*") else "")


def _markdown(text: str) -> str:
    """A help text with its paragraphs, lists, definitions and indented blocks, as Markdown."""
    lines, parts = text.strip("\n").splitlines(), []
    while lines:
        plain = list(itertools.takewhile(lambda line: not line.startswith(" "), lines))
        lines = lines[len(plain) :]
        block = list(itertools.takewhile(lambda line: line.startswith(" ") or not line, lines))
        lines = lines[len(block) :]
        inner = textwrap.dedent("\n".join(block)).strip("\n")
        term = plain[-1] if plain else ""
        if term and len(term) < 60 and not term.endswith((".", ":")):
            parts += [_prose("\n".join(plain[:-1]).split("\n\n")), f"**{_escaped(term)}**", _markdown(inner)]
            continue
        parts.append(_prose("\n".join(plain).split("\n\n")))
        if inner.startswith("- "):
            parts.append(_escaped(inner))
        elif inner:
            parts.append(f"```text\n{inner}\n```")
    return "\n\n".join(part for part in parts if part)


def _prose(paragraphs: Iterable[str]) -> str:
    return "\n\n".join(_escaped(" ".join(one.split())).replace("::", ":") for one in paragraphs)


def _escaped(text: str) -> str:
    plain = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)  # references of reStructuredText
    return plain.replace("``", "`").replace("<", "&lt;").replace("|", "&#124;")


def _import_section() -> str:
    from empathy_judge.commands.options import import_parser, source_parser
    from empathy_judge.data_modules import importers

    names = list(importers.SOURCES)
    parts = ["\n".join(["## import", "", *_about(import_parser(names))])]
    for name in names:
        parts.append("\n".join([f"### import {name}", "", *_about(source_parser(name, importers.load(name)))]))
    return "\n\n".join(parts)


def _train_section() -> str:
    """Options of `train`, which only its configuration knows: read from what its help prints."""
    from empathy_judge.cli import main

    out = io.StringIO()
    wide = mock.patch.dict(os.environ, {"COLUMNS": _WIDTH})  # so that no help text is broken
    with wide, contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(["train", "--help"])
    parts, heading = ["## train", ""], ""
    for line in out.getvalue().partition("\n\n")[2].replace("\b", "").splitlines():
        if option := re.fullmatch(r"  (-\S.*?)(?: {2,}(.*))?", line):
            if heading:
                parts += ["", f"**{_escaped(heading)}**", "", "| option | meaning |", "|---|---|"]
                heading = ""
            first = re.match(r"-[^\s,]+(?:, -[^\s,]+)*", option[1])
            names = first[0] if first else option[1]
            parts.append(_table_row(names, option[1][len(names) :], option[2] or ""))
        elif line.startswith("   ") and parts[-1].startswith("| `"):
            parts[-1] = parts[-1].removesuffix(" |") + f"{_escaped(line.strip())} |"
        elif line.strip():
            heading = line.strip().removesuffix(":")
    return "\n".join(parts)
