"""Numbers as reports write them, with a true minus sign."""

from __future__ import annotations

from .report_schema import StatisticReport

NONE = "—"
"""Stands where there is no number."""


def number(value: float | None, digits: int = 2) -> str:
    """The number with a true minus sign; an em dash where there is none."""
    return NONE if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None) -> str:
    """The number with its sign."""
    return NONE if value is None else f"{value:+.2f}".replace("-", "−")


def percent(value: float | None) -> str:
    """A share as whole percent."""
    return NONE if value is None else f"{100 * value:.0f} %".replace("-", "−")


def ranged(statistic: StatisticReport) -> str:
    """Value and interval: ``0.83 [0.80, 0.85]``."""
    if statistic["value"] is None or statistic["low"] is None:
        return number(statistic["value"])
    return f"{number(statistic['value'])} [{number(statistic['low'])}, {number(statistic['high'])}]"


def percent_ranged(share: StatisticReport) -> str:
    """A share with its interval: ``97 % [90, 104]``."""
    if share["low"] is None or share["high"] is None:
        return percent(share["value"])
    return f"{percent(share['value'])} [{100 * share['low']:.0f}, {100 * share['high']:.0f}]".replace("-", "−")


def counted(count: int, what: str) -> str:
    """``1 pair``, ``1,216 ratings``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def plain(value: float) -> str:
    """The number as short as it goes."""
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")
