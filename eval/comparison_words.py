"""Who is first and who cannot be told apart, in words."""

from __future__ import annotations

from collections.abc import Sequence

from .report_schema import RankingReport
from .wording import number


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
        behind = " Behind it, these data cannot rank "
    else:
        text = f"These data cannot rank {_listed(first)}: {best['judge']} is highest {said}"
        text += f".{_needed(ranking, first[0], first[1])}"
        text += " All others are clearly worse." if others else ""
        behind = " Nor can they rank "
    if tied:
        text += f"{behind}{'; nor '.join(tied)}."
    return text + end


def _needed(ranking: RankingReport, first: str, second: str) -> str:
    """How much data the difference of the two best would take, where they are not told apart."""
    for own in ranking["comparisons"]:
        if {own["first"], own["second"]} == {first, second}:
            if own["p_adjusted"] is not None and own["p_adjusted"] < 0.05:
                return f" {first} and {second} differ from each other, though."
            if own["groups_needed"] is not None:
                needed, here = f"{own['groups_needed']:,}", own["n_groups"]
                return f" To tell {first} and {second} apart would take about {needed} groups; here are {here}."
    return ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}"
