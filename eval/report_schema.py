"""The agreement report, ``agreement.json``: every field, in the order of the file.

The file is strict JSON (no NaN, no Infinity). A statistic that is undefined has the value null and a reason;
it is never 0. Correlations stand on items (one pair, mean over its raters) unless they are under
``system_level``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypedDict

from .statistics.agreement import Statistic

SCHEMA_VERSION = 3


class StatisticReport(TypedDict):
    """A number with its 95 % interval; the fields of `agreement.Statistic`."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    dropped: int
    undefined_resamples: int
    reason: str | None


def statistic_report(statistic: Statistic) -> StatisticReport:
    """The statistic as it stands in the file."""
    return StatisticReport(**asdict(statistic))


class DatasetReport(TypedDict):
    """What the data was. ``synthetic``: the ratings were not given by people."""

    name: str
    source: str
    licence: str
    synthetic: bool
    content_hash: str


class LeftOut(TypedDict):
    """Dimensions that only one side has: rated but not judged, judged but not rated."""

    not_judged: list[str]
    not_rated: list[str]


class Coverage(TypedDict):
    """Which pairs count: ``pairs`` of the split, of them ``rated``, of those ``scored`` by the judge.

    Statistics stand on the scored ones. ``missing``: rated pairs for which the judge gave no row; ``failed``:
    status -> rated pairs. ``out_of_scale``: scored ones outside the rating scale (they count all the same).
    """

    pairs: int
    rated: int
    scored: int
    missing: int
    failed: dict[str, int]
    out_of_scale: int


class Scale(TypedDict):
    """The rating scale, in rating points."""

    minimum: float
    maximum: float
    higher_is_better: bool


class Distribution(TypedDict):
    """Mean and standard deviation (over n) of the judged items, in rating points; null without items."""

    mean: float | None
    sd: float | None


class RaterReport(TypedDict):
    """One rater against the mean of the others, over ``n`` items that both rated."""

    rater_id: str
    n: int
    spearman: float | None
    reason: str | None


class Ceiling(TypedDict):
    """How well the raters agree on the same items; see `reliability`.

    ``spearman``: leave-one-rater-out. ``panel_mean``: highest Spearman to expect with the panel mean.
    """

    spearman: StatisticReport
    panel_mean: StatisticReport
    split_half: StatisticReport
    panel_reliability: StatisticReport
    krippendorff_alpha: StatisticReport
    raters: list[RaterReport]


class SystemReport(TypedDict):
    """One system: its items, the mean human and the mean judge score."""

    system_id: str
    n_items: int
    human: float
    judge: float


class SoftPairwiseReport(TypedDict):
    """See `system_pairs.SoftPairwiseAccuracy`."""

    accuracy: StatisticReport
    pairs: int
    left_out: int
    unmatched: int


class SystemLevel(TypedDict):
    """Agreement of system means; the ``n`` of these statistics counts systems. Fields as in `JudgeReport`."""

    n_systems: int
    spearman: StatisticReport
    pearson: StatisticReport
    kendall: StatisticReport
    icc_a1: StatisticReport
    icc_c1: StatisticReport
    bias: StatisticReport
    loa_lower: StatisticReport
    loa_upper: StatisticReport
    pairwise_accuracy: StatisticReport
    soft_pairwise_accuracy: SoftPairwiseReport
    systems: list[SystemReport]


class ItemPairsReport(TypedDict):
    """Pairs of items: does the judge order them as people do?

    ``concordance``: index of concordance, 0.5 = chance. ``accuracy``: share of pairs that are ordered, or tied, as by
    people, where scores less than ``epsilon`` rating points apart count as tied; see `tie_calibration`.
    """

    concordance: StatisticReport
    accuracy: StatisticReport
    epsilon: float | None
    epsilon_reason: str | None


class GroupLevelReport(TypedDict):
    """Mean of a statistic of single groups (contexts, scripts), over ``groups`` of them; see `group_level`."""

    mean: StatisticReport
    groups: int
    too_small: int
    constant: int
    chance: float | None


class WithinGroup(TypedDict):
    """Agreement on the responses to one context: a question of its own. ``top_1``: is the best one found?"""

    spearman: GroupLevelReport
    kendall: GroupLevelReport
    top_1: GroupLevelReport


class SideScaleUseReport(TypedDict):
    """How one side uses the scale; see `scale_use.SideScaleUse`."""

    mean: StatisticReport
    sd: StatisticReport
    range_used: StatisticReport
    outside: StatisticReport


class ScaleUseReport(TypedDict):
    """How judge and people use the scale. ``sd_ratio``: judge over people."""

    judge: SideScaleUseReport
    human: SideScaleUseReport
    sd_ratio: StatisticReport


