"""A report as tables for other programs (CSV) and for papers and model cards (Markdown, from ``templates``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from .page import markdown, render
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
    return _rendered(
        "agreement.md",
        report=report,
        origin=_origin(report),
        titles=wording.CHECK_TITLES,
        notes=notes(report),
    )


def markdown_comparison(reports: Sequence[AgreementReport], rankings: Mapping[str, RankingReport]) -> str:
    """Judges per dimension in their significance clusters as a table.

    Args:
        reports: One per judge.
        rankings: Dimension -> its ranking.
    """
    names = dict.fromkeys(name for report in reports for name in report["dimensions"])
    every = [(report["judge"], name, own) for report in reports for name, own in report["dimensions"].items()]
    return _rendered(
        "comparison.md",
        reports={report["judge"]: report for report in reports},
        rankings=rankings,
        origin=_origin(reports[0]) if reports else "",
        judged=[(name, judge, own) for name in names for judge, other, own in every if other == name],
        lengths=[(judge, name, sentence) for judge, name, own in every for sentence in length_sentences(own)],
        asked=asked_rows(reports),
        asked_head=ASKED_HEAD,
        seconds_mean=SECONDS_MEAN,
        none_mark=numerals.NONE,
    )


def _rendered(template: str, **values: Any) -> str:
    shared = {"panel_head": PANEL_HEAD, "panel_means": PANEL_MEANS, "panel_rows": panel_rows, "listening": _listening}
    return render(template, **values, **shared).rstrip("\n") + "\n"


def _listening(report: AgreementReport, name: str) -> str:
    return listening_sentence(checks_of(report, name), report["dimensions"][name]["spearman"]).text


def _origin(report: AgreementReport) -> str:
    ratings = "**synthetic ratings, not given by people**" if report["dataset"]["synthetic"] else "human ratings"
    data = f"{markdown(report['dataset']['name'])}, {markdown(wording.split_name(report))}, {ratings}"
    hashes = f"data `{report['dataset']['content_hash'][:12]}`, split `{report['split_hash'][:12]}`"
    draws = f"{report['resamples']} draws of whole {drawn_whole(report)}, seed {report['seed']}"
    return f"{data}; {hashes}. Intervals: 95 % cluster bootstrap, {draws}."
