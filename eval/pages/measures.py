"""The table of measures on the page of a report: what each statistic is called, where it stands, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import numerals
from ..report_schema import DimensionReport, StatisticReport

_MAPPINGS = {"linear": "a straight line", "isotonic": "a rising curve"}


class Measure(NamedTuple):
    """A row: name, value, and what it says."""

    name: str
    value: StatisticReport
    meaning: str


_TWO_RATERS = (
    ("ICC(A,1)", "icc_a1", "absolute agreement of {what}; 1 = the same numbers"),
    ("ICC(C,1)", "icc_c1", "consistency: a bias costs nothing"),
    ("bias", "bias", "rating points above the panel mean; positive = generous"),
    ("lower limit of agreement", "loa_lower", "bias − 1.96 standard deviations of the differences"),
    ("upper limit of agreement", "loa_upper", "95 % of the differences lie between (Bland, Altman)"),
)

_MEASURES: Mapping[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "The judge": (
        "",
        (
            ("Spearman", "spearman", "same order of items as the panel mean"),
            ("share of the noise ceiling", "share_of_panel_ceiling", "Spearman / noise ceiling"),
            ("Pearson", "pearson", "on a straight line with the panel mean"),
            ("Kendall tau-b", "kendall", "surplus of item pairs in the right order"),
            ("CCC", "ccc", "the same scores, not only the same order (Lin)"),
            ("mean absolute error", "mae", "rating points between judge and panel mean"),
            ("root mean squared error", "rmse", "the same, large errors weigh more"),
            ("Kendall tau-c", "tau_c", "the same for scales of different length (Stuart)"),
            ("Spearman, other raters", "spearman_by_rater", "interval for other raters of the same items"),
            (
                "Spearman, other items and raters",
                "spearman_two_way",
                "interval for other items and other raters of their kind",
            ),
        ),
    ),
    "The judge beside one rater": (
        "like_for_like",
        (
            ("judge", "judge", "Spearman with the mean of the others, for each rater left out"),
            ("one rater", "rater", "the same of the rater left out, on the same items"),
            ("difference", "difference", "above 0 = better than one rater{p}"),
            ("ratio", "ratio", "judge / one rater; above 1 = better than one rater"),
            ("effective number of raters", "effective_raters", "the mean of so many raters would agree as well"),
        ),
    ),
    "Judge and panel mean as two raters": ("", _TWO_RATERS),
    "Pairs of items": (
        "item_pairs",
        (
            ("concordance", "concordance", "pairs in the right order; 0.5 = chance"),
            ("pairwise accuracy", "accuracy", "pairs ordered or tied as by people{ties}"),
        ),
    ),
    "Responses to one context": (
        "within_group",
        (
            ("Spearman", "spearman.mean", "order of the responses to one context{spearman_of}"),
            ("Kendall tau-b", "kendall.mean", "the same in pairs{kendall_of}"),
            ("best response found", "top_1.mean", "its favourite is people's{chance}{top_1_of}"),
        ),
    ),
    "Use of the scale": (
        "",
        (
            ("spread beside people's", "scale_use.sd_ratio", "standard deviation of the scores / of the panel means"),
            ("range used by the judge", "scale_use.judge.range_used", "share of the scale"),
            ("range used by people", "scale_use.human.range_used", "share of the scale, panel means"),
            ("scores outside the scale", "scale_use.judge.outside", "share of the items"),
            ("slope", "calibration.slope", "of panel mean on judge score; below 1 = the scores exaggerate"),
            ("intercept", "calibration.intercept", "of the same line, rating points"),
        ),
    ),
    "Systems": (
        "system_level",
        (
            ("Spearman", "spearman", "order of {n_systems} system means"),
            ("Pearson", "pearson", "the same on a straight line"),
            ("Kendall tau-b", "kendall", "the same in pairs"),
            *_TWO_RATERS,
            ("pairwise accuracy", "pairwise_accuracy", "pairs of systems in the right order"),
            (
                "soft pairwise accuracy",
                "soft_pairwise_accuracy.accuracy",
                "as sure as people which of two systems is better; {system_pairs}",
            ),
        ),
    ),
    "Voice and words": (
        "voice_and_words",
        (
            ("voice alone", "voice", "share of the variance of the scores that only the voice explains"),
            ("words alone", "words", "share that only the words explain"),
            ("either", "common", "share that either explains, with timing and situation"),
            ("neither", "neither", "share that neither explains"),
            ("index of the voice", "index", "voice alone / (voice alone + words alone); 1 = all voice, 0 = all words"),
        ),
    ),
    "Length of the response": (
        "length",
        tuple(
            row
            for unit in ("seconds", "words")
            for row in (
                (f"judge with {unit}", f"{unit}.judge", "Spearman of the scores with the length"),
                (f"people with {unit}", f"{unit}.human", "the same of the panel means"),
                (f"difference, {unit}", f"{unit}.difference", "above 0 = the judge follows length more than people"),
            )
        ),
    ),
    "Answers to one question": (
        "asked",
        (
            ("spread of repeats", "repeats.within_sd", "standard deviation within a pair, rating points"),
            ("ICC of one answer", "repeats.icc", "share of its variance that comes from the pairs"),
            ("ICC of their mean", "repeats.icc_of_mean", "the same of the mean of a pair's answers"),
            ("orders disagree", "orders.inconsistent", "share of comparisons"),
            ("prefers the first place", "orders.first_preferred", "share of verdicts; 0.5 = no position bias"),
        ),
    ),
    "The raters": (
        "ceiling",
        (
            ("noise ceiling", "panel_mean", "root of the reliability of the panel mean"),
            ("leave-one-out human agreement", "spearman", "Spearman of a rater with the mean of the others"),
            ("split half", "split_half", "Spearman between two random halves of the panel"),
            ("reliability of the mean", "panel_reliability", "split half after Spearman-Brown"),
            ("Krippendorff's alpha", "krippendorff_alpha", "agreement of single ratings, interval scale"),
        ),
    ),
}
"""Heading -> where its statistics stand in a dimension of the report, and for each name, place there and meaning."""

_ONLY_DEFINED = ("Answers to one question",)


def measure_groups(
    dimension: DimensionReport, voice_and_words: Mapping[str, StatisticReport] | None = None
) -> dict[str, list[Measure]]:
    """Heading -> rows. Systems only where there are two of them, voice and words only where they were measured."""
    found = {**dimension, "voice_and_words": voice_and_words}
    if dimension["system_level"]["n_systems"] < 2:
        found["system_level"] = None
    # Without transcripts, or where no clip can be read, there is no length
    found["length"] = {unit: own for unit, own in dimension["length"].items() if own["judge"]["n"]}
    groups = {}
    for heading, (place, rows) in _MEASURES.items():
        facts = _facts(dimension, "a system mean" if heading == "Systems" else "a score")
        own = [
            Measure(name, value, meaning.format(**facts))
            for name, where, meaning in rows
            if (value := _at(found, f"{place}.{where}")) is not None
            and not (heading in _ONLY_DEFINED and value["value"] is None)
        ]
        groups[heading] = own
    groups["The raters"] += [
        Measure(
            "1 rater, expected" if row["k"] == 1 else f"mean of {row['k']} raters, expected",
            row["expected"],
            f"Spearman with the mean of the others; measured: {numerals.ranged(row['measured'])}",
        )
        for row in dimension["mean_of_k_raters"]
    ]
    return {heading: rows for heading, rows in groups.items() if rows}


def error_rows(dimension: DimensionReport) -> list[dict[str, Any]]:
    """Errors in rating points before and after mappings that were fitted on other groups."""
    own = dimension["calibration"]
    as_they_are = {"name": "as they are", "mae": dimension["mae"], "rmse": dimension["rmse"], "error": own["error"]}
    mapped = own["mapped"].items()
    return [as_they_are, *({"name": f"after {_MAPPINGS.get(name, name)}", **found} for name, found in mapped)]


def _at(tree: Any, place: str) -> StatisticReport | None:
    """What stands there; None where a part of the report is missing."""
    for key in filter(None, place.split(".")):
        tree = None if tree is None else tree.get(key)
    return tree


def _facts(dimension: DimensionReport, what: str) -> dict[str, Any]:
    """What meanings name beside the statistic."""
    beside, pairs, within = dimension["like_for_like"], dimension["item_pairs"], dimension["within_group"]
    systems, chance = dimension["system_level"], within["top_1"]["chance"]
    soft = systems["soft_pairwise_accuracy"]
    near = pairs["epsilon"] is not None and pairs["epsilon"] >= 0.005
    return {
        "what": what,
        "p": "" if beside["p"] is None else f"; p {numerals.p_value(beside['p'])}",
        "ties": f"; less than {numerals.number(pairs['epsilon'])} points apart = a tie" if near else "",
        "chance": "" if chance is None else f"; chance: {numerals.number(chance)}",
        **{f"{name}_of": _of(found) for name, found in within.items()},
        "n_systems": systems["n_systems"],
        "system_pairs": f"{soft['pairs']} pairs" + (f", {soft['left_out']} left out" if soft["left_out"] else ""),
    }


def _of(found: Mapping[str, Any]) -> str:
    """Groups of a mean over groups, and why others are left out."""
    left_out = {"too small": found["too_small"], "constant": found["constant"]}
    why = ", ".join(f"{count} {name}" for name, count in left_out.items() if count)
    return f"; {found['groups']} groups" + (f" ({why})" if why else "")
