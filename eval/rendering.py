"""How numbers, sentences, pages and tables are written: number formats, Jinja templates and tables for the terminal.

Templates and style sheets lie in ``pages/templates``. An HTML page (``NAME.html.j2``, named without its ending) begins
with ``{% extends "frame" %}`` and fills the blocks ``title`` and ``content``; every value is escaped. In Markdown
(``NAME.md``) nothing is escaped by itself: names go through the filter ``markdown``. Sentences (``NAME.txt``) are plain
text, a paragraph each, for pages, papers, JSON and terminal alike. The number formats below are filters and functions
of all templates, and so is `sentences`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..core.errors import counted

if TYPE_CHECKING:
    import jinja2

    from .report.leaderboard import Figure
    from .statistics.agreement import Statistic

NONE = "—"
"""Stands where there is no number."""

# ---------------------------------------------------------------- numbers


# From here on three digits and an exponent: tables have no room for all
_WIDE = 1e5


def number(value: float | None, digits: int = 2, sign: str = "") -> str:
    """The number with a true minus sign; an em dash where there is none."""
    if value is None:
        return NONE
    form = f"z.{digits}f" if abs(value) < _WIDE else ".2e"
    return f"{value:{sign}{form}}".replace("-", "−")


def signed(value: float | None) -> str:
    """The number with its sign."""
    return number(value, sign="+")


def percent(value: float | None) -> str:
    """A share as whole percent."""
    return NONE if value is None else f"{100 * value:.0f} %".replace("-", "−")


def plain(value: float) -> str:
    """The number in its shortest form."""
    return f"{value:g}".replace("-", "−")


def p_value(p: float | None) -> str:
    """A p value as it is printed; never 0."""
    return NONE if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def fine(value: float | None) -> str:
    """A number that may be small, with three digits."""
    return NONE if value is None else f"{value:.3g}".replace("-", "−")


def dollars(amount: float | None) -> str:
    """An amount of money, small ones with as many digits as they need."""
    if amount is None:
        return NONE
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.2g}"


def seconds(value: float) -> str:
    """A time that may be very short."""
    return "<0.01" if 0 < value < 0.01 else f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def listed(names: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else names[0]


def ranged(statistic: Statistic | Figure, show: Callable[[float | None], str] = number) -> str:
    """Value and interval, each number written by `show`: ``0.83 [0.80, 0.85]``, with `percent` ``97 % [90, 104]``."""
    if statistic.value is None or statistic.low is None or statistic.high is None:
        return show(statistic.value)
    low, high = (show(end).removesuffix(" %") for end in (statistic.low, statistic.high))
    return f"{show(statistic.value)} [{low}, {high}]"


def effective_raters(raters: Statistic) -> str:
    """An effective number of raters and its interval; no upper end where no number is enough."""
    low, high = raters.low, raters.high
    if raters.value is None:
        return NONE if low is None else f"at least {low:.1f}"
    if low is None:
        return f"{raters.value:.1f}"
    return f"{raters.value:.1f} [{low:.1f}, {'…' if high is None else f'{high:.1f}'}]"


def counted_statuses(statuses: Mapping[str, int]) -> str:
    """Statuses with their counts; after the first five only how many more kinds there are."""
    shown = [f"{count:,} x {status}" for status, count in list(statuses.items())[:5]]
    more = len(statuses) - len(shown)
    return "; ".join(shown) + (f"; and {counted(more, 'more kind')} (see items.csv)" if more else "")


def markdown(text: str) -> str:
    """Text that Markdown shows as it is: on one line, without markup."""
    return re.sub(r"([\\`*_\[\]<>|~$#])", r"\\\1", " ".join(text.split()))


# ---------------------------------------------------------------- templates


@cache
def read(name: str) -> str:
    """A file of ``pages/templates``."""
    return (Path(__file__).parent / "pages" / "templates" / name).read_text(encoding="utf-8")


STYLE = read("page.css")
"""The style sheet of every page."""

_FORMATS = (
    number, signed, percent, plain, fine, p_value, dollars, seconds, counted, listed, ranged, effective_raters,
    counted_statuses, markdown,
)  # fmt: skip


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # a table on the terminal needs none

    def is_text(name: str | None) -> bool:
        return name is not None and name.endswith((".md", ".txt"))

    # StrictUndefined: a value that is missing is an error, and no empty place in a report
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: read(f"{name}.j2" if is_text(name) else f"{name}.html.j2")),
        autoescape=lambda name: not is_text(name),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = {function.__name__: function for function in _FORMATS}
    environment.filters.update(formats)
    environment.globals.update(formats, sentences=sentences, NONE=NONE)
    return environment


def render(template: str, styles: str = "", **values: Any) -> str:
    """A page as HTML that needs no script and no network, or a text.

    Args:
        template: Name of a template without ``.html.j2``, or of a Markdown file or sentences without ``.j2``, or its
            text.
        styles: Rules of this page after those of `STYLE`.
        **values: What the template shows; on a page all but `Markup` is escaped.
    """
    environment = _environment()
    compiled = environment.from_string(template) if "{" in template else environment.get_template(template)
    return compiled.render(style=Markup(STYLE + styles), **values)


def sentences(template: str, **values: Any) -> list[str]:
    """The paragraphs of a text, ``NAME.txt.j2``, each on one line; `values` are what its template uses."""
    return [
        " ".join(part.split()) for part in re.split(r"\n\s*\n", render(f"{template}.txt", **values)) if part.strip()
    ]


# ---------------------------------------------------------------- terminal

Section = tuple[str, Iterable[Sequence[str | Text]]]
"""A heading (empty = none) and the rows below it."""

_LETTERS = 13


class _Table(Table):
    """Wider than a terminal that has no room for the least widths of its columns; Rich would let names vanish."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least = sum(column.min_width or 0 for column in self.columns) + 2 * len(self.columns)  # and what is between
        return super().__rich_console__(console, options.update(max_width=max(options.max_width, least)))


