"""Agreement between two vectors of scores: pure functions, one value each, undefined is never 0.

Every function takes judge scores and human scores of the same n items (float64, shape (n,), rating points)
and returns a `Statistic`. Items where either side is NaN are dropped and counted. Infinite values make the
statistic undefined. Correlations are undefined for fewer than `MIN_ITEMS` items and when either side is
constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

MIN_ITEMS = 3
"""Fewest items of a correlation: two points always lie on a line."""

CONSTANT_TOLERANCE = 1e-12
"""A vector is constant when its range is at most this share of its largest magnitude (rounding of a mean)."""

LIMIT_DEVIATIONS = 1.96
"""Standard deviations between the bias and a limit of agreement."""


Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From both sides, shape (n,) or (rows, n), and how often each item is taken, shape (rows, n), to shape (rows,)."""


@dataclass(frozen=True)
class Statistic:
    """One number with its interval, or the reason why there is none.

    Attributes:
        value: The statistic, or None where it is undefined.
        low: Lower end of the 95 % interval, or None where there is none.
        high: Upper end of the 95 % interval, or None where there is none.
        n: Items that the value stands on.
        dropped: Items left out because either side was NaN.
        undefined_resamples: Bootstrap resamples in which the statistic was undefined; the interval ignores
            them.
        reason: Why `value`, or else the interval, is missing.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    dropped: int = 0
    undefined_resamples: int = 0
    reason: str | None = None


def as_report(found: Any) -> Any:
    """Results as they stand in JSON: dataclasses and named tuples as objects, field by field."""
    if hasattr(found, "_asdict"):
        found = found._asdict()
    elif is_dataclass(found):
        found = {field.name: getattr(found, field.name) for field in fields(found)}
    if isinstance(found, Mapping):
        return {key: as_report(value) for key, value in found.items()}
    return [as_report(value) for value in found] if isinstance(found, (list, tuple)) else found


def spearman(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Spearman rank correlation, ties get their mean rank (Spearman, 1904)."""
    return correlation(score, human, lambda x, y: _scipy(stats.spearmanr(x, y)))


