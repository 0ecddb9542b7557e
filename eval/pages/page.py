"""What all pages share: their look, their frame, and a Jinja environment that escapes every value.

Templates and style sheets lie in ``templates``. That of a page begins with ``{% extends "frame" %}`` and fills the
blocks ``title`` and ``content``; ``pieces`` holds macros for statistics, ``sound`` those for clips and texts of a pair.
In Markdown (``.md``) nothing is escaped by itself: names go through the filter ``markdown``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from .. import numerals


@cache
def read(name: str) -> str:
    """A file of ``templates``."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


STYLE = read("page.css")
"""The style sheet of every page."""


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: read(f"{name}.j2" if _is_markdown(name) else f"{name}.html.j2")),
        autoescape=lambda name: not _is_markdown(name),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(
        two=numerals.number,
        percent=numerals.percent,
        signed=numerals.signed,
        plain=numerals.plain,
        ranged=numerals.ranged,
        signed_ranged=numerals.signed_ranged,
        markdown=markdown,
    )
    return environment


def _is_markdown(name: str | None) -> bool:
    return name is not None and name.endswith(".md")


def markdown(text: str) -> str:
    """Text that Markdown shows as it is: on one line, without markup."""
    return re.sub(r"([\\`*_\[\]<>|~$#])", r"\\\1", " ".join(text.split()))


def render(template: str, styles: str = "", **values: Any) -> str:
    """A page as HTML that needs no script and no network, or a text in Markdown.

    Args:
        template: Name of a template without ``.html.j2``, or of a Markdown file without ``.j2``, or its text.
        styles: Rules of this page beside `STYLE`.
        **values: What the template shows. Every one is escaped, whatever names and texts come from outside; only
            `Markup` is not.

    Raises:
        jinja2.UndefinedError: If the template shows what is not there.
    """
    environment = _environment()
    found = environment.from_string(template) if "{" in template else environment.get_template(template)
    return found.render(style=Markup(STYLE + styles), **values)
