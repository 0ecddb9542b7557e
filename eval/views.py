"""What the terminal shows of judges and people: tables of agreement, rankings, systems and pairs.

`agreement`, `compare` and `compare --table` print these; the notes below a table say why a value is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from . import numerals
from .asking_words import ASKED_HEAD, SECONDS_MEAN, asked_rows, length_sentences
from .compare import Comparison
from .overall import turned
from .report_schema import DimensionReport, OverallReport, RankingReport, StatisticReport
from .statistics.krippendorff import Distance
from .terminal import new_table
from .verdict import few_raters

_REASONS_SHOWN = 10
_EXPLAINED = ("no_scores", "constant", "against", "beyond_possible")  # verdicts that a word does not explain
_MARKS = {
    "better than one rater": "+",
    "not told apart from one rater": "=",
    "worse than one rater": "−",
    "too few items to tell": "?",
}

PANEL_HEAD = ("level", "n", "ICC(A,1) [95 %]", "ICC(C,1) [95 %]", "bias [95 %]", "limits of agreement")

PANEL_MEANS = (
    "Judge and panel mean as two raters. ICC(A,1): absolute agreement; ICC(C,1): consistency, a bias costs nothing. "
    "Bias and limits of agreement in rating points, judge minus people."
)

Section = tuple[str, Iterable[Sequence[str | Text]]]
"""A heading (empty = none) and the rows below it."""


def agreement_views(found: Mapping[str, Any], alpha: Distance) -> Iterator[Table | str]:
    """What ``agreement`` prints: people, judges, systems and pairs, verdicts, and why values are missing.

    Args:
        found: From `agreement_table.measure_agreement`.
        alpha: The distance of Krippendorff's alpha that is shown.
    """
    notes: dict[str, None] = {}
    dimensions = found["dimensions"]
    yield _people(found, alpha, notes)
    if found["judges"]:
        yield _judges(dimensions, notes)
        yield panel_table((_name(one), judge, own) for one in dimensions for judge, own in one["judges"].items())
    if found["overall"] is not None:
        yield overall_table(found["overall"])
        yield from found["overall"]["text"]
    rankings = {_name(one): one["ranking"] for one in dimensions if one["ranking"] is not None}
    if rankings:
        yield ranking_table("judge against judge", rankings)
        notes |= dict.fromkeys(unranked(rankings))
    if any(judged["system_level"] for one in dimensions for judged in one["judges"].values()):
        yield _systems(dimensions, notes)
    if any("pairs" in one for one in dimensions):
        yield _pairs(found, notes)
    for one in dimensions:
        for judge, own in one["judges"].items():
            if own["verdict"]["kind"] in _EXPLAINED:
                yield f"{_name(one)}, {judge}: {own['verdict']['text']}"
    reasons = list(notes)
    yield from reasons[:_REASONS_SHOWN]
    if len(reasons) > _REASONS_SHOWN:
        yield f"... and {len(reasons) - _REASONS_SHOWN} more values or intervals that are missing (see --json)"


def comparison_views(found: Comparison) -> Iterator[Table | str]:
    """What ``compare`` prints: the judges beside the noise ceiling, their ranking, and a verdict on each."""
    names = list(dict.fromkeys(name for report in found.reports for name in report["dimensions"]))
    judged = {
        name: [(r["judge"], r["dimensions"][name]) for r in found.reports if name in r["dimensions"]] for name in names
    }
    yield _table(
        "judges and people",
        (
            "judge",
            "Spearman\n(95 %)",
            "share of the\nnoise ceiling",
            "difference from\none rater (95 %)",
            "effective\nnumber\nof raters",
        ),
        ((name, _beside_ceiling(own)) for name, own in judged.items()),
    )
    yield panel_table((name, judge, own) for name, judges in judged.items() for judge, own in judges)
    if found.rankings:
        yield ranking_table("judge against judge", found.rankings)
        yield from unranked(found.rankings)
    if rows := asked_rows(found.reports):
        table = new_table("what asking took")
        for position, column in enumerate(ASKED_HEAD):
            justify = "right" if position >= 2 else "left"
            table.add_column(column, justify=justify, overflow="fold", min_width=6 if position >= 2 else 12)
        for row in rows:
            table.add_row(*map(Text, row))
        yield table
        yield SECONDS_MEAN
    notes: dict[str, None] = {}
    for report in found.reports:
        for name, own in report["dimensions"].items():
            yield " ".join([f"{report['judge']}, {name}: {own['verdict']['text']}", *length_sentences(own)])
            _note_few(own["like_for_like"], notes)
    yield from notes


def table_comparison_views(found: Mapping[str, Any]) -> Iterator[Table | str]:
    """What ``compare --table`` prints: the judges over all dimensions, the answer in words, then each dimension.

    Args:
        found: From `agreement_table.measure_agreement`, with judges.
    """
    overall: OverallReport | None = found["overall"]
    notes: dict[str, None] = {}
    if overall is not None:
        yield overall_table(overall)
        yield from overall["text"]
        for judge in overall["judges"]:
            _note_few(judge["like_for_like"], notes)
        yield from notes
        yield ""
    yield _by_dimension(found)
    yield panel_table((_name(one), judge, own) for one in found["dimensions"] for judge, own in one["judges"].items())
    if overall is None:
        for judge, own in found["dimensions"][0]["judges"].items():
            yield f"{judge}: {own['verdict']['text']}"


def overall_table(overall: OverallReport) -> Table:
    """Judges over all dimensions, best first, and the noise ceiling below them."""
    ranked = [judge["judge"] for judge in overall["judges"] if judge["cluster"] is not None]
    following = dict(pairwise(ranked))
    rows: list[Sequence[str | Text]] = []
    for judge in overall["judges"]:
        name = judge["judge"]
        p = turned(overall, name, following[name])["p_adjusted"] if name in following else None
        rows.append(
            (
                name,
                "none" if judge["cluster"] is None else str(judge["cluster"]),
                numerals.ranged(judge["spearman"]),
                numerals.signed_ranged(judge["like_for_like"]["difference"]),
                numerals.percent_ranged(judge["share_of_panel_ceiling"]),
                "" if p is None else f"{p:.3f}",
            )
        )
    rows.append((_bold("noise ceiling"), "", _bold(numerals.ranged(overall["people"]["panel_mean"])), "", "", ""))
    title = f"judges over {overall['n_dimensions']} dimensions ({overall['n_groups']} groups)"
    head = (
        "judge", "cluster", "mean Spearman\n(95 %)", "difference from\none person", "share of the\nnoise ceiling",
        "p to next\n(Holm)",
    )  # fmt: skip
    return _table(title, head, [("", rows)], min_width=14)


def ranking_table(title: str, rankings: Mapping[str, RankingReport]) -> Table:
    """Judges in significance clusters, each with what separates it from the next one.

    Args:
        title: Of the table.
        rankings: Name of the dimension -> its judges.
    """
    head = ("judge", "cluster", "Spearman", "ahead of the\nnext by (95 %)", "p (Holm)", "groups to\nseparate them")
    return _table(title, head, ((name, _ranked(ranking)) for name, ranking in rankings.items()))


def unranked(rankings: Mapping[str, RankingReport]) -> Iterator[str]:
    """Why judges are in no cluster."""
    for name, ranking in rankings.items():
        for judge in ranking["judges"]:
            if judge["cluster"] is None:
                yield f"{name}, {judge['judge']}: {judge['reason']}"


def panel_levels(own: DimensionReport) -> Iterator[tuple[str, DimensionReport]]:
    """The judge as one rater, the panel mean as the other: items, and systems where there are two or more."""
    yield "items", own
    systems = own["system_level"]  # null in a table without systems
    if systems is not None and systems["n_systems"] >= 2:
        yield "systems", systems


def panel_rows(own: DimensionReport) -> list[list[str]]:
    """A row of `PANEL_HEAD` for each level."""
    return [
        [
            level,
            str(found["icc_a1"]["n"]),
            *(numerals.ranged(found[name]) for name in ("icc_a1", "icc_c1", "bias")),
            _limits(found),
        ]
        for level, found in panel_levels(own)
    ]


def panel_table(judges: Iterable[tuple[str, str, DimensionReport]]) -> Table:
    """Judge and panel mean as clinical studies report them (McGraw and Wong, 1996; Bland and Altman, 1986).

    Args:
        judges: Dimension, name and report of each judge, those of a dimension side by side.
    """
    sections: dict[str, list[Sequence[str]]] = {}
    for dimension, judge, own in judges:
        for level, found in panel_levels(own):
            row = (
                judge if level == "items" else f"{judge}, {level}",
                str(found["icc_a1"]["n"]),
                numerals.ranged(found["icc_a1"]),
                numerals.number(found["icc_c1"]["value"]),
                numerals.signed(found["bias"]["value"]),
                _limits(found),
            )
            sections.setdefault(dimension, []).append(row)
    head = ("judge", "n", "ICC(A,1)\n(95 %)", "ICC(C,1)", "bias", "limits of\nagreement")
    return _table("judge and panel mean as two raters; bias and limits in rating points", head, sections.items())


def _limits(found: DimensionReport) -> str:
    lower, upper = found["loa_lower"]["value"], found["loa_upper"]["value"]
    return numerals.NONE if lower is None else f"{numerals.signed(lower)} to {numerals.signed(upper)}"


def _table(title: str, head: Sequence[str], sections: Iterable[Section], min_width: int | None = None) -> Table:
    """Where the terminal is narrow, the first column folds and numbers stay whole."""
    table = new_table(title)
    for position, column in enumerate(head):
        if position == 0:
            table.add_column(column, overflow="fold", min_width=min_width)
        else:
            table.add_column(Text(column, overflow="fold"), justify="right", no_wrap=True)
    for heading, rows in sections:
        if heading:
            table.add_section()
            table.add_row(_bold(heading))
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def _bold(text: str) -> Text:
    return Text(text, style="bold")


def _people(found: Mapping[str, Any], alpha: Distance, notes: dict[str, None]) -> Table:
    rows = []
    for one in found["dimensions"]:
        people, where = one["people"], f"{_name(one)}, people"
        _note(people["panel_mean"], where, notes)
        rows.append(
            (
                _name(one),
                str(people["n_items"]),
                str(people["n_raters"]),
                numerals.number(people["alpha"][alpha]["value"]),
                numerals.number(people["icc"]["ICC(A,1)"]["value"]),
                _ranged(people["spearman"], where, notes),
                numerals.number(people["panel_mean"]["value"]),
            )
        )
    head = (
        "dimension", "n", "people", f"alpha\n({alpha})", "ICC\n(A,1)", "leave-one-out\nagreement (95 %)",
        "noise\nceiling",
    )  # fmt: skip
    return _table(f"people: {', '.join(found['people'])}", head, [("", rows)])


def _judges(dimensions: Sequence[Mapping[str, Any]], notes: dict[str, None]) -> Table:
    def rows(one: Mapping[str, Any]) -> Iterator[Sequence[str]]:
        for judge, own in one["judges"].items():
            where, beside = f"{_name(one)}, {judge}", own["like_for_like"]
            spearman = _ranged(own["spearman"], where, notes)
            _note(beside["difference"], where, notes)
            _note_few(beside, notes)
            kind = own["verdict"]["kind"].replace("_", " ")
            yield judge, str(own["n_items"]), spearman, numerals.signed_ranged(beside["difference"]), kind

    head = ("judge", "n", "Spearman (95 %)", "difference from\none person (95 %)", "verdict")
    return _table("judges with the mean of the people", head, ((_name(one), rows(one)) for one in dimensions))


def _systems(dimensions: Sequence[Mapping[str, Any]], notes: dict[str, None]) -> Table:
    def rows(one: Mapping[str, Any]) -> Iterator[Sequence[str]]:
        for judge, own in one["judges"].items():
            level = own["system_level"]
            spearman = _ranged(level["spearman"], f"{_name(one)}, {judge}, system level", notes)
            others = (numerals.number(level[name]["value"]) for name in ("pearson", "kendall"))
            yield judge, str(level["n_systems"]), spearman, *others

    head = ("judge", "systems", "Spearman (95 %)", "Pearson", "Kendall")
    return _table("system level", head, ((_name(one), rows(one)) for one in dimensions))


def _pairs(found: Mapping[str, Any], notes: dict[str, None]) -> Table:
    def rows(one: Mapping[str, Any]) -> Iterator[Sequence[str]]:
        for pair in one["pairs"]:
            names = f"{pair['first']}, {pair['second']}"
            others = (numerals.number(pair[name]["value"]) for name in ("pearson", "kendall", "quadratic_kappa"))
            yield names, str(pair["n_items"]), _ranged(pair["spearman"], f"{_name(one)}, {names}", notes), *others

    kappa = f"quadratic kappa\n({found['kappa_weights']})"
    head = ("pair", "n", "Spearman (95 %)", "Pearson", "Kendall", kappa)
    return _table("pairs", head, ((_name(one), rows(one)) for one in found["dimensions"]))


def _by_dimension(found: Mapping[str, Any]) -> Table:
    """Spearman of each judge and the verdict beside one person, a row for each dimension."""

    def cell(own: DimensionReport | None) -> str:
        if own is None:
            return numerals.NONE
        return f"{numerals.ranged(own['spearman'])} {_MARKS[own['like_for_like']['verdict']]}"

    sections: dict[str, list[Sequence[str]]] = {}
    for one in found["dimensions"]:
        best = numerals.number(one["people"]["panel_mean"]["value"])
        judges = (cell(one["judges"].get(judge)) for judge in found["judges"])
        row = (one["dimension"], str(one["people"]["n_items"]), best, *judges)
        sections.setdefault(one["dataset"] or "", []).append(row)
    marks = ", ".join(f"{mark} {verdict.replace('rater', 'person')}" for verdict, mark in _MARKS.items())
    title = f"Spearman with the mean of {', '.join(found['people'])} ({marks})"
    return _table(title, ("dimension", "items", "noise\nceiling", *found["judges"]), sections.items(), min_width=14)


def _beside_ceiling(judged: Sequence[tuple[str, DimensionReport]]) -> Iterator[Sequence[str | Text]]:
    """One row per judge, and below them the noise ceiling on the items of the first."""
    for judge, own in judged:
        yield (
            judge,
            numerals.ranged(own["spearman"]),
            numerals.percent(own["share_of_panel_ceiling"]["value"]),
            numerals.signed_ranged(own["like_for_like"]["difference"]),
            numerals.effective_raters(own["like_for_like"]["effective_raters"]),
        )
    yield _bold("noise ceiling"), _bold(numerals.ranged(judged[0][1]["ceiling"]["panel_mean"])), "", "", ""


def _ranked(ranking: RankingReport) -> Iterator[Sequence[str]]:
    """Judges with the difference to the next one, its p value, and the groups that would show it."""
    found = {(one["first"], one["second"]): one for one in ranking["comparisons"]}
    following = dict(pairwise(judge["judge"] for judge in ranking["judges"] if judge["cluster"] is not None))
    for judge in ranking["judges"]:
        name = judge["judge"]
        if judge["cluster"] is None:
            yield name, "none", numerals.NONE, "", "", ""
            continue
        gap: Sequence[str] = ("", "", "")
        if name in following:
            key = (name, following[name])
            gap = _gap(found[key] if key in found else found[key[::-1]], name)
        yield name, str(judge["cluster"]), numerals.number(judge["spearman"]), *gap


def _gap(comparison: Mapping[str, Any], better: str) -> tuple[str, str, str]:
    difference = comparison["difference"]
    if comparison["first"] != better:
        difference = numerals.negated(difference)
    needed = comparison["groups_needed"]
    p = numerals.NONE if comparison["p_adjusted"] is None else f"{comparison['p_adjusted']:.4f}"
    more = numerals.NONE if needed is None else f"{needed} ({comparison['n_groups']} now)"
    return numerals.ranged(difference), p, more


def _name(one: Mapping[str, Any]) -> str:
    return one["dimension"] if one["dataset"] is None else f"{one['dataset']}/{one['dimension']}"


def _ranged(statistic: StatisticReport, where: str, notes: dict[str, None]) -> str:
    """Value and interval; what is missing is noted with its reason."""
    _note(statistic, where, notes)
    return numerals.ranged(statistic)


def _note(statistic: StatisticReport, where: str, notes: dict[str, None]) -> None:
    if statistic["reason"] is not None:
        notes[f"{where}: {statistic['reason']}"] = None


def _note_few(beside: Mapping[str, Any], notes: dict[str, None]) -> None:
    if few := few_raters(beside):
        notes[few] = None
