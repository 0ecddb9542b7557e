"""The agreement report, ``agreement.json``: every field, in the order of the file.

The file is strict JSON (no NaN, no Infinity). A statistic that is undefined has the value null and a reason;
it is never 0. Correlations stand on items (one pair, mean over its raters) unless they are under
``system_level``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypedDict

from .agreement import Statistic

SCHEMA_VERSION = 1


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


class SystemLevel(TypedDict):
    """Agreement of system means; the ``n`` of these statistics counts systems."""

    n_systems: int
    spearman: StatisticReport
    pearson: StatisticReport
    kendall: StatisticReport
    systems: list[SystemReport]


class DimensionReport(TypedDict):
    """One rated quality. ``share_of_ceiling``: spearman / ceiling.spearman; a judge can pass 1."""

    scale: Scale
    n_items: int
    n_groups: int
    n_raters: int
    n_ratings: int
    coverage: Coverage
    judge: Distribution
    human: Distribution
    spearman: StatisticReport
    pearson: StatisticReport
    kendall: StatisticReport
    ccc: StatisticReport
    mae: StatisticReport
    rmse: StatisticReport
    bias: StatisticReport
    ceiling: Ceiling
    share_of_ceiling: StatisticReport
    share_of_panel_ceiling: StatisticReport
    system_level: SystemLevel


class CheckReport(TypedDict):
    """A listening check on one dimension.

    ``spearman`` with the human scores of the unchanged pairs, over the ``n`` items scored in both runs;
    ``drop``: how far below the full Spearman of the same items; ``mean_change``: mean absolute difference of
    the two scores in rating points; ``failed``: status -> items without a score in the check.
    """

    spearman: StatisticReport
    drop: StatisticReport
    mean_change: float | None
    n: int
    failed: dict[str, int]


class SliceReport(TypedDict):
    """The items with one value of a column."""

    n_items: int
    n_groups: int
    spearman: StatisticReport
    mae: StatisticReport
    bias: StatisticReport


class AgreementReport(TypedDict):
    """The file.

    ``split``: null = all pairs. ``split_hash``: of the whole dataset. ``checks``: check -> dimension ->
    result, empty if the checks were not run. ``slices``: column -> value -> dimension -> result, for columns
    with two values or more.
    ``provenance``: what the caller knows of the judge (artifact hash, model version, ...).
    """

    schema_version: int
    judge: str
    dataset: DatasetReport
    split: str | None
    split_hash: str
    command: str
    seed: int
    resamples: int
    versions: dict[str, str]
    provenance: dict[str, Any]
    left_out: LeftOut
    dimensions: dict[str, DimensionReport]
    checks: dict[str, dict[str, CheckReport]]
    slices: dict[str, dict[str, dict[str, SliceReport]]]
