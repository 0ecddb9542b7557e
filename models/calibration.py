"""What a judge knows about its own errors: standard errors, intervals, and when it had better say nothing.

All of it stands on rated pairs that the judge was not trained on (`calibration_fit`), and means something for pairs
like these. The **standard error** is that of a score as a prediction of the mean rating that such a panel gives such a
pair: it holds what the judge gets wrong and the chance in the panel's mean. An **interval** of level 90 % is
split-conformal (Vovk, Gammerman & Shafer, 2005; Lei et al., 2018): a new pair's mean rating lies inside with a
probability of at least 90 %, if that pair and those of the calibration could as well have been swapped. That is a
statement about all pairs together, not about each kind of them. Pairs of one script are alike, not exchangeable: with
few scripts the true share may lie some percent away, which `evaluate` measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..data_modules.errors import UserError
from ..data_modules.schema import Dimension
from .domain import Domain
from .score_mapping import Mapping as ScoreMapping
from .score_mapping import MappingName, Unmapped

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Shares of pairs that an interval can be asked to cover."""
DEFAULT_LEVEL = 0.9


@dataclass(frozen=True)
class Quantile:
    """How far the ratings of calibration pairs lay from their scores.

    Attributes:
        level: Share of the pairs, of `LEVELS`.
        value: In deviations of the head, or in rating points where it has none; None = undefined.
        reason: Why it is undefined.
    """

    level: float
    value: float | None
    reason: str | None = None


@dataclass(frozen=True)
class DimensionCalibration:
    """One dimension.

    Attributes:
        n: Rated pairs that it was fitted on.
        groups: Groups that they belong to.
        mapping: From the head's score to rating points.
        uses_deviation: True if standard errors follow the deviation of the head; False = the same for all pairs.
        factor: Standard error / deviation of the head, or the standard error itself in rating points; None without
            rated pairs.
        quantiles: One for each of `LEVELS`.
        abstain_above: Standard error in rating points above which the judge abstains; None = never.
    """

    n: int
    groups: int
    mapping: ScoreMapping
    uses_deviation: bool
    factor: float | None
    quantiles: tuple[Quantile, ...]
    abstain_above: float | None = None

    def quantile(self, level: float) -> Quantile:
        """The quantile of that level.

        Raises:
            UserError: If the level is not one of `LEVELS`.
        """
        for quantile in self.quantiles:
            if quantile.level == level:
                return quantile
        raise UserError(f"level {level:g}; accepted: {', '.join(f'{known:g}' for known in LEVELS)}")

    def in_words(self) -> str:
        """What it says, in one line."""
        if self.factor is None:
            return f"not calibrated: {self.quantiles[0].reason}"
        unit = " x deviation of the head" if self.uses_deviation else " points"
        known = [
            f"{100 * own.level:g} % \N{PLUS-MINUS SIGN}{own.value:.2f}"
            for own in self.quantiles
            if own.value is not None
        ]
        missing = [f"{100 * own.level:g} % none ({own.reason})" for own in self.quantiles if own.value is None]
        above = "" if self.abstain_above is None else f"; abstains above a standard error of {self.abstain_above:.2f}"
        pairs = f"{self.n} pairs in {self.groups} groups"
        return (
            f"{pairs}: standard error {self.factor:.2f}{unit}; intervals {', '.join([*known, *missing])}{unit}{above}"
        )


class Calibrated(NamedTuple):
    """Scores and what is known of their errors, all of one shape `(..., dimensions)`.

    Attributes:
        score: Rating points, after the mapping.
        standard_error: Rating points; NaN = unknown.
        low: Lower end of the interval, rating points inside the scale; NaN = unknown.
        high: Its upper end.
        abstained: True where the judge had better say nothing; False where it has no threshold.
    """

    score: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    abstained: np.ndarray


@dataclass(frozen=True)
class Calibration:
    """Of one judge, bound to its trained weights.

    Attributes:
        weights: Hash of the trained weights (`calibration_files.weights_hash`).
        dataset: Name of the data that it was fitted on.
        synthetic: True if its ratings were not given by people.
        content_hash: Hash of that data.
        split_hash: Hash of its splits.
        splits: Which of them; None = all pairs. Those that chose the best checkpoint make errors look a little too
            small.
        failed: Rated pairs left out because their audio cannot be used.
        method: How scores are mapped.
        abstain_share: Share of the calibration pairs that the judge abstains from; None = none.
        dimensions: By name, in the order of the judge.
        domain: What its pairs were like; None in calibrations of earlier versions.
    """

    weights: str
    dataset: str
    synthetic: bool
    content_hash: str
    split_hash: str
    splits: tuple[str, ...] | None
    failed: int
    method: MappingName
    abstain_share: float | None
    dimensions: Mapping[str, DimensionCalibration] = field(default_factory=dict)
    domain: Domain | None = None

    @property
    def abstains(self) -> bool:
        """True if the judge abstains from anything."""
        return any(own.abstain_above is not None for own in self.dimensions.values())

    def apply(
        self, score: np.ndarray, deviation: np.ndarray | None, dimensions: Sequence[Dimension], level: float
    ) -> Calibrated:
        """Calibrate what a head predicts.

        Args:
            score: Of the head `(..., dimensions)`, rating points.
            deviation: Of the head, the same shape, above 0; None where it has none.
            dimensions: Of the judge.
            level: Of the intervals, one of `LEVELS`.

        Returns:
            Float64. Where the score is NaN, all but `abstained` is; so is what stands on a deviation of NaN.

        Raises:
            UserError: If the level is not one of `LEVELS`.
            ValueError: If the calibration stands on deviations and there are none.
        """
        columns = [
            _apply(
                self.dimensions[dimension.name],
                dimension,
                score[..., column],
                None if deviation is None else deviation[..., column],
                level,
            )
            for column, dimension in enumerate(dimensions)
        ]
        return Calibrated(*(np.stack(parts, axis=-1) for parts in zip(*columns, strict=True)))


def uncalibrated(score: np.ndarray) -> Calibrated:
    """Scores of which nothing else is known."""
    unknown = np.full(score.shape, np.nan)
    return Calibrated(score, unknown, unknown, unknown, np.zeros(score.shape, dtype=bool))


def _apply(
    own: DimensionCalibration, dimension: Dimension, score: np.ndarray, deviation: np.ndarray | None, level: float
) -> Calibrated:
    """One column of `Calibration.apply`."""
    if own.uses_deviation and deviation is None:
        raise ValueError(f"{dimension.name}: calibrated on deviations of the head, but it gives none")
    scale = deviation if own.uses_deviation and deviation is not None else np.where(np.isnan(score), np.nan, 1.0)
    # float32 scores that are not mapped must come back as they were
    mapped = own.mapping.apply(score.astype(np.float64), dimension)
    error = np.full(score.shape, np.nan) if own.factor is None else own.factor * scale.astype(np.float64)
    quantile = own.quantile(level).value
    half = np.nan if quantile is None else quantile * scale.astype(np.float64)
    above = math.inf if own.abstain_above is None else own.abstain_above
    return Calibrated(
        mapped,
        error,
        np.clip(mapped - half, dimension.minimum, dimension.maximum),
        np.clip(mapped + half, dimension.minimum, dimension.maximum),
        error > above,
    )


def no_calibration(reason: str, uses_deviation: bool) -> DimensionCalibration:
    """Of a dimension that was not rated: nothing is known, for a reason."""
    quantiles = tuple(Quantile(level, None, reason) for level in LEVELS)
    return DimensionCalibration(0, 0, Unmapped(), uses_deviation, None, quantiles)
