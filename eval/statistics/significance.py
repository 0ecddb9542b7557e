"""Judge against judge: do two judges differ in their agreement with the same people, and which one is better?

Three tests of the difference of two correlations with the same human scores ("Judge against judge" in
docs/reference/statistics.md). The first two keep groups whole and are the ones to report.

- **Paired permutation** (PERM-BOTH; Deutsch, Dror and Roth, 2021): if the judges are equally good, it does not matter
  whose scores are whose. Each judge's scores are put on one scale (ranks, mean 0, standard deviation 1) once, over all
  items; then the scores of randomly chosen units are exchanged, and the difference of Pearson's correlations is
  computed anew. Without an exchange it is the difference of Spearman's. The original test exchanges each cell of system
  and input on its own, which treats a judge's errors on the responses to one context as independent: with an intraclass
  correlation of 0.5 within groups of 2.5 items it rejects a true null hypothesis 10 % of the time at 5 %. To get the
  original, pass the cells as groups. Systems are held fixed, as in `systems`.
- **Paired cluster bootstrap**: the difference of both judges' draws from the same `Resamples`.
- **Williams' t** (1959), because papers quote it.

The correction of Holm (1979) bounds the probability of one or more false differences under any dependence between the
tests; for judges on the same items neither independence nor the sign of the dependence is known. Judges of one cluster
may still differ pairwise.

**Groups needed**: the standard error comes from the cluster bootstrap and shrinks with the square root of the number of
groups; more items of a group add less than new groups do. The observed difference is treated as the true one. Power at
the observed difference adds nothing to its p value (Hoenig and Heisey, 2001); `Power.detectable_difference` needs no
observed difference and describes the data at hand better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np

from .agreement import Statistic, spearman
from .bootstrap import Resamples, complete, estimate, with_interval
from .probabilities import mean_ranks, normal_below, normal_quantile, t_two_sided

# Permutations x groups at a time: 8 MB
_BLOCK_VALUES = 1 << 20
_ROUNDING = 1e-12
# A difference, or a standard error, that rounding leaves of none
_NOTHING = 1e-9


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two judges' agreement with the same people, over the items that both scored."""

    difference: Statistic  # first minus second, with the interval of the paired cluster bootstrap
    n_groups: int  # groups of the items
    # standard deviation of the difference over the resamples; None where there is no interval
    standard_error: float | None = None
    p: float | None = None  # of the paired permutation test: the one to report; None without a difference
    permutations: int | None = None  # how many are behind it
    bootstrap_p: float | None = None  # of the paired cluster bootstrap; None where there is no interval
    williams_p: float | None = None  # of Williams' t, which takes items for independent; None where it is undefined


