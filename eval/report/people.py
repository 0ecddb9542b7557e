"""How well people agree, whether their ratings come from a dataset or a plain table."""

from __future__ import annotations

from typing import Any, Self

from ...data_modules.ratings import RatingTable
from ..statistics.agreement import Statistic
from ..statistics.bootstrap import Resamples
from ..statistics.icc import Form, icc
from ..statistics.krippendorff import DISTANCES, Distance, krippendorff_alpha
from ..statistics.reliability import Reliability, split_half
from .base import Count, Part


class RaterAgreement(Part):
    """A rater."""

    rater_id: str
    """Its id in the data."""
    n: Count
    """Items that the rater shares with others."""
    spearman: float | None
    """With the mean of the others; null for a `reason`."""
    reason: str | None
    """Why there is no correlation; null where there is one."""


class Ceiling(Part):
    """How well raters agree, and how high that lets any judge reach."""

    spearman: Statistic
    """Leave-one-out human agreement: a rater with the mean of the others, over raters weighted by items."""
    panel_mean: Statistic
    """Noise ceiling: the Spearman that a judge which knows the true scores can expect."""
    split_half: Statistic
    """Mean Spearman between the means of two random parts of the panel."""
    panel_reliability: Statistic
    """Reliability of the panel mean: `split_half` after Spearman-Brown."""
    krippendorff_alpha: Statistic
    """Krippendorff's alpha of single ratings, interval distance."""
    raters: tuple[RaterAgreement, ...]
    """Raters one by one."""

    @classmethod
    def of(cls, panel: Reliability, **more: Any) -> Self:
        """From what is measured of a panel; `more` are the fields that a subclass adds."""
        return cls(
            spearman=panel.leave_one_rater_out,
            panel_mean=panel.panel_mean,
            split_half=panel.split_half,
            panel_reliability=panel.panel_reliability,
            krippendorff_alpha=panel.krippendorff_alpha,
            raters=tuple(
                RaterAgreement(rater_id=rater_id, n=statistic.n, spearman=statistic.value, reason=statistic.reason)
                for rater_id, statistic in panel.raters.items()
            ),
            **more,
        )


class PeopleReport(Ceiling):
    """How well the people of a table agree."""

    n_items: Count
    """Rated items."""
    n_groups: Count
    """Groups of these."""
    n_raters: Count
    """People; 0 where only means are published."""
    n_ratings: Count
    """Ratings."""
    resamples: Count
    """Bootstrap resamples of an interval."""
    split_half_by_item: Statistic
    """Split half with the raters of each item divided anew; too low where raters with biases rate many items."""
    icc: dict[Form, Statistic]
    """Intraclass correlation by form."""
    alpha: dict[Distance, Statistic]
    """Krippendorff's alpha by distance."""

    @classmethod
    def measured(cls, table: RatingTable, draws: Resamples, panel: Reliability, seed: int) -> Self:
        """How well raters agree, from the results of `rated_items` and `measure` for the same seed."""
        # the interval distance is measured with the panel already
        others = {name: krippendorff_alpha(table, name, draws) for name in DISTANCES if name != "interval"}
        return cls.of(
            panel,
            n_items=table.n_items,
            n_groups=draws.n_groups,
            n_raters=table.n_raters,
            n_ratings=len(table.scores),
            resamples=draws.resamples,
            split_half_by_item=split_half(table, draws, seed, by_item=True),
            icc=icc(table, draws),
            alpha={**others, "interval": panel.krippendorff_alpha},
        )
