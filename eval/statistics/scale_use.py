"""How a judge uses the rating scale, beside people. Its severity or leniency is `agreement.bias`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .agreement import CONSTANT_TOLERANCE, Statistic
from .bootstrap import Resamples
from .complete_items import CompleteItems, Kernel, measured

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
        raise ValueError(f"a scale from {minimum} to {maximum}; accepted: a minimum below the maximum")
    items = CompleteItems.of(score, human)
    seen = resamples.select(items.kept)

    def side(values: np.ndarray) -> SideScaleUse:
        outside = ((values < minimum) | (values > maximum)).astype(np.float64)
        quantiles = [_quantile(values, share) for share in QUANTILES]
        return SideScaleUse(
            measured(items, seen, lambda times: _mean(values, times)),
            measured(items, seen, lambda times: _sd(values, times)),
            measured(items, seen, lambda times: (quantiles[1](times) - quantiles[0](times)) / (maximum - minimum)),
            measured(items, seen, lambda times: _mean(outside, times)),
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


def _mean(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return times @ values / times.sum(axis=1)


def _sd(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Standard deviation over n; exactly 0 for equal values."""
    shifted = values - values[0]  # so that no digits are lost where the spread is small
    mean = _mean(shifted, times)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((times * (shifted - mean[:, None]) ** 2).sum(axis=1) / times.sum(axis=1))


def _quantile(values: np.ndarray, share: float) -> Kernel:
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
