"""What the terminal shows of judges and people, and the rows of tables that it shares with pages and Markdown.

The notes below a table say why a value is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from .listening import listening_sentence
from .overall import turned
from .probes import PROBES
from .rendering import (
    NONE,
    bold,
    dollars,
    effective_raters,
    filled_table,
    new_table,
    number,
    percent,
    percent_ranged,
    ranged,
    seconds,
    sentences,
    signed,
    signed_ranged,
)
from .results import Report, joined
from .statistics.krippendorff import Distance

_REASONS_SHOWN = 10
_EXPLAINED = ("no_scores", "constant", "against", "beyond_possible")  # verdicts that a word does not explain
_MARKS = {
    "better than one rater": "+",
    "not told apart from one rater": "=",
    "worse than one rater": "−",
    "too few items to tell": "?",
}

# ---------------------------------------------------------------- rows that all views share

PANEL_HEAD = ("level", "n", "ICC(A,1) [95 %]", "ICC(C,1) [95 %]", "bias [95 %]", "limits of agreement")


def panel_levels(own: Report) -> dict[str, Report]:
    """The judge as one rater, the panel mean as the other: items, and systems where there are two or more.

    As clinical studies report them (McGraw and Wong, 1996; Bland and Altman, 1986).
    """
    systems = own["system_level"]  # null in a table without systems
    return {"items": own} | ({"systems": systems} if systems is not None and systems["n_systems"] >= 2 else {})


def panel_rows(own: Report) -> list[list[str]]:
    """A row of `PANEL_HEAD` for each level."""
    return [
        [
            level,
            str(found["icc_a1"]["n"]),
            *(ranged(found[name]) for name in ("icc_a1", "icc_c1", "bias")),
            _limits(found),
        ]
        for level, found in panel_levels(own).items()
    ]


def _limits(found: Report) -> str:
    lower, upper = found["loa_lower"]["value"], found["loa_upper"]["value"]
    return NONE if lower is None else f"{signed(lower)} to {signed(upper)}"


class PromptedRow(NamedTuple):
    """A judge on a dimension in a table of what prompted judges took."""

    judge: str
    dimension: str
    cost: str
    seconds: str
    failures: str
    repeats: str
    inconsistent: str
    first: str


PROMPTED_HEAD = PromptedRow(
    "judge",
    "dimension",
    "$ per 1,000 pairs",
    "seconds per pair",
    "failures",
    "ICC of repeats",
    "orders disagree",
    "prefers the first",
)


def prompted_rows(reports: Sequence[Report]) -> list[PromptedRow]:
    """Of every judge and dimension; none where no judge is prompted."""
    rows = []
    for report in reports if any(report["asking"] for report in reports) else ():
        for name, own in report["dimensions"].items():
            asking, asked = report["asking"], own["asked"]
            cost, failures, *answers = [NONE] * 5
            if asking is not None and asked is not None:
                cost, failures = dollars(asking["cost_per_1000_pairs"]), percent(asking["failure_rate"])
                orders = (percent_ranged(asked["orders"][key]) for key in ("inconsistent", "first_preferred"))
                answers = [ranged(asked["repeats"]["icc"]), *orders]
            time = seconds(report["effort"]["seconds_per_pair"])
            rows.append(PromptedRow(report["judge"], name, cost, time, failures, *answers))
    return rows


def notes(report: Report) -> list[str]:
    """How many pairs were read in windows, what prompting took and gave, and length bias."""
    several = len(report["dimensions"]) > 1
    return [
        *sentences("in_windows", report=report),
        *sentences("prompted", report=report),
        *(
            f"{name}: {sentence}" if several else sentence
            for name, own in report["dimensions"].items()
            for sentence in sentences("length", length=own["length"])
        ),
    ]


def split_name(report: Report) -> str:
    """Which pairs were scored."""
    return f"split {report['split']}" if report["split"] is not None else "all pairs"


# ---------------------------------------------------------------- evaluate and compare


def evaluation_views(report: Report) -> Iterator[Table | str]:
    """What ``evaluate`` prints: verdicts, a table with one column per dimension, the judge as a rater, notes."""
    title = f"{report['judge']} on {report['dataset']['name']}, {split_name(report)}"
    if report["dataset"]["synthetic"]:
        title += " (synthetic ratings)"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("")
    for name in report["dimensions"]:
        table.add_column(Text(name), justify="right")
    rows: dict[str, Callable[[Report], str]] = {
        "items / groups / raters": lambda d: f"{d['n_items']} / {d['n_groups']} / {d['n_raters']}",
        "Spearman": lambda d: ranged(d["spearman"]),
        "noise ceiling (panel mean)": lambda d: ranged(d["ceiling"]["panel_mean"]),
        "share of the noise ceiling": lambda d: percent(d["share_of_panel_ceiling"]["value"]),
        "difference from one rater": lambda d: signed_ranged(d["like_for_like"]["difference"]),
        "effective number of raters": lambda d: effective_raters(d["like_for_like"]["effective_raters"]),
        "CCC": lambda d: ranged(d["ccc"]),
        "mean absolute error": lambda d: ranged(d["mae"]),
    }
    dimensions = list(report["dimensions"].values())
    for label, cell in rows.items():
        table.add_row(label, *(Text(cell(own)) for own in dimensions))
    stated = [(own["uncertainty"] or {"intervals": {}})["intervals"].get("90") for own in dimensions]
    if any(stated):
        table.add_row(
            "90 % intervals cover", *("" if own is None else percent_ranged(own["covered"]) for own in stated)
        )
    impossible: dict[str, list[str]] = {}  # reason -> checks
    for check, results in report["checks"].items():
        found = [results[name]["spearman"] for name in report["dimensions"]]
        if any(own["value"] is not None for own in found):
            table.add_row(f"{PROBES[check].title.lower()}: Spearman", *(Text(ranged(own)) for own in found))
        else:
            impossible.setdefault(found[0]["reason"], []).append(PROBES[check].title.lower())
    yield table
    yield from (f"Not possible, as {reason}: {', '.join(checks)}." for reason, checks in impossible.items())
    yield panel_table((name, report["judge"], own) for name, own in report["dimensions"].items())
    for name, own in report["dimensions"].items():
        checks = {check: results[name] for check, results in report["checks"].items()}
        said = f"{own['verdict']['text']} {listening_sentence(checks, own['spearman']).text}"
        yield f"{name}: {said}" if len(dimensions) > 1 else said
    yield from notes(report)
    yield report["signature"]


def comparison_views(reports: Sequence[Report], rankings: Mapping[str, Report]) -> Iterator[Table | str]:
    """What ``compare`` prints: the judges beside the noise ceiling, their ranking, and a verdict on each.

    Args:
        reports: One per judge.
        rankings: Dimension -> its judges against each other.
    """
    judged: dict[str, list[tuple[str, Report]]] = {}
    for report in reports:
        for name, own in report["dimensions"].items():
            judged.setdefault(name, []).append((report["judge"], own))

    def beside_ceiling(judges: Sequence[tuple[str, Report]]) -> Iterator[Sequence[str | Text]]:
        for judge, own in judges:
            beside = own["like_for_like"]
            share = percent(own["share_of_panel_ceiling"]["value"])
            effective = effective_raters(beside["effective_raters"])
            yield judge, ranged(own["spearman"]), share, signed_ranged(beside["difference"]), effective
        yield bold("noise ceiling"), bold(ranged(judges[0][1]["ceiling"]["panel_mean"])), "", "", ""

    head = (
        "judge", "Spearman\n(95 %)", "share of\nceiling", "difference from\none rater (95 %)",
        "effective\nnumber\nof raters",
    )  # fmt: skip
    yield filled_table("judges and people", head, ((name, beside_ceiling(own)) for name, own in judged.items()), 12)
    yield panel_table((name, judge, own) for name, judges in judged.items() for judge, own in judges)
    if rankings:
        yield _ranking_table(rankings)
        yield from _unranked(rankings)
    if rows := prompted_rows(reports):
        table = new_table("what prompting took")
        for position, column in enumerate(PROMPTED_HEAD):
            justify = "right" if position >= 2 else "left"
            table.add_column(column, justify=justify, overflow="fold", min_width=6 if position >= 2 else 12)
        for row in rows:
            table.add_row(*map(Text, row))
        yield table
        yield from sentences("prompted_seconds")
    few: dict[str, None] = {}
    for report in reports:
        for name, own in report["dimensions"].items():
            verdict = f"{report['judge']}, {name}: {own['verdict']['text']}"
            yield " ".join([verdict, *sentences("length", length=own["length"])])
            few |= dict.fromkeys(sentences("few_raters", found=own["like_for_like"]))
    yield from few
    yield joined([report["signature"] for report in reports])


def panel_table(judges: Iterable[tuple[str, str, Report]]) -> Table:
    """`panel_rows`, with those intervals that a terminal has room for.

    Args:
        judges: Dimension, name and report of each judge, those of a dimension side by side.
    """
    sections: dict[str, list[Sequence[str]]] = {}
    for dimension, judge, own in judges:
        for level, found in panel_levels(own).items():
            row = (
                judge if level == "items" else f"{judge}, {level}",
                str(found["icc_a1"]["n"]),
                ranged(found["icc_a1"]),
                number(found["icc_c1"]["value"]),
                signed(found["bias"]["value"]),
                _limits(found),
            )
            sections.setdefault(dimension, []).append(row)
    head = ("judge", "n", "ICC(A,1)\n(95 %)", "ICC(C,1)", "bias", "limits of\nagreement")
    return filled_table("judge and panel mean as two raters; bias and limits in rating points", head, sections.items())


def _ranking_table(rankings: Mapping[str, Report]) -> Table:
    """Judges in significance clusters, each with what separates it from the next one."""

    def rows(ranking: Report) -> Iterator[Sequence[str]]:
        following = dict(pairwise(judge["judge"] for judge in ranking["judges"] if judge["cluster"] is not None))
        for judge in ranking["judges"]:
            name = judge["judge"]
            gap = ["", "", ""]
            if name in following:
                own = turned(ranking, name, following[name])
                needed = own["groups_needed"]
                p = NONE if own["p_adjusted"] is None else f"{own['p_adjusted']:.4f}"
                gap = [ranged(own["difference"]), p, NONE if needed is None else f"{needed} ({own['n_groups']} now)"]
            cluster = "none" if judge["cluster"] is None else str(judge["cluster"])
            yield name, cluster, number(judge["spearman"]), *gap

    head = ("judge", "cluster", "Spearman", "ahead of the\nnext by (95 %)", "p (Holm)", "groups to\nseparate them")
    return filled_table("judge against judge", head, ((name, rows(own)) for name, own in rankings.items()))


def _unranked(rankings: Mapping[str, Report]) -> Iterator[str]:
    """Why judges are in no cluster."""
    for name, ranking in rankings.items():
        for judge in ranking["judges"]:
            if judge["cluster"] is None:
                yield f"{name}, {judge['judge']}: {judge['reason']}"


# ---------------------------------------------------------------- tables of scores


def agreement_views(found: Report, alpha: Distance) -> Iterator[Table | str]:
    """What ``agreement`` prints: people, judges, systems and pairs, verdicts, and why values are missing.

    Args:
        found: From `agreement_table.measure_agreement`.
        alpha: The distance of Krippendorff's alpha that is shown.
    """
    dimensions = {_name(one): one for one in found["dimensions"]}
    judged = [(name, judge, own) for name, one in dimensions.items() for judge, own in one["judges"].items()]
    people = (
        (
            name,
            str(one["people"]["n_items"]),
            str(one["people"]["n_raters"]),
            number(one["people"]["alpha"][alpha]["value"]),
            number(one["people"]["icc"]["ICC(A,1)"]["value"]),
            ranged(one["people"]["spearman"]),
            number(one["people"]["panel_mean"]["value"]),
        )
        for name, one in dimensions.items()
    )
    head = (
        "dimension", "n", "people", f"alpha\n({alpha})", "ICC\n(A,1)", "leave-one-out\nagreement (95 %)",
        "noise\nceiling",
    )  # fmt: skip
    yield filled_table(f"people: {', '.join(found['people'])}", head, [("", people)])
    if found["judges"]:
        head = ("judge", "n", "Spearman (95 %)", "difference from\none person (95 %)", "verdict")
        yield _by_judge("judges with the mean of the people", head, dimensions, _beside_person)
        yield panel_table(judged)
    if found["overall"] is not None:
        yield _overall_table(found["overall"])
        yield from found["overall"]["text"]
    rankings = {name: one["ranking"] for name, one in dimensions.items() if one["ranking"] is not None}
    if rankings:
        yield _ranking_table(rankings)
    if any(own["system_level"] for _, _, own in judged):
        head = ("judge", "systems", "Spearman (95 %)", "Pearson", "Kendall")
        yield _by_judge("system level", head, dimensions, _of_systems)
    if any("pairs" in one for one in dimensions.values()):
        head = ("pair", "n", "Spearman (95 %)", "Pearson", "Kendall", f"quadratic kappa\n({found['kappa_weights']})")
        rows = (
            (
                name,
                [
                    (
                        f"{pair['first']}, {pair['second']}",
                        str(pair["n_items"]),
                        ranged(pair["spearman"]),
                        *(number(pair[key]["value"]) for key in ("pearson", "kendall", "quadratic_kappa")),
                    )
                    for pair in one["pairs"]
                ],
            )
            for name, one in dimensions.items()
        )
        yield filled_table("pairs", head, rows)
    for name, judge, own in judged:
        if own["verdict"]["kind"] in _EXPLAINED:
            yield f"{name}, {judge}: {own['verdict']['text']}"
    reasons = list(dict.fromkeys(_reasons(dimensions, rankings)))
    yield from reasons[:_REASONS_SHOWN]
    if len(reasons) > _REASONS_SHOWN:
        yield f"... and {len(reasons) - _REASONS_SHOWN} more values or intervals that are missing (see --json)"
    yield found["signature"]


def _by_judge(
    title: str, head: Sequence[str], dimensions: Mapping[str, Report], row: Callable[[Report], Sequence[str]]
) -> Table:
    sections = (
        (name, [(judge, *row(own)) for judge, own in one["judges"].items()]) for name, one in dimensions.items()
    )
    return filled_table(title, head, sections)


def _beside_person(own: Report) -> Sequence[str]:
    beside = signed_ranged(own["like_for_like"]["difference"])
    return str(own["n_items"]), ranged(own["spearman"]), beside, own["verdict"]["kind"].replace("_", " ")


def _of_systems(own: Report) -> Sequence[str]:
    level = own["system_level"]
    others = (number(level[name]["value"]) for name in ("pearson", "kendall"))
    return str(level["n_systems"]), ranged(level["spearman"]), *others


def _reasons(dimensions: Mapping[str, Report], rankings: Mapping[str, Report]) -> Iterator[str]:
    """Why values or intervals of the tables are missing."""
    for name, one in dimensions.items():
        for key in ("panel_mean", "spearman"):
            yield from _reason(f"{name}, people", one["people"][key])
    for name, one in dimensions.items():
        for judge, own in one["judges"].items():
            for statistic in (own["spearman"], own["like_for_like"]["difference"]):
                yield from _reason(f"{name}, {judge}", statistic)
            yield from sentences("few_raters", found=own["like_for_like"])
    yield from _unranked(rankings)
    for name, one in dimensions.items():
        for judge, own in one["judges"].items():
            if own["system_level"]:
                yield from _reason(f"{name}, {judge}, system level", own["system_level"]["spearman"])
    for name, one in dimensions.items():
        for pair in one.get("pairs", ()):
            yield from _reason(f"{name}, {pair['first']}, {pair['second']}", pair["spearman"])


def _reason(where: str, statistic: Report) -> Iterator[str]:
    if statistic["reason"] is not None:
        yield f"{where}: {statistic['reason']}"


def table_comparison_views(found: Report) -> Iterator[Table | str]:
    """What ``compare --table`` prints: the judges over all dimensions, the answer in words, then each dimension.

    Args:
        found: From `agreement_table.measure_agreement`, with judges.
    """
    overall = found["overall"]
    if overall is not None:
        yield _overall_table(overall)
        yield from overall["text"]
        beside = (judge["like_for_like"] for judge in overall["judges"])
        yield from dict.fromkeys(few for own in beside for few in sentences("few_raters", found=own))
        yield ""
    sections: dict[str, list[Sequence[str]]] = {}
    for one in found["dimensions"]:
        own = (one["judges"].get(judge) for judge in found["judges"])
        cells = (
            NONE if judged is None else f"{ranged(judged['spearman'])} {_MARKS[judged['like_for_like']['verdict']]}"
            for judged in own
        )
        row = (one["dimension"], str(one["people"]["n_items"]), number(one["people"]["panel_mean"]["value"]), *cells)
        sections.setdefault(one["dataset"] or "", []).append(row)
    marks = ", ".join(f"{mark} {verdict.replace('rater', 'person')}" for verdict, mark in _MARKS.items())
    title = f"Spearman with the mean of {', '.join(found['people'])} ({marks})"
    head = ("dimension", "items", "noise\nceiling", *found["judges"])
    yield filled_table(title, head, sections.items(), min_width=14)
    yield panel_table((_name(one), judge, own) for one in found["dimensions"] for judge, own in one["judges"].items())
    if overall is None:
        for judge, judged in found["dimensions"][0]["judges"].items():
            yield f"{judge}: {judged['verdict']['text']}"
    yield found["signature"]


def _overall_table(overall: Report) -> Table:
    """Judges over all dimensions, best first, and the noise ceiling below them."""
    following = dict(pairwise(judge["judge"] for judge in overall["judges"] if judge["cluster"] is not None))
    rows: list[Sequence[str | Text]] = []
    for judge in overall["judges"]:
        name = judge["judge"]
        p = turned(overall, name, following[name])["p_adjusted"] if name in following else None
        rows.append(
            (
                name,
                "none" if judge["cluster"] is None else str(judge["cluster"]),
                ranged(judge["spearman"]),
                signed_ranged(judge["like_for_like"]["difference"]),
                percent_ranged(judge["share_of_panel_ceiling"]),
                "" if p is None else f"{p:.3f}",
            )
        )
    rows.append((bold("noise ceiling"), "", bold(ranged(overall["people"]["panel_mean"])), "", "", ""))
    title = f"judges over {overall['n_dimensions']} dimensions ({overall['n_groups']} groups)"
    head = (
        "judge", "cluster", "mean Spearman\n(95 %)", "difference from\none person", "share of the\nnoise ceiling",
        "p to next\n(Holm)",
    )  # fmt: skip
    return filled_table(title, head, [("", rows)], min_width=14)


def _name(one: Report) -> str:
    return one["dimension"] if one["dataset"] is None else f"{one['dataset']}/{one['dimension']}"
