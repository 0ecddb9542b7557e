"""Tables and sentences that commands print on judges and people. Templates of pages and Markdown take rows and notes
from here, too: they know this module as ``views``.

The notes below a table say why a value is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from rich.table import Table
from rich.text import Text

from ..core.errors import counted
from .judge_names import HUMAN
from .overall import Pair, oriented
from .rendering import (
    NONE,
    bold,
    counted_statuses,
    dollars,
    effective_raters,
    filled_table,
    number,
    p_value,
    percent,
    ranged,
    seconds,
    sentences,
    signed,
)
from .report.dataset import Prompting, RankedJudge, Ranking, Report
from .report.dimension import DimensionReport
from .report.judge import JudgeReport, SystemLevel
from .report.others import AnnotatorPair, OverallJudge, OverallReport, TableDimension, TableJudge, TableReport
from .report.people import PeopleReport
from .results import joined
from .statistics.agreement import Statistic

if TYPE_CHECKING:
    from .listening import Listening

Ranked = TypeVar("Ranked", RankedJudge, OverallJudge)

_REASONS_SHOWN = 10
# Verdicts that a word in a table does not explain
_EXPLAINED = ("no_scores", "constant", "against", "beyond_possible")

# ---------------------------------------------------------------- rows that all views share

PANEL_HEAD = ("level", "n", "ICC(A,1) [95 %]", "ICC(C,1) [95 %]", "bias [95 %]", "limits of agreement")
PANEL_NOTE = (
    "Judge and panel mean as two raters. ICC(A,1): absolute agreement; ICC(C,1): consistency, a bias costs nothing. "
    "Bias and limits of agreement in rating points, judge minus people."
)


def panel_rows(own: JudgeReport) -> list[list[str]]:
    """A row of `PANEL_HEAD` over items, and one over systems where there are two or more."""
    levels: dict[str, JudgeReport | SystemLevel] = {"items": own}
    if own.system_level is not None and own.system_level.n_systems >= 2:  # null in a table without systems
        levels["systems"] = own.system_level
    rows = []
    for level, at in levels.items():
        lower, upper = at.loa_lower.value, at.loa_upper.value
        limits = NONE if lower is None else f"{signed(lower)} to {signed(upper)}"
        rows.append([level, str(at.icc_a1.n), *map(ranged, (at.icc_a1, at.icc_c1, at.bias)), limits])
    return rows


PROMPTED_HEAD = (
    "judge", "dimension", "$ per 1,000 pairs", "seconds per pair", "failures", "ICC of repeats", "orders disagree",
    "prefers the first",
)  # fmt: skip
PROMPTED_NOTE = (
    "Seconds: what requests took, several at a time, or the time of the whole pass where nobody is prompted."
)


def prompted_rows(reports: Sequence[Report]) -> list[list[str]]:
    """A row of `PROMPTED_HEAD` for every judge and dimension; none where no judge is prompted."""
    rows = []
    for report in reports if any(report.prompting for report in reports) else ():
        for name, result in report.dimensions.items():
            prompting, usage = report.prompting, result.usage
            cost, failures, *answers = [NONE] * 5
            if prompting is not None and usage is not None:
                cost, failures = dollars(prompting.cost_per_1000_pairs), percent(prompting.failure_rate)
                orders = usage.orders.inconsistent, usage.orders.first_preferred
                answers = [ranged(usage.repeats.icc), *(ranged(statistic, percent) for statistic in orders)]
            time = seconds(report.runtime.seconds_per_pair)
            rows.append([report.judge, name, cost, time, failures, *answers])
    return rows


def failed_questions(reports: Iterable[Report]) -> list[str]:
    """A sentence for each prompted judge with questions that failed or were not asked: how many, and why."""
    failed = (report for report in reports if (own := report.prompting) and (own.failed or own.unasked))
    return [f"{report.judge}: {sentences('prompted', report=report)[0]}" for report in failed]


def without_scores(report: Report) -> str | None:
    """A line on the pairs that people rated and a judge did not score; None where there are none, or the judge is a
    rater, who need not have rated all."""
    if report.judge.startswith(HUMAN):
        return None
    found = max((result.coverage for result in report.dimensions.values()), key=lambda own: own.rated - own.scored)
    if not any(result.coverage.rated for result in report.dimensions.values()):
        return f"{report.judge}: no pair is rated"
    if found.rated == found.scored:
        return None
    statuses = {**found.failed, **({"missing": found.missing} if found.missing else {})}
    counts = f"{found.rated - found.scored:,} of {counted(found.rated, 'rated pair')}" if found.scored else "no pair"
    return f"{report.judge}: {counts} {'have no' if found.scored else 'has a'} score: {counted_statuses(statuses)}"


def over_budget(judge: str, prompting: Prompting | None) -> str | None:
    """A line on the questions that a budget left no room for, and what would be enough; None where all were asked."""
    if prompting is None or not prompting.unasked:
        return None
    return f"{judge}: {sentences('budget', prompting=prompting)[0]}"


def notes(report: Report) -> list[str]:
    """Sentences on pairs read in windows, on cost and answers of prompting, on predicted shares of raters, on verdicts
    and on length bias."""
    several = len(report.dimensions) > 1
    lines = sentences("in_windows", report=report) + sentences("prompted", report=report)
    for name, result in report.dimensions.items():
        dimension_lines = sentences("distribution", found=result.rating_distribution)
        dimension_lines += sentences("verdicts", found=result.verdicts) + sentences("length", length=result.length)
        lines += [f"{name}: {sentence}" if several else sentence for sentence in dimension_lines]
    return lines


def split_name(report: Report) -> str:
    """Which pairs were scored."""
    return f"split {report.split}" if report.split is not None else "all pairs"


def cluster_label(report: Report) -> str:
    """The clusters that the intervals of a report draw as wholes, as a plural noun."""
    return f"{report.cluster.removesuffix('_id').replace('_', ' ')}s"


def listening(report: Report, dimension: str) -> Listening:
    """The joint verdict of the listening checks of a dimension."""
    from .listening import listening_sentence

    return listening_sentence(report.checks_of(dimension), report.dimensions[dimension].spearman)


# ---------------------------------------------------------------- evaluate and compare


def evaluation_views(report: Report) -> Iterator[Table | str]:
    """What ``evaluate`` prints: verdicts, a table with one column per dimension, the judge as a rater, notes."""
    title = f"{report.judge} on {report.dataset.name}, {split_name(report)}"
    if report.dataset.synthetic:
        title += " (synthetic ratings)"

    def stated(own: DimensionReport) -> str:
        intervals = own.uncertainty.intervals if own.uncertainty else {}
        return ranged(intervals["90"].covered, percent) if "90" in intervals else ""

    measures: dict[str, Callable[[DimensionReport], str]] = {
        "items / groups / raters": lambda d: f"{d.n_items} / {d.n_groups} / {d.n_raters}",
        "Spearman": lambda d: ranged(d.spearman),
        "noise ceiling (panel mean)": lambda d: ranged(d.ceiling.panel_mean),
        "share of the noise ceiling": lambda d: percent(d.share_of_panel_ceiling.value),
        "difference from one rater": lambda d: ranged(d.like_for_like.difference, signed),
        "effective number of raters": lambda d: effective_raters(d.like_for_like.effective_raters),
        "CCC": lambda d: ranged(d.ccc),
        "mean absolute error": lambda d: ranged(d.mae),
        "90 % intervals cover": stated,
        "two responses: right verdicts": lambda d: ranged(d.verdicts.accuracy) if d.verdicts else "",
        "two responses: Brier score": lambda d: ranged(d.verdicts.brier) if d.verdicts else "",
        "two responses: calibration error": lambda d: ranged(d.verdicts.ece) if d.verdicts else "",
    }
    dimensions = list(report.dimensions.values())
    rows = [(label, *map(cell, dimensions)) for label, cell in measures.items()]
    rows = [row for row in rows if any(row[1:])]
    from .checks import CHECKS  # they change clips, whose decoders a table of ratings does not need

    impossible: dict[str | None, list[str]] = {}  # reason -> checks
    for check, results in report.checks.items():
        title_of_check, correlations = (
            CHECKS[check].title.lower(),
            [results[name].spearman for name in report.dimensions],
        )
        if any(correlation.value is not None for correlation in correlations):
            rows.append((f"{title_of_check}: Spearman", *map(ranged, correlations)))
        else:
            impossible.setdefault(correlations[0].reason, []).append(title_of_check)
    yield filled_table(title, ("", *report.dimensions), [("", rows)])
    yield from (f"Not possible, as {reason}: {', '.join(checks)}." for reason, checks in impossible.items())
    yield panel_table((name, report.judge, result) for name, result in report.dimensions.items())
    for name, result in report.dimensions.items():
        text = f"{result.verdict.text} {listening(report, name).text}"
        yield f"{name}: {text}" if len(dimensions) > 1 else text
    yield from notes(report)
    yield report.signature


def comparison_views(reports: Sequence[Report], rankings: Mapping[str, Ranking]) -> Iterator[Table | str]:
    """What ``compare`` prints of one report per judge and of the rankings, one per dimension."""
    sections: dict[str, list[Sequence[str | Text]]] = {}
    ceilings: dict[str, dict[str, Statistic]] = {}
    for report in reports:
        for name, result in report.dimensions.items():
            like_for_like = result.like_for_like
            row = (
                report.judge,
                ranged(result.spearman),
                percent(result.share_of_panel_ceiling.value),
                ranged(like_for_like.difference, signed),
                effective_raters(like_for_like.effective_raters),
            )
            sections.setdefault(name, []).append(row)
            ceilings.setdefault(name, {})[report.judge] = result.ceiling.panel_mean
    for name, by_judge in ceilings.items():
        # Judges may have scored different items: then the ceiling is that of the best one, as on the page
        judge = rankings[name].judges[0].judge if name in rankings else next(iter(by_judge))
        ceiling = by_judge[judge]
        alike = all(other == ceiling for other in by_judge.values())
        whose = "noise ceiling" if alike else f"noise ceiling, items of {judge}"
        sections[name].append((bold(whose), bold(ranged(ceiling)), "", "", ""))
    head = (
        "judge", "Spearman\n(95 %)", "of the\nceiling", "difference from\none rater (95 %)",
        "effective\nnumber\nof raters",
    )  # fmt: skip
    yield filled_table("judges and people", head, sections.items())
    yield panel_table(
        (name, report.judge, result)
        for name in sections
        for report in reports
        if (result := report.dimensions.get(name)) is not None
    )
    if rankings:
        yield _ranking_table(rankings)
        yield from _unranked(rankings)
    if rows := prompted_rows(reports):
        yield filled_table("what prompting took", PROMPTED_HEAD, [("", rows)], names=2, folds=True)
        yield PROMPTED_NOTE
        yield from failed_questions(reports)
    few_raters: dict[str, None] = {}
    for report in reports:
        for name, result in report.dimensions.items():
            verdict = f"{report.judge}, {name}: {result.verdict.text}"
            shares = sentences("distribution", found=result.rating_distribution)
            yield " ".join([verdict, *shares, *sentences("length", length=result.length)])
            few_raters |= dict.fromkeys(sentences("few_raters", found=result.like_for_like))
    yield from few_raters
    yield joined([report.signature for report in reports])


def panel_table(judges: Iterable[tuple[str, str, JudgeReport]]) -> Table:
    """`panel_rows` of each (dimension, judge, report)."""
    sections: dict[str, list[Sequence[str]]] = {}
    for dimension, judge, result in judges:
        for level, *cells in panel_rows(result):
            name = judge if level == "items" else f"{judge}, {level}"
            sections.setdefault(dimension, []).append((name, *cells))
    title = "judge and panel mean as two raters; bias and limits in rating points"
    head = ("judge", *(column.replace(" [", "\n[") for column in PANEL_HEAD[1:]))
    return filled_table(title, head, sections.items(), folds=True)


def _with_next(judges: Sequence[Ranked], comparisons: Sequence[Pair]) -> Iterator[tuple[Ranked, str, Pair | None]]:
    """Each judge with its cluster and its comparison with the next judge of the ranking."""
    following = dict(pairwise(judge.judge for judge in judges if judge.cluster is not None))
    for judge in judges:
        name, cluster = judge.judge, "none" if judge.cluster is None else str(judge.cluster)
        yield judge, cluster, oriented(comparisons, name, following[name]) if name in following else None


def _ranking_table(rankings: Mapping[str, Ranking]) -> Table:
    """Judges in significance clusters, each with what separates it from the next one."""
    sections: dict[str, list[Sequence[str]]] = {name: [] for name in rankings}
    for name, ranking in rankings.items():
        for judge, cluster, pair in _with_next(ranking.judges, ranking.comparisons):
            gap = ["", "", ""]
            if pair is not None:
                needed = pair.groups_needed
                p = NONE if pair.p_adjusted is None else f"{pair.p_adjusted:.4f}"
                gap = [ranged(pair.difference), p, NONE if needed is None else f"{needed} ({pair.n_groups} now)"]
            sections[name].append((judge.judge, cluster, number(judge.spearman), *gap))
    head = ("judge", "cluster", "Spearman", "ahead of the\nnext by (95 %)", "p (Holm)", "groups to\nseparate them")
    return filled_table("judge against judge", head, sections.items())


def _unranked(rankings: Mapping[str, Ranking]) -> Iterator[str]:
    """Why judges are in no cluster."""
    for name, ranking in rankings.items():
        for judge in ranking.judges:
            if judge.cluster is None:
                yield f"{name}, {judge.judge}: {judge.reason}"


# ---------------------------------------------------------------- tables of scores


def agreement_views(found: TableReport) -> Iterator[Table | str]:
    """What ``agreement`` prints of `agreement_table.measure_agreement`, with Krippendorff's alpha of intervals."""
    dimensions = {dimension.name: dimension for dimension in found.dimensions}
    judged = [
        (name, judge, result) for name, dimension in dimensions.items() for judge, result in dimension.judges.items()
    ]

    def people(name: str, one: PeopleReport) -> Sequence[str]:
        alone, together = ranged(one.spearman), number(one.panel_mean.value)
        within = (number(statistic.value) for statistic in (one.alpha["interval"], one.icc["ICC(A,1)"]))
        return name, str(one.n_items), str(one.n_raters), *within, alone, together

    def of_systems(level: SystemLevel) -> Sequence[str]:
        return str(level.n_systems), ranged(level.spearman), number(level.pearson.value), number(level.kendall.value)

    def of_pair(pair: AnnotatorPair) -> Sequence[str]:
        agreements = (number(statistic.value) for statistic in (pair.pearson, pair.kendall, pair.quadratic_kappa))
        return f"{pair.first}, {pair.second}", str(pair.n_items), ranged(pair.spearman), *agreements

    head = (
        "dimension", "n", "people", "alpha\n(interval)", "ICC\n(A,1)", "leave-one-out\nagreement (95 %)",
        "noise\nceiling",
    )  # fmt: skip
    rows = [people(name, dimension.people) for name, dimension in dimensions.items()]
    yield filled_table(f"people: {', '.join(found.people)}", head, [("", rows)])
    yield from (f"{name}: {one.ranges.text}" for name, one in dimensions.items() if one.ranges is not None)
    if found.judges:
        yield _judges_and_people(found)
        yield panel_table(judged)
    if found.overall is not None:
        yield _overall_table(found.overall)
        yield from found.overall.text
    rankings = {name: dimension.ranking for name, dimension in dimensions.items() if dimension.ranking is not None}
    if rankings:
        yield _ranking_table(rankings)
    if any(result.system_level for _, _, result in judged):
        named = {
            name: [
                (judge, *of_systems(result.system_level))
                for key, judge, result in judged
                if key == name and result.system_level
            ]
            for name in dimensions
        }
        head = ("judge", "systems", "Spearman (95 %)", "Pearson", "Kendall")
        yield filled_table("system level", head, named.items())
    if any(dimension.pairs is not None for dimension in dimensions.values()):
        head = ("pair", "n", "Spearman (95 %)", "Pearson", "Kendall", f"quadratic kappa\n({found.kappa_weights})")
        yield filled_table(
            "pairs", head, ((name, map(of_pair, dimension.pairs or ())) for name, dimension in dimensions.items())
        )
    for name, judge, result in judged:
        if result.verdict.kind in _EXPLAINED:
            yield f"{name}, {judge}: {result.verdict.text}"
    reasons = list(dict.fromkeys(_reasons(dimensions, judged, rankings)))
    yield from reasons[:_REASONS_SHOWN]
    if len(reasons) > _REASONS_SHOWN:
        yield f"... and {len(reasons) - _REASONS_SHOWN} more values or intervals that are missing (see --json)"
    yield found.signature


