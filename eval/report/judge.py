"""A judge on a dimension, whether its items come from a dataset or a plain table."""

from __future__ import annotations

from typing import Literal

from ..statistics.agreement import Statistic
from ..statistics.calibration import CalibrationBin
from ..statistics.like_for_like import LikeForLike
from ..statistics.pairwise import GroupLevel, ItemPairs
from .base import Count, Part


class Distribution(Part):
    """Mean and spread of numbers."""

    mean: float | None
    """Null without numbers."""
    sd: float | None
    """Standard deviation (over n); null without numbers."""


class SideUse(Part):
    """How the judge, or people, use the scale."""

    mean: Statistic
    """Rating points."""
    sd: Statistic
    """Standard deviation (over n), rating points."""
    range_used: Statistic
    """Distance between the quantiles 0.05 and 0.95 / length of the scale; above 1 where scores lie outside."""
    outside: Statistic
    """Share of scores below the minimum or above the maximum."""


class ScaleUse(Part):
    """How the scale is used, over the items that both scored."""

    judge: SideUse
    """Of the judge."""
    human: SideUse
    """Of the means over raters, which vary less than single ratings."""
    sd_ratio: Statistic
    """Judge / people; below 1 the judge keeps to the middle, 0 = a constant judge."""


class MappedErrors(Part):
    """Errors of scores that are mapped to rating points, fitted on other groups than they are measured on."""

    mae: Statistic
    """Mean absolute error, rating points."""
    rmse: Statistic
    """Root mean square error, rating points."""
    error: Statistic
    """Expected calibration error, rating points."""


class Mapped(Part):
    """Errors after each mapping."""

    linear: MappedErrors
    """After a straight line by least squares."""
    isotonic: MappedErrors
    """After a rising step function by least squares."""


class Calibration(Part):
    """Whether responses with a score of 4 are rated 4 on average."""

    error: Statistic
    """Expected calibration error, rating points: mean distance of judge and people over bins; 0 is perfect."""
    slope: Statistic
    """Slope of human on judge score; 1 is perfect, below 1 the judge exaggerates differences."""
    intercept: Statistic
    """Intercept of human on judge score, rating points; 0 is perfect."""
    curve: tuple[CalibrationBin, ...]
    """Bins by rising judge score."""
    mapped: Mapped
    """Errors after a correction of the scores."""


class SystemMeans(Part):
    """A system."""

    system_id: str
    """Its id in the data."""
    n_items: Count
    """Its items that count."""
    human: float
    """Mean human score, rating points."""
    judge: float
    """Mean judge score, rating points."""


class SystemLevel(Part):
    """Agreement of the means of systems; ``n`` of these statistics counts systems."""

    n_systems: Count
    """Systems with an item."""
    spearman: Statistic
    """Rank correlation."""
    pearson: Statistic
    """Product-moment correlation."""
    kendall: Statistic
    """Kendall's tau-b."""
    icc_a1: Statistic
    """ICC(A,1): absolute agreement."""
    icc_c1: Statistic
    """ICC(C,1): consistency."""
    bias: Statistic
    """Judge minus people, rating points."""
    loa_lower: Statistic
    """Lower limit of agreement, rating points."""
    loa_upper: Statistic
    """Upper limit of agreement, rating points."""
    pairwise_accuracy: Statistic
    """Share of pairs of systems that both sides order alike; tied means count as equal."""
    systems: tuple[SystemMeans, ...]
    """Each system."""


class WithinGroup(Part):
    """Statistics of single contexts (groups), averaged over them."""

    spearman: GroupLevel
    """Rank correlation."""
    kendall: GroupLevel
    """Kendall's tau-b."""
    top_1: GroupLevel
    """Whether the judge's best response is one that people rate best; ties of the judge count by their share."""


Tone = Literal["good", "warn", "none"]
"""As pages colour a verdict."""

VerdictKind = Literal[
    "no_scores", "constant", "undefined", "against", "beyond_possible", "better_than_one_rater",
    "not_told_apart_from_one_rater", "worse_than_one_rater", "too_few_items_to_tell",
    "no_rater_can_be_compared",
]  # fmt: skip


class Verdict(Part):
    """The verdict on a judge's agreement with people."""

    kind: VerdictKind
    """For programs."""
    tone: Tone
    """As pages colour it."""
    text: str
    """For people."""


class JudgeReport(Part):
    """A judge on a dimension, over the items that it scored and people rated."""

    n_items: Count
    """Items with a score and a rating."""
    judge: Distribution
    """Of its scores, rating points."""
    human: Distribution
    """Of the means over raters, rating points."""
    spearman: Statistic
    """Rank correlation with the mean over the raters, -1 to 1."""
    pearson: Statistic
    """Product-moment correlation, -1 to 1."""
    kendall: Statistic
    """Kendall's tau-b, -1 to 1; without an interval above 2000 items."""
    ccc: Statistic
    """Concordance correlation, -1 to 1; a bias costs."""
    icc_a1: Statistic
    """ICC(A,1) of judge and panel mean as two raters: absolute agreement; a bias costs."""
    icc_c1: Statistic
    """ICC(C,1): consistency; a bias costs nothing."""
    mae: Statistic
    """Mean absolute error, rating points."""
    rmse: Statistic
    """Root mean square error, rating points."""
    bias: Statistic
    """Mean of judge minus people, rating points."""
    loa_lower: Statistic
    """Lower limit of agreement, bias minus 1.96 standard deviations of the differences, rating points."""
    loa_upper: Statistic
    """Upper limit of agreement, rating points."""
    spearman_by_rater: Statistic
    """Mean Spearman with single raters; its interval is for other raters."""
    spearman_two_way: Statistic
    """The Spearman; its interval is for other items and other raters."""
    share_of_panel_ceiling: Statistic
    """Spearman / noise ceiling of the same items."""
    like_for_like: LikeForLike
    """The judge and one rater against the same people."""
    item_pairs: ItemPairs
    """How often the judge orders two items as people do."""
    within_group: WithinGroup
    """Whether the judge tells apart the responses to one context."""
    scale_use: ScaleUse
    """How judge and people use the scale."""
    calibration: Calibration
    """Whether a score means what it says."""
    system_level: SystemLevel | None
    """Agreement of the means of systems; null in a table without systems."""
    verdict: Verdict
    """What all this says, in one sentence."""
