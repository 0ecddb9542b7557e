"""What the numbers of a report say, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...data_modules.rows import TAG_PREFIX
from ..numerals import number, percent, ranged, signed
from ..probes import PROBES, Probe
from ..report_schema import AgreementReport, CheckReport, DimensionReport, StatisticReport
from ..verdict import few_raters

CLEAR_DROP = 0.1
"""A listening check that costs less Spearman than this is called small, however certain it is."""

STATUSES_SHOWN = 5
"""Kinds of failure that a sentence names."""

CHECK_TITLES = {name: probe.title for name, probe in PROBES.items()}


class CheckView(NamedTuple):
    """A listening check as the page shows it; ``tone``: good, warn or none."""

    title: str
    mark: str
    tone: str
    text: str


def counted(statuses: Mapping[str, int]) -> str:
    """Statuses with their counts; after the first `STATUSES_SHOWN` only how many more kinds there are."""
    shown = [f"{count} x {status}" for status, count in list(statuses.items())[:STATUSES_SHOWN]]
    more = len(statuses) - len(shown)
    return "; ".join(shown) + (f"; and {more} more kinds (see items.csv)" if more else "")


def split_name(report: AgreementReport) -> str:
    """Which pairs were scored."""
    return f"split {report['split']}" if report["split"] is not None else "all pairs"


def headline(report: AgreementReport, dimension: DimensionReport) -> str:
    """What the Spearman correlation of the judge means beside its ceilings, in one paragraph."""
    own = dimension["spearman"]
    if own["value"] is None:
        return f"No agreement can be stated: {own['reason']}."
    raters = "simulated raters" if report["dataset"]["synthetic"] else "raters"
    text = (
        f"On {dimension['n_items']} items the judge orders the responses as the mean of the {raters} does "
        f"with a Spearman correlation of {number(own['value'])}{_between(own)}; 1 = same order, 0 = chance."
    )
    top, share = dimension["ceiling"]["panel_mean"], dimension["share_of_panel_ceiling"]
    if top["value"] is not None:
        text += (
            f" Against these {raters}, who disagree among themselves, even a perfect judge can expect no "
            f"more than {number(top['value'])}: the judge reaches {percent(share['value'])} of that."
        )
    return text


def check_view(name: str, check: CheckReport, full: StatisticReport) -> CheckView:
    """A listening check in words.

    Args:
        name: Key of `CHECK_TITLES`.
        check: Its result.
        full: The Spearman of the unchanged pairs.
    """
    probe, left, drop = PROBES[name], check["spearman"], check["drop"]
    title = probe.title
    if check["n"] == 0:
        reason = counted(check["failed"]) or left["reason"]
        return CheckView(title, "not run", "none", f"No score: {reason}.")
    moved = _moved(check)
    if probe.tolerance is not None:
        return _sameness(probe, probe.tolerance, check, moved)
    if full["value"] is None:
        return CheckView(title, "undefined", "none", f"The full score is undefined: {full['reason']}." + moved)
    if left["value"] is None:
        text = f"{probe.change} nothing is left to order the items by: {left['reason']}."
        return CheckView(title, "nothing left", "good" if probe.expects == "drop" else "warn", text + moved)
    if drop["value"] is None:
        return CheckView(title, "undefined", "none", f"No drop: {drop['reason']}." + moved)
    down = drop["value"] >= 0
    start = (
        f"{probe.change}, Spearman {'falls' if down else 'rises'} by {number(abs(drop['value']))} to "
        f"{number(left['value'])}"
    )
    if drop["low"] is None:
        return CheckView(title, "no interval", "none", f"{start}; {drop['reason']}." + moved)
    start += f" (95 % interval of the drop {number(drop['low'])} to {number(drop['high'])})"
    fell = drop["low"] > 0 and drop["value"] >= CLEAR_DROP
    rest = name == "silent" and (left["low"] or 0.0) > CLEAR_DROP
    text = f"{start}: {probe.if_moves if fell and not rest else probe.if_stays}" + moved
    # A fall that the interval does not tell from none, or (where none is wanted) cannot exclude
    if not fell and ((drop["high"] or 0.0) > CLEAR_DROP if probe.expects == "keep" else drop["value"] >= CLEAR_DROP):
        return CheckView(title, "not clear", "none", f"{start}: too uncertain to call it a fall or none." + moved)
    if probe.expects == "keep":
        return CheckView(title, "drops", "warn", text) if fell else CheckView(title, "stays", "good", text)
    if not fell:
        return CheckView(title, "no clear drop" if drop["low"] <= 0 else "small drop", "warn", text)
    return CheckView(title, "not all of it", "warn", text) if rest else CheckView(title, "drops", "good", text)


def _moved(check: CheckReport) -> str:
    text = f" Scores move by {number(check['mean_change'])} rating points on average"
    if check["mean_change"] is not None and check["judge_sd"] is not None:
        text += f", {percent(check['mean_change'] / check['judge_sd'])} of their standard deviation"
    return f"{text}; 95 % of them by no more than {number(check['p95_change'])}."


def _sameness(probe: Probe, tolerance: float, check: CheckReport, moved: str) -> CheckView:
    """The view of a change after which scores must stay as they are."""
    if check["judge_sd"] is None or check["p95_change"] is None:
        return CheckView(probe.title, "undefined", "none", "The full scores are constant." + moved)
    share = check["p95_change"] / check["judge_sd"]
    start = f"{probe.change}, 95 % of the scores move by no more than {percent(share)} of their standard deviation"
    if share > tolerance:
        return CheckView(
            probe.title, "moves", "warn", f"{start}, more than {percent(tolerance)}: {probe.if_moves}" + moved
        )
    return CheckView(probe.title, "stays", "good", f"{start}: {probe.if_stays}" + moved)


def warnings(dimension: DimensionReport) -> list[str]:
    """What a reader of the headline must know besides: gaps, squeezed scores, scores off the scale."""
    coverage = dimension["coverage"]
    found = []
    if coverage["rated"] < coverage["pairs"]:
        found.append(f"{coverage['pairs'] - coverage['rated']} of {coverage['pairs']} pairs have no rating.")
    if coverage["scored"] < coverage["rated"]:
        why = {"no row": coverage["missing"]} if coverage["missing"] else {}
        gap = coverage["rated"] - coverage["scored"]
        left_out = f"{gap} of {coverage['rated']} rated pairs have no score and are left out"
        found.append(f"{left_out}: {counted(why | coverage['failed'])}.")
    if coverage["out_of_scale"]:
        outside = coverage["out_of_scale"]
        found.append(f"{outside} score{'s lie' if outside != 1 else ' lies'} outside the rating scale.")
    judge, human = dimension["judge"]["sd"], dimension["human"]["sd"]
    if judge is not None and human and judge < human / 2:
        found.append(f"The judge's scores spread {percent(judge / human)} as much as people's: they crowd the middle.")
    if few := few_raters(dimension["like_for_like"]):
        found.append(few)
    return found


def _between(statistic: StatisticReport) -> str:
    if statistic["low"] is None:
        return f" ({statistic['reason']})" if statistic["reason"] else ""
    return f" (95 % interval {number(statistic['low'])} to {number(statistic['high'])})"


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


def covered_sentence(intervals: dict[str, dict[str, Any]]) -> str:
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


def _sentences(name: str, own: dict[str, Any], report: AgreementReport) -> Iterator[str]:
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
            f"{ranged(ratio)} times as large as these say."
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