def _reasons(
    dimensions: Mapping[str, TableDimension],
    judged: Sequence[tuple[str, str, TableJudge]],
    rankings: Mapping[str, Ranking],
) -> Iterator[str]:
    """Why values or intervals of the tables are missing."""

    def of(where: str, *statistics: Statistic) -> Iterator[str]:
        yield from (f"{where}: {statistic.reason}" for statistic in statistics if statistic.reason is not None)

    for name, dimension in dimensions.items():
        yield from of(f"{name}, people", dimension.people.panel_mean, dimension.people.spearman)
    for name, judge, result in judged:
        yield from of(f"{name}, {judge}", result.spearman, result.like_for_like.difference)
        yield from sentences("few_raters", found=result.like_for_like)
    yield from _unranked(rankings)
    for name, judge, result in judged:
        if result.system_level:
            yield from of(f"{name}, {judge}, system level", result.system_level.spearman)
    for name, dimension in dimensions.items():
        for pair in dimension.pairs or ():
            yield from of(f"{name}, {pair.first}, {pair.second}", pair.spearman)


def table_comparison_views(found: TableReport) -> Iterator[Table | str]:
    """What ``compare --table`` prints of `agreement_table.measure_agreement`: first all dimensions, then each."""
    overall = found.overall
    if overall is not None:
        yield _overall_table(overall)
        yield from overall.text
        comparisons = (judge.like_for_like for judge in overall.judges)
        yield from dict.fromkeys(
            note for comparison in comparisons for note in sentences("few_raters", found=comparison)
        )
        yield ""
    yield _judges_and_people(found)
    yield panel_table(
        (dimension.name, judge, result) for dimension in found.dimensions for judge, result in dimension.judges.items()
    )
    if overall is None:
        for judge, result in found.dimensions[0].judges.items():
            yield f"{judge}: {result.verdict.text}"
    yield found.signature


