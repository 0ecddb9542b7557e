"""The numbers of one dimension: agreement, ceilings, systems, listening checks and slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from ..data_modules.ratings import Dimension, RatingTable
from .judge_report import judge_report, mean_of_raters
from .judged import Judged
from .lengths import ResponseLength, length_report
from .probes import Probe
from .report_schema import (
    AskedDimension,
    CheckReport,
    Coverage,
    DimensionReport,
    SliceCheckReport,
    SliceReport,
    StatisticReport,
    statistic_report,
)
from .statistics.agreement import Statistic, is_constant, spearman
from .statistics.bootstrap import Resamples, estimate, statistic_draws, with_interval
from .statistics.reliability import measure
from .uncertainty_report import interval_reports, uncertainty_report

MISSING = "missing"
"""The status of a pair for which the judge returned no row."""


def dimension_report(
    dimension: Dimension,
    judged: Judged,
    ratings: pd.DataFrame,
    lengths: Mapping[str, ResponseLength],
    asked: AskedDimension | None,
    seed: int,
) -> DimensionReport:
    """Everything about a dimension except checks and slices.

    Args:
        dimension: Its name and scale.
        judged: Its items.
        ratings: One row per rating; those of the judged items on this dimension are used.
        lengths: Pair id -> length of its response.
        asked: What a judge that is asked in words says of its answers.
        seed: Of the halvings of the panel.
    """
    table = RatingTable.of(ratings, dimension.name, judged.items["pair_id"].tolist())
    panel = measure(table, judged.resamples, seed)
    own = judge_report(
        judged,
        table,
        panel,
        scale=(dimension.minimum, dimension.maximum),
        higher_is_better=dimension.higher_is_better,
        seed=seed,
    )
    return {
        "scale": {
            "minimum": dimension.minimum,
            "maximum": dimension.maximum,
            "higher_is_better": dimension.higher_is_better,
        },
        "n_groups": judged.resamples.n_groups,
        "n_raters": len(table.rater_ids),
        "n_ratings": len(table.scores),
        "coverage": _coverage(judged, dimension),
        "ceiling": panel.report(),
        "mean_of_k_raters": mean_of_raters(table, panel, judged.resamples, seed),
        "uncertainty": uncertainty_report(judged),
        "length": length_report(judged, lengths),
        "asked": asked,
        **own,
    }


def check_report(judged: Judged, probe: Probe, skipped: str | None = None) -> CheckReport:
    """A listening check: what is left of the full Spearman, over the items scored in both runs.

    Args:
        judged: The dimension's items; the check's scores are in its column ``<probe>_score``.
        probe: What was changed.
        skipped: Why the check was not possible; None = it was made.
    """
    if skipped is not None:
        nothing = statistic_report(Statistic(None, reason=skipped))
        return _check(probe, nothing, nothing, np.empty(0), np.empty(0), {})
    changed = _changed(judged, probe)
    both = np.isfinite(changed)
    changed, score, human = changed[both], judged.score[both], judged.human[both]
    left, drop = _left_and_drop(changed, score, human, judged.resamples.select(both))
    failed = status_counts(judged.items.loc[~both, f"{probe.name}_status"])
    return _check(probe, left, drop, changed, score, failed)


def _changed(judged: Judged, probe: Probe) -> np.ndarray:
    """Scores of the changed pairs, shape (n,), NaN = none."""
    return judged.items[f"{probe.name}_score"].to_numpy(np.float64)


def _left_and_drop(
    changed: np.ndarray, score: np.ndarray, human: np.ndarray, resamples: Resamples
) -> tuple[StatisticReport, StatisticReport]:
    """Spearman of the changed scores, and how far below that of the scores it is: all shape (n,), finite."""
    left, full = spearman(changed, human), spearman(score, human)
    left_draws = statistic_draws("spearman", changed, human, resamples)
    full_draws = statistic_draws("spearman", score, human, resamples)
    drop = Statistic(None, n=left.n, reason=left.reason or full.reason)
    if left.value is not None and full.value is not None:
        drop = with_interval(Statistic(full.value - left.value, n=left.n), full_draws - left_draws, resamples)
    return statistic_report(with_interval(left, left_draws, resamples, correlation=True)), statistic_report(drop)


def _check(
    probe: Probe,
    left: StatisticReport,
    drop: StatisticReport,
    changed: np.ndarray,
    score: np.ndarray,
    failed: dict[str, int],
) -> CheckReport:
    moved = np.abs(changed - score)
    return {
        "expects": probe.expects,
        "tolerance": probe.tolerance,
        "spearman": left,
        "drop": drop,
        "mean_change": float(moved.mean()) if len(moved) else None,
        "p95_change": float(np.percentile(moved, 95)) if len(moved) else None,
        "judge_sd": float(score.std()) if len(score) and not is_constant(score) else None,
        "n": len(moved),
        "failed": failed,
    }


def slice_report(judged: Judged, chosen: np.ndarray, probes: Iterable[Probe], seed: int) -> SliceReport:
    """Agreement, also after `probes` that were run, on the judged items of a mask of shape (n,).

    With draws of their own groups.
    """
    score, human = judged.score[chosen], judged.human[chosen]
    drawn = Resamples.draw(judged.resamples.codes[chosen].astype(str), judged.resamples.resamples, seed)
    return {
        "n_items": int(chosen.sum()),
        "n_groups": drawn.n_groups,
        "spearman": statistic_report(estimate("spearman", score, human, drawn)),
        "mae": statistic_report(estimate("mae", score, human, drawn)),
        "bias": statistic_report(estimate("bias", score, human, drawn)),
        "checks": {
            probe.name: _slice_check(probe, _changed(judged, probe)[chosen], score, human, drawn) for probe in probes
        },
        "intervals": interval_reports(judged.items.loc[chosen], human, drawn),
    }


def _slice_check(
    probe: Probe, changed: np.ndarray, score: np.ndarray, human: np.ndarray, resamples: Resamples
) -> SliceCheckReport:
    both = np.isfinite(changed)
    left, drop = _left_and_drop(changed[both], score[both], human[both], resamples.select(both))
    return {"expects": probe.expects, "n": int(both.sum()), "spearman": left, "drop": drop}


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
