"""What a judge's agreement with people amounts to, in one sentence."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypedDict

from . import numerals
from .report_schema import Distribution, StatisticReport
from .statistics.agreement import CONSTANT_TOLERANCE

Kind = Literal[
    "no_scores",
    "constant",
    "undefined",
    "undecided",
    "against",
    "chance",
    "below_one_rater",
    "like_one_rater",
    "above_one_rater",
    "agrees",
    "best_possible",
    "beyond_possible",
]


class Agreement(TypedDict):
    """What the verdict stands on; a dimension of an agreement report has it, and so has a judge of a table."""

    n_items: int
    judge: Distribution
    spearman: StatisticReport
    share_of_ceiling: StatisticReport
    share_of_panel_ceiling: StatisticReport


class Verdict(NamedTuple):
    """The sentence.

    Attributes:
        kind: For machines.
        tone: ``good``, ``warn`` or ``none``, as pages colour it.
        text: For people.
    """

    kind: Kind
    tone: Literal["good", "warn", "none"]
    text: str


def verdict(found: Agreement) -> Verdict:
    """The first of these that holds.

    No scores; all scores equal; undefined or without an interval; clearly below 0; not clearly above 0; clearly
    beyond what even the true scores could reach with these ratings (the whole interval of the share of the best
    possible is above 1: the judge has most likely seen the ratings); not clearly below the best possible, at a share
    of at least 0.95; then beside one rater, by the interval of the share of what one rater reaches.
    """
    own, one, best = found["spearman"], found["share_of_ceiling"], found["share_of_panel_ceiling"]
    if found["n_items"] == 0:
        return Verdict("no_scores", "warn", "No verdict: the judge gave no usable score for a rated item.")
    if _is_constant(found["judge"]):
        text = "No verdict on agreement: the judge gives every item the same score, so it orders nothing."
        return Verdict("constant", "warn", text)
    if own["value"] is None:
        return Verdict("undefined", "none", f"No verdict: {own['reason']}.")
    said = f"Spearman {numerals.number(own['value'])}"
    if own["low"] is None or own["high"] is None:
        return Verdict("undecided", "none", f"Undecided: {said}, {own['reason']}.")
    said += f" (95 % interval {numerals.number(own['low'])} to {numerals.number(own['high'])})"
    if own["high"] < 0:
        return Verdict("against", "warn", f"Orders items against people: {said}.")
    if own["low"] <= 0:
        return Verdict("chance", "warn", f"Not clearly better than chance: {said}.")
    if best["low"] is not None and best["low"] > 1:
        text = f"Better than a judge that knew the true scores could be: {said}. It has most likely seen these ratings."
        return Verdict("beyond_possible", "warn", text)
    if best["value"] is not None:
        said += f", {numerals.percent(best['value'])} of the best possible"
    if best["value"] is not None and best["high"] is not None and best["high"] >= 1 and best["value"] >= NEARLY:
        return Verdict("best_possible", "good", f"Agrees with people as well as these ratings can show: {said}.")
    return _beside_one_rater(one, said)


NEARLY = 0.95
"""Least share of the best possible that may be called as good as it."""


def _beside_one_rater(one: StatisticReport, said: str) -> Verdict:
    if one["low"] is None or one["high"] is None:
        return Verdict(
            "agrees", "none", f"Agrees with people beyond chance: {said}; how far one rater does is unknown."
        )
    if one["low"] > 1:
        return Verdict("above_one_rater", "good", f"Agrees with the panel better than one of its raters does: {said}.")
    if one["high"] < 1:
        return Verdict("below_one_rater", "warn", f"Agrees with the panel less than one of its raters does: {said}.")
    return Verdict("like_one_rater", "good", f"Agrees with the panel about as well as one of its raters does: {said}.")


def _is_constant(scores: Distribution) -> bool:
    mean, sd = scores["mean"], scores["sd"]
    return mean is not None and sd is not None and sd <= CONSTANT_TOLERANCE * abs(mean)
