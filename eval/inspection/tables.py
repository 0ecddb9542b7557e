"""What `empathy-judge inspect` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...data_modules.inspection import Inspection
from ..rendering import number, percent, ranged, signed
from ..statistics.icc import FORMS
from ..statistics.krippendorff import DISTANCES

_SHOWN = 10  # problems of one kind
_RATERS_SHOWN = 25

Facts = Mapping[str, Any]


def inspection_tables(found: Inspection, facts: Facts) -> Iterator[Table]:
    """Tables of counts, durations, ratings, raters and problems, from `inspect_dataset` and `inspection_facts`."""
    title = f"{found.name} ({'synthetic' if found.synthetic else 'human'} ratings)"
    counts = Table("counts", *(escape(name) for name in found.counts), title=Text(title), title_justify="left")
    for fact in next(iter(found.counts.values())):
        counts.add_row(fact.replace("_", " "), *(str(numbers[fact]) for numbers in found.counts.values()))
    yield counts
    table = Table("clips", "number", "shortest (s)", "median (s)", "longest (s)", "together (min)")
    for name, s in found.seconds.items():
        spans = ("-" if value is None else f"{value:.2f}" for value in (s.minimum, s.median, s.maximum))
        table.add_row(name, str(s.count), *spans, f"{s.total / 60:.1f}")
    yield table
    columns = [_ratings(found, name, facts["reliability"][name]) for name in found.scores]
    table = Table("ratings", *(escape(name) for name in found.scores))
    for fact in columns[0]:
        table.add_row(fact, *(column[fact] for column in columns))
    yield table
    for dimension, own in facts["ratings"].items():
        if own["raters"]:
            yield from _raters(dimension, own["raters"])
    yield _problems(found)


def _ratings(found: Inspection, dimension: str, panel: Facts) -> dict[str, str]:
    """The column of a dimension."""
    scores, each = found.scores[dimension], found.raters_per_pair[dimension]
    spread = "-" if each.median is None else f"{each.minimum:g} to {each.maximum:g}, median {each.median:g}"
    return {
        "scale": str(scores["scale"]),
        "mean score": "-" if scores["mean"] is None else f"{scores['mean']:.2f}",
        "raters per pair": spread,
        "leave-one-out human agreement (Spearman)": ranged(panel["spearman"]),
        "noise ceiling of the panel mean": ranged(panel["panel_mean"]),
        "reliability of the panel mean (split-half)": ranged(panel["panel_reliability"]),
        **{form: ranged(panel["icc"][form]) for form in FORMS},
        **{f"Krippendorff's alpha ({distance})": ranged(panel["alpha"][distance]) for distance in DISTANCES},
    }


def _raters(dimension: str, facts: Sequence[Facts]) -> Iterator[Table]:
    """One line per rater, those with a flag first; then the flags."""
    table = Table(title=Text(f"raters of {dimension}"), title_justify="left")
    table.add_column("rater", overflow="fold", min_width=10)
    for header in ("ratings", "mean", "below\nothers", "spread", "Spearman\nwith others", "scale\nused"):
        table.add_column(header, no_wrap=True)
    for own in facts[:_RATERS_SHOWN]:
        cells = (number(own["mean"]), signed(own["severity"]["value"]), number(own["spread"]), ranged(own["agreement"]))
        name = Text(own["rater_id"], overflow="fold")
        table.add_row(name, str(own["n_ratings"]), *cells, percent(own["scale_share"]))
    if len(facts) > _RATERS_SHOWN:
        table.add_row(f"and {len(facts) - _RATERS_SHOWN} more (--json lists all)")
    yield table
    flags = [(own["rater_id"], flag) for own in facts for flag in own["flags"]]
    if flags:
        table = Table(f"to ask raters of {escape(dimension)} about", "rater", "evidence")
        for rater, flag in flags[:_RATERS_SHOWN]:
            table.add_row(flag["kind"], Text(rater, overflow="fold"), Text(flag["evidence"]))
        if len(flags) > _RATERS_SHOWN:
            table.add_row(f"and {len(flags) - _RATERS_SHOWN} more", "", "(--json lists all)")
        yield table


def _problems(found: Inspection) -> Table:
    table = Table("to look at", "where", "what")
    kinds: dict[str, list[tuple[str, str]]] = {}
    for problem in found.problems:
        kinds.setdefault(problem.kind, []).append((f"{problem.pair_id}, {problem.clip}", problem.detail))
    for column, values in found.crossings.items():
        kinds[f"{column} in several splits"] = [(value, ", ".join(splits)) for value, splits in values.items()]
    kinds["without rating"] = [(pair_id, "") for pair_id in found.unrated]
    for kind, places in kinds.items():
        for where, what in places[:_SHOWN]:
            table.add_row(kind, Text(where), Text(what))
        if len(places) > _SHOWN:
            table.add_row(kind, f"and {len(places) - _SHOWN} more", "")
    if table.row_count == 0:
        table.add_row("nothing", "", "")
    return table
