"""Everything measured of one judge on one dimension, whatever its items came from: a dataset or a plain table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..data_modules.ratings import RatingTable
from .judged import Judged
from .report_schema import (
    CalibrationReport,
    Distribution,
    GroupLevelReport,
    ItemPairsReport,
    JudgeReport,
    LikeForLikeReport,
    MappingReport,
    MeanOfRaters,
    ScaleUseReport,
    SideScaleUseReport,
    SystemLevel,
    statistic_report,
)
from .statistics.agreement import STATISTICS, Statistic, spearman, tau_c
from .statistics.bootstrap import Estimate, Resamples, estimate, with_interval
from .statistics.calibration import calibration_curve, calibration_line, expected_calibration_error
from .statistics.group_level import GroupLevel, group_correlation, top_1
from .statistics.like_for_like import LikeForLike, like_for_like
from .statistics.mean_of_raters import raters_ceiling
from .statistics.pairwise import concordance_estimate, pairwise_accuracy_estimate
from .statistics.reliability import Reliability
from .statistics.scale_use import SideScaleUse, scale_use
from .statistics.score_mapping import MAPPINGS, mapped_scores
from .statistics.system_level import MIN_SYSTEMS, SYSTEM_STATISTICS, system_agreement, system_means
from .statistics.system_pairs import soft_pairwise_accuracy, system_pairwise_accuracy
from .statistics.tie_calibration import tie_calibration
from .statistics.two_way import for_other_items_and_raters, for_other_raters
from .verdict import verdict

MAX_KENDALL_ITEMS = 2000
"""Most items of an interval of Kendall's tau-b, whose time grows with their square."""

_DRAWN_VALUES = 40_000_000  # resamples x items of an interval beside the main statistics, a percentile interval


