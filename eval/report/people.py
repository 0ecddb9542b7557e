"""How well people agree, whether their ratings come from a dataset or a plain table."""

from __future__ import annotations

from ..statistics.agreement import Statistic
from ..statistics.icc import Form
from ..statistics.krippendorff import Distance
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


class PeopleReport(Ceiling):
    """How well the people of a table agree."""

    n_items: Count
    """Rated items."""
    n_groups: Count
    """Groups of these."""
    n_raters: Count
    """People."""
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
