"""Standard errors, intervals, a mapping of scores to ratings, and a threshold above which a judge abstains.

All of it is fitted on rated pairs that the judge was not trained on, and holds for pairs like these. The **standard
error** is that of a score as a prediction of the mean rating of a pair by such a panel: it includes the error of the
judge and the random error of the panel's mean. An **interval** of level 90 % is split-conformal (Vovk, Gammerman &
Shafer, 2005; Lei et al., 2018): a new pair's mean rating lies inside with a probability of at least 90 %, if that pair
and those of the calibration are exchangeable. That is a statement about all pairs together, not about each kind of
pair. Pairs of one script are alike, not exchangeable: with few scripts the true coverage may differ by some percent,
which `evaluate` measures.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, assert_never

import numpy as np
from pydantic import ConfigDict, Field
from scipy.special import expit, logit

from ..core.errors import UserError, counted
from ..data_modules.schema import Dimension
from ..models import JUDGE_FILE
from ..models.description import STRICT, parse, read_json, validated
from .assessment import Domain, Score
from .three_way import Preference, PreferenceModel

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Coverages that an interval can have."""
DEFAULT_LEVEL = 0.9
MappingName = Literal["none", "isotonic", "temperature"]

_EDGE = 1e-6  # of the normalised scale: distance that a score keeps from its ends, where a logit is infinite
_STEEPEST = 50.0  # a steeper curve is a step for all purposes

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


# Mappings from scores to ratings


@dataclass(frozen=True)
class Unmapped:
    """Scores stay as they are."""

    method: Literal["none"] = "none"

    def apply(self, score: np.ndarray, dimension: Dimension) -> np.ndarray:
        """The scores themselves, any shape."""
        return score


@dataclass(frozen=True)
class Isotonic:
    """Piecewise linear and rising from judge scores to rating points: straight lines between knots, constant outside
    the first and the last.

    Scores outside these two tie. Between knots that lie close together the curve is steep, and a difference that comes
    from rounding grows with it.
    """

    scores: Annotated[tuple[_Finite, ...], Field(min_length=1)]
    ratings: tuple[_Finite, ...]
    method: Literal["isotonic"] = "isotonic"

    def __post_init__(self) -> None:
        if len(self.scores) != len(self.ratings):
            raise ValueError(
                f"{counted(len(self.scores), 'score')} and {counted(len(self.ratings), 'rating')}; expected as many"
            )
        if any(after <= before for before, after in itertools.pairwise(self.scores)):
            raise ValueError(f"scores {list(self.scores)}; expected rising numbers")
        if any(after < before for before, after in itertools.pairwise(self.ratings)):
            raise ValueError(f"ratings {list(self.ratings)}; expected rising numbers")

    def apply(self, score: np.ndarray, dimension: Dimension) -> np.ndarray:
        """Rating points of scores of any shape; NaN stays NaN."""
        return np.interp(score, self.scores, self.ratings)


@dataclass(frozen=True)
class Temperature:
    """The logit of the normalised score divided by a temperature (above 1 draws scores to the middle, below 1 apart),
    and shifted (Platt, 1999; Guo et al., 2017).

    Strictly rising: the order of the scores stays, but for those nearer than a millionth of the scale to its ends.
    """

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    shift: _Finite
    method: Literal["temperature"] = "temperature"

    def apply(self, score: np.ndarray, dimension: Dimension) -> np.ndarray:
        """Rating points of scores of any shape; NaN stays NaN."""
        span = dimension.maximum - dimension.minimum
        return dimension.minimum + span * expit(_logit(score, dimension) / self.temperature + self.shift)


ScoreMapping = Annotated[Unmapped | Isotonic | Temperature, Field(discriminator="method")]


def fit_mapping(
    name: MappingName, score: np.ndarray, human: np.ndarray, dimension: Dimension
) -> Unmapped | Isotonic | Temperature:
    """The curve of least squares from finite judge scores to mean ratings of the same pairs, both `(pairs,)` in rating
    points.
    """
    from scipy.optimize import isotonic_regression, least_squares  # scoring needs neither

    match name:
        case "none":
            return Unmapped()
        case "isotonic":
            # Pooled adjacent violators (Barlow et al., 1972), a knot at the mean score of each block: a line between
            # the means of two blocks keeps apart what the step function of `sklearn.isotonic` would tie
            distinct, code, times = np.unique(score, return_inverse=True, return_counts=True)
            fitted_steps = isotonic_regression(np.bincount(code, weights=human) / times, weights=times)
            starts = fitted_steps.blocks[:-1]
            centres = np.add.reduceat(distinct * times, starts) / np.add.reduceat(times, starts)
            return Isotonic(tuple(centres.tolist()), tuple(fitted_steps.x[starts].tolist()))
        case "temperature":
            logits = _logit(score, dimension)
            normalised = (human - dimension.minimum) / (dimension.maximum - dimension.minimum)
            fitted = least_squares(
                lambda line: expit(line[0] * logits + line[1]) - normalised,
                x0=(1.0, 0.0),
                # A slope above 0 keeps the order of the scores
                bounds=((1 / _STEEPEST, -np.inf), (_STEEPEST, np.inf)),
            )
            slope, shift = fitted.x.tolist()
            return Temperature(1 / slope, shift)
        case _:
            assert_never(name)


