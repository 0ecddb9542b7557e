"""What `agreement`, `compare --table`, `plan`, `stress` and `challenge` write."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..statistics.agreement import KappaDistance, Statistic
from ..statistics.bootstrap import Interval
from ..statistics.like_for_like import LikeForLike
from .base import Count, Part, Share, Versioned, is_none
from .dataset import Pairwise, Prompting, Ranking
from .judge import JudgeReport
from .people import PeopleReport

# ---------------------------------------------------------------- all dimensions together


class OverallPeople(Part):
    """People over all dimensions."""

    spearman: Statistic
    """Mean leave-one-out human agreement."""
    panel_mean: Statistic
    """Mean noise ceiling."""


class OverallJudge(Part):
    """A judge over all dimensions."""

    judge: str
    """Its name."""
    cluster: int | None
    """1 = best; null for a `reason`."""
    n_dimensions: Count
    """Dimensions on which its Spearman is defined."""
    spearman: Statistic
    """Mean Spearman."""
    share_of_panel_ceiling: Statistic
    """Mean Spearman / mean noise ceiling."""
    like_for_like: LikeForLike
    """The judge and one person, who is one rater in all dimensions."""
    reason: str | None
    """Why it has no rank; null where it has one."""


class OverallPairwise(Pairwise):
    """Two judges over all dimensions; `p` is of a paired bootstrap."""

    n_dimensions: Count
    """Dimensions that both have."""


class OverallReport(Part):
    """Judges over all dimensions, which ``n`` of its statistics counts."""

    n_dimensions: Count
    """Dimensions with items."""
    n_groups: Count
    """Groups of all datasets."""
    resamples: Count
    """Bootstrap resamples, the same for all dimensions."""
    people: OverallPeople
    """The ceilings."""
    judges: tuple[OverallJudge, ...]
    """Best first; those without a rank are last."""
    comparisons: tuple[OverallPairwise, ...]
    """Every two judges."""
    text: tuple[str, ...]
    """What this says, in sentences."""


# ---------------------------------------------------------------- a table of scores

TableCluster = Literal["group", "system"]
"""Columns of a table whose values a bootstrap can draw as wholes."""


class TableJudge(JudgeReport):
    """A judge on a dimension of a table; its scale is from the lowest to the highest score by people."""

    n_unscored: Count
    """Items that people scored and the judge did not."""
    ceiling: Statistic
    """Leave-one-out human agreement on the items of the judge."""
    panel_ceiling: Statistic
    """Noise ceiling on the items of the judge."""


class AnnotatorPair(Part):
    """Two annotators, over the items that both scored."""

    first: str
    """Name of an annotator."""
    second: str
    """Name of another."""
    n_items: Count
    """Items that both scored."""
    spearman: Statistic
    """Rank correlation."""
    pearson: Statistic
    """Product-moment correlation."""
    kendall: Statistic
    """Kendall's tau-b."""
    linear_kappa: Statistic
    """Cohen's kappa with linear weights."""
    quadratic_kappa: Statistic
    """Cohen's kappa with quadratic weights."""


class RaterRange(Part):
    """People who use the same part of a scale."""

    raters: tuple[str, ...]
    """Their names."""
    low: float
    """Their lowest score."""
    high: float
    """Their highest score."""


class RaterRanges(Part):
    """Two groups of people who use different ranges, and agree better once one is mapped onto the other."""

    ranges: tuple[RaterRange, RaterRange]
    """The wider one first."""
    alpha: float
    """Krippendorff's alpha (interval) of the scores as they are."""
    alpha_mapped: float
    """The same with the second range mapped linearly onto the first."""
    text: str
    """This in words."""


class TableDimension(Part):
    """A dimension of a dataset of a table."""

    dataset: str | None
    """Null in a table without datasets."""
    dimension: str
    """Its name."""
    missing_scores: dict[str, Count]
    """Annotator -> items without a score."""
    people: PeopleReport
    """How well people agree."""
    ranges: Annotated[RaterRanges | None, Field(exclude_if=is_none)] = None
    """Only where people seem to use two scales."""
    judges: dict[str, TableJudge]
    """Judge -> its agreement with the mean of the people."""
    ranking: Ranking | None
    """The judges against each other; null with fewer than two."""
    pairs: Annotated[tuple[AnnotatorPair, ...] | None, Field(exclude_if=is_none)] = None
    """Every two annotators; only with `--pairs`."""

    @property
    def name(self) -> str:
        """The dimension, with its dataset where there is one."""
        return self.dimension if self.dataset is None else f"{self.dataset}/{self.dimension}"


