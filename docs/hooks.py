"""What `make docs` adds to the pages: the command reference, and the package for the Python reference."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "build" / "package" / "empathy_judge"
MARK = "<!-- commands -->"
_WIDTH = "100"
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
            sections.append(f"## train\n\n{_help_text('train', '--help')}")
        else:
            sections.append("\n".join([f"## {name}", "", *_about(one)]))
    return "\n\n".join(sections)


def _about(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Description, options and example of a parser."""
    description = (parser.description or "").strip()
    if parser.formatter_class is argparse.RawDescriptionHelpFormatter:  # its layout means something
        summary, _, rest = description.partition("\n")
        yield from (summary, "")
        if rest.strip():
            yield from ("```text", rest.strip("\n"), "```", "")
    elif description:
        yield from (description, "")
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
    words = parser._get_formatter()._format_action_invocation(action) if not action.option_strings else ""
    if action.option_strings:
        value = "" if action.nargs == 0 else " " + _value(action)
        words = ", ".join(action.option_strings) + value
    meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
    return f"| `{words}` | {meaning}{' (required)' if action.required and action.option_strings else ''} |".replace(
        "<", "&lt;"
    )


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar:
        return action.metavar + (" ..." if action.nargs in ("+", "*") else "")
    if action.choices:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return action.dest.upper() + (" ..." if action.nargs in ("+", "*") else "")


def _import_section() -> str:
    from empathy_judge.commands.options import import_parser, source_parser
    from empathy_judge.data_modules import importers

    names = list(importers.names())
    parts = ["\n".join(["## import", "", *_about(import_parser(names))])]
    for name in names:
        parts.append("\n".join([f"### import {name}", "", *_about(source_parser(name, importers.load(name)))]))
    return "\n\n".join(parts)


def _help_text(*words: str) -> str:
    """What a command prints, for options that only its configuration knows; usage apart."""
    from empathy_judge.cli import main

    out = io.StringIO()
    wide = mock.patch.dict(os.environ, {"COLUMNS": _WIDTH})
    with wide, contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(words)
    _, _, options = out.getvalue().partition("\n\n")
    return f"```text\n{options.strip()}\n```"