class CalibrationBinReport(TypedDict):
    """Items of neighbouring judge scores; see `calibration.CalibrationBin`."""

    score: float
    human: float
    standard_error: float | None
    n: int


class MappingReport(TypedDict):
    """Errors, in rating points, after a mapping that was fitted on other groups; see `score_mapping`."""

    mae: StatisticReport
    rmse: StatisticReport
    error: StatisticReport


class CalibrationReport(TypedDict):
    """Does a score mean what it says? ``error``: expected calibration error; ``slope`` and ``intercept`` of human on
    judge score; ``mapped``: by mapping, ``linear`` or ``isotonic``."""

    error: StatisticReport
    slope: StatisticReport
    intercept: StatisticReport
    curve: list[CalibrationBinReport]
    mapped: dict[str, MappingReport]


class MeanOfRaters(TypedDict):
    """Spearman of the mean of ``k`` raters with the mean of the others; see `mean_of_raters.raters_ceiling`."""

    k: int
    expected: StatisticReport
    measured: StatisticReport


class VerdictReport(TypedDict):
    """What it amounts to: ``kind`` for machines (`verdict.Kind`), ``text`` for people."""

    kind: str
    tone: str
    text: str


class IntervalReport(TypedDict):
    """Intervals of one ``level``: ``covered``, the share of items whose mean rating lies inside; ``width``, their mean
    width in rating points. Of items without an interval none counts. See `coverage`."""

    level: float
    covered: StatisticReport
    width: StatisticReport


class SurestHalfReport(TypedDict):
    """The half of the items with the smallest standard errors, where these differ: ``spearman`` on it, and ``gain``,
    how far above the Spearman of all items that is."""

    spearman: StatisticReport
    gain: StatisticReport


class UncertaintyReport(TypedDict):
    """What the judge says of its own errors, and whether it is true. ``standard_error`` of the judged items;
    ``error_ratio``: root mean square of error / standard error, 1 = as large as stated; ``intervals``: level in percent
    -> result, empty where it gives none; ``abstained``: items of which it says that it had better not be asked."""

    standard_error: Distribution
    error_ratio: StatisticReport
    intervals: dict[str, IntervalReport]
    surest_half: SurestHalfReport
    abstained: int


class LengthBias(TypedDict):
    """Spearman with the length of the responses: of the ``judge``'s scores and of the ``human`` means; ``difference``:
    judge minus human, from the same draws. Above 0: the judge follows length more than people do."""

    judge: StatisticReport
    human: StatisticReport
    difference: StatisticReport


class LengthReport(TypedDict):
    """Length in ``seconds``, and in ``words`` where there are transcripts; see `lengths`."""

    seconds: LengthBias
    words: LengthBias


class RepeatsReport(TypedDict):
    """Answers to the same question beside each other, over pairs with two or more; see `repeats.Repeats`.

    ``within_sd`` in rating points; ``icc``: ICC(1,1), of a single answer; ``icc_of_mean``: ICC(1,k), of their mean."""

    within_sd: StatisticReport
    icc: StatisticReport
    icc_of_mean: StatisticReport


class OrdersReport(TypedDict):
    """Comparisons in both orders; ``n`` counts comparisons. See `orders.Orders`.

    ``inconsistent``: share whose orders do not prefer the same response; ``first_preferred``: share of verdicts for the
    first place, 0.5 = no taste for a place."""

    inconsistent: StatisticReport
    first_preferred: StatisticReport


class DriftReport(TypedDict):
    """Two versions of a model: mean ``difference`` of scores (rating points, second minus first) over the pairs that
    both answered."""

    first: str
    second: str
    difference: StatisticReport


class AskedDimension(TypedDict):
    """What answers on one dimension say of themselves; no rating by people is in it. ``drift``: every two versions."""

    repeats: RepeatsReport
    orders: OrdersReport
    drift: list[DriftReport]


class FailureReport(TypedDict):
    """Single answers that failed in one way: ``count``, and its share of all questions."""

    count: int
    rate: float


class AskingReport(TypedDict):
    """What it took to ask a judge in words about all pairs of the split, and how often that failed.

    ``pairs`` that were to be scored; ``scored`` on every dimension; ``without_score``: status -> pairs. ``questions``
    to be asked; ``requests`` that were answered, in whatever way, ``kept`` of them in earlier runs; ``failed``:
    questions without a score, ``failure_rate`` their share, ``failures`` by kind. ``cost`` (dollars) of all answers,
    those of earlier runs included, ``cost_per_1000_pairs``; both null for a ``cost_reason``. ``versions`` of the model
    -> pairs that it answered; ``version_changed``: more than one did. ``check_requests``: what the listening checks
    took beside these.
    """

    pairs: int
    scored: int
    without_score: dict[str, int]
    questions: int
    requests: int
    kept: int
    failed: int
    failure_rate: float | None
    failures: dict[str, FailureReport]
    cost: float | None
    cost_per_1000_pairs: float | None
    cost_reason: str | None
    versions: dict[str, int]
    version_changed: bool
    check_requests: int