def compare_all(
    scores: Mapping[str, np.ndarray],
    human: np.ndarray,
    resamples: Resamples,
    *,
    permutations: int = 10_000,
    seed: int = 0,
) -> dict[tuple[str, str], PairedDifference]:
    """Compares every two judges, in the order of `scores`.

    Args:
        scores: Judge -> its scores, shape (n,), on a scale of its own. NaN = not scored: the item is left out of this
            judge's comparisons and counted as dropped.
        human: Shape (n,), human scores of the same items; NaN likewise.
        resamples: Draws over the same n items; their groups are what permutations exchange.
        permutations: Number of random permutations, at least 1; where no more exist, each is used once.
        seed: Seed of the permutations.

    Returns:
        Without a difference, and with the reason, where either correlation is undefined (see `agreement`).

    Raises:
        ValueError: If the vectors differ in length.
    """

    @cache
    def agreement(name: str, mask: bytes) -> Statistic:
        valid = np.frombuffer(mask, dtype=bool)
        return estimate(spearman, scores[name][valid], human[valid], resamples=resamples.select(valid))

    comparisons = {}
    for a, b in combinations(scores, 2):
        # Items that both have scored: otherwise the judges would be measured on different items
        valid, _ = complete(scores[a], scores[b], human)
        first, second, people = scores[a][valid], scores[b][valid], human[valid]
        rho_a, rho_b, seen = agreement(a, valid.tobytes()), agreement(b, valid.tobytes()), resamples.select(valid)
        point = Statistic(None, n=rho_a.n, dropped=int((~valid).sum()))
        if rho_a.value is None or rho_b.value is None:
            sides = (("first judge", rho_a), ("second judge", rho_b))
            reasons = "; ".join(f"{side}: {rho.reason}" for side, rho in sides if rho.value is None)
            # Equal reasons are about the items or the people: one is enough
            reason = rho_a.reason if rho_a.reason == rho_b.reason else reasons
            comparisons[a, b] = PairedDifference(replace(point, reason=reason), seen.n_groups)
            continue
        draws = rho_a.draws - rho_b.draws
        # Draw by draw: both judges rise and fall with the items that are drawn, and only their difference is asked
        # for
        point = with_interval(replace(point, value=rho_a.value - rho_b.value), draws, seen)
        draws = None if point.low is None else seen.bootstrap_values(draws)
        correlations = rho_a.value, rho_b.value, spearman(first, second)
        comparisons[a, b] = PairedDifference(
            point,
            seen.n_groups,
            None if draws is None else float(np.nanstd(draws, ddof=1)),
            *permutation_test(first, second, people, seen.codes, permutations=permutations, seed=seed),
            None if draws is None else bootstrap_p(draws),
            williams(*correlations, len(people)),
        )
    return comparisons


