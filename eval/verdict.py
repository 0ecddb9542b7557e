"""What a judge's agreement with people amounts to, in one sentence (``verdict.txt.j2``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from .rendering import sentences
from .statistics.agreement import CONSTANT_TOLERANCE

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

_TONES: dict[Kind, Tone] = {
    "undefined": "none",
    "better_than_one_rater": "good",
    "not_told_apart_from_one_rater": "none",
    "too_few_items_to_tell": "none",
}  # of the others: warn


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


def verdict(found: Mapping[str, Any]) -> Verdict:
    """The first of these that holds.

    No scores; all scores equal; undefined; clearly below 0; clearly beyond what even the true scores could reach with
    these ratings (the whole interval of the disattenuated correlation is above 1: the judge has most likely seen the
    ratings); then beside one rater, by the interval of the like-for-like difference. A judge that is not clearly better
    than chance is never called as good as a rater: where neither can be excluded there are too few items to tell.

    Args:
        found: The report of a judge on a dimension.
    """
    own, ceiling_share = found["spearman"], found["share_of_panel_ceiling"]
    above_chance = own["low"] is not None and own["low"] > 0
    kind: Kind
    if found["n_items"] == 0:
        kind = "no_scores"
    elif _is_constant(found["judge"]):
        kind = "constant"
    elif own["value"] is None:
        kind = "undefined"
    elif own["high"] is not None and own["high"] < 0:
        kind = "against"
    elif ceiling_share["low"] is not None and ceiling_share["low"] > 1:
        kind = "beyond_possible"
    else:
        kind = found["like_for_like"]["verdict"].replace(" ", "_")
        if kind == "not_told_apart_from_one_rater" and not above_chance:
            kind = "too_few_items_to_tell"
    (text,) = sentences("verdict", found=found, kind=kind, above_chance=above_chance)
    return Verdict(kind, _TONES.get(kind, "warn"), text)


def _is_constant(scores: Mapping[str, Any]) -> bool:
    mean, sd = scores["mean"], scores["sd"]
    return mean is not None and sd is not None and sd <= CONSTANT_TOLERANCE * abs(mean)
