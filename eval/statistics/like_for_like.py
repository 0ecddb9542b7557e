"""Judge and rater against the same people: is the judge as good as one rater?

For each rater, judge and rater are both correlated with the mean of the other raters (Calderon, Reichart and Dror,
2025, "The alternative annotator test for LLM-as-a-judge"; "Judge beside one rater" in docs/reference/statistics.md).

The interval, the p value and the verdict ask whether the judge could be **one more rater of the same kind**. Such a
judge would still differ from these raters for two reasons: the choice of items, and raters who differ in their noise.

- Items: groups are drawn with replacement. Raters are not, because a rater drawn twice would be compared with itself.
  The covariance of judge and raters over the draws is multiplied by g / (g - 1), where g is the number of groups.
- Raters: the true variance of judge - rater between raters is estimated by its split-half covariance over raters: in
  one half of the groups with the other half, whose chance is another. It is averaged over random splits and is at least
  0. Times 1 + 1 / raters, it is the variance for a further rater and the mean, as in the prediction interval of random
  effects (Higgins, Thompson and Spiegelhalter, 2009).

The difference has a t interval with the degrees of freedom of Satterthwaite (1946). The variance from raters is the
part of their spread beyond chance; an estimate of 0 is no more certain than the spread itself. In the degrees of
freedom it therefore counts as at least half of the spread, and this minimum is at most half of the whole variance.
(Without the minimum, a judge that is one more rater beside 3 is told apart in 7.6 % where noise differs by 20 %; with
it, in 6 %. Both limits were found by simulation.) The ratio has the interval of Fieller (1954): all t for which the
same test does not reject judge = t x rater. It contains 1 exactly where the interval of the difference contains 0, and
p is 0.05 or more.

With fewer than 5 raters, their differences are estimated from only 1 to 3 contrasts, and real ones are often missed:
where noise differs by 40 % between raters, a judge that is one more of them is told apart in 8 to 12 %, not 5 %
(`benchmarks/results/coverage.md`). The interval then holds for these raters more surely than for others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from ...core.errors import counted
from ...data_modules.ratings import RatingTable
from .agreement import IN_REPORTS, Statistic
from .bootstrap import MAX_UNDEFINED, MIN_GROUPS, Resamples
from .probabilities import t_quantile, t_two_sided
from .rank_draws import spearman_draws
from .reliability import MIN_RATER_ITEMS

MIN_RATERS = 2
"""Fewest raters for an interval: one rater does not show how much raters differ."""

Verdict = Literal[
    "better than one rater", "not told apart from one rater", "worse than one rater", "too few items to tell",
    "no rater can be compared",
]  # fmt: skip

AS_GOOD_AS_TRUE_SCORES = "agrees with people as well as the true scores would"

HALVINGS = 25
"""Number of random halvings of the groups, which tell the raters' differences from chance."""

_LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Judge and raters against the mean of the other raters, one row for each rater that can be compared.

    The first column is observed; then come the rows of `Resamples.counts`, then either half of the groups `HALVINGS`
    times.
    """

    raters: tuple[str, ...]  # the raters, K of them
    judge: np.ndarray  # shape (K, columns), Spearman of the judge; NaN = undefined, then also in `rater`
    rater: np.ndarray  # shape (K, columns), Spearman of the rater on the same items
    weights: np.ndarray  # shape (K, columns), items that both stand on
    left_out: Mapping[str, str]  # rater -> why it is not compared
    items: np.ndarray  # the items that count, rising; positions in the table. Empty where dimensions are pooled.
    n_items: int  # their number; of pooled dimensions together
    one_over_others: float  # mean over the compared ratings of 1 / the number of other raters
    n_shared: int  # scored items with two raters or more, whether these can be compared or not


@dataclass(frozen=True)
class LikeForLike:
    """A judge beside one rater; all statistics stand on the same ratings and draws."""

    __pydantic_config__ = IN_REPORTS

    judge: Statistic
    """Mean over raters of the judge's Spearman with the mean of the other raters; no interval."""
    rater: Statistic
    """The same of the raters themselves, on the same items."""
    difference: Statistic
    """Judge - rater, with the 95 % interval for a further rater of this kind."""
    ratio: Statistic
    """Judge / rater, with the interval that belongs to it."""
    effective_raters: Statistic
    """The mean of how many raters would agree with these targets as the judge does; not rounded."""
    p: float | None
    """Two-sided, of a difference of 0; None without an interval."""
    verdict: Verdict
    """From the interval of the difference."""
    n_items: int
    """Items that count; over several dimensions, those of each."""
    n_raters: int
    """Raters that are compared."""
    n_groups: int
    """Groups of these items."""
    left_out: Mapping[str, str]
    """Rater -> why it is not compared."""