def permutation_test(
    first: np.ndarray,
    second: np.ndarray,
    human: np.ndarray,
    units: np.ndarray,
    *,
    permutations: int = 10_000,
    seed: int = 0,
) -> tuple[float, int]:
    """Two-sided p of exchanging the two judges' scores of whole units, and the number of permutations behind it.

    With u units there are 2^(u - 1) different permutations, because exchanging everything only flips the sign. If
    `permutations` is at least this number, each is used once, and p is exact. With random ones, p = (as extreme + 1)
    / (permutations + 1) (Phipson and Smyth, 2010). A permutation that makes a judge constant counts as extreme.

    Scores have shape (n,) and are finite and not constant; `units`, shape (n,), are exchanged as wholes.
    """
    # Every sum in the correlations is linear in the exchanges: a permutation costs the number of units, not of items
    ranks = [mean_ranks(scores) for scores in (first, second, human)]
    x, y, z = ((rank - rank.mean()) / rank.std() for rank in ranks)
    n, codes = len(z), np.unique(units, return_inverse=True)[1]
    changes = np.stack([np.bincount(codes, weights=change) for change in (y - x, y**2 - x**2, (y - x) * z)])
    n_units = changes.shape[1]
    exact = 2 ** (n_units - 1) <= permutations
    n_looked_at = 2 ** (n_units - 1) if exact else permutations
    # In blocks, since a table of all permutations of many groups would take gigabytes
    rng, step = None if exact else np.random.default_rng(seed), max(1, _BLOCK_VALUES // n_units)
    observed, extreme = abs(x @ z - y @ z) / n, 0
    for start in range(0, n_looked_at, step):
        block = _swaps(start, min(start + step, n_looked_at), n_units, rng)
        total, squares, products = changes @ block.T
        # Mean 0 and sum of squares n before; what one judge gains, the other one loses.
        variances = n + squares - total**2 / n, n - squares - total**2 / n
        with np.errstate(invalid="ignore", divide="ignore"):
            r_first, r_second = (
                np.where(variance > _ROUNDING * n, product / np.sqrt(n * variance), np.nan)
                for variance, product in zip(variances, (x @ z + products, y @ z - products), strict=True)
            )
        # Equal up to rounding is as extreme; so is NaN, a judge that the exchange made constant
        extreme += int((~(np.abs(r_first - r_second) < observed - _ROUNDING)).sum())
    return (extreme / n_looked_at if exact else (extreme + 1) / (n_looked_at + 1)), n_looked_at


def williams(first: float, second: float, between: float, n: int) -> float | None:
    """Two-sided p of Williams' t of two correlations that share a variable (Williams, 1959; Steiger, 1980, equation 7).

    `first` and `second` are the correlations of the judges with people, `between` that of the judges, over n items. For
    rank correlations it is an approximation. None where one of the three determines the others.
    """
    if n <= 3:
        return None
    mean = (first + second) / 2
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    spread = 2 * determinant * (n - 1) / (n - 3) + mean**2 * (1 - between) ** 3
    if spread <= _ROUNDING:
        return None
    t = (first - second) * math.sqrt((n - 1) * (1 + between) / spread)
    return t_two_sided(t, n - 3)


def bootstrap_p(draws: np.ndarray) -> float:
    """Two-sided p value of a difference of 0 from its draws (shape (resamples,), NaN left out).

    Twice the smaller of the shares of draws at or below 0 and at or above 0, where one is added to either count and to
    the total (Davison and Hinkley, 1997, 4.2.3); at most 1.
    """
    defined = draws[~np.isnan(draws)]
    smaller = min((defined <= 0).sum(), (defined >= 0).sum())
    return float(min(1.0, 2 * (smaller + 1) / (len(defined) + 1)))


def _swaps(start: int, end: int, n_units: int, rng: np.random.Generator | None) -> np.ndarray:
    """Shape (end - start, units), 1 = exchanged: random, or from all assignments that keep the last unit in place."""
    if rng is not None:
        return rng.integers(0, 2, (end - start, n_units), dtype=np.int8).astype(np.float64)
    return (np.arange(start, end)[:, None] >> np.arange(n_units) & 1).astype(np.float64)


# ---------------------------------------------------------------- rankings

ALPHA = 0.05
"""Level of the clusters, and of the test whose power is stated."""


@dataclass(frozen=True, eq=False)
class JudgeRanking:
    """Judges from the best to the worst, in clusters."""

    # judge with a defined agreement -> its cluster, from 1 = best; highest agreement first, equal ones in the order
    # given
    clusters: Mapping[str, int]
    p: Mapping[tuple[str, str], float]  # two ranked judges that were tested -> their adjusted two-sided p value
    unranked: Mapping[str, str]  # the other judges, in the order given -> why they have no agreement


def rank_judges(
    agreement: Mapping[str, Statistic], tested: Mapping[tuple[str, str], tuple[float, float]]
) -> JudgeRanking:
    """Sorts judges and divides them into significance clusters.

    Two judges are not told apart where their difference on the items that both scored has another sign than the
    difference of their agreement over all items: their scores are missing for different items.

    Args:
        agreement: Judge -> its agreement with people, the higher the better.
        tested: Two judges -> the difference of their agreement on the items that both scored, first minus second, and
            its p value; all p values are corrected together.
    """
    values = {name: statistic.value for name, statistic in agreement.items() if statistic.value is not None}
    judges = sorted(values, key=lambda name: -values[name])
    # All tests are corrected together, also those of judges that get no rank
    adjusted = holm(np.array([p for _, p in tested.values()])).tolist()
    p = {pair: p_value for pair, p_value in zip(tested, adjusted, strict=True) if set(pair) <= set(judges)}
    better = np.zeros((len(judges), len(judges)), dtype=bool)
    for pair, p_value in p.items():
        (i, j), (difference, _) = map(judges.index, pair), tested[pair]
        better[i, j], better[j, i] = p_value < ALPHA and difference > 0, p_value < ALPHA and difference < 0
    unranked = {name: statistic.reason or "undefined" for name, statistic in agreement.items() if name not in values}
    return JudgeRanking(dict(zip(judges, significance_clusters(better), strict=True)), p, unranked)


def significance_clusters(better: np.ndarray) -> tuple[int, ...]:
    """Number of the cluster of each judge, from 1.

    `better`, shape (judges, judges), best judge first, says whether the judge of the row is significantly better than
    that of the column.
    """
    judges = len(better)
    # A cluster begins where all judges so far are better than all that follow
    # Not neighbour by neighbour: significance is not transitive, and two ends of a chain may differ where no link
    # does
    begins = [first > 0 and bool(better[:first, first:].all()) for first in range(judges)]
    return tuple(int(number) for number in 1 + np.cumsum(begins, dtype=np.int64))


def holm(p: np.ndarray) -> np.ndarray:
    """Adjusted p values of the step-down procedure of Holm (1979), shape (tests,), at most 1, in the order given."""
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    # Accumulated, so that a larger p value is never adjusted to a smaller one
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


POWER = 0.8

FEWEST_GROUPS = 6
"""With 5 groups there are 16 permutations, and no p value of the permutation test is below 1 / 16."""


@dataclass(frozen=True)
class Power:
    """Data needed to separate two judges at the level `ALPHA` with the power `POWER`."""

    # probability that as many groups as there are show a difference as large as the observed one
    power: float | None = None
    detectable_difference: float | None = None  # the smallest true difference that they show with a power of `POWER`
    groups_needed: int | None = None  # groups in all, at the observed difference
    groups_low: int | None = None  # the same at the end of the difference's interval that is farther from 0
    # the same at the end nearer to 0; None where the interval reaches 0 and no number is enough
    groups_high: int | None = None
    items_needed: int | None = None  # items in these `groups_needed` groups, with as many per group as now
    reason: str | None = None  # why a field is None


def separation(comparison: PairedDifference) -> Power:
    """Power and numbers of groups for two judges; the formulas are those of `power` and `groups_needed`."""
    difference, error, groups = comparison.difference, comparison.standard_error, comparison.n_groups
    if difference.value is None or difference.low is None or difference.high is None or error is None:
        return Power(reason=difference.reason or "no standard error of the difference: no resamples")
    if error <= _NOTHING:
        return Power(reason="the difference is the same in all resamples")
    now, detectable = power(difference.value, error), _distance() * error
    if abs(difference.value) <= _NOTHING:
        return Power(now, detectable, reason="no difference was observed: no number of groups would show it")
    needed = groups_needed(difference.value, error, groups)
    near, far = sorted((abs(difference.low), abs(difference.high)))
    reaches_zero = difference.low <= 0 <= difference.high or near <= _NOTHING
    return Power(
        now,
        detectable,
        needed,
        groups_needed(far, error, groups),
        None if reaches_zero else groups_needed(near, error, groups),
        math.ceil(needed * difference.n / groups),
        "no largest number of groups: the interval of the difference reaches 0" if reaches_zero else None,
    )


def power(difference: float, standard_error: float) -> float:
    """Probability that a two-sided normal test at `ALPHA` rejects, for the true difference and its standard error."""
    critical, shift = -normal_quantile(ALPHA / 2), abs(difference) / standard_error
    return float(normal_below(shift - critical) + normal_below(-critical - shift))


def groups_needed(difference: float, standard_error: float, n_groups: int) -> int:
    """Smallest number of groups in all with a power of at least `POWER`, at least `FEWEST_GROUPS`.

    n_groups ((z_{1 - alpha / 2} + z_{power}) standard_error / difference)^2: as for a mean (Cohen, 1988, 2.4), the
    other tail being negligible at this power. The true difference is not 0, the standard error that of its estimate
    from `n_groups` groups.
    """
    return max(FEWEST_GROUPS, math.ceil(n_groups * (_distance() * standard_error / difference) ** 2))


def _distance() -> float:
    """Distance from 0, in standard errors, of a difference that is detected with a power of `POWER`."""
    return float(normal_quantile(POWER) - normal_quantile(ALPHA / 2))