def _logit(score: np.ndarray, dimension: Dimension) -> np.ndarray:
    normalised = (score - dimension.minimum) / (dimension.maximum - dimension.minimum)
    # A sigmoid in float32 reaches the ends of the scale, where the logit is infinite
    return logit(np.clip(normalised, _EDGE, 1 - _EDGE))


# One dimension, and all of them


@dataclass(frozen=True)
class Quantile:
    """Quantile of this level of the errors on calibration pairs: in deviations of the head, or in rating points where
    it has none; None = undefined, for a reason."""

    level: _Finite
    value: _NotNegative | None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError("a value and a reason why there is none, or neither; expected one of them")


class Calibrated(NamedTuple):
    """Scores and what is known of their errors, arrays of one shape `(..., dimensions)`."""

    score: np.ndarray  # rating points, after the mapping
    standard_error: np.ndarray  # rating points; NaN = unknown
    low: np.ndarray  # lower end of the interval, rating points inside the scale; NaN = unknown
    high: np.ndarray  # its upper end
    abstained: np.ndarray  # True where the standard error is above the threshold; False where there is no threshold


@dataclass(frozen=True)
class DimensionCalibration:
    """One dimension."""

    n: _Count  # rated pairs that it was fitted on
    groups: _Count  # groups that they belong to
    mapping: ScoreMapping  # from the head's score to rating points
    uses_deviation: bool  # True if standard errors follow the deviation of the head; False = the same for all pairs
    # standard error / deviation of the head, or the standard error itself in rating points; None without rated pairs
    factor: _NotNegative | None
    quantiles: tuple[Quantile, ...]  # one for each of `LEVELS`
    # standard error in rating points above which the judge abstains; None = never
    abstain_above: _NotNegative | None = None
    # which of two responses people prefer, or neither; None = too few were compared
    three_way: PreferenceModel | None = None

    def __post_init__(self) -> None:
        if tuple(quantile.level for quantile in self.quantiles) != LEVELS:
            raise ValueError(f"quantiles; expected one for each of the levels {', '.join(map(str, LEVELS))}, in order")
        values = [quantile.value for quantile in self.quantiles if quantile.value is not None]
        if sorted(values) != values:
            raise ValueError(f"quantiles {values}; expected values that rise with the level")

    def apply(self, dimension: Dimension, score: np.ndarray, deviation: np.ndarray | None, level: float) -> Calibrated:
        """One column of `Calibration.apply`."""
        if self.uses_deviation and deviation is None:
            raise ValueError(f"{dimension.name}: calibrated on deviations of the head, but it gives none")
        spread = deviation if self.uses_deviation and deviation is not None else np.where(np.isnan(score), np.nan, 1.0)
        scale = spread.astype(np.float64)
        # float32 scores that are not mapped must be returned unchanged
        mapped = self.mapping.apply(score.astype(np.float64), dimension)
        error = (np.nan if self.factor is None else self.factor) * scale
        quantile = self.quantiles[LEVELS.index(level)].value
        half = np.nan if quantile is None else quantile * scale
        above = math.inf if self.abstain_above is None else self.abstain_above
        # An interval may end at the scale's end without covering less: no mean rating lies beyond
        ends = mapped - half, mapped + half
        low, high = (np.minimum(np.maximum(end, dimension.minimum), dimension.maximum) for end in ends)
        return Calibrated(mapped, error, low, high, error > above)

    def in_words(self) -> str:
        """Summary in one line."""
        model = self.three_way
        compared = ""
        if model is not None:
            compared = f"; of two responses: {counted(model.n, 'verdict')} in {counted(model.groups, 'group')}"
        if self.factor is None:
            return f"no standard errors: {self.quantiles[0].reason}{compared}"
        unit = " x deviation of the head" if self.uses_deviation else " points"
        widths = [
            f"{100 * q.level:g} % \N{PLUS-MINUS SIGN}{q.value:.2f}" for q in self.quantiles if q.value is not None
        ]
        missing = [f"{100 * q.level:g} % none ({q.reason})" for q in self.quantiles if q.value is None]
        above = "" if self.abstain_above is None else f"; abstains above a standard error of {self.abstain_above:.2f}"
        pairs = f"{counted(self.n, 'pair')} in {counted(self.groups, 'group')}"
        return (
            f"{pairs}: standard error {self.factor:.2f}{unit}; intervals {', '.join([*widths, *missing])}{unit}{above}"
            f"{compared}"
        )