def like_for_like(score: np.ndarray, table: RatingTable, resamples: Resamples) -> LikeForLike:
    """A judge and one rater on one dimension.

    Undefined, with the reason, where no rater can be compared; without intervals with fewer than `MIN_GROUPS` groups or
    `MIN_RATERS` raters that can be compared.

    Args:
        score: Shape (n,), judge scores of the n items of `table`; NaN = not scored, the item does not count.
        table: The ratings.
        resamples: Draws over the n items.
    """
    correlations = held_out(score, table, resamples)
    return compared(correlations, resamples.select(correlations.items))


def held_out(score: np.ndarray, table: RatingTable, resamples: Resamples) -> HeldOut:
    """Judge and each rater against the mean of the others; arguments as for `like_for_like`.

    A rater is left out that shares fewer than `MIN_RATER_ITEMS` scored items with others, or where the rater, the judge
    or the mean of the others is constant on them.
    """
    # The mean of the others is the target of both: the judge is measured by nothing that the rater is not
    targets = table.others_mean()
    usable = ~np.isnan(targets) & ~np.isnan(score[table.items])
    # One pass for all columns of `HeldOut`: every group once, the resamples, the halves
    observed = np.ones((1, resamples.counts.shape[1]), np.float32)
    counts = np.concatenate([observed, resamples.counts, halvings(resamples)])
    raters, left_out, used = [], {}, []
    rows = [np.empty((0, 3, len(counts)))]
    for rater_id, rated in zip(table.rater_ids, table.by_rater(), strict=True):
        shared = rated[usable[rated]]
        items = table.items[shared]
        if table.of_means is not None:
            left_out[rater_id] = "only means of the ratings are known"
            continue
        if len(shared) < MIN_RATER_ITEMS:
            left_out[rater_id] = (
                f"shares {counted(len(shared), 'item')} with other raters, at least {MIN_RATER_ITEMS} needed"
            )
            continue
        codes = resamples.codes[items]
        correlations = spearman_draws(np.stack([score[items], table.scores[shared]]), targets[shared], codes, counts)
        if np.isnan(correlations[:, 0]).any():
            left_out[rater_id] = "this rater, the judge or the mean of the others is constant"
            continue
        # Judge and rater are compared on the same draws: where one is undefined, neither counts
        undefined = np.isnan(correlations).any(axis=0)
        weights = counts @ np.bincount(codes, minlength=counts.shape[1])
        raters.append(rater_id)
        rows.append(np.stack([*np.where(undefined, np.nan, correlations), np.where(undefined, 0.0, weights)])[None])
        used.append(shared)
    judge, rater, weights = np.moveaxis(np.concatenate(rows), 1, 0)
    rated = table.items[np.concatenate(used)] if used else np.empty(0, dtype=np.intp)
    one_over_others = float((1 / (table.counts[rated] - 1)).mean()) if used else math.nan
    items = np.unique(rated)
    n_shared = len(np.unique(table.items[usable]))
    return HeldOut(tuple(raters), judge, rater, weights, left_out, items, len(items), one_over_others, n_shared)


def halvings(resamples: Resamples) -> np.ndarray:
    """Shape (2 x HALVINGS, groups), 1 = the group is in this half; two rows are one halving."""
    # The same halves for every judge, whatever the seed of the draws
    rng, groups = np.random.default_rng(0), resamples.counts.shape[1]
    first = np.stack([rng.permutation(groups) % 2 for _ in range(HALVINGS)])
    return np.stack([first, 1 - first], axis=1).reshape(2 * HALVINGS, groups).astype(np.float32)


def pooled(dimensions: Sequence[HeldOut]) -> HeldOut:
    """Pools several dimensions into one with equal weights; a rater of several of them is one rater.

    Args:
        dimensions: Results of one judge, from draws over the same groups. Those without a rater do not count.
    """
    n_shared = sum(dimension.n_shared for dimension in dimensions)
    dimensions = [dimension for dimension in dimensions if dimension.raters]
    names = tuple(dict.fromkeys(name for dimension in dimensions for name in dimension.raters))
    shape = (len(names), dimensions[0].judge.shape[1] if dimensions else 1)
    judge, rater, weights = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for dimension in dimensions:
        rows = [names.index(name) for name in dimension.raters]
        with np.errstate(invalid="ignore"):
            share = dimension.weights / dimension.weights.sum(axis=0)
        share = np.where(np.isnan(share), 0.0, share)
        weights[rows] += share
        # Equal weights of dimensions: one that was rated by more people is no more important
        judge[rows] += share * np.nan_to_num(dimension.judge)
        rater[rows] += share * np.nan_to_num(dimension.rater)
    with np.errstate(invalid="ignore", divide="ignore"):
        judge, rater = judge / weights, rater / weights
    left_out = {name: why for dimension in dimensions for name, why in dimension.left_out.items() if name not in names}
    mean = float(np.mean([dimension.one_over_others for dimension in dimensions])) if dimensions else math.nan
    n_items = sum(dimension.n_items for dimension in dimensions)
    return HeldOut(names, judge, rater, weights, left_out, np.empty(0, dtype=np.int64), n_items, mean, n_shared)


