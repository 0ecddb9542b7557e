"""Who is first and who cannot be told apart, in words."""

from __future__ import annotations

from collections.abc import Sequence

from ..numerals import number
from ..report_schema import ComparisonReport, RankingReport
from ..statistics.clusters import ALPHA


def comparison_words(ranking: RankingReport) -> str:
    """One short paragraph on a ranking.

    It names the first cluster, what is behind it, the groups that would tell the two best judges apart where they are
    not, and how many judges have no rank.
    """
    ranked = [judge for judge in ranking["judges"] if judge["cluster"] is not None]
    left_out = len(ranking["judges"]) - len(ranked)
    end = f" {left_out} judge{'s have' if left_out > 1 else ' has'} no rank." if left_out else ""
    if not ranked:
        return f"No judge can be ranked.{end}"
    best = ranked[0]
    said = f"(Spearman {number(best['spearman'])})"
    if len(ranked) == 1:
        return f"Only {best['judge']} {said} can be ranked.{end}"
    clusters: dict[int | None, list[str]] = {}
    for judge in ranked:
        clusters.setdefault(judge["cluster"], []).append(judge["judge"])
    first, *others = clusters.values()
    tied = [_listed(cluster) for cluster in others if len(cluster) > 1]
    if len(first) == 1:
        text = f"{best['judge']} agrees best with people {said}, clearly better than "
        text += "the other." if len(ranked) == 2 else "all others."
        behind = " Behind it, "
    else:
        close = [name for name in first[1:] if not _told_apart(ranking, first[0], name)] or first[1:]
        text = f"{_listed(first)} form one cluster: {best['judge']} is highest {said}, but not clearly better than "
        text += f"{_listed(close, 'or')}.{_needed(ranking, first[0], close[0])}"
        text += " All others are clearly worse." if others else ""
        behind = " Behind them, "
    if tied:
        text += f"{behind}{'; so do '.join([f'{tied[0]} form one cluster', *tied[1:]])}."
    return text + end


def _between(ranking: RankingReport, first: str, second: str) -> ComparisonReport | None:
    return next((own for own in ranking["comparisons"] if {own["first"], own["second"]} == {first, second}), None)


def _told_apart(ranking: RankingReport, first: str, second: str) -> bool:
    found = _between(ranking, first, second)
    return found is not None and found["p_adjusted"] is not None and found["p_adjusted"] < ALPHA


def _needed(ranking: RankingReport, first: str, second: str) -> str:
    """How much data the difference of two judges would take."""
    found = _between(ranking, first, second)
    if found is None or found["groups_needed"] is None:
        return ""
    needed, here = f"{found['groups_needed']:,}", found["n_groups"]
    return f" To tell {first} and {second} apart would take about {needed} groups; here are {here}."


def _listed(names: Sequence[str], last: str = "and") -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else names[0]