@dataclass(frozen=True)
class Calibration:
    """Of one judge, bound to its trained weights."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    weights: str  # hash of the trained weights (`weight_files.weights_hash`)
    dataset: str  # name of the data that it was fitted on
    synthetic: bool  # True if its ratings were not given by people
    content_hash: str  # hash of that data
    split_hash: str  # hash of its splits
    # which of them; None = all pairs. Those that chose the best checkpoint make errors look a little too small.
    splits: tuple[str, ...] | None
    failed: _Count  # rated pairs left out because their audio cannot be used
    method: MappingName  # how scores are mapped
    # fraction of the calibration pairs that the judge abstains from; None = none
    abstain_share: Annotated[float, Field(ge=0, le=1)] | None
    dimensions: Mapping[str, DimensionCalibration]  # by name, in the order of the judge
    domain: Domain  # what its pairs were like
    schema_version: Literal[1] = 1  # of the file

    @property
    def abstains(self) -> bool:
        """True if the judge abstains from anything."""
        return any(dimension.abstain_above is not None for dimension in self.dimensions.values())

    def apply(
        self, score: np.ndarray, deviation: np.ndarray | None, dimensions: Sequence[Dimension], level: float
    ) -> Calibrated:
        """Calibrate what a head predicts.

        Args:
            score: Of the head `(dimensions,)` or `(pairs, dimensions)`, rating points.
            deviation: Of the head, the same shape, above 0; None where it has none.
            dimensions: Of the judge.
            level: Of the intervals, one of `LEVELS`.

        Returns:
            Float64. Where the score is NaN, all but `abstained` is NaN; so is all that depends on a deviation of NaN.
        """
        columns = [
            self.dimensions[dimension.name].apply(
                dimension, score[..., column], None if deviation is None else deviation[..., column], level
            )
            for column, dimension in enumerate(dimensions)
        ]
        return Calibrated(*(np.array(parts).T for parts in zip(*columns, strict=True)))


def preference(model: PreferenceModel, first: Score, second: Score) -> Preference | None:
    """What people will say of two responses to one context; None = a standard error that counts is unknown."""
    errors = first.standard_error, second.standard_error
    # The model was fitted with errors: without them its chances would be too sure
    if model.uses_error and None in errors:
        return None
    difference = first.score - second.score if first.scale.higher_is_better else second.score - first.score
    return model.preference(difference, math.hypot(*(error or 0.0 for error in errors)))


def uncalibrated(score: np.ndarray) -> Calibrated:
    """Scores whose errors are unknown."""
    unknown = np.full(score.shape, np.nan)
    return Calibrated(score, unknown, unknown, unknown, np.zeros(score.shape, dtype=bool))


def no_calibration(uses_deviation: bool) -> DimensionCalibration:
    """For a dimension that was not rated: nothing is known."""
    quantiles = tuple(Quantile(level, None, "no rated pairs") for level in LEVELS)
    return DimensionCalibration(0, 0, Unmapped(), uses_deviation, None, quantiles)


# Files


@dataclass(frozen=True)
class JudgeFacts:
    """What of `judge.json` a reader of scores needs; `score` writes it beside its scores."""

    dimensions: tuple[Dimension, ...] = ()
    weights: str | None = None  # hash of the weights that were calibrated
    three_way: Mapping[str, PreferenceModel | None] = field(default_factory=dict)  # how scores become preferences

    @classmethod
    def read(cls, judge: Path) -> JudgeFacts | None:
        """Of a judge folder; None where there is none, as in a run folder."""
        path = judge / JUDGE_FILE
        try:
            written = read_json(path)
            dimensions, values = parse(path, written).dimensions, written.get("calibration")
            if values is None:
                return cls(dimensions)
            calibration = from_json(values, str(path), dimensions)
        except (OSError, UserError):
            return None
        three_way = {name: fitted.three_way for name, fitted in calibration.dimensions.items()}
        return cls(dimensions, calibration.weights, three_way)


def to_json(known: Calibration | JudgeFacts) -> dict[str, Any]:
    """Plain values, as a file gives them back."""
    # Through JSON, so that tuples are the lists that a file gives back
    return json.loads(json.dumps(asdict(known)))


def from_json(values: Any, where: str, dimensions: Sequence[Dimension]) -> Calibration:
    """Read and check a calibration from plain values (of `to_json`); `where` they are written begins an error message.

    Raises:
        UserError: Naming a value that is missing, unexpected or makes no sense, or other dimensions.
    """
    calibration = validated(Calibration, values, where)
    names = [dimension.name for dimension in dimensions]
    if set(calibration.dimensions) != set(names):
        raise UserError(f"{where}: dimensions {', '.join(calibration.dimensions)}; expected {', '.join(names)}")
    for dimension in dimensions:
        mapping = calibration.dimensions[dimension.name].mapping
        ratings = mapping.ratings if isinstance(mapping, Isotonic) else (dimension.minimum,)
        if not dimension.minimum <= ratings[0] <= ratings[-1] <= dimension.maximum:
            field = f"{where}: dimensions.{dimension.name}.mapping.ratings"
            raise UserError(f"{field}: outside the scale; expected {dimension.scale}")
    return calibration
