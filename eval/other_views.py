"""What `plan`, `stress`, `challenge`, `inspect` and `leaderboard` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from ..core.errors import counted, names_shown
from .rendering import NONE, counted_statuses, dollars, filled_table, number, p_value, percent, ranged, signed
from .statistics.agreement import Statistic
from .statistics.icc import FORMS
from .statistics.krippendorff import DISTANCES

if TYPE_CHECKING:
    from ..data_modules.overview import Inspection
    from .inspection import InspectionReport
    from .report.leaderboard import LeaderboardReport
    from .report.others import ChallengeReport, PlanReport, StressReport
    from .report.people import PeopleReport
    from .statistics.raters import RaterFacts

_TITLE = 20  # letters
_SHOWN = 10  # problems of one kind
_RATERS_SHOWN = 25


def plan_views(report: PlanReport) -> Iterator[Table | str]:
    """What ``plan`` prints."""
    pilot = report.pilot
    variances = [
        (name or "assumed", *map(number, (own.item, own.group, own.rater, own.residual)))
        for name, own in report.components.items()
    ]
    yield filled_table(report.source, ("variance", "item", "group", "rater", "residual"), [("", variances)])
    effect = f"design effect {number(pilot.design_effect)} (from {pilot.design_effect_from})"
    yield f"reliability of a single rating {number(pilot.single_reliability.value)}, {effect}"
    cells: dict[float, list[tuple[str, ...]]] = {}
    for row in report.rows:
        correlations = map(number, (row.ceiling, row.leave_one_out, row.judge_spearman))
        rest = number(row.standard_error, 3), percent(row.power), dollars(row.cost)
        cells.setdefault(row.raters, []).append((str(row.raters), str(row.items), *correlations, *rest))
    of_judge = f"a judge that agrees with the true scores by {report.agreement:.2f}"
    head = ("items", "noise\nceiling", "leave-\none-out", "judge", "standard\nerror", "power", "cost")
    less = f"{of_judge}, another by {report.difference:g} less"
    yield filled_table(less, ("raters\nper item", *head), [("", rows) for rows in cells.values()])
    needed = [(str(row.raters), str(row.items), str(row.ratings), dollars(row.cost)) for row in report.needed]
    title = f"for {percent(report.power)} power"
    yield filled_table(title, ("raters\nper item", "items", "ratings", "cost"), [("", needed)])
    curves: dict[str, list[tuple[str, ...]]] = {}
    for point in report.learning or ():
        behind = "" if point.behind is None else ranged(point.behind, signed)
        curves.setdefault(point.dimension, []).append((str(point.pairs), ranged(point.spearman), behind))
    if curves:
        head = ("training\npairs", "Spearman of groups\nleft out (95 %)", "all pairs:\nmore by (95 %)")
        yield filled_table("what a probe on the frozen backbone learns", head, curves.items())
    if report.systems:
        head = ("", "spread between\ncontexts", "contexts", "ratings of\neach system")
        found = [(row.dimension, number(row.spread), str(row.contexts), str(row.ratings_per_system))
                 for row in report.systems]  # fmt: skip
        title = f"to tell systems apart by {report.systems[0].difference:g} points, {percent(report.power)} power"
        yield filled_table(title, head, [("", found)])
    yield from (f"{name}: {found.text}" for name, found in (report.ranges or {}).items())
    yield report.sentence
    yield report.assumption


def stress_views(found: StressReport) -> Iterator[Table | str]:
    """What ``stress`` prints: one table for each dimension, the summary in words, and the signature."""
    from .stress import CHECKS  # which loads torch

    for dimension, checks in found.dimensions.items():
        rows = [
            (CHECKS[name].title, ranged(result.gain), percent(result.raised.value), percent(result.caught),
             str(result.gain.n), result.verdict)
            for name, result in checks.items()
        ]  # fmt: skip
        head = [dimension, "gain [95 %]", "raised", "caught", "pairs", "verdict"]
        yield filled_table(f"Gain in {found.unit}s of the judge", head, [("", rows)], min_width=_TITLE)
        for name, result in checks.items():
            if result.reason:
                yield f"{name}: {result.reason}"
    if left_out := found.left_out:
        first = next(iter(left_out.values()))
        pairs = f"{counted(len(left_out), 'pair')} left out, without a reward as recorded"
        yield f"{pairs}: {names_shown(left_out)} (first: {first})"
    yield found.text
    yield found.signature


def challenge_views(found: ChallengeReport) -> Iterator[Table | str]:
    """What ``challenge`` prints: tables (AEQ-Bench: one per dimension), and the signature."""
    rows = []
    for name, result in found.dimensions.items():
        if isinstance(result, Statistic):  # EchoMind
            rows.append((name, str(result.n), ranged(result), "0.50"))
            continue
        head = ("source", "questions", "score\n(95 %)", "right\nquestions", "groups\nall right", "chance")
        cells = [
            (source, str(own.score.n), *map(ranged, (own.score, own.accuracy, own.group_accuracy)), number(own.chance))
            for source, own in result.items()
        ]
        yield filled_table(name, head, [("", cells)])
    if rows:
        yield filled_table("", ("dimension", "comparisons", "matched above crossed (95 %)", "chance"), [("", rows)])
    if failed := found.without_score:
        yield f"{counted(sum(failed.values()), 'pair')} without a score: {counted_statuses(failed)}"
    yield found.signature


# ---------------------------------------------------------------- inspect


def inspection_tables(found: Inspection, facts: InspectionReport) -> Iterator[Table]:
    """Tables of counts, durations, ratings, comparisons, raters and problems, from `inspect_dataset` and
    `inspection_facts`.
    """
    counts = [
        (fact.replace("_", " "), *(str(numbers[fact]) for numbers in found.counts.values()))
        for fact in next(iter(found.counts.values()))
    ]
    title = f"{found.name} ({'synthetic' if found.synthetic else 'human'} ratings)"
    yield filled_table(title, ("counts", *found.counts), [("", counts)])
    clips = []
    for name, s in found.seconds.items():
        spans = ("-" if value is None else f"{value:.2f}" for value in (s.minimum, s.median, s.maximum))
        clips.append((name, str(s.count), *spans, f"{s.total / 60:.1f}"))
    head = ("clips", "number", "shortest (s)", "median (s)", "longest (s)", "together (min)")
    yield filled_table("", head, [("", clips)])
    columns = [_ratings(found, name, facts.reliability[name]) for name in found.scores]
    ratings = [(fact, *(column[fact] for column in columns)) for fact in columns[0]]
    yield filled_table("", ("ratings", *found.scores), [("", ratings)])
    if facts.preferences:
        comparisons = [
            (fact.replace("_", " "), *(str(getattr(compared, fact)) for compared in facts.preferences.values()))
            for fact in ("comparisons", "raters", "ties", "couples", "shared_couples", "unanimous_couples")
        ]
        yield filled_table("", ("comparisons", *facts.preferences), [("", comparisons)])
    for dimension, rating_facts in facts.ratings.items():
        if rating_facts.raters:
            yield from _raters(dimension, rating_facts.raters)
    yield _problems(found)


def _ratings(found: Inspection, dimension: str, panel: PeopleReport) -> dict[str, str]:
    """The column of a dimension."""
    scores, raters = found.scores[dimension], found.raters_per_pair[dimension]
    spread = "-" if raters.median is None else f"{raters.minimum:g} to {raters.maximum:g}, median {raters.median:g}"
    return {
        "scale": str(scores["scale"]),
        "mean score": "-" if scores["mean"] is None else f"{scores['mean']:.2f}",
        "raters per pair": spread,
        "leave-one-out human agreement (Spearman)": ranged(panel.spearman),
        "noise ceiling of the panel mean": ranged(panel.panel_mean),
        "reliability of the panel mean": ranged(panel.panel_reliability),
        **{form: ranged(panel.icc[form]) for form in FORMS},
        **{f"Krippendorff's alpha ({distance})": ranged(panel.alpha[distance]) for distance in DISTANCES},
    }


def _raters(dimension: str, facts: Sequence[RaterFacts]) -> Iterator[Table]:
    """One line per rater, those with a flag first; then the flags."""
    rows: list[Sequence[str]] = [
        (row.rater_id, str(row.n_ratings), number(row.mean), signed(row.severity.value), number(row.spread),
         ranged(row.agreement), percent(row.scale_share))
        for row in facts[:_RATERS_SHOWN]
    ]  # fmt: skip
    if len(facts) > _RATERS_SHOWN:
        rows.append((f"and {len(facts) - _RATERS_SHOWN} more (--json lists all)",))
    head = ("rater", "ratings", "mean", "below\nothers", "spread", "Spearman\nwith others", "scale\nused")
    yield filled_table(f"raters of {dimension}", head, [("", rows)])
    flags = [(flag.kind, rater.rater_id, flag.evidence) for rater in facts for flag in rater.flags]
    if flags:
        shown = flags[:_RATERS_SHOWN]
        if len(flags) > _RATERS_SHOWN:
            shown.append((f"and {len(flags) - _RATERS_SHOWN} more", "", "(--json lists all)"))
        yield filled_table(f"to ask raters of {dimension} about", ("what", "rater", "evidence"), [("", shown)], names=3)


def _problems(found: Inspection) -> Table:
    kinds: dict[str, list[tuple[str, str]]] = {}
    for problem in found.problems:
        kinds.setdefault(problem.kind, []).append((f"{problem.pair_id}, {problem.clip}", problem.detail))
    for column, values in found.crossings.items():
        kinds[f"{column} in several splits"] = [(value, ", ".join(splits)) for value, splits in values.items()]
    kinds["without rating"] = [(pair_id, "") for pair_id in found.unrated]
    rows = []
    for kind, details in kinds.items():
        rows += [(kind, *detail) for detail in details[:_SHOWN]]
        if len(details) > _SHOWN:
            rows.append((kind, f"and {len(details) - _SHOWN} more", ""))
    return filled_table("", ("to look at", "where", "what"), [("", rows or [("nothing", "", "")])], names=3)


def board_views(found: LeaderboardReport) -> Iterator[Table | str]:
    """What ``leaderboard`` prints: for each dimension what may be said, then the systems in their clusters."""
    for board in found.boards:
        yield from board.text
        by_people, against = board.source != "judge", {row.system: row for row in board.against}
        head = [board.dimension, "people\n[95 %]" if by_people else "judge\n[95 %]"]
        head += ["judge alone\n[95 %]"] * by_people
        head += [f"less {board.baseline}\n[95 %]", "p", "wins", "pairs"] + ["rated"] * by_people
        clusters: dict[str, list[list[str]]] = {}
        for row in board.systems:
            cells = [row.system, ranged(row.mean), *[ranged(row.judge)] * by_people]
            versus = against.get(row.system)
            cells += ["baseline", NONE] if versus is None else [ranged(versus.difference, signed), p_value(versus.p)]
            cells += [percent(row.win_rate), str(row.n_pairs), *[str(row.n_rated)] * by_people]
            clusters.setdefault("" if row.cluster is None else f"cluster {row.cluster}", []).append(cells)
        yield filled_table("Which system sounds better?", head, clusters.items(), folds=True)
    yield found.signature
