"""Judge against judge: do two judges agree differently with the same people?

Four tests of the difference of two correlations with the same human scores. The first two keep groups whole and are
the ones to report; Williams and Steiger assume independent items and stand beside them because papers quote them.

- **Paired permutation** (PERM-BOTH; Deutsch, Dror and Roth, 2021, "A Statistical Analysis of Summarization Evaluation
  Metrics"): if the judges are equally good, it does not matter whose scores are whose. Each judge's scores are put on
  one scale (ranks, with mean 0 and standard deviation 1) once, over all items; then the judges' scores of
  randomly chosen units are exchanged and the difference is computed anew, as that of Pearson's correlations. Ranks are
  not computed anew after an exchange; without one the difference is that of Spearman's correlations. Simulated
  rejection rates under the null hypothesis, in the tests, are at the level.
- **What is exchanged**: the group as a whole, all its systems together. The original exchanges each cell of system and
  input on its own, which takes a judge's errors on the responses to one context for independent. They are not: with an
  intraclass correlation of 0.5 within groups of 2.5 items that version rejects a true null hypothesis 10 % of the time
  at 5 %. Systems are held fixed, as in `systems`: the question is about new contexts answered by these systems. To
  get the original, pass the cells as groups.
- **Paired cluster bootstrap**: the difference of both judges' draws from the same `Resamples`. Its p value is twice
  the smaller share of draws on one side of 0, so that p < 0.05 where the 95 % interval leaves 0 out.
- **Williams' t** (1959) and **Steiger's Z** (1980): closed formulas for dependent correlations that share a variable.
  In the simulation above they reject 12 % and 9 % of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy import stats

from .agreement import Statistic, spearman
from .bootstrap import Resamples, complete, estimate, with_interval

_BLOCK_VALUES = 1 << 20  # permutations x groups at a time: 8 MB
_ROUNDING = 1e-12


@dataclass(frozen=True)
class PermutationTest:
    """Two-sided p value, the number of permutations behind it, and whether these are all there are."""

    p: float
    permutations: int
    exact: bool


@dataclass(frozen=True)
class Comparison:
    """The difference of two judges' agreement with the same people, over the items that both scored.

    Attributes:
        first: The first judge's, on these items.
        second: The second judge's.
        difference: First minus second, with the interval of the paired cluster bootstrap. `n` counts the items and
            `dropped` those left out because a judge or the people did not score them.
        standard_error: Standard deviation of the difference over the resamples; None where there is no interval.
        n_groups: Groups of the items.
        permutation: The paired permutation test, whose p value is the one to report; None without a difference.
        bootstrap_p: Of the paired cluster bootstrap; None where there is no interval.
        williams_p: Of Williams' t, which takes items for independent; None where it is undefined.
        steiger_p: Of Steiger's Z, likewise.
    """

    first: Statistic
    second: Statistic
    difference: Statistic
    standard_error: float | None
    n_groups: int
    permutation: PermutationTest | None
    bootstrap_p: float | None
    williams_p: float | None
    steiger_p: float | None


def compare_all(
    scores: Mapping[str, np.ndarray],
    human: np.ndarray,
    resamples: Resamples,
    *,
    permutations: int = 10_000,
    seed: int = 0,
) -> dict[tuple[str, str], Comparison]:
    """Every two judges against each other, in the order of `scores`.

    Args:
        scores: Judge -> its scores, shape (n,), on a scale of its own. NaN = not scored: the item is left out of this
            judge's comparisons and counted there.
        human: Shape (n,), human scores of the same items; NaN likewise.
        resamples: Draws over the same n items; their groups are what permutations exchange.
        permutations: Random ones, at least 1; where there are not more in all, each is looked at once.
        seed: Of the permutations.

    Returns:
        Without a difference, and with the reason, where either correlation is undefined (see `agreement`).

    Raises:
        ValueError: If the vectors differ in length.
    """
    known: dict[tuple[str, bytes], Statistic] = {}

    def agreement(name: str, kept: np.ndarray) -> Statistic:
        key = name, kept.tobytes()
        if key not in known:
            score, people = np.asarray(scores[name])[kept], np.asarray(human)[kept]
            known[key] = estimate(spearman, score, people, resamples=resamples.select(kept))
        return known[key]

    found = {}
    for one, other in combinations(scores, 2):
        kept, _ = complete(scores[one], scores[other], human)
        first, second, people = (np.asarray(values)[kept] for values in (scores[one], scores[other], human))
        own, others, seen = agreement(one, kept), agreement(other, kept), resamples.select(kept)
        point = Statistic(None, n=own.n, dropped=int((~kept).sum()))
        if own.value is None or others.value is None:
            sides = (("first judge", own), ("second judge", others))
            reason = "; ".join(f"{side}: {of.reason}" for side, of in sides if of.value is None)
            if own.reason == others.reason:  # it is about the items or the people
                reason = own.reason
            point = replace(point, reason=reason)
            found[one, other] = Comparison(own, others, point, None, seen.n_groups, None, None, None, None)
            continue
        draws = own.draws - others.draws
        point = with_interval(replace(point, value=own.value - others.value), draws, seen)
        draws = None if point.low is None else seen.drawn(draws)
        three = own.value, others.value, spearman(first, second)
        found[one, other] = Comparison(
            own,
            others,
            point,
            None if draws is None else float(np.nanstd(draws, ddof=1)),
            seen.n_groups,
            permutation_test(first, second, people, seen.codes, permutations=permutations, seed=seed),
            None if draws is None else bootstrap_p(draws),
            williams(*three, len(people)),
            steiger(*three, len(people)),
        )
    return found


def permutation_test(
    first: np.ndarray,
    second: np.ndarray,
    human: np.ndarray,
    units: np.ndarray,
    *,
    permutations: int = 10_000,
    seed: int = 0,
) -> PermutationTest:
    """Exchanges the two judges' scores of whole units; the method is described above.

    Every sum that the correlations need is linear in the exchanges, so that a permutation costs the number of units and
    not of items. With u units there are 2^(u - 1) that differ, because exchanging everything turns only the sign round;
    if `permutations` are as many or more, each is looked at once, and p is exact. Of random ones, p = (as extreme + 1)
    / (permutations + 1) (Phipson and Smyth, 2010). One after which a judge is constant counts as extreme.

    Args:
        first: Shape (n,), finite, not constant.
        second: Shape (n,), finite, not constant.
        human: Shape (n,), finite, not constant.
        units: Shape (n,), what is exchanged as a whole.
        permutations: Random ones, at least 1.
        seed: Of the permutations.
    """
    if permutations < 1:
        raise ValueError(f"permutations {permutations}; expected 1 or more")
    x, y, z = (_standardised(values) for values in (first, second, human))
    n, codes = len(z), np.unique(units, return_inverse=True)[1]
    changes = np.stack([np.bincount(codes, weights=change) for change in (y - x, y**2 - x**2, (y - x) * z)])
    n_units = changes.shape[1]
    exact = 2 ** (n_units - 1) <= permutations
    swaps = _all_swaps(n_units) if exact else _random_swaps(n_units, permutations, seed)
    observed, extreme, looked_at = abs(x @ z - y @ z) / n, 0, 0
    for block in swaps:
        total, squares, products = changes @ block.T
        # Mean 0 and sum of squares n before; what one judge gains, the other one loses.
        variances = n + squares - total**2 / n, n - squares - total**2 / n
        with np.errstate(invalid="ignore", divide="ignore"):
            r_first, r_second = (
                np.where(variance > _ROUNDING * n, product / np.sqrt(n * variance), np.nan)
                for variance, product in zip(variances, (x @ z + products, y @ z - products), strict=True)
            )
        extreme += int((~(np.abs(r_first - r_second) < observed - _ROUNDING)).sum())
        looked_at += len(block)
    p = extreme / looked_at if exact else (extreme + 1) / (looked_at + 1)
    return PermutationTest(p, looked_at, exact)


def williams(first: float, second: float, between: float, n: int) -> float | None:
    """Two-sided p of Williams' t of two correlations that share a variable (Williams, 1959; Steiger, 1980, equation 7).

    It ignores groups: with correlated items its p values are too small. For rank correlations it is an approximation.

    Args:
        first: Correlation of the first judge with people.
        second: Of the second judge with people.
        between: Of the judges with each other.
        n: Items.
    """
    if n <= 3:
        return None
    mean = (first + second) / 2
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    spread = 2 * determinant * (n - 1) / (n - 3) + mean**2 * (1 - between) ** 3
    if spread <= _ROUNDING:
        return None  # one of the correlations determines the others
    t = (first - second) * math.sqrt((n - 1) * (1 + between) / spread)
    return float(2 * stats.t.sf(abs(t), n - 3))


def steiger(first: float, second: float, between: float, n: int) -> float | None:
    """Two-sided p of Steiger's Z: Fisher's z of both, covariance from their mean (Steiger, 1980, equations 3 and 14).

    It ignores groups: with correlated items its p values are too small. For Spearman the variance of z is (1 + r^2 / 2)
    / (n - 3) (Bonett and Wright, 2000) and the correlation of both z is that for Pearson: an approximation.

    Args:
        first: Correlation of the first judge with people.
        second: Of the second judge with people.
        between: Of the judges with each other.
        n: Items.
    """
    if n <= 3:
        return None
    if max(abs(first), abs(second)) >= 1 - _ROUNDING:
        return None  # it has no Fisher z
    squared = ((first + second) / 2) ** 2
    covariance = between * (1 - 2 * squared) - squared * (1 - 2 * squared - between**2) / 2
    spread = 2 - 2 * covariance / (1 - squared) ** 2
    if spread <= _ROUNDING:
        return None  # the judges' scores determine each other
    variance = (1 + squared / 2) / (n - 3)
    z = (math.atanh(first) - math.atanh(second)) / math.sqrt(variance * spread)
    return float(2 * stats.norm.sf(abs(z)))


def bootstrap_p(draws: np.ndarray) -> float:
    """Two-sided p value of a difference from its draws (shape (resamples,), NaN left out): is 0 among them?

    Twice the smaller of the shares at or below and at or above 0, one draw added to either count and to the total
    (Davison and Hinkley, 1997, 4.2.3), at most 1.
    """
    defined = draws[~np.isnan(draws)]
    smaller = min((defined <= 0).sum(), (defined >= 0).sum())
    return float(min(1.0, 2 * (smaller + 1) / (len(defined) + 1)))


def _standardised(values: np.ndarray) -> np.ndarray:
    values = stats.rankdata(values)
    centred = values - values.mean()
    return centred / np.sqrt((centred**2).mean())


def _all_swaps(n_units: int) -> Iterator[np.ndarray]:
    """Shape (block, units), 1 = exchanged: every assignment in which the last unit is not."""
    number, step = 2 ** (n_units - 1), max(1, _BLOCK_VALUES // n_units)
    for start in range(0, number, step):
        rows = np.arange(start, min(start + step, number))
        yield (rows[:, None] >> np.arange(n_units) & 1).astype(np.float64)


def _random_swaps(n_units: int, permutations: int, seed: int) -> Iterator[np.ndarray]:
    rng, step = np.random.default_rng(seed), max(1, _BLOCK_VALUES // n_units)
    for start in range(0, permutations, step):
        rows = min(step, permutations - start)
        yield rng.integers(0, 2, (rows, n_units), dtype=np.int8).astype(np.float64)
