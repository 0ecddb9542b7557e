"""Means of systems and their differences: from a judge's scores, from ratings by people, or from both.

A judge scores every pair, people rate a few. The mean of the scores has a bias that no number of pairs removes. The
mean of the ratings has none, but few ratings make a wide interval. **Prediction-powered inference** (Angelopoulos et
al., 2023) takes the mean of the scores of all pairs and corrects it by the mean error of the judge on the rated ones:

    lambda * mean(judge, all pairs) + mean(human - lambda * judge, rated pairs)

This is unbiased for every lambda, however bad the judge is, where the rated pairs are a random part of all.
`lambda` is the one with the smallest variance (PPI++: Angelopoulos, Duchi & Zrnic, 2024): 0, the mean of the ratings
alone, for a judge that knows nothing. It is fitted for all systems together, because a lambda for each system follows
the chance in its few ratings: intervals of 30 systems with 400 ratings then hold the truth 94.1 % of the time. It
minimises the mean of (variance / variance by ratings alone), so that intervals are in the mean never wider than those.

Here the rated pairs are some of the scored ones, and pairs of one group (same context) are not independent. So the
variance is that of the jackknife over groups around the mean itself (CR3 of Bell & McCaffrey, 2002, which is robust to
clusters), and intervals have the t quantile of the number of rated groups less one. Differences are taken over the
groups that both systems answer, each with one weight for both: what is common to a group leaves them. `ppi-python`
0.2.3 has neither groups nor paired differences. `benchmarks/boards.py` counts how often the intervals hold a known
truth, beside it and alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ...core.errors import counted
from .bootstrap import MIN_GROUPS
from .probabilities import t_quantile, t_two_sided

Source = Literal["judge", "ratings", "both"]
"""What a mean rests on: all scores of the judge, the ratings alone, or scores corrected by ratings."""
_NOTHING = 1e-12  # variance, relative to the square of the values, that is rounding


@dataclass(frozen=True, eq=False)
class SystemSums:
    """What the means need of n pairs: sums for each group and system, arrays of shape (groups, systems)."""

    systems: tuple[str, ...]
    pairs: np.ndarray  # number of pairs with a score
    judge: np.ndarray  # sum of their scores, rating points
    noise: np.ndarray  # sum of the squares of the judge's own standard errors; 0 = not known
    rated: np.ndarray  # number of these pairs that people rated
    human: np.ndarray  # sum of the mean ratings of these, rating points
    judge_of_rated: np.ndarray  # sum of the scores of these

    @classmethod
    def of(
        cls,
        systems: Sequence[str],
        groups: Sequence[str],
        judge: np.ndarray,
        human: np.ndarray,
        standard_error: np.ndarray | None = None,
    ) -> SystemSums:
        """Sum pairs by group and system.

        Args:
            systems: Length n, the system that made each response.
            groups: Length n, the group of each pair.
            judge: Shape (n,), finite scores in rating points.
            human: Shape (n,), mean rating of each pair, NaN where nobody rated it.
            standard_error: Shape (n,), the judge's own, in rating points; NaN or None = not known.
        """
        names, column = np.unique(np.asarray(systems, dtype=str), return_inverse=True)
        group_names, row = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
        # Sums by group and system are all that means and jackknife need: ten million pairs become a small table
        cells, shape = row * len(names) + column, (len(group_names), len(names))

        def summed(values: np.ndarray) -> np.ndarray:
            return np.bincount(cells, weights=values, minlength=shape[0] * shape[1]).reshape(shape)

        rated = ~np.isnan(human)
        noise = np.zeros(len(judge)) if standard_error is None else np.nan_to_num(standard_error) ** 2
        return cls(
            tuple(names.tolist()),
            summed(np.ones(len(judge))),
            summed(judge),
            summed(noise),
            summed(rated.astype(float)),
            summed(np.where(rated, human, 0.0)),
            summed(np.where(rated, judge, 0.0)),
        )


class SystemEstimate(NamedTuple):
    """A mean, or a difference of two; None = it cannot be told, `reason` says why."""

    value: float | None
    standard_error: float | None = None
    low: float | None = None  # ends of the 95 % interval
    high: float | None = None
    p: float | None = None  # two-sided, of the value 0; not corrected for other tests
    groups: int = 0  # that carry the interval: with a score, or with a rating where ratings enter
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class SystemMeans:
    """Means of all systems and differences of all pairs of them, from one source."""

    source: Source
    means: tuple[SystemEstimate, ...]  # in the order of `SystemSums.systems`
    differences: dict[tuple[int, int], SystemEstimate]  # positions (i, j), i < j -> mean of i less mean of j
    weight: float  # lambda of the means: 0 = ratings alone
    difference_weight: float  # lambda of the differences
    # variance of ratings alone over that of this source, harmonic mean over the means; 3 = three times as many ratings
    # would have been needed without the judge; NaN = unknown
    ratings_worth: float


def system_means(sums: SystemSums, source: Source) -> SystemMeans:
    """Estimate the mean of each system and the difference of each two.

    A system without a pair or rating, and a mean from fewer than `MIN_GROUPS` groups, has no interval.
    """
    n = len(sums.systems)
    means, weight, worth = _estimates(_Columns.of(sums, slice(None), np.ones(sums.pairs.shape)), None, source)
    first, second = np.triu_indices(n, 1)
    # Over shared groups alone: what makes a context easy for all systems then cancels. Each weighs as much for either
    # side, the harmonic mean of their numbers of responses to it: else who answers the hard ones more often would lose
    a, b = sums.pairs[:, first], sums.pairs[:, second]
    both = (a > 0) & (b > 0)
    one, other = (
        _Columns.of(sums, columns, np.where(both, 2 * others / (a + b).clip(1), 0.0))
        for columns, others in ((first, b), (second, a))
    )
    differences, difference_weight, _ = _estimates(one, other, source)
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    return SystemMeans(
        source, tuple(means), dict(zip(pairs, differences, strict=True)), weight, difference_weight, worth
    )


class _Mean(NamedTuple):
    """Weighted means of k columns, and what each group adds to their errors."""

    value: np.ndarray  # shape (k,); NaN = no pair
    # shape (groups, k): the sum of their squares is the variance of the mean by the jackknife. Means over the same
    # groups can be subtracted and weighted, values and deviations alike
    deviations: np.ndarray

    @classmethod
    def of(cls, sums: np.ndarray, counts: np.ndarray) -> _Mean:
        """Means of sums over counts, both of shape (groups, k)."""
        number = counts.sum(0)
        value = np.divide(sums.sum(0), number, out=np.full(len(number), np.nan), where=number > 0)
        # Leaving out a group is a subtraction, so that no jackknife round sums anew
        rest = number - counts
        without = np.divide(sums.sum(0) - sums, rest, out=np.full(sums.shape, np.nan), where=rest > 0)
        groups = (counts > 0).sum(0)
        # Around the mean of `without` a group without a pair of the column would count; g is the number of the others
        return cls(value, (without - value) * np.sqrt((groups - 1).clip(0) / groups.clip(1)))

    def less(self, other: _Mean | None, weight: float = 1.0) -> _Mean:
        """This mean less `weight` times another; None = 0."""
        if other is None or weight == 0:
            return self
        return _Mean(self.value - weight * other.value, self.deviations - weight * other.deviations)

    @property
    def variance(self) -> np.ndarray:
        """Shape (k,), of the mean."""
        return (self.deviations**2).sum(0)


class _Columns(NamedTuple):
    """Means of k systems, each over the groups that count for it."""

    judge: _Mean  # of all scores
    human: _Mean  # of all ratings
    judge_of_rated: _Mean  # of the scores of the rated pairs
    noise: np.ndarray  # shape (k,), variance of the mean score by the judge's own standard errors
    groups: np.ndarray  # shape (k,), number of groups with a score
    rated_groups: np.ndarray  # shape (k,)

    @classmethod
    def of(cls, sums: SystemSums, columns: slice | np.ndarray, weights: np.ndarray) -> _Columns:
        """The systems of some columns; each pair has the weight of its group, shape (groups, k), 0 = does not count."""
        pairs, judge, rated, human, judge_of_rated = (
            weights * values[:, columns]
            for values in (sums.pairs, sums.judge, sums.rated, sums.human, sums.judge_of_rated)
        )
        noise = weights**2 * sums.noise[:, columns]
        return cls(
            _Mean.of(judge, pairs),
            _Mean.of(human, rated),
            _Mean.of(judge_of_rated, rated),
            noise.sum(0) / pairs.sum(0).clip(1) ** 2,
            (pairs > 0).sum(0),
            (rated > 0).sum(0),
        )


def _estimates(first: _Columns, second: _Columns | None, source: Source) -> tuple[list[SystemEstimate], float, float]:
    """Estimates of `first` less `second`, lambda, and what the ratings are worth."""
    shared = "" if second is None else "shared "
    if source == "judge":
        groups = first.groups  # those that both answer
        mean = first.judge.less(second and second.judge)
        # The noise of a judge is independent between pairs: it adds to what the groups show only where there are few
        variance = mean.variance + first.noise + (0.0 if second is None else second.noise)
        return _filled(mean.value, variance, groups, f"{shared}group"), 0.0, np.nan
    # A difference is known no better than the system that is rated in fewer groups
    groups = first.rated_groups if second is None else np.minimum(first.rated_groups, second.rated_groups)
    human = first.human.less(second and second.human)
    if source == "ratings":
        return _filled(human.value, human.variance, groups, f"{shared}rated group"), 0.0, np.nan
    judge = first.judge.less(second and second.judge)
    # How much higher the judge scores the rated pairs than all of them: chance alone, as the rated ones are random
    excess = first.judge_of_rated.less(second and second.judge_of_rated).less(judge)
    # In units of the error of the ratings alone: else the systems whose ratings spread most choose lambda for all
    enough = (groups >= MIN_GROUPS) & (human.variance > _NOTHING * np.maximum(1.0, human.value**2))
    error = np.sqrt(human.variance[enough])
    # One lambda for all systems: one for each would follow the chance in its few ratings (module docstring)
    weight = _weight(human.deviations[:, enough] / error, excess.deviations[:, enough] / error)
    powered = human.less(excess, weight)
    left = (powered.variance[enough] / human.variance[enough]).sum()
    worth = float(enough.sum() / left) if left > 0 else np.nan
    return _filled(powered.value, powered.variance, groups, f"{shared}rated group"), weight, worth


def _weight(human: np.ndarray, excess: np.ndarray) -> float:
    """Lambda of the smallest sum of variances: a regression of the ratings' deviations on those of the excess.

    It is not below 0: a judge that is of use orders groups as people do, and the rest is chance.
    """
    square = float((excess**2).sum())
    # Where all pairs are rated there is no excess, and nothing to gain
    return max(0.0, float((human * excess).sum()) / square) if square > _NOTHING else 0.0


def _filled(value: np.ndarray, variance: np.ndarray, groups: np.ndarray, what: str) -> list[SystemEstimate]:
    return [_estimate(*row, what) for row in zip(value.tolist(), variance.tolist(), groups.tolist(), strict=True)]


def _estimate(value: float, variance: float, groups: int, what: str) -> SystemEstimate:
    if math.isnan(value):
        return SystemEstimate(None, reason=f"no {what}")
    if groups < MIN_GROUPS:
        return SystemEstimate(value, groups=groups, reason=f"{counted(groups, what)}, at least {MIN_GROUPS} needed")
    error = math.sqrt(variance)
    half = t_quantile(0.975, groups - 1) * error
    if variance <= _NOTHING * max(1.0, value * value):  # every group says exactly the same
        p = float(abs(value) <= math.sqrt(_NOTHING))
    else:
        p = t_two_sided(value / error, groups - 1)
    return SystemEstimate(value, error, value - half, value + half, p, groups)
