"""Judges over all dimensions of all datasets: who agrees best with people, is that certain, how far from the ceilings?

Every dimension counts alike: the figure of a judge is the mean of its Spearman correlations. Its share of the noise
ceiling is a ratio of such means; a mean of ratios would depend most on the dimensions on which people hardly agree. A
judge is compared with one person as in `like_for_like`, against the same other people.

All statistics use the same draws, so that differences and ratios are taken draw by draw. Whole groups are drawn within
each dataset, once for all of its dimensions: these are ratings of the same items, and drawing each dimension on its own
would treat them as independent and make the intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np
import pandas as pd

from .frame import Panel
from .judge_report import share_of_panel_ceiling
from .rendering import sentences
from .report.dataset import Pairwise
from .report.others import OverallJudge, OverallPairwise, OverallPeople, OverallReport
from .statistics.agreement import Statistic, spearman
from .statistics.bootstrap import Interval, Resamples, difference, estimate, with_interval
from .statistics.like_for_like import LikeForLike, compared, held_out, pooled
from .statistics.reliability import affordable_draws
from .statistics.significance import ALPHA, bootstrap_p, rank_judges

Pair = TypeVar("Pair", bound=Pairwise)


def overall_report(
    panels: Sequence[Panel], judges: Sequence[str], resamples: int, seed: int, interval: Interval
) -> OverallReport | None:
    """``overall`` of a report on the panels of all dimensions; None with fewer than two or without judges.

    Resamples, seed and kind of intervals are those of `reliability.affordable_draws`.
    """
    panels = [panel for panel in panels if len(panel.items)]
    if len(panels) < 2 or not judges:
        return None
    over = Overall.of(panels, resamples, seed, interval)
    people = [panel.reliability for panel in over.panels]
    means, shares, like_for_like, covered = {}, {}, {}, {}
    for judge in judges:
        judged = [panel.judged(judge) for panel in over.panels]
        spearmans = [result.spearman for result in judged]
        means[judge] = over.mean(spearmans)
        covered[judge] = [statistic.value is not None for statistic in spearmans]
        shares[judge] = over.share(spearmans, [result.panel.reliability.panel_mean for result in judged])
        like_for_like[judge] = over.compared_with_one_person(judge)
    differences = {pair: over.difference(*pair) for pair in combinations(judges, 2)}
    # Without an interval there are no draws to take a p value from
    p = {
        pair: bootstrap_p(over.draws.bootstrap_values(gap.draws))
        for pair, gap in differences.items()
        if gap.low is not None
    }
    # Means over other dimensions are other figures: judges are ranked on the largest set that one of them has, and of
    # several such sets on the one that most judges have
    widest = max(covered.values(), key=lambda has: (sum(has), [*covered.values()].count(has)))
    undefined = Statistic(None, reason="its mean is not over the dimensions of the others")
    comparable = {
        judge: mean if mean.value is None or covered[judge] == widest else undefined for judge, mean in means.items()
    }
    ranking = rank_judges(comparable, {pair: (differences[pair].value or 0.0, value) for pair, value in p.items()})
    report = OverallReport(
        n_dimensions=len(panels),
        n_groups=over.draws.n_groups,
        resamples=over.draws.resamples,
        people=OverallPeople(
            spearman=over.mean([reliability.leave_one_rater_out for reliability in people]),
            panel_mean=over.mean([reliability.panel_mean for reliability in people]),
        ),
        judges=tuple(
            OverallJudge(
                judge=judge,
                cluster=ranking.clusters.get(judge),
                n_dimensions=means[judge].n,
                spearman=means[judge],
                share_of_panel_ceiling=shares[judge],
                like_for_like=like_for_like[judge],
                reason=ranking.unranked.get(judge),
            )
            for judge in (*ranking.clusters, *ranking.unranked)
        ),
        comparisons=tuple(
            OverallPairwise(
                first=pair[0],
                second=pair[1],
                n_dimensions=gap.n,
                difference=gap,
                p=p.get(pair),
                p_adjusted=ranking.p.get(pair),
            )
            for pair, gap in differences.items()
        ),
        text=(),
    )
    ranked = [judge for judge in report.judges if judge.cluster is not None]
    comparisons = [oriented(report.comparisons, ranked[0].judge, judge.judge) for judge in ranked[1:]]
    clear = [comparison for comparison in comparisons if is_significant(comparison)]
    unclear = [comparison for comparison in comparisons if not is_significant(comparison)]
    text = sentences("overall", report=report, ranked=ranked, clear=clear, unclear=unclear)
    return report.model_copy(update={"text": tuple(text)})


def oriented(comparisons: Iterable[Pair], better: str, worse: str) -> Pair:
    """The comparison of two judges, with the difference taken as the better one minus the worse one."""
    comparison = next(pair for pair in comparisons if {pair.first, pair.second} == {better, worse})
    if comparison.first == better:
        return comparison
    gap = comparison.difference
    # The negative of an interval has its ends exchanged
    value, low, high = (None if end is None else -end for end in (gap.value, gap.high, gap.low))
    gap = replace(gap, value=value, low=low, high=high)
    return comparison.model_copy(update={"first": better, "second": worse, "difference": gap})


def is_significant(comparison: Pairwise) -> bool:
    """Whether the first of two judges is clearly better."""
    value, p = comparison.difference.value, comparison.p_adjusted
    return value is not None and value > 0 and p is not None and p < ALPHA


@dataclass(frozen=True, eq=False)
class Overall:
    """The panels of all dimensions, on the same draws."""

    panels: Sequence[Panel]
    draws: Resamples  # over the items of all datasets
    places: Sequence[np.ndarray]  # for each dimension, positions of its items among all items

    @classmethod
    def of(cls, panels: Sequence[Panel], resamples: int, seed: int, interval: Interval) -> Overall:
        """Draws whole clusters within each dataset."""
        rows = pd.concat([panel.items.assign(dataset=panel.dataset or "") for panel in panels])
        rows = rows.set_index(["dataset", "pair_id"])
        items = rows.loc[~rows.index.duplicated()]
        # Dimensions of one dataset share their items, and get their parts of the same draws
        positions = items.index.get_indexer(rows.index)
        places = np.split(positions, np.cumsum([len(panel.items) for panel in panels])[:-1])
        datasets = items.index.get_level_values("dataset").tolist()
        draws = affordable_draws(items["cluster"].tolist(), resamples, seed, interval, datasets)
        redrawn = [replace(panel, draws=draws.select(place)) for panel, place in zip(panels, places, strict=True)]
        return cls(redrawn, draws, places)

    def mean(self, statistics: Sequence[Statistic]) -> Statistic:
        """Mean of the statistics that are defined, with their number as `n`; undefined if none is."""
        defined = [statistic for statistic in statistics if statistic.value is not None]
        if not defined:
            reasons = dict.fromkeys(statistic.reason for statistic in statistics)
            return Statistic(None, reason="; ".join(str(reason) for reason in reasons))
        value = float(np.mean([statistic.value or 0.0 for statistic in defined]))
        drawn = np.mean([statistic.draws for statistic in defined], axis=0)
        return with_interval(
            Statistic(value, n=len(defined), dropped=len(statistics) - len(defined)), drawn, self.draws
        )

    def share(self, own: Sequence[Statistic], ceilings: Sequence[Statistic]) -> Statistic:
        """Mean Spearman divided by mean ceiling, over the dimensions that have both."""
        both = [pair for pair in zip(own, ceilings, strict=True) if all(side.value is not None for side in pair)]
        if not both:
            return Statistic(None, reason="no dimension has both a Spearman and a ceiling")
        judge, ceiling = (self.mean(side) for side in zip(*both, strict=True))
        share = share_of_panel_ceiling(judge, ceiling, self.draws)
        return replace(share, dropped=len(own) - len(both)) if share.value is not None else share

    def compared_with_one_person(self, judge: str) -> LikeForLike:
        """Compare a judge with one person, who is the same rater in all dimensions."""
        results, counted_items = [], [np.empty(0, dtype=np.intp)]
        for panel, positions in zip(self.panels, self.places, strict=True):
            score = panel.scores.get(judge, np.full(len(panel.items), np.nan))
            results.append(held_out(score, panel.table, panel.draws))
            counted_items.append(positions[results[-1].items])
        items = np.unique(np.concatenate(counted_items))
        comparison = compared(pooled(results), self.draws.select(items), sum(1 for result in results if result.raters))
        return replace(comparison, n_items=len(items))

    def difference(self, first: str, second: str) -> Statistic:
        """Difference between the mean Spearman of two judges, over the items and dimensions that both have."""
        gaps = []
        for panel in self.panels:
            if first in panel.scores and second in panel.scores:
                # Items that one of them did not score would make the difference one of items
                both = panel.select(panel.scored(first, second))
                of_first, of_second = (
                    estimate(spearman, both.scores[judge], both.human, resamples=both.draws)
                    for judge in (first, second)
                )
                gaps.append(difference(of_first, of_second, both.draws))
        gaps = [gap for gap in gaps if gap.value is not None]
        return self.mean(gaps) if gaps else Statistic(None, reason="on no dimension both have an agreement")
