"""The numbers of one dimension: agreement, ceilings, systems, listening checks and slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..data_modules.rating_table import RatingTable
from ..data_modules.ratings import Dimension
from .agreement import STATISTICS, Statistic, spearman
from .bootstrap import Estimate, Resamples, estimate, statistic_draws, with_interval
from .reliability import measure
from .report_schema import (
    CheckReport,
    Coverage,
    DimensionReport,
    Distribution,
    SliceReport,
    SystemLevel,
    statistic_report,
)
from .system_level import MIN_SYSTEMS, SYSTEM_STATISTICS, system_agreement, system_means

MISSING = "missing"
"""The status of a pair for which the judge returned no row."""


@dataclass(frozen=True, eq=False)
class Judged:
    """The items of one dimension, and those n of them that have a rating and a score.

    Attributes:
        all_items: The dimension's rows of `evaluate.Evaluation.items`.
        items: The rows with a rating and a score.
        score: Shape (n,), rating points.
        human: Shape (n,), mean over raters, rating points.
        resamples: Draws over the groups of the n items.
        draws: Shape (resamples,), Spearman of score and human in every resample.
    """

    all_items: pd.DataFrame
    items: pd.DataFrame
    score: np.ndarray
    human: np.ndarray
    resamples: Resamples
    draws: np.ndarray

    @classmethod
    def of(cls, all_items: pd.DataFrame, resamples: int, seed: int) -> Judged:
        """Selects the items and draws `resamples` times from their groups."""
        items = all_items.loc[all_items["human_mean"].notna() & all_items["score"].notna()]
        score, human = items["score"].to_numpy(np.float64), items["human_mean"].to_numpy(np.float64)
        drawn = Resamples.draw(items["group_id"].to_numpy(), resamples, seed)
        return cls(all_items, items, score, human, drawn, statistic_draws("spearman", score, human, drawn))


def dimension_report(dimension: Dimension, judged: Judged, ratings: pd.DataFrame, seed: int) -> DimensionReport:
    """Everything about a dimension except checks and slices.

    Args:
        dimension: Its name and scale.
        judged: Its items.
        ratings: One row per rating; those of the judged items on this dimension are used.
        seed: Of the halvings of the panel.
    """
    table = RatingTable.of(ratings, dimension.name, judged.items["pair_id"].tolist())
    panel = measure(table, judged.resamples, seed)
    agreement = {
        name: statistic_report(estimate(name, judged.score, judged.human, judged.resamples)) for name in STATISTICS
    }
    full = spearman(judged.score, judged.human)
    return {
        "scale": {
            "minimum": dimension.minimum,
            "maximum": dimension.maximum,
            "higher_is_better": dimension.higher_is_better,
        },
        "n_items": len(judged.items),
        "n_groups": judged.resamples.n_groups,
        "n_raters": len(table.rater_ids),
        "n_ratings": len(table.scores),
        "coverage": _coverage(judged, dimension),
        "judge": _distribution(judged.score),
        "human": _distribution(judged.human),
        "spearman": agreement["spearman"],
        "pearson": agreement["pearson"],
        "kendall": agreement["kendall"],
        "ccc": agreement["ccc"],
        "mae": agreement["mae"],
        "rmse": agreement["rmse"],
        "bias": agreement["bias"],
        "ceiling": panel.report(),
        "share_of_ceiling": statistic_report(share_of_ceiling(full, judged, panel.leave_one_rater_out)),
        "share_of_panel_ceiling": statistic_report(share_of_ceiling(full, judged, panel.panel_mean)),
        "system_level": system_level_report(judged),
    }


def check_report(judged: Judged, check: str) -> CheckReport:
    """A listening check: what is left of the full Spearman, over the items scored in both runs.

    Args:
        judged: The dimension's items; the check's scores are in its column ``<check>_score``.
        check: Its name.
    """
    changed = judged.items[f"{check}_score"].to_numpy(np.float64)
    both = np.isfinite(changed)
    changed, score, human = changed[both], judged.score[both], judged.human[both]
    seen = judged.resamples.select(both)
    left, full = spearman(changed, human), spearman(score, human)
    left_draws = statistic_draws("spearman", changed, human, seen)
    full_draws = statistic_draws("spearman", score, human, seen)
    drop = Statistic(None, n=left.n, reason=left.reason or full.reason)
    if left.value is not None and full.value is not None:
        drop = with_interval(Statistic(full.value - left.value, n=left.n), full_draws - left_draws, seen.n_groups)
    return {
        "spearman": statistic_report(with_interval(left, left_draws, seen.n_groups)),
        "drop": statistic_report(drop),
        "mean_change": float(np.abs(changed - score).mean()) if len(changed) else None,
        "n": len(changed),
        "failed": status_counts(judged.items.loc[~both, f"{check}_status"]),
    }


def skipped_check(reason: str) -> CheckReport:
    """A listening check that was not possible."""
    nothing = statistic_report(Statistic(None, reason=reason))
    return {"spearman": nothing, "drop": nothing, "mean_change": None, "n": 0, "failed": {}}


def slice_report(judged: Judged, chosen: np.ndarray, seed: int) -> SliceReport:
    """Agreement on the judged items of a mask of shape (n,), with draws of their own groups."""
    score, human = judged.score[chosen], judged.human[chosen]
    drawn = Resamples.draw(judged.items["group_id"].to_numpy()[chosen], len(judged.draws), seed)
    return {
        "n_items": int(chosen.sum()),
        "n_groups": drawn.n_groups,
        "spearman": statistic_report(estimate("spearman", score, human, drawn)),
        "mae": statistic_report(estimate("mae", score, human, drawn)),
        "bias": statistic_report(estimate("bias", score, human, drawn)),
    }


def status_counts(statuses: Iterable[object]) -> dict[str, int]:
    """How often each status stands there, the most frequent first."""
    return dict(Counter(map(str, statuses)).most_common())


def _coverage(judged: Judged, dimension: Dimension) -> Coverage:
    rated = judged.all_items.loc[judged.all_items["human_mean"].notna()]
    failed = status_counts(rated.loc[rated["score"].isna(), "status"])
    missing = failed.pop(MISSING, 0)
    outside = (judged.score < dimension.minimum) | (judged.score > dimension.maximum)
    return {
        "pairs": len(judged.all_items),
        "rated": len(rated),
        "scored": len(judged.items),
        "missing": missing,
        "failed": failed,
        "out_of_scale": int(outside.sum()),
    }


def _distribution(values: np.ndarray) -> Distribution:
    if len(values) == 0:
        return {"mean": None, "sd": None}
    return {"mean": float(values.mean()), "sd": float(values.std())}


def share_of_ceiling(full: Statistic, judged: Judged, ceiling: Estimate) -> Statistic:
    """The judge's Spearman as a share of a ceiling.

    Args:
        full: The judge's Spearman over the judged items.
        judged: These items; the interval divides their draws by those of the ceiling.
        ceiling: Of the same items, from the same draws.

    Returns:
        Undefined, with the reason, without a Spearman or where the ceiling is missing or not above 0.
    """
    value, top = full.value, ceiling.statistic.value
    if value is None or top is None:
        return Statistic(
            None, n=full.n, reason=full.reason if value is None else f"no ceiling: {ceiling.statistic.reason}"
        )
    if top <= 0:
        return Statistic(None, n=full.n, reason=f"the ceiling is {top:.3f}: the raters do not agree")
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = np.where(ceiling.draws > 0, judged.draws / ceiling.draws, np.nan)
    return with_interval(Statistic(value / top, n=full.n), draws, judged.resamples.n_groups)


def system_level_report(judged: Judged) -> SystemLevel:
    """Agreement of system means over the judged items that name a system."""
    named = judged.items["system_id"].notna().to_numpy(bool)
    systems = judged.items["system_id"][named].tolist()
    score, human = judged.score[named], judged.human[named]
    judge_means, human_means = system_means(systems, score), system_means(systems, human)
    if len(judge_means) >= MIN_SYSTEMS:
        found = system_agreement(systems, score, human, judged.resamples.select(named))
    else:
        reason = f"{len(judge_means)} systems, at least {MIN_SYSTEMS} needed"
        found = dict.fromkeys(SYSTEM_STATISTICS, Statistic(None, n=len(judge_means), reason=reason))
    return {
        "n_systems": len(judge_means),
        "spearman": statistic_report(found["spearman"]),
        "pearson": statistic_report(found["pearson"]),
        "kendall": statistic_report(found["kendall"]),
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
