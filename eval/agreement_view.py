"""What `empathy-judge agreement` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from . import numerals
from .overall_view import overall_table
from .panel_view import panel_table
from .ranking_view import ranking_table, unranked
from .report_schema import LikeForLikeReport, StatisticReport
from .statistics.krippendorff import Distance
from .terminal import new_table
from .verdict import few_raters

_REASONS_SHOWN = 10
_EXPLAINED = ("no_scores", "constant", "against", "beyond_possible")  # verdicts that a word does not explain


def agreement_views(found: Mapping[str, Any], alpha: Distance) -> Iterator[Table | str]:
    """Tables of people, judges, systems and pairs, a verdict on each judge, and why values are missing.

    Args:
        found: From `agreement_table.measure_agreement`.
        alpha: The distance of Krippendorff's alpha that is shown.
    """
    notes: dict[str, None] = {}
    yield _people(found, alpha, notes)
    if found["judges"]:
        yield _judges(found, notes)
        yield panel_table(
            (_name(one), judge, own) for one in found["dimensions"] for judge, own in one["judges"].items()
        )
    if found["overall"] is not None:
        yield overall_table(found["overall"])
        yield from found["overall"]["text"]
    rankings = {_name(one): one["ranking"] for one in found["dimensions"] if one["ranking"] is not None}
    if rankings:
        yield ranking_table("judge against judge", rankings)
        notes |= dict.fromkeys(unranked(rankings))
    if any(judged["system_level"] for one in found["dimensions"] for judged in one["judges"].values()):
        yield _systems(found, notes)
    if any("pairs" in one for one in found["dimensions"]):
        yield _pairs(found, notes)
    for one in found["dimensions"]:
        for judge, own in one["judges"].items():
            if own["verdict"]["kind"] in _EXPLAINED:
                yield f"{_name(one)}, {judge}: {own['verdict']['text']}"
    reasons = list(notes)
    yield from reasons[:_REASONS_SHOWN]
    if len(reasons) > _REASONS_SHOWN:
        yield f"... and {len(reasons) - _REASONS_SHOWN} more values or intervals that are missing (see --json)"


def _people(found: Mapping[str, Any], alpha: Distance, notes: dict[str, None]) -> Table:
    table = _table(
        f"people: {', '.join(found['people'])}",
        (
            "dimension",
            "n",
            "people",
            f"alpha\n({alpha})",
            "ICC\n(A,1)",
            "one against the\nothers (95 %)",
            "best\npossible",
        ),
    )
    for one in found["dimensions"]:
        people = one["people"]
        where = f"{_name(one)}, people"
        best = people["panel_mean"]
        _note(best, where, notes)
        table.add_row(
            Text(_name(one)),
            str(people["n_items"]),
            str(people["n_raters"]),
            numerals.number(people["alpha"][alpha]["value"]),
            numerals.number(people["icc"]["ICC(A,1)"]["value"]),
            _ranged(people["spearman"], where, notes),
            numerals.number(best["value"]),
        )
    return table


def _judges(found: Mapping[str, Any], notes: dict[str, None]) -> Table:
    table = _table(
        "judges with the mean of the people",
        ("judge", "n", "Spearman (95 %)", "difference from\none person (95 %)", "verdict"),
    )
    for one in found["dimensions"]:
        table.add_section()
        table.add_row(Text(_name(one), style="bold"))
        for judge, own in one["judges"].items():
            where = f"{_name(one)}, {judge}"
            table.add_row(
                Text(judge),
                str(own["n_items"]),
                _ranged(own["spearman"], where, notes),
                _beside(own["like_for_like"], where, notes),
                own["verdict"]["kind"].replace("_", " "),
            )
    return table


def _systems(found: Mapping[str, Any], notes: dict[str, None]) -> Table:
    table = _table("system level", ("judge", "systems", "Spearman (95 %)", "Pearson", "Kendall"))
    for one in found["dimensions"]:
        table.add_section()
        table.add_row(Text(_name(one), style="bold"))
        for judge, own in one["judges"].items():
            level = own["system_level"]
            table.add_row(
                Text(judge),
                str(level["n_systems"]),
                _ranged(level["spearman"], f"{_name(one)}, {judge}, system level", notes),
                numerals.number(level["pearson"]["value"]),
                numerals.number(level["kendall"]["value"]),
            )
    return table


def _pairs(found: Mapping[str, Any], notes: dict[str, None]) -> Table:
    kappa = f"quadratic kappa\n({found['kappa_weights']})"
    table = _table("pairs", ("pair", "n", "Spearman (95 %)", "Pearson", "Kendall", kappa))
    for one in found["dimensions"]:
        table.add_section()
        table.add_row(Text(_name(one), style="bold"))
        for pair in one["pairs"]:
            names = f"{pair['first']}, {pair['second']}"
            table.add_row(
                Text(names),
                str(pair["n_items"]),
                _ranged(pair["spearman"], f"{_name(one)}, {names}", notes),
                numerals.number(pair["pearson"]["value"]),
                numerals.number(pair["kendall"]["value"]),
                numerals.number(pair["quadratic_kappa"]["value"]),
            )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    """Where the terminal is narrow, the first column folds and numbers stay whole."""
    table = new_table(title)
    for position, column in enumerate(columns):
        if position == 0:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def _name(one: Mapping[str, Any]) -> str:
    return one["dimension"] if one["dataset"] is None else f"{one['dataset']}/{one['dimension']}"


def _ranged(statistic: StatisticReport, where: str, notes: dict[str, None]) -> str:
    """Value and interval; what is missing is noted with its reason."""
    _note(statistic, where, notes)
    return numerals.ranged(statistic)


def _beside(found: LikeForLikeReport, where: str, notes: dict[str, None]) -> str:
    _note(found["difference"], where, notes)
    if few := few_raters(found):
        notes[f"{name}, {few}"] = None
    return numerals.signed_ranged(found["difference"])


def _note(statistic: StatisticReport, where: str, notes: dict[str, None]) -> None:
    if statistic["reason"] is not None:
        notes[f"{where}: {statistic['reason']}"] = None
