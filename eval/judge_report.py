"""Everything measured of one judge on one dimension, whatever its items came from: a dataset or a plain table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..data_modules.ratings import RatingTable
from .statistics.agreement import STATISTICS, Statistic, as_report, spearman, tau_c
from .statistics.bootstrap import Interval, Resamples, estimate, ratio
from .statistics.calibration import (
    MAPPINGS,
    calibration_curve,
    calibration_error,
    calibration_intercept,
    calibration_slope,
    mapped_errors,
    scale_use,
)
from .statistics.group_level import group_correlation, top_1
from .statistics.like_for_like import like_for_like
from .statistics.mean_of_raters import raters_ceiling
from .statistics.pairwise import item_pairs
from .statistics.reliability import Reliability
from .statistics.systems import (
    MIN_SYSTEMS,
    SYSTEM_STATISTICS,
    soft_pairwise_accuracy,
    system_agreement,
    system_means,
    system_pairwise_accuracy,
)
from .statistics.two_way import for_other_items_and_raters, for_other_raters
from .verdict import verdict

MAX_KENDALL_ITEMS = 2000
"""Most items of an interval of Kendall's tau-b, whose time grows with their square."""

_DRAWN_VALUES = 40_000_000  # resamples x items of an interval beside the main statistics, a percentile interval


@dataclass(frozen=True, eq=False)
class Judged:
    """The items of one dimension, and those n of them that have a rating and a score.

    Attributes:
        all_items: The dimension's rows of `evaluate.Evaluation.items`.
        items: The rows with a rating and a score.
        score: Shape (n,), rating points.
        human: Shape (n,), mean over raters, rating points.
        resamples: Draws over the groups of the n items.
        spearman: Of score and human, with its draws.
    """

    all_items: pd.DataFrame
    items: pd.DataFrame
    score: np.ndarray
    human: np.ndarray
    resamples: Resamples
    spearman: Statistic

    @classmethod
    def of(
        cls,
        all_items: pd.DataFrame,
        clusters: Mapping[str, str],
        resamples: int,
        seed: int,
        interval: Interval = "percentile",
    ) -> Judged:
        """Selects the items and draws `resamples` times from their clusters, given by pair id."""
        items = all_items.loc[all_items["human_mean"].notna() & all_items["score"].notna()]
        score, human = items["score"].to_numpy(np.float64), items["human_mean"].to_numpy(np.float64)
        names = np.array([clusters[pair_id] for pair_id in items["pair_id"]], dtype=str)
        drawn = Resamples.draw(names, resamples, seed, interval)
        return cls(all_items, items, score, human, drawn, estimate(spearman, score, human, resamples=drawn))


