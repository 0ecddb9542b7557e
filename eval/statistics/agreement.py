"""Agreement between judge scores and human scores: plain functions of two vectors, and the form of every result.

Each function takes the scores of a judge and of people for the same n items (float64, shape (n,), finite, rating
points) and returns one number; NaN = undefined. Correlations are undefined for fewer than `MIN_ITEMS` items and where
either side is constant. `bootstrap.estimate` makes a `Statistic` of them: it drops items with a NaN, says why a value
is undefined, and adds the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from ...core.errors import counted
from ...data_modules.ratings import MIN_ITEMS
from .probabilities import mean_ranks

CONSTANT_TOLERANCE = 1e-12
"""A vector is constant when its range is at most this share of its largest magnitude (rounding of a mean)."""

LIMIT_DEVIATIONS = 1.96
"""Standard deviations between the bias and a limit of agreement."""

# Up to so many items all pairs are compared: a tenth of SciPy's time for the few items of a context
_FEW = 100
# Up to so many also for Kendall's tau: 40 ms at most, where the import of `scipy.stats` takes a second
_MANY = 1000

KappaDistance = Literal["scores", "ranks"]

Function = Callable[..., float]
"""A statistic of vectors of the same n items; NaN = undefined."""


IN_REPORTS = ConfigDict(
    extra="forbid",
    frozen=True,
    allow_inf_nan=False,
    ser_json_inf_nan="constants",
    arbitrary_types_allowed=True,
    defer_build=True,  # of the types of all reports a command needs those of one
)
"""Of the types that stand in reports, see `eval.report`: `make docs` shows the text below a field."""


@dataclass(frozen=True)
class Statistic:
    """One number with its interval, or the reason why there is none."""

    __pydantic_config__ = IN_REPORTS

    value: float | None
    """The statistic; None where it is undefined."""
    low: float | None = None
    """Lower end of the 95 % interval; None where there is none."""
    high: float | None = None
    """Upper end of the 95 % interval; None where there is none."""
    n: int = 0
    """Items that the value stands on."""
    dropped: int = 0
    """Items left out because a score was NaN."""
    undefined_resamples: int = 0
    """Bootstrap resamples in which the statistic was undefined; the interval ignores them."""
    reason: str | None = None
    """Why `value`, or else the interval, is missing; None where neither is."""
    draws: Annotated[np.ndarray, Field(exclude=True)] = field(
        default_factory=lambda: np.empty(0), repr=False, compare=False
    )
    """Shape (rows of `Resamples.counts`,), its value in every resample, NaN = undefined there; empty without resamples
    or value. For differences and ratios; stands in no file."""


def is_constant(values: np.ndarray) -> bool:
    """Whether the finite values (n >= 1) are all equal up to rounding."""
    return bool(np.ptp(values) <= CONSTANT_TOLERANCE * np.abs(values).max())


def pearson(score: np.ndarray, human: np.ndarray) -> float:
    """Product-moment correlation (Pearson, 1895)."""
    _, covariance, variances = _moments(score, human)
    return _divided(covariance, math.sqrt(variances[0] * variances[1]))


def spearman(score: np.ndarray, human: np.ndarray) -> float:
    """Rank correlation, ties get their mean rank (Spearman, 1904)."""
    if not _is_defined(score, human):
        return math.nan
    # A sum of signs is twice the mean rank less a constant, to which a correlation is blind
    if len(score) <= _FEW:
        return pearson(_signs(score).sum(axis=1), _signs(human).sum(axis=1))  # doubled ranks, centred
    return pearson(mean_ranks(score), mean_ranks(human))


def kendall(score: np.ndarray, human: np.ndarray) -> float:
    """Rank correlation tau-b, corrected for ties on both sides (Kendall, 1945)."""
    if not _is_defined(score, human):
        return math.nan
    if len(score) > _MANY:
        from scipy import stats  # its import takes a second

        # The exact p value, which nobody asks for, would take long
        result: Any = stats.kendalltau(score, human, method="asymptotic")
        return float(result.statistic)
    first, second = _signs(score), _signs(human)
    return float((first * second).sum() / math.sqrt(np.count_nonzero(first) * np.count_nonzero(second)))


def ccc(score: np.ndarray, human: np.ndarray) -> float:
    """Concordance correlation: 2 cov / (var + var + squared difference of means), moments over n (Lin, 1989)."""
    apart, covariance, variances = _moments(score, human)
    return _divided(2 * covariance, sum(variances) + apart**2)


def icc_a1(score: np.ndarray, human: np.ndarray) -> float:
    """Intraclass correlation of absolute agreement, ICC(A,1), of the judge and the panel mean as two raters of n items.

    2 cov / (var + var + squared difference of means - var of the differences / n), moments over n - 1, from the mean
    squares of McGraw and Wong (1996), table 4; ICC(2,1) of Shrout and Fleiss (1979). A bias of the judge costs.
    """
    apart, covariance, variances = _moments(score, human)
    n, total = len(score), sum(variances)
    return _divided(2 * covariance, total + apart**2 * (n - 1) / n - (total - 2 * covariance) / n)


def icc_c1(score: np.ndarray, human: np.ndarray) -> float:
    """Intraclass correlation of consistency, ICC(C,1), of the judge and the panel mean: a bias does not cost.

    2 cov / (var + var), from the same mean squares; ICC(3,1) of Shrout and Fleiss (1979).
    """
    _, covariance, variances = _moments(score, human)
    return _divided(2 * covariance, sum(variances))


def weighted_kappa(
    score: np.ndarray, human: np.ndarray, weights: Literal["linear", "quadratic"], distance: KappaDistance
) -> float:
    """Cohen's weighted kappa (1968): 1 - observed disagreement / disagreement expected by chance.

    Two scores of an item disagree by their distance (linear weights) or its square (quadratic weights). Chance pairs
    every score of one side with every score of the other. The distance is a convention. ``scores``: the difference of
    the scores; with quadratic weights kappa is then `ccc`. ``ranks``: the difference of positions in the rising list of
    the categories that occur on either side, as in scikit-learn's ``cohen_kappa_score`` without ``labels``. Both agree
    for whole numbers without gaps; a scale point that nobody used, a fractional score, or scores that differ by
    rounding only change ``ranks``. In a resample the categories are those that occur there.
    """
    if not _is_defined(score, human):
        return math.nan
    positions, codes = np.unique(np.concatenate([score, human]), return_inverse=True)
    if distance == "ranks":
        positions = np.arange(len(positions), dtype=np.float64)
    first, second = np.split(positions[codes], 2)
    # An identity (see above), in linear time
    if weights == "quadratic":
        return ccc(first, second)
    # Each step between neighbouring categories counts where one side lies below it and the other above
    below = [np.cumsum(np.bincount(side, minlength=len(positions)))[:-1] / len(score) for side in np.split(codes, 2)]
    by_chance = np.diff(positions) @ (below[0] * (1 - below[1]) + below[1] * (1 - below[0]))
    return float(1 - np.abs(first - second).mean() / by_chance)


def mae(score: np.ndarray, human: np.ndarray) -> float:
    """Mean absolute error in rating points. Defined from one item on, also for constant scores."""
    return float(np.abs(score - human).mean())


def rmse(score: np.ndarray, human: np.ndarray) -> float:
    """Root mean squared error in rating points. Defined from one item on, also for constant scores."""
    return math.sqrt(((score - human) ** 2).mean())


def bias(score: np.ndarray, human: np.ndarray) -> float:
    """Mean of score minus human in rating points. Defined from one item on."""
    return float((score - human).mean())


def loa_lower(score: np.ndarray, human: np.ndarray) -> float:
    """Lower limit of agreement in rating points: bias - 1.96 standard deviations (Bland and Altman, 1986).

    If the differences, judge minus human, are normal, 95 % of them lie between the limits. The standard deviation is
    over n - 1: undefined for a single item.
    """
    difference = score - human
    return float(difference.mean() - LIMIT_DEVIATIONS * difference.std(ddof=1)) if len(score) > 1 else math.nan


def loa_upper(score: np.ndarray, human: np.ndarray) -> float:
    """Upper limit of agreement in rating points: bias + 1.96 standard deviations; see `loa_lower`."""
    return -loa_lower(human, score)


STATISTICS: Mapping[str, Function] = {
    function.__name__: function
    for function in (spearman, pearson, kendall, ccc, icc_a1, icc_c1, mae, rmse, bias, loa_lower, loa_upper)
}
"""Every statistic of a report by its name, in the order in which reports show them."""

CORRELATIONS: tuple[Function, ...] = (spearman, pearson, kendall, ccc, icc_a1, icc_c1)
"""The statistics that need `MIN_ITEMS` items and two sides that vary."""


def why_undefined(function: Function, score: np.ndarray, human: np.ndarray) -> str:
    """The reason why a function of this module, or another one with the rules of correlations, is NaN."""
    items = counted(len(score), "item")
    if function in (loa_lower, loa_upper):
        return f"{items}; limits of agreement need at least 2"
    if len(score) < MIN_ITEMS:
        return f"{items}; a correlation needs at least {MIN_ITEMS}"
    return why_constant(score, human) or "the scores are constant up to rounding"


def why_constant(score: np.ndarray, human: np.ndarray) -> str | None:
    """The reason for a statistic that is undefined because one or both sides are constant; None = neither is."""
    constant = [side for side, values in (("judge", score), ("human", human)) if is_constant(values)]
    return f"the {' and the '.join(constant)} scores are constant" if constant else None


def _is_defined(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether a correlation is defined."""
    return len(x) >= MIN_ITEMS and not is_constant(x) and not is_constant(y)


def _moments(x: np.ndarray, y: np.ndarray) -> tuple[float, float, tuple[float, float]]:
    """Difference of means, covariance and variances (over n); NaN where a correlation is undefined."""
    if not _is_defined(x, y):
        return math.nan, math.nan, (math.nan, math.nan)
    n, x_mean, y_mean = len(x), x.mean(), y.mean()
    # Centred before they are multiplied: sums of squares of scores such as 1e8 + 1 would cancel
    dx, dy = x - x_mean, y - y_mean
    return float(x_mean - y_mean), float(dx @ dy) / n, (float(dx @ dx) / n, float(dy @ dy) / n)


def _divided(above: float, below: float) -> float:
    # It is 0 where the scores are so small that their squares vanish
    return above / below if below > 0 else math.nan


def _signs(values: np.ndarray) -> np.ndarray:
    return np.sign(values[:, None] - values)
