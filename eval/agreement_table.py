"""Agreement of people and judges on a plain long table (`annotations`), without audio.

People are the annotators that are not named as judges. `measure_agreement` returns what ``empathy-judge agreement
--json`` prints. A *statistic* is an object with the fields of `agreement.Statistic`; an undefined one has the value
null and a reason. Intervals (95 %) come from the bootstrap over clusters, except those of ICC on complete panels.

- ``schema_version``, ``table`` (the file), ``sha256`` (of it), ``command``, ``people``, ``judges``, ``left_out``
  (annotators that do not count), ``kappa_weights`` (``scores`` or ``ranks``; see `kappa`), ``cluster`` (``group`` or
  ``system``), ``interval`` (``percentile`` or ``bca``), ``resamples``, ``seed``
- ``overall``: the judges over all dimensions (``overall`` of `report_schema`); null with fewer than two dimensions or
  without judges
- ``dimensions``: a list, one object per dataset and dimension, in the order of the table:

  - ``dataset`` (null where the table names none), ``dimension``
  - ``missing_scores``: annotator -> items whose score is empty or NaN
  - ``people``: ``n_items`` (scored by at least one of them), ``n_groups``, ``n_raters``, ``n_ratings``, ``resamples``
    and as statistics: ``spearman`` (leave-one-rater-out ceiling), ``panel_mean`` (highest Spearman that a judge can be
    expected to reach with the mean of these people), ``split_half``, ``panel_reliability``, ``krippendorff_alpha``
    (interval distance), ``raters`` (each against the mean of the others), ``split_half_by_item``, ``icc`` (by form:
    `icc.FORMS`), ``alpha`` (by distance: `krippendorff.DISTANCES`); see `reliability`
  - ``judges``: judge -> agreement with the mean of the people. ``n_items`` scored by it and by people, ``n_unscored``
    scored by people alone; ``ceiling`` and ``panel_ceiling``: ``spearman`` and ``panel_mean`` of the people on the
    items of this judge; all fields of a judge (`report_schema`), the scale being from the lowest to the highest
    score by people, ``system_level`` null where the table has no systems
  - ``ranking``: the judges against each other (`report_schema`); null with fewer than two
  - ``pairs``: only where asked for; every two annotators, ``first`` and ``second``, over the ``n_items`` that both
    scored: the statistics ``spearman, pearson, kendall`` (tau-b), ``tau_c, linear_kappa, quadratic_kappa``

Tau-c has no interval, and tau-b none beyond `MAX_KENDALL_ITEMS` items: its time grows with their square.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from ..data_modules.errors import UserError
from ..data_modules.ratings import RatingTable
from .annotations import Annotations, Block
from .compare import ranking_report
from .judge_report import MAX_KENDALL_ITEMS, Judged, judge_report
from .overall import RatedBlock, overall_report
from .report_schema import RankingReport
from .statistics.agreement import MIN_ITEMS, Statistic, as_report, is_constant, kendall, pearson, spearman, tau_c
from .statistics.bootstrap import Interval, Resamples, estimate
from .statistics.kappa import KappaDistance, weighted_kappa
from .statistics.reliability import Reliability, affordable_draws, measure, rated_items, reliability_report

SCHEMA_VERSION = 3

Cluster = Literal["group", "system"]


def measure_agreement(
    annotations: Annotations,
    judges: Sequence[str],
    *,
    pairs: bool = False,
    kappa_weights: KappaDistance = "scores",
    cluster: Cluster = "group",
    interval: Interval = "percentile",
    resamples: int = 1000,
    seed: int = 0,
    command: str = "",
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """All of the module's description.

    Args:
        annotations: The table, of the annotators that count.
        judges: Which of them are judges.
        pairs: Compare every two annotators, too.
        kappa_weights: The distances of weighted kappa.
        cluster: The column whose values intervals draw, and permutations exchange, whole.
        interval: The kind of bootstrap intervals.
        resamples: Bootstrap resamples; fewer where there are very many groups (`reliability.affordable_draws`).
        seed: Of the resamples and of the halvings of the panel.
        command: As it was typed.
        left_out: Annotators that the caller took out of the table.

    Raises:
        UserError: If a judge is not in the table, everybody is a judge, or a number is negative.
    """
    for option, value in (("--resamples", resamples), ("--seed", seed)):
        if value < 0:
            raise UserError(f"{option} {value}: expected 0 or more")
    annotations.check(judges, "--judges")
    people = [name for name in annotations.annotators if name not in judges]
    if not people:
        raise UserError(f"--judges names every annotator of {annotations.path}; expected at least one person is left")
    judges = list(dict.fromkeys(judges))
    if cluster == "system" and not annotations.has_systems:
        raise UserError(f"--cluster system: {annotations.path} has no column 'system'; expected group")
    table = _Table(people, judges, annotations.has_systems, kappa_weights, cluster, interval, resamples, seed)
    console = Console(stderr=True)
    blocks = track(
        list(annotations.blocks()), "dimensions", console=console, disable=not console.is_terminal, transient=True
    )
    measured = [table.measure(block) for block in blocks]
    return {
        "schema_version": SCHEMA_VERSION,
        "table": str(annotations.path),
        "sha256": hashlib.sha256(annotations.path.read_bytes()).hexdigest(),
        "command": command,
        "people": people,
        "judges": judges,
        "left_out": list(left_out),
        "kappa_weights": kappa_weights,
        "cluster": cluster,
        "interval": interval,
        "resamples": resamples,
        "seed": seed,
        "overall": overall_report([one.rated(judges) for one in measured], judges, resamples, seed, interval),
        "dimensions": [table.report(one, pairs=pairs) for one in measured],
    }


@dataclass(frozen=True, eq=False)
class _People:
    """The ratings by people of one dimension.

    Attributes:
        ratings: Those of `Block.ratings` that people gave.
        dimension: Its name.
        items: One row per item that people rated, in the order of `table`.
        table: The ratings.
        draws: Over the items of `table`.
        panel: How well they agree.
    """

    ratings: pd.DataFrame
    dimension: str
    items: pd.DataFrame
    table: RatingTable
    draws: Resamples
    panel: Reliability

    @property
    def mean(self) -> np.ndarray:
        """Mean score by people, in the order of `items`."""
        return self.table.sums / self.table.counts

    @property
    def scale(self) -> tuple[float, float]:
        """Lowest and highest score by people; where these are one, a point above it."""
        if len(self.table.scores) == 0:
            return 0.0, 1.0
        low, high = float(self.table.scores.min()), float(self.table.scores.max())
        return low, high if high > low else low + 1


@dataclass(frozen=True, eq=False)
class _Measured:
    """A dimension of the table.

    Attributes:
        block: Its scores.
        groups: Item -> what is drawn as a whole.
        people: The ratings by people.
        scores: Annotator -> score by item, of those that have any.
    """

    block: Block
    groups: Mapping[str, str]
    people: _People
    scores: Mapping[str, pd.Series]

    def vectors(self, judges: Sequence[str]) -> dict[str, np.ndarray]:
        """Judge -> its scores of the items that people rated, NaN = none."""
        items = self.people.items["pair_id"]
        return {name: self.scores[name].reindex(items).to_numpy(np.float64) for name in judges if name in self.scores}

    def rated(self, judges: Sequence[str]) -> RatedBlock:
        """For the figures over all dimensions."""
        items = self.people.items["pair_id"].tolist()
        return RatedBlock(
            self.block.dataset,
            self.block.dimension,
            self.people.ratings,
            items,
            [self.groups[item] for item in items],
            self.people.mean,
            self.vectors(judges),
        )


@dataclass(frozen=True)
class _Table:
    """What is the same for all dimensions."""

    people: list[str]
    judges: list[str]
    has_systems: bool
    kappa_weights: KappaDistance
    cluster: Cluster
    interval: Interval
    resamples: int
    seed: int

    def measure(self, block: Block) -> _Measured:
        items = block.ratings.drop_duplicates("pair_id")
        column = items["group_id"] if self.cluster == "group" else items["system_id"].fillna(items["pair_id"])
        groups = dict(zip(items["pair_id"], column, strict=True))
        present = {*block.ratings["rater_id"], *block.missing}
        scores = {
            name: block.ratings.loc[block.ratings["rater_id"] == name].set_index("pair_id")["score"]
            for name in (*self.people, *self.judges)
            if name in present
        }
        return _Measured(block, groups, self._people(block, items, groups), scores)

    def report(self, one: _Measured, *, pairs: bool) -> dict[str, Any]:
        people, scores = one.people, one.scores
        report: dict[str, Any] = {
            "dataset": one.block.dataset,
            "dimension": one.block.dimension,
            "missing_scores": dict(one.block.missing),
            "people": reliability_report(people.table, people.draws, people.panel, self.seed),
            "judges": {name: self._judge(scores[name], people) for name in self.judges if name in scores},
            "ranking": self._ranking(one.vectors(self.judges), people),
        }
        if pairs:
            report["pairs"] = [self._pair(*both, scores, one.groups) for both in combinations(scores, 2)]
        return report

    def _ranking(self, vectors: Mapping[str, np.ndarray], people: _People) -> RankingReport | None:
        return ranking_report(vectors, people.mean, people.draws, self.seed) if len(vectors) > 1 else None

    def _people(self, block: Block, items: pd.DataFrame, groups: Mapping[str, str]) -> _People:
        own = block.ratings.loc[block.ratings["rater_id"].isin(self.people)]
        table, draws = rated_items(own, block.dimension, groups, self.resamples, self.seed, self.interval)
        rated = items.loc[items["pair_id"].isin(own["pair_id"])]
        return _People(own, block.dimension, rated, table, draws, measure(table, draws, self.seed))

    def _judge(self, scores: pd.Series, people: _People) -> dict[str, Any]:
        score = scores.reindex(people.items["pair_id"]).to_numpy(np.float64)
        scored = ~np.isnan(score)
        items, draws, panel = people.items.loc[scored], people.draws.select(scored), people.panel
        score, human, table = score[scored], people.mean[scored], people.table
        if not scored.all():
            table = RatingTable.of(people.ratings, people.dimension, items["pair_id"].tolist())
            panel = measure(table, draws, self.seed)
        own = estimate(spearman, score, human, resamples=draws)
        judged = Judged(people.items, items, score, human, draws, own)
        report = judge_report(judged, table, panel, scale=people.scale, seed=self.seed)
        return {
            "n_unscored": len(people.items) - len(items),
            "ceiling": as_report(panel.leave_one_rater_out),
            "panel_ceiling": as_report(panel.panel_mean),
            **report,
            "system_level": report["system_level"] if self.has_systems else None,
        }

    def _pair(self, one: str, other: str, scores: Mapping[str, pd.Series], groups: Mapping[str, str]) -> dict[str, Any]:
        common = scores[one].index.intersection(scores[other].index, sort=False)
        x, y = (scores[name].loc[common].to_numpy(np.float64) for name in (one, other))
        draws = affordable_draws([groups[item] for item in common], self.resamples, self.seed, self.interval)
        kappa = partial(weighted_kappa, distance=self.kappa_weights)
        found = {
            "spearman": estimate(spearman, x, y, resamples=draws),
            "pearson": estimate(pearson, x, y, resamples=draws),
            "kendall": _kendall(x, y, draws),
            "tau_c": _tau_c(x, y),
            "linear_kappa": estimate(partial(kappa, weights="linear"), x, y, resamples=draws),
            "quadratic_kappa": estimate(partial(kappa, weights="quadratic"), x, y, resamples=draws),
        }
        constant = [name for name, own in ((one, x), (other, y)) if len(own) >= MIN_ITEMS and is_constant(own)]
        if constant:  # the statistics call the sides judge and human
            reason = f"the scores by {' and '.join(constant)} are constant"
            found = {name: replace(statistic, reason=reason) for name, statistic in found.items()}
        return {"first": one, "second": other, "n_items": len(common), **as_report(found)}


def _kendall(x: np.ndarray, y: np.ndarray, draws: Resamples) -> Statistic:
    if len(x) <= MAX_KENDALL_ITEMS:
        return estimate(kendall, x, y, resamples=draws)
    found = estimate(kendall, x, y)
    reason = f"no interval: {len(x)} items; of Kendall's tau there is one up to {MAX_KENDALL_ITEMS}"
    return found if found.value is None else replace(found, reason=reason)


def _tau_c(x: np.ndarray, y: np.ndarray) -> Statistic:
    found = estimate(tau_c, x, y)
    return found if found.value is None else replace(found, reason="no interval: none is computed for tau-c")
