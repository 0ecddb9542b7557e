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


def signed_ranged(statistic: StatisticReport) -> str:
    """A difference with its interval: ``+0.03 [−0.02, +0.08]``."""
    if statistic["value"] is None or statistic["low"] is None:
        return signed(statistic["value"])
    return f"{signed(statistic['value'])} [{signed(statistic['low'])}, {signed(statistic['high'])}]"


def negated(difference: StatisticReport) -> StatisticReport:
    """A difference as seen from the other side."""
    ends = {"value": "value", "low": "high", "high": "low"}
    return {**difference, **{to: None if (end := difference[of]) is None else -end for to, of in ends.items()}}


def effective_raters(raters: StatisticReport) -> str:
    """An effective number of raters and its interval; no upper end where no number is enough."""
    low, high = raters["low"], raters["high"]
    if raters["value"] is None:
        return NONE if low is None else f"at least {low:.1f}"
    if low is None:
        return f"{raters['value']:.1f}"
    return f"{raters['value']:.1f} [{low:.1f}, {'…' if high is None else f'{high:.1f}'}]"


def percent(value: float | None) -> str:
    """A share as whole percent."""
    return NONE if value is None else f"{100 * value:.0f} %".replace("-", "−")


def p_value(p: float | None) -> str:
    """A p value as it is printed; never 0."""
    if p is None:
        return NONE
    return "<0.001" if p < 0.001 else f"{p:.3f}"


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
