"""Which judge agrees best over all dimensions, and how far each is from the ceilings, in words."""

from __future__ import annotations

from collections.abc import Iterator

from . import numerals
from .report_schema import OverallComparison, OverallJudge, OverallReport, StatisticReport
from .statistics.clusters import ALPHA
from .verdict import beside_one_rater


def overall_words(report: OverallReport) -> list[str]:
    """First a sentence on who is best, then one on each judge beside the ceilings, then who has no rank."""
    ranked = [judge for judge in report["judges"] if judge["cluster"] is not None]
    if not ranked:
        return ["No judge can be ranked."]
    sentences = [_best(report, ranked), *(_beside_people(report, judge) for judge in ranked)]
    sentences += [f"{judge['judge']} has no rank: {judge['reason']}." for judge in report["judges"] if judge["reason"]]
    return sentences


def turned(report: OverallReport, better: str, worse: str) -> OverallComparison:
    """The comparison of two judges as difference of the better one from the worse one."""
    found = next(own for own in report["comparisons"] if {own["first"], own["second"]} == {better, worse})
    if found["first"] == better:
        return found
    own = found["difference"]
    value, low, high = (None if end is None else -end for end in (own["value"], own["high"], own["low"]))
    difference: StatisticReport = {**own, "value": value, "low": low, "high": high}
    return {**found, "first": better, "second": worse, "difference": difference}


def _best(report: OverallReport, ranked: list[OverallJudge]) -> str:
    best, *others = ranked
    said = f"mean Spearman {numerals.ranged(best['spearman'])}"
    start = f"Over {report['n_dimensions']} dimensions {best['judge']}"
    if not others:
        return f"{start} agrees with people at a {said}; no other judge has a rank."
    compared = [turned(report, best["judge"], other["judge"]) for other in others]
    clear, unclear = ([own for own in compared if _told_apart(own) is wanted] for wanted in (True, False))
    better = [f"clearly better than {' and '.join(map(_ahead, clear))}"] if clear else []
    if not unclear:
        return f"{start} agrees best with people ({said}), {better[0]}; p adjusted by Holm."
    better.append(f"not clearly better than {' and '.join(map(_ahead, unclear))}")
    return f"{start} is highest ({said}), {', but '.join(better)}; p adjusted by Holm."


def _told_apart(own: OverallComparison) -> bool:
    value = own["difference"]["value"]
    return own["p_adjusted"] is not None and own["p_adjusted"] < ALPHA and value is not None and value > 0


def _ahead(own: OverallComparison) -> str:
    return f"{own['second']} (by {numerals.ranged(own['difference'])}, p {numerals.p_value(own['p_adjusted'])})"


def _beside_people(report: OverallReport, judge: OverallJudge) -> str:
    return f"{judge['judge']} {' and '.join(_reached(report, judge))}."


def _reached(report: OverallReport, judge: OverallJudge) -> Iterator[str]:
    beside, best = judge["like_for_like"], judge["share_of_panel_ceiling"]
    possible = numerals.number(report["people"]["panel_mean"]["value"])
    fewer = "" if judge["n_dimensions"] == report["n_dimensions"] else f" on {judge['n_dimensions']} dimensions"
    if beside["difference"]["value"] is None:
        yield f"stands beside nobody{fewer} ({beside['difference']['reason']})"
    else:
        yield f"is{fewer} {beside['verdict'].replace('rater', 'person')}: {beside_one_rater(beside)}"
    if best["value"] is not None:
        yield f"reaches {numerals.percent_ranged(best)} of the best possible ({possible})"
