"""What a dataset adds to a judge on a dimension: coverage, raters, uncertainty, verdicts, length, checks and slices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..statistics.agreement import Statistic
from .base import Count, Part, Share, is_none
from .distribution import RatingDistribution
from .judge import Distribution, JudgeReport
from .people import Ceiling

Expects = Literal["drop", "keep", "same"]
"""The expected effect on a judge that listens.

``drop``: what people rate is gone, so the judge agrees less with them. ``keep``: what people rate is still there, with
changed sound, so the judge agrees as much as before; its scores may shift. ``same``: nothing that anybody could rate
has changed, so the scores stay as they are.
"""


class Scale(Part):
    """The rating scale."""

    minimum: float
    """Lowest rating."""
    maximum: float
    """Highest rating."""
    higher_is_better: bool
    """Whether the upper end is the good one."""


class Coverage(Part):
    """How many pairs count."""

    pairs: Count
    """Pairs of the split."""
    rated: Count
    """Those of them with a rating."""
    scored: Count
    """Those of the rated ones with a score."""
    missing: Count
    """Rated pairs without a row of the judge."""
    failed: dict[str, Count]
    """Status -> rated pairs without a score."""
    out_of_scale: Count
    """Scores outside the scale; they count."""


class MeanOfRaters(Part):
    """The mean of k raters with the mean of the others."""

    k: Annotated[int, Field(ge=1)]
    """Raters of the mean."""
    expected: Statistic
    """Spearman, from the reliability of the panel."""
    measured: Statistic
    """Spearman, measured on this panel."""


class StatedInterval(Part):
    """The intervals of one level that a judge states for its scores."""

    level: Share
    """Share of items that they should cover."""
    covered: Statistic
    """Share of items that they cover."""
    width: Statistic
    """Mean width, rating points."""


class MostConfidentHalf(Part):
    """The half of the items with the smallest standard errors."""

    spearman: Statistic
    """On this half."""
    gain: Statistic
    """Over the Spearman on all items."""


class Uncertainty(Part):
    """Whether the uncertainty that a judge states is right."""

    standard_error: Distribution
    """Of the scores, rating points."""
    error_ratio: Statistic
    """Root mean square of error / standard error; 1 = as large as stated, above 1 = larger."""
    intervals: dict[str, StatedInterval]
    """Level in percent -> coverage and width."""
    most_confident_half: MostConfidentHalf
    """Whether agreement is better where the judge is sure."""
    abstained: Count
    """Items that the judge abstains from; they count all the same."""


class VsSingleRater(Part):
    """Judge and one rater, each with the verdict of the other raters on the same two responses."""

    judge: Statistic
    """Share of verdicts that agree."""
    rater: Statistic
    """Share of verdicts that agree."""
    difference: Statistic
    """Judge minus rater."""


class RiskBound(Part):
    """The verdicts that the judge gives where at most a share may be wrong."""

    max_error: Share
    """Largest share of wrong verdicts that is promised."""
    given: Statistic
    """Share of verdicts that are given."""
    wrong: Statistic
    """Share of these that are wrong."""


class RiskPoint(Part):
    """A point of the curve of risk over coverage."""

    coverage: Share
    """The surest share of verdicts."""
    risk: Share
    """Share of these that are wrong."""


class Verdicts(Part):
    """The judge's verdicts on two responses (first, second, or no difference) beside people's."""

    n: Count
    """Verdicts of people."""
    n_groups: Count
    """Groups of these."""
    ties: Share
    """Share of "no difference"."""
    most_frequent: Share
    """Share of the most frequent verdict."""
    accuracy: Statistic
    """Share of right verdicts of three."""
    brier: Statistic
    """Brier score of the probabilities, 0 to 2; 0 is perfect."""
    ece: Statistic
    """Expected calibration error of the probabilities, 0 to 1."""
    vs_single_rater: VsSingleRater
    """Whether one rater is right more often."""
    risk_bounds: dict[str, RiskBound]
    """Promised error in percent -> what it allows."""
    curve: tuple[RiskPoint, ...]
    """Risk by coverage."""


class LengthBias(Part):
    """Spearman with the length of responses."""

    judge: Statistic
    """Of the judge's scores."""
    human: Statistic
    """Of the means over raters."""
    difference: Statistic
    """Judge minus people; above 0 the judge follows length more than people do."""


class Length(Part):
    """Whether scores follow the length of responses more than ratings do."""

    seconds: LengthBias
    """Length in seconds."""
    words: LengthBias
    """Length in words of the transcript."""