def new_table(title: str = "") -> Table:
    """An empty table for the terminal; all are in one style. The title is taken as it is, whatever brackets it has."""
    return _Table(
        title=Text(title) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def filled_table(
    title: str,
    head: Sequence[str],
    sections: Iterable[Section],
    *,
    names: int = 1,
    min_width: int = _LETTERS,
    folds: bool = False,
) -> Table:
    """A table of names, or other words, in the first `names` columns and numbers in the others.

    Where the terminal is narrow, names fold after their punctuation (`min_width` letters stay), and numbers stay whole;
    with `folds`, an interval may stand below its value.
    """
    table = new_table(title)
    for position, column in enumerate(head):
        if position < names:
            table.add_column(Text(column), overflow="fold", min_width=min_width)
        else:
            table.add_column(Text(column, overflow="fold"), justify="right", no_wrap=not folds)
    for heading, rows in sections:
        if heading:
            table.add_section()
            table.add_row(_Name(bold(heading.replace("/", "/\n"))))  # of a data set and its dimension
        for row in rows:
            cells = [cell if isinstance(cell, Text) else Text(cell) for cell in row]
            numbers = (_Name(cell, r"(?<= )(?=\[)") if folds else cell for cell in cells[names:])
            table.add_row(*map(_Name, cells[:names]), *numbers)
    # Rich would cut numbers where a terminal is narrow, and an interval without its end says something else
    for numbered in table.columns[names:]:
        numbered.min_width = max(map(cell_len, "\n".join(map(str, numbered.cells)).split("\n")))
    return table


class _Name:
    """A name in a table: it folds between its parts, and within a word only if that is wider than the column."""

    def __init__(self, name: Text, between: str = r"(?<=[-:,/_@\s])(?!\n)") -> None:  # 1.5 and samples=5 stay whole
        self._name = name
        self._parts = re.split(between, name.plain)

    def __str__(self) -> str:
        return "\n".join(self._parts)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(cell_len, self._parts)), max(map(cell_len, self._name.plain.split("\n"))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in self._parts:
            if lines[-1] and cell_len((lines[-1] + part).rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += part
            if part.endswith("\n"):
                lines[-1:] = [lines[-1].rstrip("\n"), ""]
        yield Text("\n".join(lines), style=self._name.style)


def bold(text: str) -> Text:
    """A cell that stands out."""
    return Text(text, style="bold")
