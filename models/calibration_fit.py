"""Fits the calibration of one dimension from scores and ratings."""

from __future__ import annotations

import math

import numpy as np

from ..data_modules.errors import UserError
from ..data_modules.schema import Dimension
from .calibration import LEVELS, DimensionCalibration, Quantile, no_calibration
from .score_mapping import MappingName, fit_mapping

MIN_MAPPED = 20
"""Fewest rated pairs of a mapping."""
FOLDS = 5
"""Parts in which the groups are divided to measure a mapping on pairs that it was not fitted on."""

_ROUNDING = 1e-9  # (n + 1) * level is a whole number too often to trust its last bit


def fit_dimension(
    dimension: Dimension,
    score: np.ndarray,
    deviation: np.ndarray | None,
    human: np.ndarray,
    groups: np.ndarray,
    *,
    method: MappingName = "none",
    abstain: float | None = None,
) -> DimensionCalibration:
    """Mapping, standard error, quantiles and threshold of one dimension.

    The standard error is the deviation of the head times the factor that makes the mean squared standardised error 1
    on these pairs; without deviations it is the root mean square of the errors, the same for all pairs. The quantile of
    a level is the ceil((n + 1) * level)-th smallest |rating - score| / deviation (Lei et al., 2018).

    A mapping is judged by errors on groups that it was not fitted on, in `FOLDS` parts; the one that is kept is fitted
    on all. The guarantee of the intervals is exact for `none`, and approximate for a mapping (Barber et al., 2021).

    Args:
        dimension: The scale.
        score: Of the head `(pairs,)`, rating points; NaN = no score.
        deviation: Of the head `(pairs,)`, above 0; None where it has none.
        human: Mean rating of each pair `(pairs,)`; NaN = not rated. Pairs without a score or a rating do not count.
        groups: Group of each pair `(pairs,)`.
        method: How scores are mapped.
        abstain: Share of the pairs, those with the largest standard errors, that the judge abstains from.

    Raises:
        UserError: If a mapping has too few pairs or would reverse the order, or a threshold would not tell pairs apart.
        ValueError: If shapes differ or a deviation is not above 0.
    """
    rated = np.isfinite(score) & np.isfinite(human)
    if not rated.any():
        return no_calibration("no rated pairs", deviation is not None)
    score, human, groups = score[rated].astype(np.float64), human[rated], groups[rated]
    scale = np.ones(len(score)) if deviation is None else deviation[rated].astype(np.float64)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ValueError(f"{dimension.name}: deviations must be finite and above 0")
    codes = np.unique(groups, return_inverse=True)[1]
    if method != "none":
        _check_mappable(dimension, score, human, codes)
    standardised = np.abs(human - _mapped(method, score, human, codes, dimension)) / scale
    factor = float(np.sqrt(np.mean(standardised**2)))
    return DimensionCalibration(
        n=len(score),
        groups=len(np.unique(codes)),
        mapping=fit_mapping(method, score, human, dimension),
        uses_deviation=deviation is not None,
        factor=factor,
        quantiles=tuple(conformal_quantile(standardised, level) for level in LEVELS),
        abstain_above=None if abstain is None else _threshold(dimension, factor * scale, abstain),
    )


def conformal_quantile(errors: np.ndarray, level: float) -> Quantile:
    """The ceil((n + 1) * level)-th smallest of n errors `(pairs,)`; undefined, with the reason, where there is none."""
    place = math.ceil((len(errors) + 1) * level - _ROUNDING)
    if place > len(errors):
        needed = math.ceil(level / (1 - level) - _ROUNDING)
        return Quantile(level, None, f"{len(errors)} rated pairs, at least {needed} needed")
    return Quantile(level, float(np.partition(errors, place - 1)[place - 1]))


def _mapped(
    method: MappingName, score: np.ndarray, human: np.ndarray, codes: np.ndarray, dimension: Dimension
) -> np.ndarray:
    """Scores `(pairs,)`, each mapped by a curve that has not seen its group."""
    if method == "none":
        return score
    folds = min(FOLDS, int(codes.max()) + 1)
    fold = np.random.default_rng(0).permutation(int(codes.max()) + 1)[codes] % folds
    mapped = np.empty(len(score))
    for number in range(folds):
        held_out = fold == number
        fitted = fit_mapping(method, score[~held_out], human[~held_out], dimension)
        mapped[held_out] = fitted.apply(score[held_out], dimension)
    return mapped


def _check_mappable(dimension: Dimension, score: np.ndarray, human: np.ndarray, codes: np.ndarray) -> None:
    groups = int(codes.max()) + 1
    if len(score) < MIN_MAPPED or groups < FOLDS:
        raise UserError(
            f"dimension {dimension.name}: {len(score)} rated pairs in {groups} groups; a mapping needs at least "
            f"{MIN_MAPPED} in {FOLDS}; accepted: method none"
        )
    if (score - score.mean()) @ (human - human.mean()) <= 0:
        raise UserError(
            f"dimension {dimension.name}: ratings do not rise with the scores, and a mapping would reverse their order "
            "or make them all the same; accepted: method none, or a judge that agrees with people"
        )


def _threshold(dimension: Dimension, errors: np.ndarray, share: float) -> float:
    """The standard error that so many of the pairs exceed, or as many as ties allow."""
    count = math.floor(share * len(errors) + _ROUNDING)
    ordered = np.sort(errors)
    if not 0 < share < 1 or count == 0:
        raise UserError(
            f"dimension {dimension.name}: abstaining from a share of {share:g} of {len(errors)} pairs; accepted: a "
            "share between 0 and 1 that is at least one pair"
        )
    threshold = ordered[len(errors) - count - 1]
    if threshold == ordered[-1]:
        raise UserError(
            f"dimension {dimension.name}: the standard error of the pairs to abstain from is that of the others; "
            "accepted: a head with a deviation (such as gaussian), or no share to abstain from"
        )
    return float(threshold)