def judge_report(
    judged: Judged,
    table: RatingTable,
    panel: Reliability,
    *,
    scale: tuple[float, float],
    higher_is_better: bool = True,
    seed: int,
) -> JudgeReport:
    """Agreement of a judge with the mean of its raters, beside what these allow.

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
    own = Estimate.of(spearman(score, human), judged.draws, draws, correlation=True)
    sign = 1.0 if higher_is_better else -1.0
    report: JudgeReport = {
        "n_items": len(score),
        "judge": _distribution(score),
        "human": _distribution(human),
        "spearman": statistic_report(own.statistic),
        "pearson": statistic_report(_agreement("pearson", judged)),
        "kendall": statistic_report(_agreement("kendall", judged)),
        "ccc": statistic_report(_agreement("ccc", judged)),
        "icc_a1": statistic_report(_agreement("icc_a1", judged)),
        "icc_c1": statistic_report(_agreement("icc_c1", judged)),
        "mae": statistic_report(_agreement("mae", judged)),
        "rmse": statistic_report(_agreement("rmse", judged)),
        "bias": statistic_report(_agreement("bias", judged)),
        "loa_lower": statistic_report(_agreement("loa_lower", judged)),
        "loa_upper": statistic_report(_agreement("loa_upper", judged)),
        "tau_c": statistic_report(_without_interval(tau_c(score, human), "none is computed for tau-c")),
        "spearman_by_rater": statistic_report(for_other_raters(score, table)),
        "spearman_two_way": statistic_report(for_other_items_and_raters(score, table, own, draws)),
        "share_of_panel_ceiling": statistic_report(share_of_panel_ceiling(own, panel.panel_mean, draws)),
        "like_for_like": like_for_like_report(like_for_like(score, table, draws)),
        "item_pairs": _item_pairs(score, human, few, seed),
        "within_group": {
            "spearman": _group_level(group_correlation("spearman", score, human, contexts, few)),
            "kendall": _group_level(group_correlation("kendall", score, human, contexts, few)),
            "top_1": _group_level(top_1(sign * score, sign * human, contexts, few)),
        },
        "scale_use": _scale_use(score, human, scale, few),
        "calibration": _calibration(judged, few, seed),
        "system_level": system_level_report(judged, few, seed),
        "verdict": {"kind": "undefined", "tone": "none", "text": ""},
    }
    found = verdict(report)
    report["verdict"] = {"kind": found.kind, "tone": found.tone, "text": found.text}
    return report


_MEANS_OF = (1, 2, 3, 5)


def mean_of_raters(table: RatingTable, panel: Reliability, resamples: Resamples, seed: int) -> list[MeanOfRaters]:
    """What the mean of 1, 2, 3 and 5 raters reaches against the mean of the others, as far as the panel allows.

    Args:
        table: The ratings.
        panel: How well the raters agree.
        resamples: Draws over the items of `table`.
        seed: Of the choices of raters.
    """
    rows: list[MeanOfRaters] = []
    for k in _MEANS_OF:
        found = raters_ceiling(table, panel.panel_reliability, resamples, k, seed)
        if found.measured.statistic.value is not None:
            rows.append(
                {
                    "k": k,
                    "expected": statistic_report(found.expected.statistic),
                    "measured": statistic_report(found.measured.statistic),
                }
            )
    return rows


def like_for_like_report(found: LikeForLike) -> LikeForLikeReport:
    """The comparison with one rater as it stands in the file."""
    return {
        "judge": statistic_report(found.judge),
        "rater": statistic_report(found.rater),
        "difference": statistic_report(found.difference),
        "ratio": statistic_report(found.ratio),
        "effective_raters": statistic_report(found.effective_raters),
        "p": found.p,
        "verdict": found.verdict,
        "n_items": found.n_items,
        "n_raters": found.n_raters,
        "n_groups": found.n_groups,
        "left_out": dict(found.left_out),
    }


def share_of_panel_ceiling(own: Estimate, ceiling: Estimate, resamples: Resamples) -> Statistic:
    """The judge's Spearman as a share of the best possible on the same items, from the same draws.

    Returns:
        Undefined, with the reason, without a Spearman or where the ceiling is missing or not above 0.
    """
    full, top = own.statistic, ceiling.statistic.value
    if full.value is None or top is None:
        reason = full.reason if full.value is None else f"no ceiling: {ceiling.statistic.reason}"
        return Statistic(None, n=full.n, reason=reason)
    if top <= 0:
        return Statistic(None, n=full.n, reason=f"the ceiling is {top:.3f}: the raters do not agree")
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = np.where(ceiling.draws > 0, own.draws / ceiling.draws, np.nan)
    return with_interval(Statistic(full.value / top, n=full.n), draws, resamples)


def system_level_report(judged: Judged, resamples: Resamples, seed: int) -> SystemLevel:
    """Agreement of system means over the judged items that name a system."""
    named = judged.items["system_id"].notna().to_numpy(bool)
    systems = judged.items["system_id"][named].tolist()
    score, human, seen = judged.score[named], judged.human[named], resamples.select(named)
    judge_means, human_means = system_means(systems, score), system_means(systems, human)
    if len(judge_means) >= MIN_SYSTEMS:
        found: Mapping[str, Statistic] = system_agreement(systems, score, human, seen)
    else:
        reason = f"{len(judge_means)} systems, at least {MIN_SYSTEMS} needed"
        found = dict.fromkeys(SYSTEM_STATISTICS, Statistic(None, n=len(judge_means), reason=reason))
    soft = soft_pairwise_accuracy(systems, judged.items["group_id"][named].tolist(), score, human, seed=seed)
    return {
        "n_systems": len(judge_means),
        "spearman": statistic_report(found["spearman"]),
        "pearson": statistic_report(found["pearson"]),
        "kendall": statistic_report(found["kendall"]),
        "icc_a1": statistic_report(found["icc_a1"]),
        "icc_c1": statistic_report(found["icc_c1"]),
        "bias": statistic_report(found["bias"]),
        "loa_lower": statistic_report(found["loa_lower"]),
        "loa_upper": statistic_report(found["loa_upper"]),
        "pairwise_accuracy": statistic_report(system_pairwise_accuracy(systems, score, human, seen).statistic),
        "soft_pairwise_accuracy": {
            "accuracy": statistic_report(soft.accuracy),
            "pairs": soft.pairs,
            "left_out": soft.left_out,
            "unmatched": soft.unmatched,
        },
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
        found = STATISTICS[name](judged.score, judged.human)
        return _without_interval(
            found, f"{len(judged.score)} items; of Kendall's tau there is one up to {MAX_KENDALL_ITEMS}"
        )
    return estimate(name, judged.score, judged.human, judged.resamples)


def _without_interval(point: Statistic, why: str) -> Statistic:
    return point if point.value is None else replace(point, reason=f"no interval: {why}")


def _distribution(values: np.ndarray) -> Distribution:
    if len(values) == 0:
        return {"mean": None, "sd": None}
    return {"mean": float(values.mean()), "sd": float(values.std())}


def _item_pairs(score: np.ndarray, human: np.ndarray, resamples: Resamples, seed: int) -> ItemPairsReport:
    calibrated = tie_calibration(score, human, seed=seed)
    accuracy = Estimate.of(calibrated.accuracy, np.empty(0), resamples)
    if calibrated.epsilon is not None:
        accuracy = pairwise_accuracy_estimate(score, human, resamples, epsilon=calibrated.epsilon)
    return {
        "concordance": statistic_report(concordance_estimate(score, human, resamples).statistic),
        "accuracy": statistic_report(accuracy.statistic),
        "epsilon": calibrated.epsilon,
        "epsilon_reason": calibrated.reason,
    }


def _group_level(found: GroupLevel) -> GroupLevelReport:
    return {
        "mean": statistic_report(found.estimate.statistic),
        "groups": found.groups,
        "too_small": found.too_small,
        "constant": found.constant,
        "chance": found.chance,
    }


def _scale_use(
    score: np.ndarray, human: np.ndarray, scale: tuple[float, float], resamples: Resamples
) -> ScaleUseReport:
    found = scale_use(score, human, *scale, resamples)

    def side(use: SideScaleUse) -> SideScaleUseReport:
        return {
            "mean": statistic_report(use.mean),
            "sd": statistic_report(use.sd),
            "range_used": statistic_report(use.range_used),
            "outside": statistic_report(use.outside),
        }

    return {"judge": side(found.judge), "human": side(found.human), "sd_ratio": statistic_report(found.sd_ratio)}


def _calibration(judged: Judged, resamples: Resamples, seed: int) -> CalibrationReport:
    score, human = judged.score, judged.human
    line = calibration_line(score, human, resamples)
    mapped: dict[str, MappingReport] = {}
    for mapping in MAPPINGS:
        found = mapped_scores(score, human, resamples.codes, mapping, resamples, seed)
        mapped[mapping] = {
            "mae": statistic_report(found.mae),
            "rmse": statistic_report(found.rmse),
            "error": statistic_report(expected_calibration_error(found.scores, human, resamples)),
        }
    return {
        "error": statistic_report(expected_calibration_error(score, human, resamples)),
        "slope": statistic_report(line.slope),
        "intercept": statistic_report(line.intercept),
        "curve": [
            {"score": own.score, "human": own.human, "standard_error": own.standard_error, "n": own.n}
            for own in calibration_curve(score, human, resamples.codes)
        ],
        "mapped": mapped,
    }
