"""Does a judge's score mean what it says: are responses that it gives 4 rated 4 on average?

Items are sorted by judge score into bins of (nearly) equal counts. Items of equal score are always in one bin, so that
counts can differ and bins can be missing where the judge ties many items.

Beside it stand how a judge uses the rating scale (its severity or leniency is `agreement.bias`), and whether intervals
that it states hold what they promise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .agreement import CONSTANT_TOLERANCE, Statistic, weighted_mean
from .bootstrap import CompleteItems, ItemKernel, Resamples, measured

BINS = 10


@dataclass(frozen=True)
class CalibrationBin:
    """Items of neighbouring judge scores.

    Attributes:
        score: Mean judge score, rating points.
        human: Mean human score, rating points.
        standard_error: Of the mean human score, allowing for items of one group being alike (Liang and Zeger, 1986);
            None where all items of the bin are of one group.
        n: Items.
    """

    score: float
    human: float
    standard_error: float | None
    n: int


def calibration_curve(
    score: np.ndarray, human: np.ndarray, groups: np.ndarray, bins: int = BINS
) -> tuple[CalibrationBin, ...]:
    """Mean human score by judge score.

    Args:
        score: Shape (n,), judge, rating points; items with a NaN are left out.
        human: Shape (n,), the same items.
        groups: Shape (n,), the group of each item, names or numbers.
        bins: How many, at most.

    Returns:
        The bins that have items, by rising judge score; none without items or with infinite scores.

    Raises:
        ValueError: If shapes differ or `bins` is below 1.
    """
    _check(bins)
    items = CompleteItems.of(score, human)
    codes = items.codes(groups, "groups")
    if items.empty.reason is not None:
        return ()
    bin_of = _bin_of(items.score, np.ones((1, len(items.score))), bins)[0]
    members = [np.flatnonzero(bin_of == number) for number in np.unique(bin_of)]
    return tuple(
        CalibrationBin(
            float(items.score[own].mean()),
            float(items.human[own].mean()),
            _standard_error(items.human[own], codes[own]),
            len(own),
        )
        for own in members
    )


def expected_calibration_error(
    score: np.ndarray, human: np.ndarray, resamples: Resamples, bins: int = BINS
) -> Statistic:
    """Mean over items of the distance between mean judge and mean human score of their bin, in rating points.

    Chance differences add up: it is above 0 for a perfectly calibrated judge, too, by about the mean
    `CalibrationBin.standard_error`, and higher in resamples (which are binned anew) than in the data, so that the
    interval tends to lie too high. Compare it between judges, or before and after a mapping, on the same items.

    Args:
        score: Shape (n,), judge, rating points; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        resamples: Draws over the same n items.
        bins: How many, at most.

    Returns:
        Defined from one item on, also for a constant judge, whose only bin has the distance of the means.

    Raises:
        ValueError: If shapes differ or `bins` is below 1.
    """
    _check(bins)
    items = CompleteItems.of(score, human)

    def error(times: np.ndarray) -> np.ndarray:
        rows = len(times)
        cells = (_bin_of(items.score, times, bins) + bins * np.arange(rows)[:, None]).ravel()
        weights = (times * (items.score - items.human)).ravel()
        apart = np.abs(np.bincount(cells, weights=weights, minlength=rows * bins)).reshape(rows, bins).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return apart / times.sum(axis=1)

    return measured(items, resamples.select(items.kept), error)


@dataclass(frozen=True)
class CalibrationLine:
    """Least squares line of human on judge score: human = intercept + slope * judge.

    Slope 1 and intercept 0 are perfect. A slope below 1 says that the judge exaggerates differences.

    Attributes:
        slope: Human rating points per judge point.
        intercept: Rating points.
    """

    slope: Statistic
    intercept: Statistic


def calibration_line(score: np.ndarray, human: np.ndarray, resamples: Resamples) -> CalibrationLine:
    """The line with bootstrap intervals of slope and intercept.

    Args:
        score: Shape (n,), judge, rating points; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        resamples: Draws over the same n items.

    Returns:
        Undefined, with the reason, where the judge's scores are constant, a single item included.

    Raises:
        ValueError: If shapes differ.
    """
    items = CompleteItems.of(score, human)
    x, y = items.score, items.human
    tolerance = (CONSTANT_TOLERANCE * np.abs(x).max(initial=0.0)) ** 2

    def line(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(divide="ignore", invalid="ignore"):
            share = times / times.sum(axis=1, keepdims=True)
            x_mean, y_mean = share @ x, share @ y
            dx = x - x_mean[:, None]
            variance = (share * dx**2).sum(axis=1)
            slope = (share * dx * (y - y_mean[:, None])).sum(axis=1) / np.where(variance > tolerance, variance, np.nan)
        return slope, y_mean - slope * x_mean

    seen, constant = resamples.select(items.kept), "the judge scores are constant"
    return CalibrationLine(
        measured(items, seen, lambda times: line(times)[0], constant),
        measured(items, seen, lambda times: line(times)[1], constant),
    )


def _check(bins: int) -> None:
    if bins < 1:
        raise ValueError(f"{bins} bins; expected at least 1")


def _bin_of(score: np.ndarray, times: np.ndarray, bins: int) -> np.ndarray:
    """The bin of each item, from 0, where item i is there times[:, i] times; shape of `times`.

    The mean rank of its ties decides, so that items of equal score share a bin. Scores that a mapping makes of equal
    ones differ by what the CPU rounds: they count as equal.
    """
    order = np.argsort(score, kind="stable")
    apart = np.diff(score[order], prepend=-np.inf) > CONSTANT_TOLERANCE * np.abs(score).max()
    code = np.empty(len(score), dtype=np.int64)
    code[order] = np.cumsum(apart) - 1
    tied = np.add.reduceat(times[:, order], np.flatnonzero(apart), axis=1)
    middle = np.cumsum(tied, axis=1) - tied / 2
    total = np.maximum(middle[:, -1:] + tied[:, -1:] / 2, 1)
    return np.minimum(np.floor(middle * bins / total), bins - 1).astype(np.int64)[:, code]


def _standard_error(values: np.ndarray, groups: np.ndarray) -> float | None:
    """Of the mean, from the sums of deviations by group; for groups of one item sd (n - 1) / root of n."""
    codes = np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(codes, weights=values - values.mean())
    if len(sums) < 2:
        return None
    return float(np.sqrt((sums @ sums) * len(sums) / (len(sums) - 1)) / len(values))


QUANTILES = (0.05, 0.95)
"""Between these lies the part of the scale that counts as used: single extreme scores do not."""


@dataclass(frozen=True)
class SideScaleUse:
    """How one side uses the scale, over the items that both sides scored.

    Attributes:
        mean: In rating points.
        sd: Standard deviation over n, in rating points.
        range_used: The distance between the `QUANTILES` (linear interpolation) over the length of the scale; it
            passes 1 where scores lie outside.
        outside: Share of scores below the minimum or above the maximum.
    """

    mean: Statistic
    sd: Statistic
    range_used: Statistic
    outside: Statistic


@dataclass(frozen=True)
class ScaleUse:
    """How judge and people use the scale.

    Attributes:
        judge: The judge's scores.
        human: The human scores. Means over raters vary less than single ratings.
        sd_ratio: Standard deviation of the judge over that of people: below 1 the judge keeps to the middle.
    """

    judge: SideScaleUse
    human: SideScaleUse
    sd_ratio: Statistic


def scale_use(score: np.ndarray, human: np.ndarray, minimum: float, maximum: float, resamples: Resamples) -> ScaleUse:
    """Means, spread and range of both sides, with bootstrap intervals.

    Args:
        score: Shape (n,), judge, rating points; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        minimum: Lowest point of the scale.
        maximum: Highest point of the scale.
        resamples: Draws over the same n items.

    Returns:
        Defined from one item on; the ratio is undefined where people's scores are constant. Scores of a judge that are
        constant have the standard deviation and the ratio 0.

    Raises:
        ValueError: If shapes differ or the scale has no length.
    """
    if not minimum < maximum:
        raise ValueError(f"a scale from {minimum} to {maximum}; expected a minimum below the maximum")
    items = CompleteItems.of(score, human)
    seen = resamples.select(items.kept)

    def side(values: np.ndarray) -> SideScaleUse:
        outside = ((values < minimum) | (values > maximum)).astype(np.float64)
        quantiles = [_quantile(values, share) for share in QUANTILES]
        return SideScaleUse(
            measured(items, seen, lambda times: weighted_mean(values, times)),
            measured(items, seen, lambda times: _sd(values, times)),
            measured(items, seen, lambda times: (quantiles[1](times) - quantiles[0](times)) / (maximum - minimum)),
            measured(items, seen, lambda times: weighted_mean(outside, times)),
        )

    def ratio(times: np.ndarray) -> np.ndarray:
        people = _sd(items.human, times)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                people > CONSTANT_TOLERANCE * np.abs(items.human).max(), _sd(items.score, times) / people, np.nan
            )

    return ScaleUse(
        side(items.score),
        side(items.human),
        measured(items, seen, ratio, "the human scores are constant"),
    )


def _sd(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Standard deviation over n; exactly 0 for equal values."""
    shifted = values - values[0]  # so that no digits are lost where the spread is small
    mean = weighted_mean(shifted, times)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((times * (shifted - mean[:, None]) ** 2).sum(axis=1) / times.sum(axis=1))