class Repeats(Part):
    """Agreement of repeated answers of a prompted judge; ``n`` counts the items with two or more."""

    within_sd: Statistic
    """Standard deviation of an answer around the mean of its item, rating points."""
    icc: Statistic
    """ICC(1,1): share of the variance of single answers that comes from the items."""
    icc_of_mean: Statistic
    """ICC(1,k): the same of the mean of an item's answers."""


class Orders(Part):
    """Comparisons that were asked in both orders."""

    inconsistent: Statistic
    """Share of comparisons whose two orders do not prefer the same response."""
    first_preferred: Statistic
    """Share of verdicts for the first place, ties half; 0.5 = no position bias."""


class Drift(Part):
    """A change of the model while it was asked."""

    first: str
    """Version of the model."""
    second: str
    """Another version."""
    difference: Statistic
    """Mean change of the scores of the same pairs, second minus first, rating points."""


class Usage(Part):
    """What a prompted judge says of its answers on a dimension."""

    repeats: Repeats
    """Whether answers to one question agree."""
    orders: Orders
    """Whether the order of two responses matters."""
    drift: tuple[Drift, ...]
    """Every two versions of the model that answered."""


class DatasetPart(Part):
    """What a dataset adds to a judge on a dimension."""

    scale: Scale
    """The rating scale."""
    n_groups: Count
    """Clusters of the items."""
    n_raters: Count
    """Raters of the items; 0 where only means are published."""
    n_ratings: Count
    """Ratings of the items; a published mean counts once."""
    coverage: Coverage
    """How many pairs count."""
    ceiling: Ceiling
    """How well raters agree."""
    mean_of_k_raters: tuple[MeanOfRaters, ...]
    """For each k that the panel allows."""
    uncertainty: Uncertainty | None
    """Null if the judge states none."""
    verdicts: Verdicts | None
    """Null without preferences or comparisons, or where the judge has no model of them."""
    length: Length
    """Length bias."""
    usage: Usage | None
    """Null if the judge is not prompted."""
    rating_distribution: Annotated[RatingDistribution | None, Field(exclude_if=is_none)] = None
    """Left out where the judge predicts no distribution of ratings, or not on the steps of this scale."""


class DimensionReport(JudgeReport, DatasetPart):
    """A judge on a dimension of a dataset: what the dataset adds, then the judge."""


class SliceCheck(Part):
    """A listening check inside a slice."""

    expects: Expects
    """What it must do to the agreement of a judge that listens."""
    n: Count
    """Items scored in both runs."""
    spearman: Statistic
    """What is left of the Spearman."""
    drop: Statistic
    """How far it is below the full Spearman of these items."""


class CheckReport(SliceCheck):
    """A listening check on a dimension."""

    tolerance: float | None
    """Of checks that must not move the scores: 95 % move by no more than this share of their standard deviation."""
    mean_change: float | None
    """Mean absolute difference of scores, rating points; null without items."""
    p95_change: float | None
    """The difference that 95 % of the scores do not exceed, rating points; null without items."""
    judge_sd: float | None
    """Standard deviation of the unchanged scores, rating points; null without items, or where they are constant."""
    failed: dict[str, Count]
    """Status -> items without a score in the changed run."""


class VoiceAndWords(Part):
    """How much of the variance of the judge's scores comes from the voice, and how much from the words."""

    voice: Statistic
    """Share of the variance that only scores without words explain."""
    words: Statistic
    """Share that only scores without voice explain."""
    common: Statistic
    """Share that either explains; below 0 = suppression."""
    neither: Statistic
    """The rest; the four shares add up to 1."""
    index: Statistic
    """Voice / (voice + words); 1 = all voice, 0 = all words."""
    voice_r: Statistic
    """Pearson correlation of the full scores with those without words."""
    words_r: Statistic
    """Pearson correlation of the full scores with those without voice."""


class SliceReport(Part):
    """A judge on the items with one value of a column."""

    n_items: Count
    """Items with a score and a rating."""
    n_groups: Count
    """Clusters of these."""
    spearman: Statistic
    """Rank correlation with the mean over the raters."""
    mae: Statistic
    """Mean absolute error, rating points."""
    bias: Statistic
    """Mean of judge minus people, rating points."""
    checks: dict[str, SliceCheck]
    """Listening check -> what is left."""
    intervals: dict[str, StatedInterval]
    """Level in percent -> coverage and width of the intervals that the judge states."""