class EffortReport(TypedDict):
    """``seconds_per_pair`` of the pass over the unchanged pairs. ``measured``: ``requests`` = what requests took,
    waiting and earlier runs included, several being under way at a time; ``wall_clock`` = what the pass took here."""

    seconds_per_pair: float
    measured: str


class LikeForLikeReport(TypedDict):
    """Judge and one rater against the same people; see `like_for_like`.

    Means over raters of the Spearman of the ``judge``, and of the ``rater`` itself, with the mean of the other raters
    on the items that this rater rated; their ``difference`` and ``ratio``, for a further rater of this kind, and the
    ``effective_raters``: the mean of how many raters would agree with these targets as the judge does. ``p`` of no
    difference; ``verdict`` from its interval; ``left_out``: rater -> why it is not compared.
    """

    judge: StatisticReport
    rater: StatisticReport
    difference: StatisticReport
    ratio: StatisticReport
    effective_raters: StatisticReport
    p: float | None
    verdict: str
    n_items: int
    n_raters: int
    n_groups: int
    left_out: dict[str, str]


class JudgeReport(TypedDict):
    """One judge on one rated quality.

    The judge and the mean of its raters as two raters: ``icc_a1`` and ``icc_c1``, intraclass correlations of absolute
    agreement and of consistency (McGraw and Wong, 1996); ``bias`` and the limits of agreement around it, ``loa_lower``
    and ``loa_upper`` (Bland and Altman, 1986), in rating points, judge minus people.

    ``spearman_by_rater``: the same value with an interval for other raters of the same items; ``spearman_two_way``:
    for other items and other raters. ``share_of_panel_ceiling``: spearman over the best possible; it is the
    disattenuated correlation, that with the true scores (Spearman, 1904).
    """

    n_items: int
    judge: Distribution
    human: Distribution
    spearman: StatisticReport
    pearson: StatisticReport
    kendall: StatisticReport
    ccc: StatisticReport
    icc_a1: StatisticReport
    icc_c1: StatisticReport
    mae: StatisticReport
    rmse: StatisticReport
    bias: StatisticReport
    loa_lower: StatisticReport
    loa_upper: StatisticReport
    tau_c: StatisticReport
    spearman_by_rater: StatisticReport
    spearman_two_way: StatisticReport
    share_of_panel_ceiling: StatisticReport
    like_for_like: LikeForLikeReport
    item_pairs: ItemPairsReport
    within_group: WithinGroup
    scale_use: ScaleUseReport
    calibration: CalibrationReport
    system_level: SystemLevel
    verdict: VerdictReport


class DimensionReport(JudgeReport):
    """One rated quality of a dataset: the judge, and what its raters allow. ``uncertainty``: null where the judge
    states none; ``asked``: null where it is not asked in words."""

    scale: Scale
    n_groups: int
    n_raters: int
    n_ratings: int
    coverage: Coverage
    ceiling: Ceiling
    mean_of_k_raters: list[MeanOfRaters]
    uncertainty: UncertaintyReport | None
    length: LengthReport
    asked: AskedDimension | None


class RankedJudge(TypedDict):
    """A judge in its significance cluster, 1 = best; null where its agreement is undefined, for a ``reason``."""

    judge: str
    cluster: int | None
    spearman: float | None
    reason: str | None


class ComparisonReport(TypedDict):
    """Two judges against each other over the ``n_items`` that both scored; see `significance` and `power`.

    ``difference`` of their Spearman, first minus second, with the interval of the paired cluster bootstrap. ``p``: of
    the paired permutation test, ``p_adjusted`` by Holm over all pairs of judges. ``bootstrap_p``, ``williams_p`` and
    ``steiger_p``: other tests; the last two take items for independent. ``groups_needed``: groups in all that would
    show the observed difference with a power of 0.8; ``groups_low`` and ``groups_high``: at the ends of its interval.
    """

    first: str
    second: str
    n_items: int
    n_groups: int
    difference: StatisticReport
    p: float | None
    p_adjusted: float | None
    permutations: int | None
    bootstrap_p: float | None
    williams_p: float | None
    steiger_p: float | None
    power: float | None
    detectable_difference: float | None
    groups_needed: int | None
    groups_low: int | None
    groups_high: int | None
    items_needed: int | None
    power_reason: str | None


