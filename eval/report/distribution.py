"""How well a judge predicts the distribution of the ratings of an item."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..statistics.agreement import Statistic
from ..statistics.calibration import CalibrationBin
from .base import Part


class ProperScore(Part):
    """A proper score of predicted shares against those of the raters; lower is better."""

    judge: Statistic
    """Mean over items."""
    constant: Statistic
    """The mean shares of the training pairs, the same for all items."""
    one_rater: Statistic
    """One rater of the item, who predicts that all give what they gave; against the other raters."""
    panel: Statistic
    """All but one rater of the item and one more, who gives the constant; against the one left out."""
    from_constant: Statistic
    """Judge minus constant; below 0 = the judge is better."""
    from_one_rater: Statistic
    """Judge minus one rater, on items with two raters or more."""
    from_panel: Statistic
    """Judge minus panel, on the same items."""


class LevelReliability(Part):
    """Reliability of the probability that a rating is at least at a level."""

    at_least: float
    """The level, rating points."""
    curve: tuple[CalibrationBin, ...]
    """Bins of equal counts: `score` is the mean predicted share of raters at the level or above, `human` theirs."""


class RatingDistribution(Part):
    """Predicted shares of raters at the steps of the scale, and theirs."""

    constant_from: Literal["train", "other splits", "measured pairs"]
    """Whose mean shares the constant is: of the split `train`, else of all pairs of other splits, else of these."""
    rps: ProperScore
    """Ranked probability score: squared differences of cumulative shares, summed over steps, over the number of steps
    less one; 0 to 1."""
    log_score: ProperScore
    """Logarithmic score in nats; probabilities below 0.001 count as 0.001."""
    reliability: Annotated[tuple[LevelReliability, ...], Field(max_length=9)]
    """A curve for each level above the lowest; of long scales, for nine of them."""
