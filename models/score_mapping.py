"""Rising curves from a judge's scores to the ratings of people: fitted on rated pairs, applied to every score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import numpy as np
from scipy.optimize import isotonic_regression, least_squares
from scipy.special import expit, logit

from ..data_modules.schema import Dimension

MappingName = Literal["none", "isotonic", "temperature"]
MAPPING_NAMES: tuple[MappingName, ...] = get_args(MappingName)

_EDGE = 1e-6  # share of the scale that a score keeps from its ends, where a logit is infinite
_STEEPEST = 50.0  # more than this no data can tell from a step


@dataclass(frozen=True)
class Unmapped:
    """Scores stay as they are."""

    def apply(self, score: np.ndarray, dimension: Dimension) -> np.ndarray:
        """The scores themselves, any shape."""
        return score


@dataclass(frozen=True)
class Isotonic:
    """A rising curve without a formula: straight lines between knots, level beyond the first and the last.

    Scores beyond these two tie. Between knots that lie close together the curve is steep, and a difference that comes
    from rounding grows with it.

    Attributes:
        scores: Judge scores of the knots, rising.
        ratings: Rating points there, rising.
    """

    scores: tuple[float, ...]
    ratings: tuple[float, ...]

    def apply(self, score: np.ndarray, dimension: Dimension) -> np.ndarray:
        """Rating points of scores of any shape; NaN stays NaN."""
        return np.interp(score, self.scores, self.ratings)


@dataclass(frozen=True)
class Temperature:
    """The logit of the score's share of the scale over a temperature, and shifted (Platt, 1999; Guo et al., 2017).

    Strictly rising: the order of the scores stays, but for those nearer than a millionth of the scale to its ends.

    Attributes:
        temperature: Above 1 draws scores to the middle, below 1 apart.
        shift: Of the logit.
    """

    temperature: float
    shift: float

    def apply(self, score: np.ndarray, dimension: Dimension) -> np.ndarray:
        """Rating points of scores of any shape; NaN stays NaN."""
        span = dimension.maximum - dimension.minimum
        return dimension.minimum + span * expit(_logit(score, dimension) / self.temperature + self.shift)


Mapping = Unmapped | Isotonic | Temperature


def fit_mapping(name: MappingName, score: np.ndarray, human: np.ndarray, dimension: Dimension) -> Mapping:
    """The curve of least squares.

    Args:
        name: Which kind.
        score: Judge `(pairs,)`, finite rating points.
        human: Mean ratings of the same pairs `(pairs,)`, finite.
        dimension: The scale.
    """
    match name:
        case "none":
            return Unmapped()
        case "isotonic":
            return _fit_isotonic(score, human)
        case "temperature":
            return _fit_temperature(score, human, dimension)
        case _:
            assert_never(name)


def _fit_isotonic(score: np.ndarray, human: np.ndarray) -> Isotonic:
    """Pooled adjacent violators (Barlow et al., 1972), a knot at the mean score of each block.

    A line between the means of two blocks keeps apart what a step function would tie.
    """
    distinct, code, times = np.unique(score, return_inverse=True, return_counts=True)
    found = isotonic_regression(np.bincount(code, weights=human) / times, weights=times)
    starts = found.blocks[:-1]
    centres = np.add.reduceat(distinct * times, starts) / np.add.reduceat(times, starts)
    return Isotonic(tuple(centres.tolist()), tuple(found.x[starts].tolist()))


def _fit_temperature(score: np.ndarray, human: np.ndarray, dimension: Dimension) -> Temperature:
    span = dimension.maximum - dimension.minimum
    logits, share = _logit(score, dimension), (human - dimension.minimum) / span
    found = least_squares(
        lambda line: expit(line[0] * logits + line[1]) - share,
        x0=(1.0, 0.0),
        bounds=((1 / _STEEPEST, -np.inf), (_STEEPEST, np.inf)),
    )
    slope, shift = found.x.tolist()
    return Temperature(1 / slope, shift)


def _logit(score: np.ndarray, dimension: Dimension) -> np.ndarray:
    share = (score - dimension.minimum) / (dimension.maximum - dimension.minimum)
    return logit(np.clip(share, _EDGE, 1 - _EDGE))
