"""Does a judge's score mean what it says: are responses that it gives 4 rated 4 on average?

Items are sorted by judge score into bins of (nearly) equal counts. Items of equal score are always in one bin, so that
counts can differ and bins can be missing where the judge ties many items. The module also measures how a judge uses the
rating scale, its errors after its scores are mapped to human rating points, and the coverage of the intervals it gives.

Everywhere `score` is the judge's and `human` the people's of the same n items, shape (n,), rating points; an item with
a NaN is dropped and counted. `groups` has the group of each item, names or numbers, and `resamples` are draws over the
items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from .agreement import CONSTANT_TOLERANCE, IN_REPORTS, Statistic, is_constant, mae, rmse
from .bootstrap import Resamples, complete, estimate, estimate_share, estimates

BINS = 10
"""Most bins of a curve."""


@dataclass(frozen=True)
class CalibrationBin:
    """Items of neighbouring judge scores."""

    __pydantic_config__ = IN_REPORTS

    score: float
    """Mean judge score, rating points."""
    human: float
    """Mean human score, rating points."""
    standard_error: float | None
    """Of the mean human score, allowing for items of one group being alike (Liang and Zeger, 1986); None where all
    items of the bin are of one group."""
    n: int
    """Items."""


def calibration_curve(
    score: np.ndarray, human: np.ndarray, groups: np.ndarray, bins: int = BINS
) -> tuple[CalibrationBin, ...]:
    """Mean human score by judge score: the bins with items, by rising score; empty where a score is infinite."""
    valid, point = complete(score, human)
    if point.reason is not None:
        return ()
    x, y, codes = score[valid], human[valid], np.asarray(groups)[valid]
    bin_of = _bin_of(x, bins)
    return tuple(
        CalibrationBin(
            float(x[items].mean()), float(y[items].mean()), _standard_error(y[items], codes[items]), len(items)
        )
        for items in (np.flatnonzero(bin_of == index) for index in np.unique(bin_of))
    )


def calibration_error(score: np.ndarray, human: np.ndarray) -> float:
    """Expected calibration error: mean over items of the distance between mean judge and mean human score of their bin.

    For finite scores. It is that of probabilities (Naeini et al., 2015) on a scale of ratings, in bins of equal counts.
    Chance differences add up: even for a perfectly calibrated judge
    the error is above 0, by about the mean `CalibrationBin.standard_error`. It is higher in resamples (which are binned
    anew) than in the data, so that the interval tends to lie too high. Compare it between judges, or before and after a
    mapping, on the same items. For a constant judge, which has one bin, it is the distance of the means.
    """
    return float(np.abs(np.bincount(_bin_of(score), weights=score - human)).sum()) / len(score)


def expected_calibration_error(score: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """`calibration_error` with its interval."""
    # Drawn items are then sorted, too, which saves most of the time
    order = np.argsort(score, kind="stable")
    return estimate(calibration_error, score[order], human[order], resamples=resamples.select(order))


def calibration_line(score: np.ndarray, human: np.ndarray) -> tuple[float, float]:
    """Slope and intercept (rating points) of the least squares line of human on judge score; 1 and 0 are perfect.

    A slope below 1 means that the judge exaggerates differences. NaN for a constant judge.
    """
    centred, mean = score - score.mean(), score.mean()
    squares = float(centred @ centred)
    if is_constant(score) or squares == 0:  # 0 also where the squares of tiny scores vanish
        return math.nan, math.nan
    slope = float(centred @ human) / squares
    return slope, float(human.mean() - slope * mean)


def _bin_of(score: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The bin of each item, from 0, by the mean rank of its ties, so that items of equal score share a bin."""
    # A mapping may turn equal scores into scores that differ by rounding: these count as equal
    order = np.argsort(score, kind="stable")
    apart = np.diff(score[order], prepend=-np.inf) > CONSTANT_TOLERANCE * np.abs(score).max()
    starts = np.flatnonzero(apart)
    # Tied items share the bin of their middle rank
    middle = (starts + np.append(starts[1:], len(score))) / 2
    bin_numbers = np.empty(len(score), dtype=np.intp)
    bin_numbers[order] = np.minimum(middle * bins // len(score), bins - 1)[np.cumsum(apart) - 1]
    return bin_numbers


def _standard_error(values: np.ndarray, groups: np.ndarray) -> float | None:
    """Of the mean, from the sums of deviations by group; for groups of one item it is sd (over n - 1) / sqrt(n)."""
    codes = np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(codes, weights=values - values.mean())
    if len(sums) < 2:
        return None
    return float(np.sqrt((sums @ sums) * len(sums) / (len(sums) - 1)) / len(values))


QUANTILES = (0.05, 0.95)
"""The range between these quantiles counts as used, so that single extreme scores do not count."""


def scale_use(
    score: np.ndarray, human: np.ndarray, minimum: float, maximum: float, resamples: Resamples
) -> dict[str, Any]:
    """How judge and people use a scale from minimum to maximum, over the items that both scored.

    People's means over raters vary less than single ratings.

    Returns:
        For ``judge`` and ``human``: ``mean`` and ``sd`` (over n) in rating points; ``range_used``, the distance between
        the `QUANTILES` (linear interpolation) over the length of the scale, above 1 where scores lie outside; and
        ``outside``, the share of scores below the minimum or above the maximum. ``sd_ratio``, judge over people: below
        1 the judge keeps to the middle, 0 = a constant judge; undefined where people's scores are constant.
    """

    def side(values: np.ndarray) -> list[float]:
        low, high = np.quantile(values, QUANTILES)
        outside = ((values < minimum) | (values > maximum)).mean()
        return [values.mean(), _sd(values), (high - low) / (maximum - minimum), outside]

    def both(score: np.ndarray, human: np.ndarray) -> list[float]:
        ratio = math.nan if is_constant(human) else _sd(score) / _sd(human)
        return [*side(score), *side(human), ratio]

    names = ("mean", "sd", "range_used", "outside")
    reasons = {f"{who} {name}": "" for who in ("judge", "human") for name in names}
    reasons["sd_ratio"] = "the human scores are constant"
    statistics = estimates(both, score, human, resamples=resamples, reasons=reasons)
    sides = {who: {name: statistics[f"{who} {name}"] for name in names} for who in ("judge", "human")}
    return {**sides, "sd_ratio": statistics["sd_ratio"]}


def _sd(values: np.ndarray) -> float:
    """Standard deviation over n; exactly 0 for equal values."""
    # The mean of equal values may be off by rounding, and their deviation then above 0
    return float((values - values[0]).std())


MappingKind = Literal["linear", "isotonic"]
MAPPINGS: tuple[MappingKind, ...] = get_args(MappingKind)

# Each mapping is fitted on four fifths of the groups (Hastie, Tibshirani and Friedman, 2009, 7.10)
FOLDS = 5


def mapped_errors(
    score: np.ndarray, human: np.ndarray, groups: np.ndarray, mapping: MappingKind, resamples: Resamples, seed: int = 0
) -> dict[str, Statistic]:
    """``mae``, ``rmse`` and ``error`` (`calibration_error`) of `mapped_scores`, which takes the same arguments.

    Undefined, with the reason, with fewer than two groups. Intervals resample the errors of these mapped scores; they
    leave out the uncertainty of the mappings themselves.
    """
    valid, point = complete(score, human)
    if point.reason is None and len(np.unique(groups[valid])) < 2:
        point = replace(point, reason="1 group: no other one to fit a mapping on")
    if point.reason is not None:
        return dict.fromkeys(("mae", "rmse", "error"), point)
    mapped = mapped_scores(score, human, groups, mapping, seed)
    return {
        "mae": estimate(mae, mapped, human, resamples=resamples),
        "rmse": estimate(rmse, mapped, human, resamples=resamples),
        "error": expected_calibration_error(mapped, human, resamples),
    }


def mapped_scores(
    score: np.ndarray, human: np.ndarray, groups: np.ndarray, mapping: MappingKind, seed: int = 0
) -> np.ndarray:
    """Judge scores mapped to human rating points; an item's mapping is fitted on other groups than its own.

    A judge may use another scale than people, in any unit, or part of it. This shows how near its scores come after a
    correction. The items that count are of two groups or more.

    Args:
        mapping: ``linear`` (least squares) or ``isotonic`` (the rising step function of least squares, interpolated
            between the scores that it was fitted on and constant beyond them; Barlow et al., 1972). Both map a constant
            judge to the mean human score.
        seed: Seed of the division of the groups into `FOLDS` folds, or as many as there are groups.
    """
    valid, _ = complete(score, human)
    x, y = score[valid], human[valid]
    names, codes = np.unique(groups[valid], return_inverse=True)
    # Folds of groups, or a mapping would have seen the script of the item that it is judged by
    folds = min(FOLDS, len(names))
    fold = (np.random.default_rng(seed).permutation(len(names)) % folds)[codes]
    predicted = np.empty(len(codes))
    for index in range(folds):
        held_out = fold == index
        predicted[held_out] = _mapped(mapping, x[~held_out], y[~held_out], x[held_out])
    mapped = np.full(len(valid), np.nan)
    mapped[valid] = predicted
    return mapped


def _mapped(mapping: MappingKind, x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """New scores by the mapping that is fitted on judge scores x and human scores y."""
    if mapping == "linear":
        # A constant judge has no slope: everything is mapped to the mean
        slope = np.nan_to_num(calibration_line(x, y)[0])
        return y.mean() + slope * (new - x.mean())
    distinct, code, times = np.unique(x, return_inverse=True, return_counts=True)
    # Interpolated between scores that occurred, so that a new score between two of them is no jump
    from scipy.optimize import isotonic_regression  # agreement of people needs none, and its import takes long

    return np.interp(new, distinct, isotonic_regression(np.bincount(code, weights=y) / times, weights=times).x)


# Rating points: an end that is the rating itself holds it
_ROUNDING = 1e-9


def coverage(low: np.ndarray, high: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Share of the items whose mean rating lies inside its interval, ends included; its own is that of
    `estimate_share`."""
    inside = ((low - _ROUNDING <= human) & (human <= high + _ROUNDING)).astype(np.float64)
    # A judge that states no interval is not wrong there, and is not right either: the item does not count
    known = np.isfinite(low) & np.isfinite(high) & ~np.isnan(human)
    return estimate_share(np.where(known, inside, np.nan), resamples)


def mean_width(low: np.ndarray, high: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Mean width of the intervals of rated items in rating points."""
    return estimate(np.mean, np.where(np.isnan(human), np.nan, high - low), resamples=resamples)


def error_ratio(score: np.ndarray, standard_error: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Root mean square of the errors, each divided by its standard error: 1 = as large as stated, above 1 = larger.

    Items without a standard error above 0 are dropped and counted.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = np.where(standard_error > 0, ((score - human) / standard_error) ** 2, np.nan)
    return estimate(lambda values: math.sqrt(values.mean()), squared, resamples=resamples)