def _quantile(values: np.ndarray, share: float) -> ItemKernel:
    """`numpy.quantile` (linear interpolation) of the repeated values."""
    order = np.argsort(values)
    rising = values[order]

    def quantile(times: np.ndarray) -> np.ndarray:
        last = np.cumsum(times[:, order], axis=1)
        position = share * (last[:, -1:] - 1)
        below = np.floor(position)
        at = [np.minimum((last <= own).sum(axis=1), len(rising) - 1) for own in (below, np.ceil(position))]
        return np.where(
            last[:, -1] > 0, rising[at[0]] + (position - below)[:, 0] * (rising[at[1]] - rising[at[0]]), np.nan
        )

    return quantile


_ROUNDING = 1e-9  # rating points: an end that is the rating itself holds it


def coverage(low: np.ndarray, high: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Share of the items whose mean rating lies inside its interval, ends included.

    Args:
        low: Shape (n,), lower ends, rating points; items with a NaN are dropped and counted.
        high: Shape (n,), upper ends.
        human: Shape (n,), mean ratings of the same items.
        resamples: Draws over the same n items.

    Raises:
        ValueError: If shapes differ.
    """
    known = np.isfinite(low) & np.isfinite(high)
    inside = (low - _ROUNDING <= human) & (human <= high + _ROUNDING)
    return _mean_of_items(np.where(known, inside.astype(np.float64), np.nan), human, resamples)


def mean_width(low: np.ndarray, high: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Mean width of the intervals of rated items in rating points; arguments and errors as for `coverage`."""
    return _mean_of_items(high - low, human, resamples)


def error_ratio(score: np.ndarray, standard_error: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    """Root mean square of the errors, each divided by its standard error: 1 = as large as stated, above 1 = larger.

    Args:
        score: Shape (n,), judge, rating points.
        standard_error: Shape (n,), above 0; other items are dropped and counted.
        human: Shape (n,), mean ratings of the same items.
        resamples: Draws over the same n items.

    Raises:
        ValueError: If shapes differ.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = np.where(standard_error > 0, ((score - human) / standard_error) ** 2, np.nan)
    items = CompleteItems.of(squared, human)
    return measured(items, resamples.select(items.kept), lambda times: np.sqrt(weighted_mean(items.score, times)))


def _mean_of_items(values: np.ndarray, human: np.ndarray, resamples: Resamples) -> Statistic:
    items = CompleteItems.of(values, human)
    return measured(items, resamples.select(items.kept), lambda times: weighted_mean(items.score, times))