class RankingReport(TypedDict):
    """Several judges on the same items, best first; clusters at a level of 0.05. See `clusters`."""

    judges: list[RankedJudge]
    comparisons: list[ComparisonReport]


class OverallJudge(TypedDict):
    """A judge over ``n_dimensions`` on which its agreement is defined; ``cluster`` as in `RankedJudge`.

    ``spearman``: mean of those of the dimensions. ``share_of_panel_ceiling``: that mean over the mean of what a judge
    that knew the true scores reaches there. ``like_for_like``: means over the dimensions; a person is one rater in all
    of them."""

    judge: str
    cluster: int | None
    n_dimensions: int
    spearman: StatisticReport
    share_of_panel_ceiling: StatisticReport
    like_for_like: LikeForLikeReport
    reason: str | None


class OverallComparison(TypedDict):
    """Mean ``difference`` of the Spearman of two judges, first minus second, over the items and ``n_dimensions`` that
    both have. ``p``: of the paired bootstrap, ``p_adjusted`` by Holm over all pairs of judges."""

    first: str
    second: str
    n_dimensions: int
    difference: StatisticReport
    p: float | None
    p_adjusted: float | None


class OverallReport(TypedDict):
    """Judges over all dimensions of all datasets, each dimension counting alike; see `overall`.

    Statistics count dimensions as ``n``. ``people``: means over dimensions of ``spearman`` (one person against the
    others) and ``panel_mean`` (best possible). ``judges``: best first. ``text``: what it amounts to, in sentences."""

    n_dimensions: int
    n_groups: int
    resamples: int
    people: dict[str, StatisticReport]
    judges: list[OverallJudge]
    comparisons: list[OverallComparison]
    text: list[str]


class CheckReport(TypedDict):
    """A listening check on one dimension.

    ``expects``: what must happen where a judge listens (`probes.probe.Expects`): ``drop``, ``keep`` or ``same``, for
    which 95 % of the scores may move by ``tolerance`` times ``judge_sd`` (null otherwise). ``spearman`` with the human
    scores of the unchanged pairs, over the ``n`` items scored in both runs; ``drop``: how far below the full Spearman
    of the same items; ``mean_change``: mean absolute difference of the two scores in rating points; ``p95_change``: its
    95th percentile; ``judge_sd``: standard deviation (over n) of the scores of the unchanged pairs, null where they are
    constant; ``failed``: status -> items without a score in the check.
    """

    expects: str
    tolerance: float | None
    spearman: StatisticReport
    drop: StatisticReport
    mean_change: float | None
    p95_change: float | None
    judge_sd: float | None
    n: int
    failed: dict[str, int]


class SliceCheckReport(TypedDict):
    """A listening check inside a slice: see `CheckReport`. ``spearman`` and ``drop`` over the ``n`` items scored in
    both runs."""

    expects: str
    n: int
    spearman: StatisticReport
    drop: StatisticReport


class SliceReport(TypedDict):
    """The items with one value of a column; ``checks``: check -> what is left there; ``intervals``: as in
    `UncertaintyReport`."""

    n_items: int
    n_groups: int
    spearman: StatisticReport
    mae: StatisticReport
    bias: StatisticReport
    checks: dict[str, SliceCheckReport]
    intervals: dict[str, IntervalReport]


class AgreementReport(TypedDict):
    """The file.

    ``split``: null = all pairs. ``split_hash``: of the whole dataset. ``checks``: check -> dimension ->
    result, empty if the checks were not run. ``slices``: column -> value -> dimension -> result, for columns
    with two values or more.
    ``cluster``: the column whose values intervals draw whole; ``interval``: ``percentile`` or ``bca``.
    ``voice_and_words``: dimension -> how much of the variance of the scores comes from voice and how much from words
    (`voice_words.VoiceAndWords`), where the two probes were run.
    ``effort``: the time that it took; ``asking``: what it took to ask a judge in words, null for others.
    ``provenance``: what the caller knows of the judge (artifact hash, model version, ...).
    """

    schema_version: int
    judge: str
    dataset: DatasetReport
    split: str | None
    split_hash: str
    command: str
    seed: int
    cluster: str
    interval: str
    resamples: int
    versions: dict[str, str]
    provenance: dict[str, Any]
    left_out: LeftOut
    effort: EffortReport
    asking: AskingReport | None
    dimensions: dict[str, DimensionReport]
    checks: dict[str, dict[str, CheckReport]]
    voice_and_words: dict[str, dict[str, StatisticReport]]
    slices: dict[str, dict[str, dict[str, SliceReport]]]
