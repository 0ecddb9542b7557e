"""All that is measured for one judge on one dimension, whether its items come from a dataset or a plain table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from .frame import Judged
from .rendering import sentences
from .report.judge import (
    Calibration,
    Distribution,
    JudgeReport,
    Mapped,
    MappedErrors,
    ScaleUse,
    SystemLevel,
    Verdict,
    VerdictKind,
    WithinGroup,
)
from .statistics.agreement import CONSTANT_TOLERANCE, STATISTICS, Statistic
from .statistics.bootstrap import Resamples, estimate, estimates, ratio
from .statistics.calibration import (
    MAPPINGS,
    calibration_curve,
    calibration_line,
    expected_calibration_error,
    mapped_errors,
    scale_use,
)
from .statistics.like_for_like import LikeForLike, like_for_like
from .statistics.pairwise import WITHIN_GROUPS, item_pairs, within_groups
from .statistics.systems import system_level
from .statistics.two_way import for_other_items_and_raters, for_other_raters

MAX_KENDALL_ITEMS = 2000
"""Most items of an interval of Kendall's tau-b, whose time grows with their square."""

_OF_LINE: dict[str, str] = dict.fromkeys(("slope", "intercept"), "the judge scores are constant")
# Resamples x items of the intervals of all but the main statistics, which are percentile intervals
_DRAWN_VALUES = 40_000_000


def judge_report(judged: Judged, scale: tuple[float, float], higher_is_better: bool = True) -> JudgeReport:
    """Agreement of a judge with the mean of the raters, with the ceilings that these set, on a scale from its lowest to
    its highest rating."""
    score, human, draws, panel = judged.score, judged.panel.human, judged.panel.draws, judged.panel
    has_system = panel.items["system_id"].notna().to_numpy(bool)
    systems = panel.items["system_id"][has_system].tolist()
    contexts = np.unique(panel.items["group_id"].to_numpy(str), return_inverse=True)[1]
    # The statistics that follow are many, and each is slow on many items: 100 draws of so many are stable all the same
    fewer_draws = draws.percentile(max(100, _DRAWN_VALUES // max(1, len(score))))
    sign = 1.0 if higher_is_better else -1.0
    statistics: Any = {name: with_draws(name, score, human, draws) for name in STATISTICS if name != "spearman"}
    scores, correlation, comparison = distribution(score), judged.spearman, like_for_like(score, panel.table, draws)
    share = share_of_panel_ceiling(correlation, panel.reliability.panel_mean, draws)

    return JudgeReport(
        n_items=len(score),
        judge=scores,
        human=distribution(human),
        spearman=correlation,
        **statistics,
        spearman_by_rater=for_other_raters(score, panel.table),
        spearman_two_way=for_other_items_and_raters(score, panel.table, correlation, draws),
        share_of_panel_ceiling=share,
        like_for_like=comparison,
        item_pairs=item_pairs(score, human, fewer_draws, panel.seed),
        within_group=WithinGroup(
            **{name: within_groups(name, sign * score, sign * human, contexts, fewer_draws) for name in WITHIN_GROUPS}
        ),
        scale_use=ScaleUse(**scale_use(score, human, *scale, fewer_draws)),
        calibration=Calibration(
            error=expected_calibration_error(score, human, fewer_draws),
            **estimates(calibration_line, score, human, resamples=fewer_draws, reasons=_OF_LINE),
            curve=calibration_curve(score, human, fewer_draws.codes),
            mapped=Mapped(
                **{
                    kind: MappedErrors(**mapped_errors(score, human, fewer_draws.codes, kind, fewer_draws, panel.seed))
                    for kind in MAPPINGS
                }
            ),
        ),
        system_level=SystemLevel(
            **system_level(systems, score[has_system], human[has_system], fewer_draws.select(has_system))
        ),
        verdict=verdict(len(score), scores, correlation, share, comparison),
    )


# neither good nor a warning
_UNDECIDED = ("undefined", "not_told_apart_from_one_rater", "too_few_items_to_tell", "no_rater_can_be_compared")


def verdict(
    n_items: int, scores: Distribution, correlation: Statistic, share: Statistic, comparison: LikeForLike
) -> Verdict:
    """Verdict on a judge's agreement with people, in one sentence (``verdict.txt.j2``).

    The first of these that holds: no scores; all scores equal (``constant``); ``undefined``; clearly below 0
    (``against``); clearly beyond what even the true scores could reach with these ratings (``beyond_possible``: the
    whole interval of the disattenuated correlation is above 1, the judge has most likely seen the ratings); then the
    comparison with one rater, by the interval of the like-for-like difference. A judge that is not clearly better than
    chance is never called as good as a rater: where neither can be excluded there are too few items to tell.
    """
    above_chance = correlation.low is not None and correlation.low > 0
    kind: VerdictKind
    if n_items == 0 or scores.sd is None or scores.mean is None:
        kind = "no_scores"
    elif scores.sd <= CONSTANT_TOLERANCE * abs(scores.mean):
        kind = "constant"
    elif correlation.value is None:
        kind = "undefined"
    elif correlation.high is not None and correlation.high < 0:
        kind = "against"
    elif share.low is not None and share.low > 1:
        kind = "beyond_possible"
    else:
        kind = cast("VerdictKind", comparison.verdict.replace(" ", "_"))
        if kind == "not_told_apart_from_one_rater" and not above_chance:
            kind = "too_few_items_to_tell"
    (text,) = sentences(
        "verdict", kind=kind, above_chance=above_chance, correlation=correlation, share=share, like_for_like=comparison
    )
    return Verdict(
        kind=kind,
        tone="good" if kind == "better_than_one_rater" else "none" if kind in _UNDECIDED else "warn",
        text=text,
    )


def with_draws(name: str, score: np.ndarray, human: np.ndarray, draws: Resamples) -> Statistic:
    """A statistic of `agreement.STATISTICS` with its interval; of Kendall's tau-b up to `MAX_KENDALL_ITEMS` items."""
    if name == "kendall" and len(score) > MAX_KENDALL_ITEMS:
        point = estimate(STATISTICS[name], score, human)
        reason = f"no interval: {len(score)} items; of Kendall's tau there is one up to {MAX_KENDALL_ITEMS}"
        return point if point.value is None else replace(point, reason=reason)
    return estimate(STATISTICS[name], score, human, resamples=draws)


def distribution(values: np.ndarray) -> Distribution:
    """Mean and standard deviation (over n); null without values."""
    if len(values) == 0:
        return Distribution(mean=None, sd=None)
    return Distribution(mean=float(values.mean()), sd=float(values.std()))


def share_of_panel_ceiling(own: Statistic, ceiling: Statistic, draws: Resamples) -> Statistic:
    """The judge's Spearman as a share of the noise ceiling on the same items, from the same draws: its disattenuated
    correlation (Spearman, 1904).

    Undefined, with the reason, without a Spearman or where the ceiling is missing or not above 0.
    """
    if own.value is not None and ceiling.value is None:
        return Statistic(None, n=own.n, reason=f"no ceiling: {ceiling.reason}")
    if ceiling.value is not None and ceiling.value <= 0:
        return Statistic(None, n=own.n, reason=f"the ceiling is {ceiling.value:.3f}: the raters do not agree")
    return ratio(own, ceiling, draws)
