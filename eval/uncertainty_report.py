"""What the standard errors and intervals that a judge states are worth on the evaluated items."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .judged import Judged
from .judges import ABSTAINED, INTERVAL_COLUMNS
from .report_schema import IntervalReport, SurestHalfReport, UncertaintyReport, statistic_report
from .statistics.agreement import Statistic, is_constant, spearman
from .statistics.bootstrap import Resamples, statistic_draws, with_interval
from .statistics.coverage import coverage, error_ratio, mean_width


def uncertainty_report(judged: Judged) -> UncertaintyReport | None:
    """Of one dimension; None where the judge states no uncertainty of any judged item."""
    error = judged.items["uncertainty"].to_numpy(np.float64)
    known = np.isfinite(error)
    if not known.any():
        return None
    ratio = error_ratio(judged.score, error, judged.human, judged.resamples)
    return {
        "standard_error": {"mean": float(error[known].mean()), "sd": float(error[known].std())},
        "error_ratio": statistic_report(ratio),
        "intervals": interval_reports(judged.items, judged.human, judged.resamples),
        "surest_half": _surest_half(judged, error),
        "abstained": int(judged.items[ABSTAINED].to_numpy(bool).sum()) if ABSTAINED in judged.items else 0,
    }


def interval_reports(items: pd.DataFrame, human: np.ndarray, resamples: Resamples) -> dict[str, IntervalReport]:
    """Coverage and width of the intervals of each level, by the level in percent; none where the judge gives none.

    Args:
        items: Rows of `evaluate.Evaluation.items`, n of them.
        human: Shape (n,), mean ratings.
        resamples: Draws over these items.
    """
    reports: dict[str, IntervalReport] = {}
    for level, (low_column, high_column) in INTERVAL_COLUMNS.items():
        if low_column in items and high_column in items:
            low, high = (items[column].to_numpy(np.float64) for column in (low_column, high_column))
            reports[f"{100 * level:g}"] = {
                "level": level,
                "covered": statistic_report(coverage(low, high, human, resamples)),
                "width": statistic_report(mean_width(low, high, human, resamples)),
            }
    return reports


def _surest_half(judged: Judged, error: np.ndarray) -> SurestHalfReport:
    """Agreement on the half of the items with the smallest standard errors, and how far above that on all it is."""
    known = np.isfinite(error)
    if not known.all() or is_constant(error):
        reason = "the standard error is the same for all items" if known.all() else "items without a standard error"
        nothing = statistic_report(Statistic(None, reason=reason))
        return {"spearman": nothing, "gain": nothing}
    half = np.sort(np.argsort(error, kind="stable")[: len(error) // 2])
    score, human, resamples = judged.score[half], judged.human[half], judged.resamples.select(half)
    own, full = spearman(score, human), spearman(judged.score, judged.human)
    draws = statistic_draws("spearman", score, human, resamples)
    gain = Statistic(None, n=own.n, reason=own.reason or full.reason)
    if own.value is not None and full.value is not None:
        gain = with_interval(Statistic(own.value - full.value, n=own.n), draws - judged.draws, resamples)
    return {
        "spearman": statistic_report(with_interval(own, draws, resamples, correlation=True)),
        "gain": statistic_report(gain),
    }
