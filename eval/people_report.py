"""How well people agree, as it stands in reports."""

from __future__ import annotations

from ..data_modules.ratings import RatingTable
from .report.people import Ceiling, PeopleReport, RaterAgreement
from .statistics.agreement import Statistic
from .statistics.bootstrap import Resamples
from .statistics.icc import icc
from .statistics.krippendorff import DISTANCES, Distance, krippendorff_alpha
from .statistics.reliability import Reliability, split_half


def ceiling_report(panel: Reliability) -> Ceiling:
    """The ceilings that raters set."""
    return Ceiling(
        spearman=panel.leave_one_rater_out,
        panel_mean=panel.panel_mean,
        split_half=panel.split_half,
        panel_reliability=panel.panel_reliability,
        krippendorff_alpha=panel.krippendorff_alpha,
        raters=tuple(
            RaterAgreement(rater_id=rater_id, n=statistic.n, spearman=statistic.value, reason=statistic.reason)
            for rater_id, statistic in panel.raters.items()
        ),
    )


def people_report(table: RatingTable, draws: Resamples, panel: Reliability, seed: int) -> PeopleReport:
    """How well raters agree, from the results of `rated_items` and `measure` for the same seed."""
    alpha: dict[Distance, Statistic] = {
        name: krippendorff_alpha(table, name, draws) for name in DISTANCES if name != "interval"
    }
    return PeopleReport(
        n_items=table.n_items,
        n_groups=draws.n_groups,
        n_raters=len(table.rater_ids),
        n_ratings=len(table.scores),
        resamples=draws.resamples,
        **dict(ceiling_report(panel)),
        split_half_by_item=split_half(table, draws, seed, by_item=True),
        icc=icc(table, draws),
        alpha={**alpha, "interval": panel.krippendorff_alpha},
    )
