"""What all pages share: their look, their frame, and a Jinja environment that escapes every value.

Templates and style sheets lie in ``templates``. A template begins with ``{% extends "frame" %}`` and fills the blocks
``title`` and ``content``; ``pieces`` holds macros for statistics, ``sound`` those for clips and texts of a pair.
"""

from __future__ import annotations

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
        loader=jinja2.FunctionLoader(lambda name: read(f"{name}.html.j2")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(
        two=numerals.number,
        percent=numerals.percent,
        signed=numerals.signed,
        plain=numerals.plain,
    )
    return environment


def render(template: str, styles: str = "", **values: Any) -> str:
    """A page as HTML that needs no script and no network.

    Args:
        template: Name of a template without ``.html.j2``, or its text.
        styles: Rules of this page beside `STYLE`.
        **values: What the template shows. Every one is escaped, whatever names and texts come from outside; only
            `Markup` is not.

    Raises:
        jinja2.UndefinedError: If the template shows what is not there.
    """
    environment = _environment()
    found = environment.from_string(template) if "{" in template else environment.get_template(template)
    return found.render(style=Markup(STYLE + styles), **values)