class TableReport(Versioned):
    """People and judges on a table of scores: `agreement` and `compare --table`."""

    signature: str
    """All that the figures depend on, in one line."""
    table: str
    """The file."""
    sha256: str
    """SHA-256 of the file."""
    command: str
    """The command line."""
    people: tuple[str, ...]
    """Annotators that are people."""
    judges: tuple[str, ...]
    """Annotators that are judges."""
    left_out: tuple[str, ...]
    """Annotators that were taken out."""
    kappa_weights: KappaDistance
    """The distance of weighted kappa: of the scores, or of their ranks."""
    cluster: TableCluster
    """The column whose values intervals draw as wholes."""
    interval: Interval
    """Kind of the intervals."""
    resamples: Count
    """Bootstrap resamples that were asked for."""
    seed: int
    """Seed of all random draws."""
    overall: OverallReport | None
    """All dimensions together; null with fewer than two, or without judges."""
    dimensions: tuple[TableDimension, ...]
    """In the order of the table."""


# ---------------------------------------------------------------- plan


class Range(Part):
    """A number with its interval."""

    value: float | None
    """Null where it is undefined."""
    low: float | None
    """Lower end of the 95 % interval; null where there is none."""
    high: float | None
    """Upper end of the 95 % interval; null where there is none."""


class PilotFacts(Part):
    """What is known before the ratings are paid for."""

    n_items: Count
    """Rated items of an average dimension; 0 = the variances are assumed."""
    ratings_per_item: float
    """Harmonic mean; 0 = the variances are assumed."""
    single_reliability: Range
    """Reliability of a single rating."""
    design_effect: float
    """Of groups and systems on the variance of a judge's Spearman."""
    design_effect_from: str
    """Whose scores it was estimated from: judges, raters, or variances."""
    judges: dict[str, float]
    """Judge -> its agreement with the true scores."""


class Variances(Part):
    """Variance components in squared rating points; null where one cannot be estimated."""

    item: float | None
    """Of items."""
    group: float | None
    """Of groups."""
    rater: float | None
    """Of raters' severities."""
    residual: float | None
    """The rest."""


class PlanRow(Part):
    """What a number of items and raters gives."""

    raters: int | float
    """Ratings per item."""
    items: Count
    """Items."""
    ratings: int | float
    """Ratings in all."""
    ceiling: float | None
    """Noise ceiling."""
    ceiling_low: float | None
    """Lower end of its interval; null where there is none."""
    ceiling_high: float | None
    """Upper end of its interval; null where there is none."""
    leave_one_out: float | None
    """Leave-one-out human agreement; null below two raters."""
    judge_spearman: float
    """Spearman of the better judge with the mean of the ratings."""
    standard_error: float
    """Of that Spearman."""
    difference: float
    """Of the Spearman of the two judges."""
    power: Share
    """Power to tell the two judges apart."""
    cost: float | None
    """In the unit of the price; null without one."""


class Needed(Part):
    """How many ratings tell the two judges apart."""

    raters: int | float
    """Ratings per item."""
    items: Count
    """Items."""
    ratings: int | float
    """Ratings in all."""
    cost: float | None
    """In the unit of the price; null without one."""


class LearningPoint(Part):
    """What a probe on the frozen backbone learns from a number of pairs."""

    dimension: str
    """Name of the dimension."""
    pairs: Count
    """Training pairs."""
    spearman: Statistic
    """On groups that were left out."""
    behind: Statistic | None
    """How much more all pairs give; null for all pairs."""


class SystemPlan(Part):
    """What tells two systems apart that answer the same contexts."""

    dimension: str
    """Its name."""
    n_systems: Count
    """Systems of the pilot."""
    difference: float
    """Between the means of the two, rating points."""
    spread: float
    """Standard deviation, between contexts, of the difference of two systems of the pilot; mean over all pairs."""
    contexts: Count
    """Contexts of which people rate the responses of both."""
    ratings_per_context: float
    """Ratings of a system's responses to one context, as in the pilot."""
    ratings_per_system: Count
    """Ratings of each system."""


