"""The numbers of one dimension: agreement, ceilings, systems, listening checks and slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..data_modules.ratings import Dimension, RatingTable
from .judge_report import Judged, distribution, judge_report, mean_of_raters
from .judges import ABSTAINED, INTERVAL_COLUMNS
from .lengths import ResponseLength, length_report
from .probes import Probe
from .statistics.agreement import Statistic, as_report, bias, is_constant, mae, spearman
from .statistics.bootstrap import Resamples, difference, estimate
from .statistics.calibration import coverage, error_ratio, mean_width
from .statistics.reliability import measure

MISSING = "missing"
"""The status of a pair for which the judge returned no row."""


def dimension_report(
    dimension: Dimension,
    judged: Judged,
    ratings: pd.DataFrame,
    lengths: Mapping[str, ResponseLength],
    asked: dict[str, Any] | None,
    seed: int,
) -> dict[str, Any]:
    """Everything about a dimension except checks and slices.

    Args:
        dimension: Its name and scale.
        judged: Its items.
        ratings: One row per rating; those of the judged items on this dimension are used.
        lengths: Pair id -> length of its response.
        asked: What a prompted judge says of its answers.
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
    found = {
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
    }
    return as_report(found) | own


def check_report(judged: Judged, probe: Probe, skipped: str | None = None) -> dict[str, Any]:
    """A listening check: what is left of the full Spearman, over the items scored in both runs.

    Args:
        judged: The dimension's items; the check's scores are in its column ``<probe>_score``.
        probe: What was changed.
        skipped: Why the check was not possible; None = it was made.
    """
    if skipped is not None:
        both = np.zeros(len(judged.items), dtype=bool)
        changed = score = np.empty(0)
        left = drop = Statistic(None, reason=skipped)
    else:
        changed = _changed(judged, probe)
        both = np.isfinite(changed)
        changed, score = changed[both], judged.score[both]
        full = judged.spearman if both.all() else None
        left, drop = _left_and_drop(changed, score, judged.human[both], judged.resamples.select(both), full)
    moved = np.abs(changed - score)
    found = {
        "expects": probe.expects,
        "tolerance": probe.tolerance,
        "spearman": left,
        "drop": drop,
        "mean_change": float(moved.mean()) if len(moved) else None,
        "p95_change": float(np.percentile(moved, 95)) if len(moved) else None,
        "judge_sd": float(score.std()) if len(score) and not is_constant(score) else None,
        "n": len(moved),
        "failed": {} if skipped is not None else status_counts(judged.items.loc[~both, f"{probe.name}_status"]),
    }
    return as_report(found)


def _changed(judged: Judged, probe: Probe) -> np.ndarray:
    """Scores of the changed pairs, shape (n,), NaN = none."""
    return judged.items[f"{probe.name}_score"].to_numpy(np.float64)


def _left_and_drop(
    changed: np.ndarray, score: np.ndarray, human: np.ndarray, resamples: Resamples, full: Statistic | None
) -> tuple[Statistic, Statistic]:
    """Spearman of the changed scores, and how far below that of the scores it is: all shape (n,), finite.

    The latter is not computed again where it is known.
    """
    left = estimate(spearman, changed, human, resamples=resamples)
    if full is None:
        full = estimate(spearman, score, human, resamples=resamples)
    return left, difference(full, left, resamples)


def slice_report(judged: Judged, chosen: np.ndarray, probes: Iterable[Probe], seed: int) -> dict[str, Any]:
    """Agreement, also after `probes` that were run, on the judged items of a mask of shape (n,).

    With draws of their own groups.
    """
    score, human = judged.score[chosen], judged.human[chosen]
    drawn = Resamples.draw(judged.resamples.codes[chosen].astype(str), judged.resamples.resamples, seed)
    checks = {}
    own = estimate(spearman, score, human, resamples=drawn)
    for probe in probes:
        changed = _changed(judged, probe)[chosen]
        both = np.isfinite(changed)
        full = own if both.all() else None
        left, drop = _left_and_drop(changed[both], score[both], human[both], drawn.select(both), full)
        checks[probe.name] = {"expects": probe.expects, "n": int(both.sum()), "spearman": left, "drop": drop}
    found = {
        "n_items": int(chosen.sum()),
        "n_groups": drawn.n_groups,
        "spearman": own,
        "mae": estimate(mae, score, human, resamples=drawn),
        "bias": estimate(bias, score, human, resamples=drawn),
        "checks": checks,
        "intervals": interval_reports(judged.items.loc[chosen], human, drawn),
    }
    return as_report(found)


def uncertainty_report(judged: Judged) -> dict[str, Any] | None:
    """Of one dimension; None where the judge states no uncertainty of any judged item."""
    error = judged.items["uncertainty"].to_numpy(np.float64)
    known = np.isfinite(error)
    if not known.any():
        return None
    ratio = error_ratio(judged.score, error, judged.human, judged.resamples)
    return {
        "standard_error": distribution(error[known]),
        "error_ratio": ratio,
        "intervals": interval_reports(judged.items, judged.human, judged.resamples),
        "surest_half": _surest_half(judged, error),
        "abstained": int(judged.items[ABSTAINED].to_numpy(bool).sum()) if ABSTAINED in judged.items else 0,
    }


def interval_reports(items: pd.DataFrame, human: np.ndarray, resamples: Resamples) -> dict[str, dict[str, Any]]:
    """Coverage and width of the intervals of each level, by the level in percent; none where the judge gives none.

    Args:
        items: Rows of `evaluate.Evaluation.items`, n of them.
        human: Shape (n,), mean ratings.
        resamples: Draws over these items.
    """
    reports: dict[str, dict[str, Any]] = {}
    for level, (low_column, high_column) in INTERVAL_COLUMNS.items():
        if low_column in items and high_column in items:
            low, high = (items[column].to_numpy(np.float64) for column in (low_column, high_column))
            reports[f"{100 * level:g}"] = {
                "level": level,
                "covered": coverage(low, high, human, resamples),
                "width": mean_width(low, high, human, resamples),
            }
    return reports


def _surest_half(judged: Judged, error: np.ndarray) -> dict[str, Statistic]:
    """Agreement on the half of the items with the smallest standard errors, and how far above that on all it is."""
    known = np.isfinite(error)
    if not known.all() or is_constant(error):
        reason = "the standard error is the same for all items" if known.all() else "items without a standard error"
        nothing = Statistic(None, reason=reason)
        return {"spearman": nothing, "gain": nothing}
    half = np.sort(np.argsort(error, kind="stable")[: len(error) // 2])
    score, human, resamples = judged.score[half], judged.human[half], judged.resamples.select(half)
    own = estimate(spearman, score, human, resamples=resamples)
    return {"spearman": own, "gain": difference(own, judged.spearman, resamples)}


def status_counts(statuses: Iterable[object]) -> dict[str, int]:
    """How often each status stands there, the most frequent first."""
    return dict(Counter(map(str, statuses)).most_common())


def _coverage(judged: Judged, dimension: Dimension) -> dict[str, Any]:
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