def _judges_and_people(found: TableReport) -> Table:
    """Agreement of judges with the mean of the people, compared with one person's; the noise ceiling is below."""
    sections: dict[str, list[Sequence[str | Text]]] = {}
    for dimension in found.dimensions:
        rows = sections.setdefault(dimension.name, [])
        for judge, result in dimension.judges.items():
            verdict = result.verdict.kind.replace("_", " ")
            verdict = verdict.removesuffix(" than one rater").removesuffix(" from one rater").removesuffix(" to tell")
            difference = ranged(result.like_for_like.difference, signed)
            rows.append((judge, str(result.n_items), ranged(result.spearman), difference, verdict))
        ceiling = number(dimension.people.panel_mean.value)
        rows.append((bold("noise ceiling"), "", bold(ceiling), "", ""))
    head = ("judge", "n", "Spearman\n(95 %)", "difference from\none person (95 %)", "verdict")
    return filled_table(f"judges with the mean of {', '.join(found.people)}", head, sections.items(), min_width=14)


def _overall_table(overall: OverallReport) -> Table:
    """Judges over all dimensions, best first, and the noise ceiling below them."""
    rows: list[Sequence[str | Text]] = []
    for judge, cluster, pair in _with_next(overall.judges, overall.comparisons):
        difference, share = judge.like_for_like.difference, judge.share_of_panel_ceiling
        p = "" if pair is None or pair.p_adjusted is None else p_value(pair.p_adjusted)
        spearman = ranged(judge.spearman)
        rows.append((judge.judge, cluster, spearman, ranged(difference, signed), ranged(share, percent), p))
    rows.append((bold("noise ceiling"), "", bold(ranged(overall.people.panel_mean)), "", "", ""))
    title = f"judges over {counted(overall.n_dimensions, 'dimension')} ({counted(overall.n_groups, 'group')})"
    head = (
        "judge", "cluster", "mean Spearman\n(95 %)", "difference from\none person", "share of the\nnoise ceiling",
        "p to\nnext\n(Holm)",
    )  # fmt: skip
    return filled_table(title, head, [("", rows)], folds=True)