class PlanReport(Versioned):
    """How many ratings a measurement needs: ``plan.json`` of `plan`."""

    source: str
    """Where the pilot comes from."""
    pilot: PilotFacts
    """What is known."""
    components: dict[str, Variances]
    """Dimension -> its variance components; the name is empty where they are assumed."""
    agreement: Share
    """Of the better judge with the true scores."""
    difference: Share
    """By how much the other judge agrees less."""
    between: float
    """Spearman between the two judges, -1 to 1."""
    power: Share
    """Power that is wanted."""
    price: float | None
    """Of a rating; null = costs are not computed."""
    rows: tuple[PlanRow, ...]
    """Each number of raters and items."""
    needed: tuple[Needed, ...]
    """For each number of raters."""
    sentence: str
    """The cheapest of these in words."""
    assumption: str
    """What it assumes of the judges, and where this comes from."""
    ranges: Annotated[dict[str, RaterRanges] | None, Field(exclude_if=is_none)] = None
    """Dimension -> raters who seem to use two scales; only where some do."""
    learning: Annotated[tuple[LearningPoint, ...] | None, Field(exclude_if=is_none)] = None
    """The learning curve; only with `--learning`."""
    systems: Annotated[tuple[SystemPlan, ...] | None, Field(exclude_if=is_none)] = None
    """For each dimension; only with `--systems`."""


# ---------------------------------------------------------------- stress and challenges

StressVerdict = Literal["rises", "not clear", "holds", "caught", "not possible"]


class StressResult(Part):
    """What a change of the response does to the score of a dimension."""

    gain: Statistic
    """Mean change of the score in units; above 0 is better for the policy."""
    raised: Statistic
    """Share of pairs that rise by more than a unit."""
    caught: Share | None
    """Share of changed responses that get no reward, or the lowest; null without pairs."""
    failed: Count
    """Changed responses that could not be scored."""
    verdict: StressVerdict
    """`rises`: the gain is beyond the tolerance, and its interval is above 0."""
    reason: str | None
    """Why there is no gain; null where there is one."""


class StressReport(Versioned):
    """What raises the score of a judge and should not: ``stress.json`` of `stress`."""

    judge: str
    """Name of the judge."""
    split: str | None
    """The split that was changed; null = all pairs."""
    n_pairs: Count
    """Pairs that count."""
    left_out: dict[str, str]
    """Pair -> why it gets no reward, or the lowest, as it is."""
    signature: str
    """All that the figures depend on, in one line."""
    unit: Literal["standard error", "standard deviation"]
    """Unit of the gains: of the judge, or of its scores where it is not calibrated."""
    raised: tuple[str, ...]
    """Checks that raise a score."""
    text: str
    """What this says, in words."""
    dimensions: dict[str, dict[str, StressResult]]
    """Dimension -> check -> its result."""


ALL_SOURCES = "all"
"""Key of the result over all sources."""


class ChallengeScore(Part):
    """AEQ-Bench on a source."""

    score: Statistic
    """(right questions + groups with all right) / (questions + groups), 0 to 1."""
    accuracy: Statistic
    """Right questions / questions."""
    group_accuracy: Statistic
    """Groups with all questions right / groups, which its ``n`` counts."""
    chance: Share
    """Expected accuracy of a guess."""


class ChallengeReport(Versioned):
    """A judge in a public challenge: `challenge`."""

    signature: str
    """All that the figures depend on, in one line."""
    dimensions: dict[str, dict[str, ChallengeScore]] | dict[str, Statistic]
    """Dimension -> AEQ-Bench: source, and `all` -> its score; EchoMind: how often a matched response is above a crossed
    one, 0 to 1; chance is 0.5."""
    without_score: Annotated[dict[str, Count] | None, Field(exclude_if=is_none)] = None
    """Status -> pairs that were to be scored, crossed ones included. A question of AEQ-Bench with one is wrong."""
    prompting: Annotated[Prompting | None, Field(exclude_if=is_none)] = None
    """Of a prompted judge."""
