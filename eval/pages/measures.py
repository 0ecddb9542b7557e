"""The rows of the table of measures on the page of a report, group by group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .. import numerals
from ..report_schema import (
    AskedDimension,
    DimensionReport,
    GroupLevelReport,
    LikeForLikeReport,
    StatisticReport,
    SystemLevel,
)
from . import wording

_MAPPINGS = {"linear": "a straight line", "isotonic": "a rising curve"}

_VOICE_AND_WORDS = (
    ("voice", "voice alone", "share of the variance of the scores that only the voice explains"),
    ("words", "words alone", "share that only the words explain"),
    ("common", "either", "share that either explains, with timing and situation"),
    ("neither", "neither", "share that neither explains"),
    ("index", "index of the voice", "voice alone / (voice alone + words alone); 1 = all voice, 0 = all words"),
)


class Measure(NamedTuple):
    """A row: name, value, and what it says."""

    name: str
    value: StatisticReport
    meaning: str


class ErrorRow(NamedTuple):
    """Errors in rating points, of the scores as they are or after a mapping."""

    name: str
    mae: StatisticReport
    rmse: StatisticReport
    error: StatisticReport


def measure_groups(
    dimension: DimensionReport, voice_and_words: Mapping[str, StatisticReport] | None = None
) -> dict[str, list[Measure]]:
    """Heading -> rows. Systems only where there are two of them, voice and words only where they were measured."""
    groups = {
        "The judge": [*map(_measure, wording.judge_measures(dimension)), *_for_other_raters(dimension)],
        "The judge beside one rater": _beside_one_rater(dimension["like_for_like"]),
        "Judge and panel mean as two raters": _two_raters(dimension, "a score"),
        "Pairs of items": _item_pairs(dimension),
        "Responses to one context": _within_group(dimension),
        "Use of the scale": _scale_use(dimension),
    }
    if dimension["system_level"]["n_systems"] >= 2:
        groups["Systems"] = _systems(dimension)
    if voice_and_words:
        groups["Voice and words"] = [
            Measure(title, voice_and_words[key], meaning) for key, title, meaning in _VOICE_AND_WORDS
        ]
    groups["Length of the response"] = _length(dimension)
    if dimension["asked"] is not None:
        groups["Answers to one question"] = _asked(dimension["asked"])
    groups["The raters"] = [*map(_measure, wording.panel_measures(dimension)), *_means_of_raters(dimension)]
    return {heading: rows for heading, rows in groups.items() if rows}


def error_rows(dimension: DimensionReport) -> list[ErrorRow]:
    """Errors before and after mappings that were fitted on other groups."""
    own = dimension["calibration"]
    return [
        ErrorRow("as they are", dimension["mae"], dimension["rmse"], own["error"]),
        *(
            ErrorRow(f"after {_MAPPINGS.get(name, name)}", found["mae"], found["rmse"], found["error"])
            for name, found in own["mapped"].items()
        ),
    ]


def _measure(row: tuple[str, StatisticReport, str]) -> Measure:
    return Measure(*row)


def _for_other_raters(dimension: DimensionReport) -> list[Measure]:
    return [
        Measure("Kendall tau-c", dimension["tau_c"], "the same for scales of different length (Stuart)"),
        Measure(
            "Spearman, other raters", dimension["spearman_by_rater"], "interval for other raters of the same items"
        ),
        Measure(
            "Spearman, other items and raters",
            dimension["spearman_two_way"],
            "interval for other items and other raters of their kind",
        ),
    ]


def _beside_one_rater(own: LikeForLikeReport) -> list[Measure]:
    p = "" if own["p"] is None else f"; p {numerals.p_value(own['p'])}"
    return [
        Measure("judge", own["judge"], "Spearman with the mean of the others, for each rater left out"),
        Measure("one rater", own["rater"], "the same of the rater left out, on the same items"),
        Measure("difference", own["difference"], f"above 0 = better than one rater{p}"),
        Measure("ratio", own["ratio"], "judge / one rater; above 1 = better than one rater"),
        Measure(
            "effective number of raters", own["effective_raters"], "the mean of so many raters would agree as well"
        ),
    ]


def _two_raters(level: DimensionReport | SystemLevel, what: str) -> list[Measure]:
    return [
        Measure("ICC(A,1)", level["icc_a1"], f"absolute agreement of {what}; 1 = the same numbers"),
        Measure("ICC(C,1)", level["icc_c1"], "consistency: a bias costs nothing"),
        Measure("bias", level["bias"], "rating points above the panel mean; positive = generous"),
        Measure("lower limit of agreement", level["loa_lower"], "bias − 1.96 standard deviations of the differences"),
        Measure("upper limit of agreement", level["loa_upper"], "95 % of the differences lie between (Bland, Altman)"),
    ]


def _item_pairs(dimension: DimensionReport) -> list[Measure]:
    own = dimension["item_pairs"]
    near = own["epsilon"] is not None and own["epsilon"] >= 0.005
    ties = "" if not near else f"; less than {numerals.number(own['epsilon'])} points apart = a tie"
    return [
        Measure("concordance", own["concordance"], "pairs in the right order; 0.5 = chance"),
        Measure("pairwise accuracy", own["accuracy"], f"pairs ordered or tied as by people{ties}"),
    ]


def _within_group(dimension: DimensionReport) -> list[Measure]:
    own = dimension["within_group"]
    best = own["top_1"]
    chance = "" if best["chance"] is None else f"; chance: {numerals.number(best['chance'])}"
    return [
        Measure("Spearman", own["spearman"]["mean"], f"order of the responses to one context{_of(own['spearman'])}"),
        Measure("Kendall tau-b", own["kendall"]["mean"], f"the same in pairs{_of(own['kendall'])}"),
        Measure("best response found", best["mean"], f"its favourite is people's{chance}{_of(best)}"),
    ]


def _of(found: GroupLevelReport) -> str:
    left_out = {"too small": found["too_small"], "constant": found["constant"]}
    why = ", ".join(f"{count} {name}" for name, count in left_out.items() if count)
    return f"; {found['groups']} groups" + (f" ({why})" if why else "")


def _scale_use(dimension: DimensionReport) -> list[Measure]:
    own, line = dimension["scale_use"], dimension["calibration"]
    return [
        Measure("spread beside people's", own["sd_ratio"], "standard deviation of the scores / of the panel means"),
        Measure("range used by the judge", own["judge"]["range_used"], "share of the scale"),
        Measure("range used by people", own["human"]["range_used"], "share of the scale, panel means"),
        Measure("scores outside the scale", own["judge"]["outside"], "share of the items"),
        Measure("slope", line["slope"], "of panel mean on judge score; below 1 = the scores exaggerate"),
        Measure("intercept", line["intercept"], "of the same line, rating points"),
    ]


def _systems(dimension: DimensionReport) -> list[Measure]:
    own = dimension["system_level"]
    soft = own["soft_pairwise_accuracy"]
    of = f"; {soft['pairs']} pairs" + (f", {soft['left_out']} left out" if soft["left_out"] else "")
    return [
        Measure("Spearman", own["spearman"], f"order of {own['n_systems']} system means"),
        Measure("Pearson", own["pearson"], "the same on a straight line"),
        Measure("Kendall tau-b", own["kendall"], "the same in pairs"),
        *_two_raters(own, "a system mean"),
        Measure("pairwise accuracy", own["pairwise_accuracy"], "pairs of systems in the right order"),
        Measure("soft pairwise accuracy", soft["accuracy"], f"as sure as people which of two systems is better{of}"),
    ]


def _length(dimension: DimensionReport) -> list[Measure]:
    rows = []
    for unit, own in (("seconds", dimension["length"]["seconds"]), ("words", dimension["length"]["words"])):
        if own["judge"]["n"] == 0:
            continue  # no transcripts, or no clip can be read
        rows += [
            Measure(f"judge with {unit}", own["judge"], "Spearman of the scores with the length"),
            Measure(f"people with {unit}", own["human"], "the same of the panel means"),
            Measure(f"difference, {unit}", own["difference"], "above 0 = the judge follows length more than people"),
        ]
    return rows


def _asked(asked: AskedDimension) -> list[Measure]:
    repeats, orders = asked["repeats"], asked["orders"]
    rows = [
        Measure("spread of repeats", repeats["within_sd"], "standard deviation within a pair, rating points"),
        Measure("ICC of one answer", repeats["icc"], "share of its variance that comes from the pairs"),
        Measure("ICC of their mean", repeats["icc_of_mean"], "the same of the mean of a pair's answers"),
        Measure("orders disagree", orders["inconsistent"], "share of comparisons"),
        Measure("prefers the first place", orders["first_preferred"], "share of verdicts; 0.5 = no taste"),
    ]
    return [row for row in rows if row.value["value"] is not None]


def _means_of_raters(dimension: DimensionReport) -> list[Measure]:
    return [
        Measure(
            "1 rater, expected" if row["k"] == 1 else f"mean of {row['k']} raters, expected",
            row["expected"],
            f"Spearman with the mean of the others; measured: {numerals.ranged(row['measured'])}",
        )
        for row in dimension["mean_of_k_raters"]
    ]
