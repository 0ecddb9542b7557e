"""Tables for the terminal, all in one style."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text


def new_table(title: str = "") -> Table:
    """An empty table.

    Args:
        title: Above it, on the left; taken as it is, whatever brackets it holds.
    """
    return Table(
        title=Text(title) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
