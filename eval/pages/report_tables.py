"""A report as tables for other programs (CSV) and for papers and model cards (Markdown)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from .. import numerals
from ..asking_words import ASKED_HEAD, SECONDS_MEAN, asked_rows, length_sentences, notes
from ..report_schema import AgreementReport, RankingReport
from ..statistics.agreement import Statistic
from ..views import PANEL_HEAD, PANEL_MEANS, panel_rows
from . import wording
from .listening import listening_sentence
from .report_view import checks_of, drawn_whole

_STATISTIC = {field.name for field in fields(Statistic)}
_COLUMNS = ("dimension", "statistic", "value", "low", "high", "n", "reason")


def statistics_table(report: AgreementReport) -> pd.DataFrame:
    """Every statistic of a report, one row per dimension and statistic.

    Returns:
        Columns ``dimension``, ``statistic`` (its place in the report below the dimension, joined by dots; those of
        checks and slices begin with ``checks.`` and ``slices.``), ``value``, ``low``, ``high``, ``n``, ``reason``.
    """
    rows: list[tuple[Any, ...]] = []
    for name, dimension in report["dimensions"].items():
        found = dict(_statistics("", dimension))
        for row in dimension["mean_of_k_raters"]:
            found |= dict(_statistics(f"mean_of_k_raters.{row['k']}.", row))
        for check, results in report["checks"].items():
            found |= dict(_statistics(f"checks.{check}.", results[name]))
        found |= dict(_statistics("voice_and_words.", report["voice_and_words"].get(name, {})))
        for column, values in report["slices"].items():
            for value, results in values.items():
                found |= dict(_statistics(f"slices.{column}.{value}.", results[name]))
        rows += [
            (name, where, own["value"], own["low"], own["high"], own["n"], own["reason"])
            for where, own in found.items()
        ]
    return pd.DataFrame(rows, columns=pd.Index(_COLUMNS))


def _statistics(prefix: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, branch in tree.items():
        if isinstance(branch, Mapping):
            if set(branch) == _STATISTIC:
                yield f"{prefix}{key}", branch
            else:
                yield from _statistics(f"{prefix}{key}.", branch)


def markdown_report(report: AgreementReport) -> str:
    """Agreement per dimension as a table, the verdicts below it, and the listening checks as a second table."""
    title = f"Agreement of {_plain(report['judge'])} with people"
    lines = [f"### {title}", "", *_origin(report)]
    rows = [
        [
            name,
            f"{own['n_items']} / {own['n_groups']} / {own['n_raters']}",
            numerals.ranged(own["spearman"]),
            numerals.ranged(own["ceiling"]["panel_mean"]),
            numerals.percent(own["share_of_panel_ceiling"]["value"]),
            numerals.signed_ranged(own["like_for_like"]["difference"]),
            own["verdict"]["text"],
            listening_sentence(checks_of(report, name), own["spearman"]).text,
        ]
        for name, own in report["dimensions"].items()
    ]
    head = [
        "dimension", "items / groups / raters", "Spearman [95 %]", "noise ceiling [95 %]", "share of it",
        "difference from one rater [95 %]", "verdict", "does it listen?",
    ]  # fmt: skip
    lines += [*_table(head, rows, numbers=range(1, 6)), "", PANEL_MEANS, ""]
    rows = [[name, *row] for name, own in report["dimensions"].items() for row in panel_rows(own)]
    lines += [*_table(["dimension", *PANEL_HEAD], rows, numbers=range(2, 7)), ""]
    checks = [
        [
            name,
            wording.CHECK_TITLES[check],
            result["expects"],
            numerals.ranged(result["spearman"]),
            numerals.ranged(result["drop"]),
            numerals.percent(_moved(result["mean_change"], result["judge_sd"])),
            str(result["n"]),
        ]
        for name in report["dimensions"]
        for check, result in ((check, results[name]) for check, results in report["checks"].items())
    ]
    if checks:
        head = ["dimension", "listening check", "expects", "Spearman [95 %]", "drop [95 %]", "scores move by", "items"]
        lines += ["Listening checks. Scores move by: mean absolute change / standard deviation of the scores.", ""]
        lines += [*_table(head, checks, numbers=range(3, 7)), ""]
    if said := notes(report):
        lines += [*(f"- {_plain(sentence)}" for sentence in said), ""]
    return "\n".join(lines)


def markdown_comparison(reports: Sequence[AgreementReport], rankings: Mapping[str, RankingReport]) -> str:
    """Judges per dimension in their significance clusters as a table.

    Args:
        reports: One per judge.
        rankings: Dimension -> its ranking.
    """
    by_judge = {report["judge"]: report for report in reports}
    lines = ["### Judges compared", "", *(_origin(reports[0]) if reports else [])]
    head = [
        "dimension", "cluster", "judge", "items", "Spearman [95 %]", "share of the noise ceiling", "verdict",
        "does it listen?",
    ]  # fmt: skip
    rows = []
    for name, ranking in rankings.items():
        for ranked in ranking["judges"]:
            report = by_judge.get(ranked["judge"])
            own = None if report is None else report["dimensions"].get(name)
            cluster = numerals.NONE if ranked["cluster"] is None else str(ranked["cluster"])
            if report is None or own is None:
                said = [numerals.NONE, numerals.number(ranked["spearman"]), numerals.NONE, ranked["reason"] or "", ""]
            else:
                said = [
                    str(own["n_items"]),
                    numerals.ranged(own["spearman"]),
                    numerals.percent(own["share_of_panel_ceiling"]["value"]),
                    own["verdict"]["text"] if ranked["reason"] is None else f"Not ranked: {ranked['reason']}.",
                    listening_sentence(checks_of(report, name), own["spearman"]).text,
                ]
            rows.append([name, cluster, ranked["judge"], *said])
    lines += [*_table(head, rows, numbers=(1, 3, 4, 5)), ""]
    lines += [
        "Judges of one cluster are not told apart from all the others of it (paired permutation, Holm, 0.05).",
        "",
    ]
    rows = [
        [name, report["judge"], *row]
        for name in dict.fromkeys(name for report in reports for name in report["dimensions"])
        for report in reports
        if name in report["dimensions"]
        for row in panel_rows(report["dimensions"][name])
    ]
    head = ["dimension", "judge", *PANEL_HEAD]
    lines += [PANEL_MEANS, "", *_table(head, rows, numbers=range(3, 8)), ""]
    lengths = [
        f"- {_plain(report['judge'])}, {_plain(name)}: {_plain(sentence)}"
        for report in reports
        for name, own in report["dimensions"].items()
        for sentence in length_sentences(own)
    ]
    lines += [*lengths, ""] if lengths else []
    if asked := asked_rows(reports):
        lines += [f"What asking took. {SECONDS_MEAN}", "", *_table(ASKED_HEAD, asked, numbers=range(2, 8)), ""]
    return "\n".join(lines)


def _moved(change: float | None, sd: float | None) -> float | None:
    return None if change is None or sd is None else change / sd


def _origin(report: AgreementReport) -> list[str]:
    ratings = "**synthetic ratings, not given by people**" if report["dataset"]["synthetic"] else "human ratings"
    data = f"{_plain(report['dataset']['name'])}, {_plain(wording.split_name(report))}, {ratings}"
    hashes = f"data `{report['dataset']['content_hash'][:12]}`, split `{report['split_hash'][:12]}`"
    draws = f"{report['resamples']} draws of whole {drawn_whole(report)}, seed {report['seed']}"
    return [f"{data}; {hashes}. Intervals: 95 % cluster bootstrap, {draws}.", ""]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    rule = ["---:" if column in numbers else "---" for column in range(len(head))]
    return [
        _row(head),
        f"| {' | '.join(rule)} |",
        *(_row([cell if column in numbers else _plain(cell) for column, cell in enumerate(row)]) for row in rows),
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: on one line, without markup."""
    return re.sub(r"([\\`*_\[\]<>|~$#])", r"\\\1", " ".join(text.split()))
