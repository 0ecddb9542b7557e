"""What a judge's agreement with people amounts to, in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from . import numerals
from .report_schema import DimensionReport, StatisticReport
from .statistics.agreement import CONSTANT_TOLERANCE
from .statistics.like_for_like import FEW_RATERS

Kind = Literal[
    "no_scores",
    "constant",
    "undefined",
    "against",
    "beyond_possible",
    "better_than_one_rater",
    "not_told_apart_from_one_rater",
    "worse_than_one_rater",
    "too_few_items_to_tell",
]

Tone = Literal["good", "warn", "none"]


class Verdict(NamedTuple):
    """The sentence.

    Attributes:
        kind: For machines.
        tone: As pages colour it.
        text: For people.
    """

    kind: Kind
    tone: Tone
    text: str


_TONES: dict[str, tuple[Kind, Tone]] = {
    "better than one rater": ("better_than_one_rater", "good"),
    "not told apart from one rater": ("not_told_apart_from_one_rater", "none"),
    "worse than one rater": ("worse_than_one_rater", "warn"),
    "too few items to tell": ("too_few_items_to_tell", "none"),
}


def verdict(found: DimensionReport) -> Verdict:
    """The first of these that holds.

    No scores; all scores equal; undefined; clearly below 0; clearly beyond what even the true scores could reach with
    these ratings (the whole interval of the disattenuated correlation is above 1: the judge has most likely seen the
    ratings); then beside one rater, by the interval of the like-for-like difference. A judge that is not clearly better
    than chance is never called as good as a rater: where neither can be excluded there are too few items to tell.
    """
    own, best, beside = found["spearman"], found["share_of_panel_ceiling"], found["like_for_like"]
    if found["n_items"] == 0:
        return Verdict("no_scores", "warn", "No verdict: the judge gave no usable score for a rated item.")
    if _is_constant(found["judge"]):
        text = "No verdict on agreement: the judge gives every item the same score, so it orders nothing."
        return Verdict("constant", "warn", text)
    if own["value"] is None:
        return Verdict("undefined", "none", f"No verdict: {own['reason']}.")
    said = f"Spearman with the panel mean {_between(own, numerals.number)}"
    if own["high"] is not None and own["high"] < 0:
        return Verdict("against", "warn", f"Orders items against people: {said}.")
    if best["low"] is not None and best["low"] > 1:
        text = f"Better than a judge that knew the true scores could be: {said}. It has most likely seen these ratings."
        return Verdict("beyond_possible", "warn", text)
    if best["value"] is not None:
        said += f", {numerals.percent(best['value'])} of the noise ceiling"
    result, chance = beside["verdict"], own["low"] is None or own["low"] <= 0
    if chance and result == "not told apart from one rater":
        result = "too few items to tell"
    start = f"{result[0].upper()}{result[1:]}"
    if chance and own["low"] is not None:
        start += ", not clearly better than chance"
    kind, tone = _TONES[result]
    return Verdict(kind, tone, f"{start}: {beside_one_rater(beside)}. {said}.")


def beside_one_rater(found: dict[str, Any]) -> str:
    """The like-for-like comparison in words, with items, raters and groups."""
    n = ", ".join(
        numerals.counted(found[key], what)
        for key, what in (("n_items", "item"), ("n_raters", "rater"), ("n_groups", "group"))
    )
    if found["difference"]["value"] is None:
        return f"{found['difference']['reason']} ({n})"
    reached = f"with the mean of the other raters {numerals.number(found['judge']['value'])}, one of them "
    reached += numerals.number(found["rater"]["value"])
    why = "" if found["difference"]["reason"] is None else f"; {found['difference']['reason']}"
    return f"{reached}, difference {_between(found['difference'], numerals.signed)}{why} ({n})"


def few_raters(found: Mapping[str, Any]) -> str:
    """What the interval beside one rater does not hold for; empty where there are raters enough, or no interval."""
    if found["difference"]["low"] is None or found["n_raters"] >= FEW_RATERS:
        return ""
    return f"{found['n_raters']} raters: the interval beside one rater holds for these, less surely for others."


def _between(found: StatisticReport, shown: Callable[[float | None], str]) -> str:
    ends = "" if found["low"] is None else f" (95 % interval {shown(found['low'])} to {shown(found['high'])})"
    return shown(found["value"]) + ends


def _is_constant(scores: dict[str, Any]) -> bool:
    mean, sd = scores["mean"], scores["sd"]
    return mean is not None and sd is not None and sd <= CONSTANT_TOLERANCE * abs(mean)