def pearson(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Pearson product-moment correlation (Pearson, 1895)."""
    return correlation(score, human, _once(KERNELS["pearson"]))


def kendall(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Kendall rank correlation tau-b, corrected for ties on both sides (Kendall, 1945)."""
    return correlation(score, human, lambda x, y: _scipy(stats.kendalltau(x, y)))


def tau_c(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Kendall rank correlation tau-c, for sides with unequally many different values (Stuart, 1953).

    2 (concordant - discordant pairs) m / (n^2 (m - 1)), with m the smaller number of different values.
    """
    return correlation(score, human, lambda x, y: _scipy(stats.kendalltau(x, y, variant="c")))


def ccc(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Concordance correlation: 2 cov / (var + var + squared difference of means), moments over n (Lin, 1989).

    1 only where the scores equal the human ones: a shift or a squeezed scale costs, unlike in Pearson's.
    """
    return correlation(score, human, _once(KERNELS["ccc"]))


def icc_a1(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Intraclass correlation of absolute agreement, ICC(A,1), of the judge and the panel mean as two raters of n items.

    2 cov / (var + var + squared difference of means - var of the differences / n), moments over n - 1, from the mean
    squares of McGraw and Wong (1996), table 4; ICC(2,1) of Shrout and Fleiss (1979). A bias of the judge costs.
    """
    return correlation(score, human, _once(KERNELS["icc_a1"]))


def icc_c1(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Intraclass correlation of consistency, ICC(C,1), of the judge and the panel mean: a bias does not cost.

    2 cov / (var + var), from the same mean squares; ICC(3,1) of Shrout and Fleiss (1979).
    """
    return correlation(score, human, _once(KERNELS["icc_c1"]))


def mae(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Mean absolute error in rating points. Defined from one item on, also for constant scores."""
    return _error(score, human, "mae")


def rmse(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Root mean squared error in rating points. Defined from one item on, also for constant scores."""
    return _error(score, human, "rmse")


def bias(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Mean of score minus human in rating points: positive = generous judge. Defined from one item on."""
    return _error(score, human, "bias")


def loa_lower(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Lower limit of agreement in rating points: bias - 1.96 standard deviations (Bland and Altman, 1986).

    Between the limits lie 95 % of the differences, judge minus human, were they normal. The standard deviation is that
    over n - 1: undefined for a single item.
    """
    return _error(score, human, "loa_lower", fewest=2)


def loa_upper(score: np.ndarray, human: np.ndarray) -> Statistic:
    """Upper limit of agreement in rating points: bias + 1.96 standard deviations; see `loa_lower`."""
    return _error(score, human, "loa_upper", fewest=2)


STATISTICS: Mapping[str, Callable[[np.ndarray, np.ndarray], Statistic]] = {
    "spearman": spearman,
    "pearson": pearson,
    "kendall": kendall,
    "ccc": ccc,
    "icc_a1": icc_a1,
    "icc_c1": icc_c1,
    "mae": mae,
    "rmse": rmse,
    "bias": bias,
    "loa_lower": loa_lower,
    "loa_upper": loa_upper,
}
"""Every statistic of a report, in the order in which reports show them."""

CORRELATIONS = ("spearman", "pearson", "kendall", "ccc", "icc_a1", "icc_c1")
"""The statistics of `STATISTICS` that need `MIN_ITEMS` items and two sides that vary."""


def correlation(score: np.ndarray, human: np.ndarray, formula: Callable[[np.ndarray, np.ndarray], float]) -> Statistic:
    """A statistic under the rules of correlations, which stand above.

    Args:
        score: Shape (n,).
        human: Shape (n,), the same items.
        formula: Gets both sides without NaN: at least `MIN_ITEMS` items, both sides finite and not constant.
    """
    x, y, result = _complete(score, human)
    if result.reason is not None:
        return result
    if len(x) < MIN_ITEMS:
        return replace(result, reason=f"{_items(len(x))}; a correlation needs at least {MIN_ITEMS}")
    constant = [side for side, values in (("judge", x), ("human", y)) if is_constant(values)]
    if constant:
        return replace(result, reason=f"the {' and the '.join(constant)} scores are constant")
    value = float(formula(x, y))
    if np.isnan(value):  # one side hardly passes the tolerance
        return replace(result, reason="the scores are constant up to rounding")
    return replace(result, value=value)


def is_constant(values: np.ndarray) -> bool:
    """Whether the finite values (n >= 1) are all equal up to rounding."""
    return bool(np.ptp(values) <= CONSTANT_TOLERANCE * np.abs(values).max())


def _scipy(result: Any) -> float:
    """The statistic of a SciPy result, whose type SciPy does not declare."""
    return result.statistic


def _once(kernel: Kernel) -> Callable[[np.ndarray, np.ndarray], float]:
    """The statistic of all items, once each."""
    return lambda x, y: float(kernel(x, y, np.ones((1, len(x))))[0])


def _error(score: np.ndarray, human: np.ndarray, name: str, fewest: int = 1) -> Statistic:
    x, y, result = _complete(score, human)
    if result.reason is not None:
        return result
    if len(x) < fewest:
        return replace(result, reason=f"{_items(len(x))}; limits of agreement need at least {fewest}")
    return replace(result, value=_once(KERNELS[name])(x, y))


def _complete(score: np.ndarray, human: np.ndarray) -> tuple[np.ndarray, np.ndarray, Statistic]:
    """The items without NaN, and a statistic with their count and, if nothing can be computed, the reason."""
    x, y = np.asarray(score, dtype=np.float64), np.asarray(human, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"scores of shape {x.shape} and {y.shape}; expected two vectors of equal length")
    kept = ~(np.isnan(x) | np.isnan(y))
    n, dropped = int(kept.sum()), int((~kept).sum())
    x, y = x[kept], y[kept]
    reason = None
    if n == 0:
        reason = "0 items" + (f", {dropped} dropped as NaN" if dropped else "")
    elif infinite := int((np.isinf(x) | np.isinf(y)).sum()):
        reason = f"{_items(infinite)} with an infinite score"
    return x, y, Statistic(None, n=n, dropped=dropped, reason=reason)


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _pearson(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    _, _, covariance, x_variance, y_variance, defined = _moments(x, y, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(defined, covariance / np.sqrt(x_variance * y_variance), np.nan)


def _ccc(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    x_mean, y_mean, covariance, x_variance, y_variance, defined = _moments(x, y, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = 2 * covariance / (x_variance + y_variance + (x_mean - y_mean) ** 2)
    return np.where(defined, value, np.nan)


def _icc(x: np.ndarray, y: np.ndarray, weights: np.ndarray, *, absolute: bool) -> np.ndarray:
    x_mean, y_mean, covariance, x_variance, y_variance, defined = _moments(x, y, weights)
    n = weights.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        bias = (x_mean - y_mean) ** 2 * (n - 1) / n - (x_variance + y_variance - 2 * covariance) / n
        value = 2 * covariance / (x_variance + y_variance + (bias if absolute else 0.0))
    return np.where(defined, value, np.nan)


def _limit(x: np.ndarray, y: np.ndarray, weights: np.ndarray, deviations: float) -> np.ndarray:
    n, difference = weights.sum(axis=1), x - y
    mean = weighted_mean(difference, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (weights * (difference - mean[:, None]) ** 2).sum(axis=1) / (n - 1)
    return np.where(n > 1, mean + deviations * np.sqrt(variance), np.nan)


def _moments(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Means, covariance, variances (over n) per row of weights; whether a correlation is defined there."""
    total = weights.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        x_mean, y_mean = (weights * x).sum(axis=1) / total, (weights * y).sum(axis=1) / total
        dx, dy = x - x_mean[:, None], y - y_mean[:, None]
        weighted_dx = weights * dx
        covariance = (weighted_dx * dy).sum(axis=1) / total
        x_variance = (weighted_dx * dx).sum(axis=1) / total
        y_variance = (weights * dy * dy).sum(axis=1) / total
    varies = [
        variance > (CONSTANT_TOLERANCE * np.abs(values).max(initial=0.0)) ** 2
        for values, variance in ((x, x_variance), (y, y_variance))
    ]
    return x_mean, y_mean, covariance, x_variance, y_variance, (total >= MIN_ITEMS) & varies[0] & varies[1]


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of the values, the same in each row or a row for each: (n,) or (rows, n) -> (rows,)."""
    sums = weights @ values if values.ndim == 1 else (weights * values).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums / weights.sum(axis=1)


KERNELS: Mapping[str, Kernel] = {
    "pearson": _pearson,
    "ccc": _ccc,
    "icc_a1": lambda x, y, weights: _icc(x, y, weights, absolute=True),
    "icc_c1": lambda x, y, weights: _icc(x, y, weights, absolute=False),
    "mae": lambda x, y, weights: weighted_mean(np.abs(x - y), weights),
    "rmse": lambda x, y, weights: np.sqrt(weighted_mean((x - y) ** 2, weights)),
    "bias": lambda x, y, weights: weighted_mean(x - y, weights),
    "loa_lower": lambda x, y, weights: _limit(x, y, weights, -LIMIT_DEVIATIONS),
    "loa_upper": lambda x, y, weights: _limit(x, y, weights, LIMIT_DEVIATIONS),
}
"""Statistics with items taken so many times each; NaN = undefined."""
