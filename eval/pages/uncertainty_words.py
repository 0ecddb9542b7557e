"""What a report shows of a judge's standard errors and intervals, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...data_modules.rows import TAG_PREFIX
from .. import numerals
from ..numerals import number, percent, signed
from ..report_schema import AgreementReport, IntervalReport, StatisticReport, UncertaintyReport

MAIN = "90"
"""The level, in percent, that sentences speak of."""
LOWEST, HIGHEST = 0.87, 0.93
"""Slices in which 90 % intervals cover less or more are named, if their own interval leaves out 90 %."""


def uncertainty_view(name: str, report: AgreementReport) -> dict[str, Any] | None:
    """The table and the sentences of one dimension; None where the judge states no uncertainty."""
    own = report["dimensions"][name]["uncertainty"]
    if own is None:
        return None
    return {"rows": list(own["intervals"].values()), "sentences": list(_sentences(name, own, report))}


def covered_sentence(intervals: dict[str, IntervalReport]) -> str:
    """How often the 90 % intervals hold the mean rating; empty where there are none."""
    own = intervals.get(MAIN)
    if own is None or own["covered"]["value"] is None:
        return ""
    return (
        f"{MAIN} % intervals cover {percent_ranged(own['covered'])} of the mean ratings and are "
        f"{number(own['width']['value'])} rating points wide on average."
    )


def percent_ranged(statistic: StatisticReport) -> str:
    """A share with its interval: ``88 % (84 to 92)``."""
    if statistic["low"] is None or statistic["high"] is None:
        return percent(statistic["value"])
    return f"{percent(statistic['value'])} ({100 * statistic['low']:.0f} to {100 * statistic['high']:.0f})"


def slices_off(name: str, report: AgreementReport) -> list[str]:
    """The slices in which 90 % intervals clearly cover another share than 87 to 93 %, in words."""
    found = []
    for column, values in report["slices"].items():
        for value, results in values.items():
            own = results[name]["intervals"].get(MAIN)
            share = None if own is None else own["covered"]
            if share is None or share["value"] is None or share["low"] is None or share["high"] is None:
                continue
            clearly = share["high"] < int(MAIN) / 100 or share["low"] > int(MAIN) / 100
            if clearly and not LOWEST <= share["value"] <= HIGHEST:
                label = f"{column.removeprefix(TAG_PREFIX)} {value}"
                found.append(f"{label}: {percent_ranged(share)} of {share['n']} items")
    return found


def _sentences(name: str, own: UncertaintyReport, report: AgreementReport) -> Iterator[str]:
    if sentence := covered_sentence(own["intervals"]):
        yield sentence
        off = slices_off(name, report)
        if off:
            yield f"Not so in {'; '.join(off)}."
        elif report["slices"]:
            yield f"In no slice is the share clearly outside {100 * LOWEST:.0f} to {100 * HIGHEST:.0f} %."
    ratio = own["error_ratio"]
    if ratio["value"] is not None:
        yield (
            f"Its standard errors are {number(own['standard_error']['mean'])} rating points on average; the errors are "
            f"{numerals.ranged(ratio)} times as large as these say."
        )
    half, gain = own["surest_half"]["spearman"], own["surest_half"]["gain"]
    if half["value"] is None or gain["value"] is None:
        yield f"It does not say which items are harder: {half['reason'] or gain['reason']}."
    else:
        between = "" if gain["low"] is None else f" ({signed(gain['low'])} to {signed(gain['high'])})"
        yield (
            f"On the half of the items of which it is surest its Spearman is {number(half['value'])}, "
            f"{signed(gain['value'])}{between} beside all items."
        )
    if own["abstained"]:
        yield f"It abstains from {own['abstained']} items; their scores count here all the same."
