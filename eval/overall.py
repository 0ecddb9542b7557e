"""Judges over all dimensions of all datasets: who agrees best with people, is that certain, how far from the ceilings?

Every dimension counts alike: the figure of a judge is the mean of its Spearman correlations. Its share of the best
possible is a ratio of such means; a mean of ratios would hang on those dimensions on which people hardly agree. Beside
one person it stands as in `like_for_like`, against the same other people.

All stands on the same draws, so that differences and ratios are taken draw by draw. Whole groups are drawn within each
dataset, once for all of its dimensions: these are ratings of the same items, and drawing each dimension on its own
would take them for independent and make the intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ..data_modules.ratings import RatingTable
from . import numerals
from .report_schema import OverallReport
from .statistics.agreement import Statistic, as_report, spearman
from .statistics.bootstrap import Interval, Resamples, difference, estimate, ratio, with_interval
from .statistics.like_for_like import LikeForLike, compared, held_out, pooled
from .statistics.ranking import ALPHA, Ranking, rank_tested
from .statistics.reliability import Reliability, affordable_draws, measure
from .statistics.significance import bootstrap_p
from .verdict import beside_one_rater


@dataclass(frozen=True, eq=False)
class RatedBlock:
    """One dimension of one dataset.

    Attributes:
        dataset: Its name; None where there is only one.
        dimension: Its name.
        ratings: Those that people gave, as `RatingTable.of` takes them.
        pair_ids: The n items that people rated.
        groups: Length n, what is drawn as a whole.
        human: Shape (n,), mean score by people.
        scores: Judge -> scores of the same items, shape (n,), NaN = not scored. Judges that score nothing may be
            missing.
    """

    dataset: str | None
    dimension: str
    ratings: pd.DataFrame
    pair_ids: Sequence[str]
    groups: Sequence[str]
    human: np.ndarray
    scores: Mapping[str, np.ndarray]


def overall_report(
    blocks: Sequence[RatedBlock], judges: Sequence[str], resamples: int, seed: int, interval: Interval
) -> OverallReport | None:
    """``overall`` of `report_schema`; None with fewer than two dimensions or without judges.

    Args:
        blocks: The dimensions.
        judges: Their names.
        resamples: Bootstrap resamples, see `reliability.affordable_draws`.
        seed: Of the draws, and of the halvings of the panels.
        interval: The kind of intervals.
    """
    if len(blocks) < 2 or not judges:
        return None
    drawn = DrawnBlocks.of(blocks, resamples, seed, interval)
    people = [drawn.panel(place, np.ones(len(block.human), dtype=bool)) for place, block in enumerate(blocks)]
    found = {judge: _against_people(judge, drawn) for judge in judges}
    differences = {pair: mean_difference(*pair, drawn) for pair in combinations(judges, 2)}
    p = {pair: _p(own, drawn) for pair, own in differences.items()}
    tested = {pair: (differences[pair].value or 0.0, own) for pair, own in p.items() if own is not None}
    ranking = rank_tested({judge: own.spearman for judge, own in found.items()}, tested)
    report: OverallReport = {
        "n_dimensions": len(blocks),
        "n_groups": drawn.all.n_groups,
        "resamples": drawn.all.resamples,
        "people": {
            "spearman": as_report(_mean([own.leave_one_rater_out for own in people], drawn.all)),
            "panel_mean": as_report(_mean([own.panel_mean for own in people], drawn.all)),
        },
        "judges": _judges(found, ranking),
        "comparisons": [_comparison(pair, own, p[pair], ranking) for pair, own in differences.items()],
        "text": [],
    }
    report["text"] = overall_words(report)
    return report


@dataclass(frozen=True, eq=False)
class DrawnBlocks:
    """The dimensions and draws over the items of all datasets.

    Attributes:
        blocks: The dimensions.
        all: Draws over all items.
        places: Of each dimension, where its items are among these.
        seed: Of the halvings of the panels.
        panels: What `panel` found.
    """

    blocks: Sequence[RatedBlock]
    all: Resamples
    places: Sequence[np.ndarray]
    seed: int
    panels: dict[tuple[int, bytes], Reliability] = field(default_factory=dict)

    @classmethod
    def of(cls, blocks: Sequence[RatedBlock], resamples: int, seed: int, interval: Interval) -> DrawnBlocks:
        place: dict[tuple[str, str], int] = {}
        groups: list[str] = []
        for block in blocks:
            for pair_id, group in zip(block.pair_ids, block.groups, strict=True):
                if place.setdefault((block.dataset or "", pair_id), len(place)) == len(groups):
                    groups.append(group)
        draws = affordable_draws(groups, resamples, seed, interval, [dataset for dataset, _ in place])
        places = [
            np.array([place[block.dataset or "", pair_id] for pair_id in block.pair_ids], dtype=np.intp)
            for block in blocks
        ]
        return cls(blocks, draws, places, seed)

    def seen(self, place: int, kept: np.ndarray) -> Resamples:
        """The draws as some items of a dimension see them; `kept` is a mask."""
        return self.all.select(self.places[place][kept])

    def panel(self, place: int, kept: np.ndarray) -> Reliability:
        """How well people agree on some items of a dimension."""
        block, key = self.blocks[place], (place, kept.tobytes())
        if key not in self.panels:
            pair_ids = [pair_id for pair_id, own in zip(block.pair_ids, kept, strict=True) if own]
            table = RatingTable.of(block.ratings, block.dimension, pair_ids)
            self.panels[key] = measure(table, self.seen(place, kept), self.seed)
        return self.panels[key]

    def scored(self, place: int, judge: str) -> np.ndarray:
        """Which items of a dimension a judge scored, a mask."""
        block = self.blocks[place]
        return ~np.isnan(block.scores[judge]) if judge in block.scores else np.zeros(len(block.human), dtype=bool)

    def agreement(self, place: int, judge: str, kept: np.ndarray) -> Statistic:
        """Spearman of a judge on items of a dimension."""
        block, seen = self.blocks[place], self.seen(place, kept)
        if judge not in block.scores:
            return Statistic(None, reason="0 items")
        score, human = block.scores[judge][kept], block.human[kept]
        return estimate(spearman, score, human, resamples=seen)


@dataclass(frozen=True)
class _Overall:
    """What a judge reaches; see ``overall`` in `report_schema`."""

    spearman: Statistic
    share_of_panel_ceiling: Statistic
    like_for_like: LikeForLike


def _against_people(judge: str, drawn: DrawnBlocks) -> _Overall:
    own: list[Statistic] = []
    panels: list[Reliability] = []
    for place in range(len(drawn.blocks)):
        kept = drawn.scored(place, judge)
        own.append(drawn.agreement(place, judge, kept))
        panels.append(drawn.panel(place, kept))
    return _Overall(
        _mean(own, drawn.all),
        _share(own, [panel.panel_mean for panel in panels], drawn.all),
        _beside_one_person(judge, drawn),
    )


def _beside_one_person(judge: str, drawn: DrawnBlocks) -> LikeForLike:
    found, places = [], [np.empty(0, dtype=np.intp)]
    for block, place in zip(drawn.blocks, drawn.places, strict=True):
        table = RatingTable.of(block.ratings, block.dimension, list(block.pair_ids))
        score = block.scores.get(judge, np.full(table.n_items, np.nan))
        found.append(held_out(score, table, drawn.all.select(place)))
        places.append(place[found[-1].items])
    counted = np.unique(np.concatenate(places))
    beside = compared(pooled(found), drawn.all.select(counted), sum(1 for own in found if own.raters))
    return replace(beside, n_items=len(counted))


def _mean(estimates: Sequence[Statistic], resamples: Resamples) -> Statistic:
    """Over those that are defined, which it counts; undefined where none is."""
    defined = [own for own in estimates if own.value is not None]
    if not defined:
        reasons = dict.fromkeys(own.reason for own in estimates)
        return Statistic(None, reason="; ".join(str(reason) for reason in reasons))
    value = float(np.mean([own.value or 0.0 for own in defined]))
    draws = np.mean([own.draws for own in defined], axis=0)
    point = Statistic(value, n=len(defined), dropped=len(estimates) - len(defined))
    return with_interval(point, draws, resamples)


def _share(own: Sequence[Statistic], ceilings: Sequence[Statistic], resamples: Resamples) -> Statistic:
    """Mean over mean, of the dimensions that have both."""
    both = [
        (judge, top)
        for judge, top in zip(own, ceilings, strict=True)
        if judge.value is not None and top.value is not None
    ]
    if not both:
        return Statistic(None, reason="no dimension has both a Spearman and a ceiling")
    judge, top = (_mean(side, resamples) for side in zip(*both, strict=True))
    if top.value is not None and top.value <= 0:
        return Statistic(None, n=len(both), reason=f"the mean ceiling is {top.value:.3f}: people do not agree")
    return replace(ratio(judge, top, resamples), dropped=len(own) - len(both))


def mean_difference(first: str, second: str, drawn: DrawnBlocks) -> Statistic:
    """Of the means, over the items and dimensions that both judges have."""
    found = []
    for place in range(len(drawn.blocks)):
        kept = drawn.scored(place, first) & drawn.scored(place, second)
        one, other = (drawn.agreement(place, judge, kept) for judge in (first, second))
        if one.value is not None and other.value is not None:
            found.append(difference(one, other, drawn.seen(place, kept)))
    if not found:
        return Statistic(None, reason="on no dimension both have an agreement")
    return _mean(found, drawn.all)


def _p(found: Statistic, drawn: DrawnBlocks) -> float | None:
    return None if found.low is None else bootstrap_p(drawn.all.drawn(found.draws))


def _judges(found: Mapping[str, _Overall], ranking: Ranking) -> list[dict[str, Any]]:
    cluster: Callable[[str], int | None] = dict(zip(ranking.judges, ranking.clusters, strict=True)).get
    return [
        {
            "judge": judge,
            "cluster": cluster(judge),
            "n_dimensions": found[judge].spearman.n,
            "spearman": as_report(found[judge].spearman),
            "share_of_panel_ceiling": as_report(found[judge].share_of_panel_ceiling),
            "like_for_like": as_report(found[judge].like_for_like),
            "reason": ranking.unranked.get(judge),
        }
        for judge in (*ranking.judges, *ranking.unranked)
    ]


def _comparison(pair: tuple[str, str], difference: Statistic, p: float | None, ranking: Ranking) -> dict[str, Any]:
    first, second = pair
    adjusted = None
    if p is not None:
        adjusted = float(ranking.p[ranking.judges.index(first), ranking.judges.index(second)])
    return {
        "first": first,
        "second": second,
        "n_dimensions": difference.n,
        "difference": as_report(difference),
        "p": p,
        "p_adjusted": adjusted,
    }


def overall_words(report: OverallReport) -> list[str]:
    """First a sentence on who is best, then one on each judge beside the ceilings, then who has no rank."""
    ranked = [judge for judge in report["judges"] if judge["cluster"] is not None]
    if not ranked:
        return ["No judge can be ranked."]
    sentences = [_best(report, ranked), *(_beside_people(report, judge) for judge in ranked)]
    sentences += [f"{judge['judge']} has no rank: {judge['reason']}." for judge in report["judges"] if judge["reason"]]
    return sentences


def turned(report: OverallReport, better: str, worse: str) -> dict[str, Any]:
    """The comparison of two judges as difference of the better one from the worse one."""
    found = next(own for own in report["comparisons"] if {own["first"], own["second"]} == {better, worse})
    if found["first"] == better:
        return found
    return {**found, "first": better, "second": worse, "difference": numerals.negated(found["difference"])}


def _best(report: OverallReport, ranked: list[dict[str, Any]]) -> str:
    best, *others = ranked
    said = f"mean Spearman {numerals.ranged(best['spearman'])}"
    start = f"Over {report['n_dimensions']} dimensions {best['judge']}"
    if not others:
        return f"{start} agrees with people at a {said}; no other judge has a rank."
    compared = [turned(report, best["judge"], other["judge"]) for other in others]
    clear, unclear = ([own for own in compared if _told_apart(own) is wanted] for wanted in (True, False))
    better = [f"clearly better than {' and '.join(map(_ahead, clear))}"] if clear else []
    if not unclear:
        return f"{start} agrees best with people ({said}), {better[0]}; p adjusted by Holm."
    better.append(f"not clearly better than {' and '.join(map(_ahead, unclear))}")
    return f"{start} is highest ({said}), {', but '.join(better)}; p adjusted by Holm."


def _told_apart(own: dict[str, Any]) -> bool:
    value = own["difference"]["value"]
    return own["p_adjusted"] is not None and own["p_adjusted"] < ALPHA and value is not None and value > 0


def _ahead(own: dict[str, Any]) -> str:
    return f"{own['second']} (by {numerals.ranged(own['difference'])}, p {numerals.p_value(own['p_adjusted'])})"


def _beside_people(report: OverallReport, judge: dict[str, Any]) -> str:
    return f"{judge['judge']} {' and '.join(_reached(report, judge))}."


def _reached(report: OverallReport, judge: dict[str, Any]) -> Iterator[str]:
    beside, best = judge["like_for_like"], judge["share_of_panel_ceiling"]
    possible = numerals.number(report["people"]["panel_mean"]["value"])
    fewer = "" if judge["n_dimensions"] == report["n_dimensions"] else f" on {judge['n_dimensions']} dimensions"
    if beside["difference"]["value"] is None:
        yield f"stands beside nobody{fewer} ({beside['difference']['reason']})"
    else:
        yield f"is{fewer} {beside['verdict'].replace('rater', 'person')}: {beside_one_rater(beside)}"
    if best["value"] is not None:
        yield f"reaches {numerals.percent_ranged(best)} of the noise ceiling ({possible})"
