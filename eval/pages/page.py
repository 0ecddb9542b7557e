"""What all pages share: their look, their frame, and a Jinja environment that escapes every value."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup

from .. import numerals
from .sound_pieces import MACROS

STYLE = """
:root { color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #5d6878; --line: #dfe3ea; --accent: #2563c9;
  --pale: #b9c7de; --good: #1a7f4e; --warn: #a15c00; --warn-ground: #fff4dc; --warn-line: #e8c98a; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #12161c; --card: #1a2029; --ink: #e6eaf1; --muted: #98a3b3; --line: #303947; --accent: #6ea3f7;
  --pale: #4b5c78; --good: #55c48d; --warn: #f0b75a; --warn-ground: #2d2414; --warn-line: #6b5424; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font-size: 16px; line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
header p { color: var(--muted); margin: 4px 0 0; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 40px 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 0 0 8px; }
p, li, h3, h4, summary { overflow-wrap: anywhere; }
nav { margin: 18px 0 0; display: flex; flex-wrap: wrap; gap: 6px 18px; }
a { color: var(--accent); }
.banner { background: var(--warn-ground); border: 1px solid var(--warn-line); border-radius: 10px;
  padding: 12px 16px; margin: 20px 0 0; }
.banner strong { color: var(--warn); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px;
  margin: 16px 0; min-width: 0; }
.headline { font-size: 1.12rem; margin: 0; max-width: 52em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px;
  margin: 20px 0 0; }
.tile { border-left: 3px solid var(--line); padding: 2px 0 2px 12px; }
.tile.main { border-color: var(--accent); }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { display: block; color: var(--muted); font-size: 0.86rem; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr));
  gap: 0 28px; align-items: start; }
.columns > .card { height: calc(100% - 32px); }
.figure svg { display: block; width: 100%; height: auto; margin: 0 auto; }
.figure.square svg { max-width: 430px; }
svg text { font-family: inherit !important; }
.checks { list-style: none; margin: 0; padding: 0; }
.checks li { padding: 10px 0; border-top: 1px solid var(--line); }
.checks li:first-child { border-top: 0; padding-top: 0; }
.checks strong { display: block; }
.verdicts { margin: 0; }
.verdicts > div { padding: 12px 0 12px 16px; border-left: 4px solid var(--line); margin: 0 0 14px; }
.verdicts > div:last-child { margin-bottom: 0; }
.verdicts > .good { border-color: var(--good); }
.verdicts > .warn { border-color: var(--warn); }
.verdicts h2, .verdicts h3 { font-size: 1rem; margin: 0 0 4px; overflow-wrap: anywhere; }
.verdicts p { margin: 0; max-width: 60em; overflow-wrap: anywhere; }
.verdicts p + p { margin-top: 6px; }
.verdicts .first { font-size: 1.12rem; }
.dot { display: inline-block; width: 0.62em; height: 0.62em; border-radius: 50%; background: var(--line);
  margin-right: 8px; }
.dot.good { background: var(--good); }
.dot.warn { background: var(--warn); }
.mark { font-weight: 600; font-size: 0.8rem; border: 1px solid currentColor; border-radius: 999px;
  padding: 1px 9px; margin-left: 8px; white-space: nowrap; }
.mark.good { color: var(--good); }
.mark.warn { color: var(--warn); }
.mark.none { color: var(--muted); }
.note, .checks li > span { color: var(--muted); font-size: 0.9rem; }
.note { margin: 10px 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
tbody:last-child tr:last-child > * { border-bottom: 0; }
th { font-weight: 600; color: var(--muted); white-space: nowrap; }
tbody th { color: var(--ink); font-weight: 500; white-space: normal; overflow-wrap: anywhere;
  min-width: 9em; }
tbody th.group { color: var(--accent); font-weight: 600; padding-top: 14px; }
td.number, th.number { text-align: right; white-space: nowrap; }
td small, p small { color: var(--muted); margin-left: 6px; }
.wide td { overflow-wrap: anywhere; }
.meter { display: inline-block; width: 90px; height: 8px; border-radius: 4px; background: var(--line);
  overflow: hidden; margin-right: 10px; vertical-align: middle; }
.meter i { display: block; height: 100%; background: var(--accent); }
code { font-size: 0.86em; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
details[open] summary { margin-bottom: 10px; }
"""

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{% block title required %}{% endblock %}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
{% block content required %}{% endblock %}
</main>
</body>
</html>
"""

_PIECES = """{% macro interval(s) %}
{% if s.low is not none %}{{ s.low | two }} to {{ s.high | two }}{% endif %}
{% endmacro %}
{% macro statistic(s) %}
{% if s.value is none %}undefined<small>{{ s.reason }}</small>
{% elif s.low is none %}{{ s.value | two }}<small class="why">{{ s.reason or "" }}</small>
{% else %}{{ s.value | two }}<small>{{ interval(s) }}</small>
{% endif %}
{% endmacro %}
"""


def render(template: str, styles: str = "", **values: Any) -> str:
    """A page as HTML that needs no script and no network.

    Args:
        template: Begins with ``{% extends "frame" %}`` and fills the blocks ``title`` and ``content``; ``pieces`` holds
            macros that every page can import, ``sound`` those of `sound_pieces`.
        styles: Rules of this page beside `STYLE`.
        **values: What the template shows. Every one is escaped, whatever names and texts come from outside; only
            `Markup` is not.

    Raises:
        jinja2.UndefinedError: If the template shows what is not there.
    """
    templates = {"frame": _FRAME, "pieces": _PIECES, "sound": MACROS, "page": template}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(templates), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters.update(
        two=numerals.number, percent=numerals.percent, signed=numerals.signed, plain="{:g}".format
    )
    return environment.get_template("page").render(style=Markup(STYLE + styles), **values)