def judge_report(
    judged: Judged,
    table: RatingTable,
    panel: Reliability,
    *,
    scale: tuple[float, float],
    higher_is_better: bool = True,
    seed: int,
) -> dict[str, Any]:
    """Agreement of a judge with the mean of its raters, beside what these allow; the fields are in `report_schema`.

    Args:
        judged: The items that have a score and a rating.
        table: The ratings of these items.
        panel: How well the raters agree on them.
        scale: Lowest and highest rating.
        higher_is_better: Which end of the scale is the good one.
        seed: Of folds and permutations.
    """
    score, human, draws = judged.score, judged.human, judged.resamples
    contexts = np.unique(judged.items["group_id"].to_numpy(str), return_inverse=True)[1]
    few = draws.percentile(max(100, _DRAWN_VALUES // max(1, len(score))))
    own = judged.spearman
    sign = 1.0 if higher_is_better else -1.0
    report = as_report(
        {
            "n_items": len(score),
            "judge": distribution(score),
            "human": distribution(human),
            "spearman": own,
            **{name: _agreement(name, judged) for name in STATISTICS if name != "spearman"},
            "tau_c": _without_interval(estimate(tau_c, score, human), "none is computed for tau-c"),
            "spearman_by_rater": for_other_raters(score, table),
            "spearman_two_way": for_other_items_and_raters(score, table, own, draws),
            "share_of_panel_ceiling": share_of_panel_ceiling(own, panel.panel_mean, draws),
            "like_for_like": like_for_like(score, table, draws),
            "item_pairs": item_pairs(score, human, few, seed),
            "within_group": {
                "spearman": group_correlation("spearman", score, human, contexts, few),
                "kendall": group_correlation("kendall", score, human, contexts, few),
                "top_1": top_1(sign * score, sign * human, contexts, few),
            },
            "scale_use": scale_use(score, human, *scale, few),
            "calibration": _calibration(judged, few, seed),
            "system_level": _system_level(judged, few, seed),
        }
    )
    return report | {"verdict": as_report(verdict(report))}


_MEANS_OF = (1, 2, 3, 5)


def mean_of_raters(table: RatingTable, panel: Reliability, resamples: Resamples, seed: int) -> list[dict[str, Any]]:
    """What the mean of 1, 2, 3 and 5 raters reaches against the mean of the others, as far as the panel allows.

    Args:
        table: The ratings.
        panel: How well the raters agree.
        resamples: Draws over the items of `table`.
        seed: Of the choices of raters.
    """
    found = [(k, raters_ceiling(table, panel.panel_reliability, resamples, k, seed)) for k in _MEANS_OF]
    return [
        {"k": k, "expected": own.expected, "measured": own.measured}
        for k, own in found
        if own.measured.value is not None
    ]


def share_of_panel_ceiling(own: Statistic, ceiling: Statistic, resamples: Resamples) -> Statistic:
    """The judge's Spearman as a share of the noise ceiling on the same items, from the same draws.

    Returns:
        Undefined, with the reason, without a Spearman or where the ceiling is missing or not above 0.
    """
    top = ceiling.value
    if own.value is not None and top is None:
        return Statistic(None, n=own.n, reason=f"no ceiling: {ceiling.reason}")
    if top is not None and top <= 0:
        return Statistic(None, n=own.n, reason=f"the ceiling is {top:.3f}: the raters do not agree")
    return ratio(own, ceiling, resamples)


def _system_level(judged: Judged, resamples: Resamples, seed: int) -> dict[str, Any]:
    """Agreement of system means over the judged items that name a system."""
    named = judged.items["system_id"].notna().to_numpy(bool)
    systems = judged.items["system_id"][named].tolist()
    score, human, seen = judged.score[named], judged.human[named], resamples.select(named)
    judge_means, human_means = system_means(systems, score), system_means(systems, human)
    if len(judge_means) >= MIN_SYSTEMS:
        found: dict[str, Statistic] = system_agreement(systems, score, human, seen)
    else:
        reason = f"{len(judge_means)} systems, at least {MIN_SYSTEMS} needed"
        found = dict.fromkeys(SYSTEM_STATISTICS, Statistic(None, n=len(judge_means), reason=reason))
    return {
        "n_systems": len(judge_means),
        **found,
        "pairwise_accuracy": system_pairwise_accuracy(systems, score, human, seen),
        "soft_pairwise_accuracy": soft_pairwise_accuracy(
            systems, judged.items["group_id"][named].tolist(), score, human, seed=seed
        ),
        "systems": [
            {
                "system_id": name,
                "n_items": systems.count(name),
                "human": human_means[name],
                "judge": judge_means[name],
            }
            for name in judge_means
        ],
    }


def _agreement(name: str, judged: Judged) -> Statistic:
    if name == "kendall" and len(judged.score) > MAX_KENDALL_ITEMS:
        found = estimate(STATISTICS[name], judged.score, judged.human)
        return _without_interval(
            found, f"{len(judged.score)} items; of Kendall's tau there is one up to {MAX_KENDALL_ITEMS}"
        )
    return estimate(STATISTICS[name], judged.score, judged.human, resamples=judged.resamples)


def _without_interval(point: Statistic, why: str) -> Statistic:
    return point if point.value is None else replace(point, reason=f"no interval: {why}")


def distribution(values: np.ndarray) -> dict[str, float | None]:
    """Mean and standard deviation (over n); null without values."""
    if len(values) == 0:
        return {"mean": None, "sd": None}
    return {"mean": float(values.mean()), "sd": float(values.std())}


def _calibration(judged: Judged, resamples: Resamples, seed: int) -> dict[str, Any]:
    score, human = judged.score, judged.human
    constant = "the judge scores are constant"
    return {
        "error": estimate(calibration_error, score, human, resamples=resamples),
        "slope": estimate(calibration_slope, score, human, resamples=resamples, undefined=constant),
        "intercept": estimate(calibration_intercept, score, human, resamples=resamples, undefined=constant),
        "curve": calibration_curve(score, human, resamples.codes),
        "mapped": {name: mapped_errors(score, human, resamples.codes, name, resamples, seed) for name in MAPPINGS},
    }
