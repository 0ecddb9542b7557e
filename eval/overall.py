"""Judges over all dimensions of all datasets: who agrees best with people, is that certain, how far from the ceilings?

Every dimension counts alike: the figure of a judge is the mean of its Spearman correlations. Its share of the noise
ceiling is a ratio of such means; a mean of ratios would hang on those dimensions on which people hardly agree. Beside
one person it stands as in `like_for_like`, against the same other people.

All stands on the same draws, so that differences and ratios are taken draw by draw. Whole groups are drawn within each
dataset, once for all of its dimensions: these are ratings of the same items, and drawing each dimension on its own
would take them for independent and make the intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from .frame import Panel
from .judge_report import share_of_panel_ceiling
from .rendering import sentences
from .results import Report
from .statistics.agreement import Statistic, as_report, spearman
from .statistics.bootstrap import Interval, Resamples, difference, estimate, with_interval
from .statistics.like_for_like import LikeForLike, compared, held_out, pooled
from .statistics.reliability import affordable_draws
from .statistics.significance import ALPHA, bootstrap_p, rank_judges


def overall_report(
    panels: Sequence[Panel], judges: Sequence[str], resamples: int, seed: int, interval: Interval
) -> Report | None:
    """``overall`` of a report on the panels of all dimensions; None with fewer than two or without judges.

    Resamples, seed and kind of intervals are those of `reliability.affordable_draws`.
    """
    panels = [panel for panel in panels if len(panel.items)]
    if len(panels) < 2 or not judges:
        return None
    over = Overall.of(panels, resamples, seed, interval)
    people = [panel.reliability for panel in over.panels]
    means, shares, beside, covered = {}, {}, {}, {}
    for judge in judges:
        judged = [panel.judged(judge) for panel in over.panels]
        own = [one.spearman for one in judged]
        means[judge] = over.mean(own)
        covered[judge] = [one.value is not None for one in own]
        shares[judge] = over.share(own, [one.panel.reliability.panel_mean for one in judged])
        beside[judge] = over.beside_one_person(judge)
    differences = {pair: over.difference(*pair) for pair in combinations(judges, 2)}
    p = {pair: bootstrap_p(over.draws.drawn(own.draws)) for pair, own in differences.items() if own.low is not None}
    most = max(covered.values(), key=lambda has: (sum(has), [*covered.values()].count(has)))
    other = Statistic(None, reason="its mean is not over the dimensions of the others")
    comparable = {judge: own if own.value is None or covered[judge] == most else other for judge, own in means.items()}
    ranking = rank_judges(comparable, {pair: (differences[pair].value or 0.0, own) for pair, own in p.items()})
    report: Report = {
        "n_dimensions": len(panels),
        "n_groups": over.draws.n_groups,
        "resamples": over.draws.resamples,
        "people": {
            "spearman": over.mean([own.leave_one_rater_out for own in people]),
            "panel_mean": over.mean([own.panel_mean for own in people]),
        },
        "judges": [
            {
                "judge": judge,
                "cluster": ranking.clusters.get(judge),
                "n_dimensions": means[judge].n,
                "spearman": means[judge],
                "share_of_panel_ceiling": shares[judge],
                "like_for_like": beside[judge],
                "reason": ranking.unranked.get(judge),
            }
            for judge in (*ranking.clusters, *ranking.unranked)
        ],
        "comparisons": [
            {
                "first": pair[0],
                "second": pair[1],
                "n_dimensions": own.n,
                "difference": own,
                "p": p.get(pair),
                "p_adjusted": ranking.p.get(pair),
            }
            for pair, own in differences.items()
        ],
        "text": [],
    }
    report = as_report(report)
    ranked = [judge for judge in report["judges"] if judge["cluster"] is not None]
    against = [turned(report, ranked[0]["judge"], other["judge"]) for other in ranked[1:]]
    clear = [own for own in against if told_apart(own)]
    unclear = [own for own in against if not told_apart(own)]
    report["text"] = sentences("overall", report=report, ranked=ranked, clear=clear, unclear=unclear)
    return report


def turned(report: Report, better: str, worse: str) -> Report:
    """The comparison of two judges as difference of the better one from the worse one."""
    found = next(own for own in report["comparisons"] if {own["first"], own["second"]} == {better, worse})
    if found["first"] == better:
        return found
    own, ends = found["difference"], {"value": "value", "low": "high", "high": "low"}
    own = {**own, **{end: None if own[other] is None else -own[other] for end, other in ends.items()}}
    return {**found, "first": better, "second": worse, "difference": own}


def told_apart(comparison: Report) -> bool:
    """Whether the first of two judges is clearly better."""
    value, p = comparison["difference"]["value"], comparison["p_adjusted"]
    return value is not None and value > 0 and p is not None and p < ALPHA


@dataclass(frozen=True, eq=False)
class Overall:
    """Dimensions on the same draws."""

    panels: Sequence[Panel]
    draws: Resamples  # over the items of all datasets
    places: Sequence[np.ndarray]  # of each dimension, where its items are among these

    @classmethod
    def of(cls, panels: Sequence[Panel], resamples: int, seed: int, interval: Interval) -> Overall:
        """Draws whole clusters within each dataset."""
        place: dict[tuple[str, str], int] = {}
        clusters: list[str] = []
        places = []
        for panel in panels:
            keys = [(panel.dataset or "", pair_id) for pair_id in panel.items["pair_id"]]
            for key, cluster in zip(keys, panel.items["cluster"], strict=True):
                if place.setdefault(key, len(place)) == len(clusters):
                    clusters.append(cluster)
            places.append(np.array([place[key] for key in keys], dtype=np.intp))
        draws = affordable_draws(clusters, resamples, seed, interval, [dataset for dataset, _ in place])
        own = [replace(panel, draws=draws.select(at)) for panel, at in zip(panels, places, strict=True)]
        return cls(own, draws, places)

    def mean(self, statistics: Sequence[Statistic]) -> Statistic:
        """Over those that are defined, which it counts; undefined where none is."""
        defined = [own for own in statistics if own.value is not None]
        if not defined:
            reasons = dict.fromkeys(own.reason for own in statistics)
            return Statistic(None, reason="; ".join(str(reason) for reason in reasons))
        value = float(np.mean([own.value or 0.0 for own in defined]))
        drawn = np.mean([own.draws for own in defined], axis=0)
        return with_interval(
            Statistic(value, n=len(defined), dropped=len(statistics) - len(defined)), drawn, self.draws
        )

    def share(self, own: Sequence[Statistic], ceilings: Sequence[Statistic]) -> Statistic:
        """Mean over mean, of the dimensions that have both."""
        both = [pair for pair in zip(own, ceilings, strict=True) if all(one.value is not None for one in pair)]
        if not both:
            return Statistic(None, reason="no dimension has both a Spearman and a ceiling")
        judge, ceiling = (self.mean(side) for side in zip(*both, strict=True))
        found = share_of_panel_ceiling(judge, ceiling, self.draws)
        return replace(found, dropped=len(own) - len(both)) if found.value is not None else found

    def beside_one_person(self, judge: str) -> LikeForLike:
        """A person is one rater in all dimensions."""
        found, counted = [], [np.empty(0, dtype=np.intp)]
        for panel, place in zip(self.panels, self.places, strict=True):
            score = panel.scores.get(judge, np.full(len(panel.items), np.nan))
            found.append(held_out(score, panel.table, panel.draws))
            counted.append(place[found[-1].items])
        items = np.unique(np.concatenate(counted))
        beside = compared(pooled(found), self.draws.select(items), sum(1 for own in found if own.raters))
        return replace(beside, n_items=len(items))

    def difference(self, first: str, second: str) -> Statistic:
        """Of the means, over the items and dimensions that both judges have."""
        found = []
        for panel in self.panels:
            if first in panel.scores and second in panel.scores:
                both = panel.select(panel.scored(first, second))
                one, other = (
                    estimate(spearman, both.scores[judge], both.human, resamples=both.draws)
                    for judge in (first, second)
                )
                found.append(difference(one, other, both.draws))
        found = [own for own in found if own.value is not None]
        return self.mean(found) if found else Statistic(None, reason="on no dimension both have an agreement")