def compared(found: HeldOut, resamples: Resamples, n: int | None = None) -> LikeForLike:
    """Means, intervals and verdict.

    Args:
        found: The result of `held_out` or `pooled`.
        resamples: The draws behind it, selected for the items that count.
        n: The `n` of the statistics, where that is not the number of items (dimensions of `pooled`).
    """
    groups = resamples.n_groups
    counted = found.n_items if n is None else n
    verdict: Verdict = "too few items to tell"
    if not found.raters:
        reasons = "; ".join(dict.fromkeys(found.left_out.values())) or "there are no ratings"
        verdict = verdict if found.n_shared else "no rater can be compared"
        undefined = Statistic(None, n=counted, reason=f"no rater can be compared: {reasons}")
        return LikeForLike(
            undefined, undefined, undefined, undefined, undefined, None, verdict, 0, 0, groups, found.left_out
        )
    # By items, since a correlation of many items is known better
    share = found.weights[:, 0] / found.weights[:, 0].sum()
    judge, rater = float(share @ found.judge[:, 0]), float(share @ found.rater[:, 0])
    difference, ratio = Statistic(judge - rater, n=counted), Statistic(None, n=counted)
    # Where raters do not agree, a multiple of their agreement says nothing of the judge
    if rater > 0:
        ratio = replace(ratio, value=judge / rater)
    else:
        ratio = replace(ratio, reason=f"the raters do not agree (Spearman {rater:.3f})")
    spread, p = _spread(found, share, resamples), None
    if isinstance(spread, str):
        difference = replace(difference, reason=f"no interval: {spread}")
        ratio = replace(ratio, reason=ratio.reason or difference.reason)
    else:
        error = math.sqrt(_CONTRAST @ spread.items @ _CONTRAST + spread.raters)
        half = t_quantile((1 + _LEVEL) / 2, spread.freedom)
        p = t_two_sided((judge - rater) / error, spread.freedom) if error > 0 else float(judge == rater)
        # two correlations differ by at most 2; with few degrees of freedom the t interval goes far beyond
        low, high = max(judge - rater - half * error, -2.0), min(judge - rater + half * error, 2.0)
        difference = replace(difference, low=low, high=high)
        verdict = "better than one rater" if low > 0 else "not told apart from one rater"
        if high < 0:
            verdict = "worse than one rater"
        if ratio.value is not None:
            ratio = _fieller(ratio, judge, rater, spread, half)
    return LikeForLike(
        Statistic(judge, n=counted),
        Statistic(rater, n=counted),
        difference,
        ratio,
        _effective_raters(ratio, rater, found.one_over_others),
        p,
        verdict,
        found.n_items,
        len(found.raters),
        groups,
        found.left_out,
    )


class _Spread(NamedTuple):
    """Uncertainty of judge - t x rater."""

    items: np.ndarray  # (2, 2), covariance of (judge, rater) that comes from the items
    raters: float  # variance of judge - rater that comes from a further rater
    freedom: float  # degrees of freedom of both together


_CONTRAST = np.array([1.0, -1.0])


def _spread(found: HeldOut, share: np.ndarray, resamples: Resamples) -> _Spread | str:
    """The variances behind the intervals, or the reason why there are no intervals."""
    groups, raters = resamples.n_groups, len(found.raters)
    if resamples.resamples == 0:
        return "no resamples"
    if groups < MIN_GROUPS:
        return f"{counted(groups, 'group')}, at least {MIN_GROUPS} needed"
    if raters < MIN_RATERS:
        return f"{counted(raters, 'rater')} can be compared, at least {MIN_RATERS} needed"
    drawn = slice(1, 1 + resamples.resamples)
    weights = found.weights[:, drawn]
    defined = weights.sum(axis=0) > 0
    if (~defined).sum() > MAX_UNDEFINED * len(defined):
        return f"undefined in {(~defined).sum()} of {counted(len(defined), 'resample')}"
    # From the items: how judge and raters vary together over the draws
    sums = [(np.nan_to_num(values[:, drawn]) * weights).sum(axis=0) for values in (found.judge, found.rater)]
    items = np.cov(np.stack(sums)[:, defined] / weights.sum(axis=0)[defined]) * groups / (groups - 1)
    # From the raters: by how much they differ in one half of the groups and again in the other
    halved = (found.judge - found.rater)[:, -2 * HALVINGS :]
    # Of two halves, whose chance is independent: a variance over raters in one half would contain that chance
    covariances = [_covariance(halved[:, h], halved[:, h + 1], share) for h in range(0, 2 * HALVINGS, 2)]
    if np.isnan(covariances).all():
        return "half of the groups hold too few items of each rater"
    concentration = float(share @ share)  # 1 / raters where all have as many items
    of_raters = max(0.0, float(np.nanmean(covariances))) * (1 + concentration)
    of_items = float(_CONTRAST @ items @ _CONTRAST)
    total, observed = of_items + of_raters, (found.judge - found.rater)[:, 0]
    with_chance = _covariance(observed, observed, share) * (1 + concentration)
    # The variance from raters may be 0 by chance, and is then no more certain: see the module docstring
    for_freedom = max(of_raters, min(with_chance, total) / 2)
    # Satterthwaite: as many degrees of freedom as a single variance of this precision would have
    squares = of_items**2 / (groups - 1) + for_freedom**2 / (1 / concentration - 1)
    freedom = max(1.0, total**2 / squares) if squares > 0 else groups - 1.0
    return _Spread(items, of_raters, freedom)


def _covariance(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> float:
    """Unbiased covariance over independent raters, weighted by `share`; NaN with fewer than two defined raters."""
    defined = ~(np.isnan(first) | np.isnan(second))
    if defined.sum() < MIN_RATERS:
        return math.nan
    first, second, share = first[defined], second[defined], share[defined] / share[defined].sum()
    # Divided by 1 - sum of squared shares, as by n - 1 where shares are equal
    return float(share @ ((first - share @ first) * (second - share @ second)) / (1 - share @ share))


def _fieller(ratio: Statistic, judge: float, rater: float, spread: _Spread, half: float) -> Statistic:
    """Adds the interval: all t with |judge - t rater| <= half x its standard error, where it has two ends."""
    # The condition is a t^2 - 2 b t + c <= 0; only where a > 0 do its solutions lie between two ends
    a = rater**2 - half**2 * spread.items[1, 1]
    b = judge * rater - half**2 * spread.items[0, 1]
    c = judge**2 - half**2 * (spread.items[0, 0] + spread.raters)
    root = b**2 - a * c
    if a <= 0 or root < 0:
        return replace(ratio, reason="no interval: the agreement of the raters is not clearly above 0")
    return replace(ratio, low=float((b - math.sqrt(root)) / a), high=float((b + math.sqrt(root)) / a))


def _effective_raters(ratio: Statistic, rater: float, one_over_others: float) -> Statistic:
    """k of the mean of k raters that would agree with the same targets as the judge does.

    By classical test theory (Spearman, 1910; Brown, 1910) the mean of k raters has the reliability rel_k = k rel_1 /
    (1 + (k - 1) rel_1) and correlates by sqrt(rel_k rel_m) with the mean of m others. rel_1 is solved from the
    observed correlation of one rater; then rel_k = ratio^2 rel_1. The interval comes from the ends of the ratio's with
    this rel_1, and contains 1 where that does. The formulas hold for Pearson's correlation and approximately for
    Spearman's.
    """
    if ratio.value is None:
        return Statistic(None, n=ratio.n, reason=ratio.reason)
    # rater^2 = rel_1^2 / (rel_1 + (1 - rel_1) / m), solved for rel_1
    squared, c = rater**2, one_over_others
    single = (squared * (1 - c) + math.sqrt((squared * (1 - c)) ** 2 + 4 * squared * c)) / 2

    def raters(times: float | None) -> float | None:
        if times is None or times <= 0:
            return None if times is None else 0.0
        reliability = times**2 * single
        return reliability * (1 - single) / (single * (1 - reliability)) if reliability < 1 else None

    value, low, high = (raters(end) for end in (ratio.value, ratio.low, ratio.high))
    reason = ratio.reason
    if value is None:
        reason = AS_GOOD_AS_TRUE_SCORES
    elif ratio.high is not None and high is None:
        reason = f"no upper end: within the interval it {AS_GOOD_AS_TRUE_SCORES}"
    return Statistic(value, low, high, n=ratio.n, reason=reason)
