"""Judge and rater against the same people: is the judge as good as one rater?

For each rater, judge and rater are both correlated with the mean of the other raters (Calderon, Reichart and Dror,
2025, "The alternative annotator test for LLM-as-a-judge"; "Judge beside one rater" in docs/reference/statistics.md).

Interval, p value and verdict ask whether the judge could be **a further rater of the kind of these**. Two things make a
judge that is one differ from them: the items, and that raters differ in how noisy they are.

- Items: groups are drawn with replacement, raters stay. A resample in which a rater counted twice would put this rater
  against itself. The covariance of judge and raters over the draws is multiplied by g / (g - 1), g being the groups.
- Raters: how much judge - rater genuinely differs between raters is its covariance over raters between two parts of
  the groups, over random halvings, at least 0: what is chance in one part is not in the other. Times 1 + 1 / raters it
  is the variance for a further rater and the mean, as in the prediction interval of random effects (Higgins, Thompson
  and Spiegelhalter, 2009).

The difference has a t interval with the degrees of freedom of Satterthwaite (1946). The variance from raters is what
their spread has beyond chance; where that comes out as 0 it is no better known than the spread is. In the degrees of
freedom it counts as half of the spread at least, up to half of the whole variance. (Counted as it is, a judge that is
one more rater beside 3 is told apart in 7.6 % where noise differs by 20 %; so in 6 %. Both limits were found by
simulation.) The ratio has the interval of Fieller (1954): all t for which the same test does not reject judge = t x
rater. It holds 1 exactly where the interval of the difference holds 0, and p is 0.05 or more.

With fewer than 5 raters how much they differ is seen in 1 to 3 differences, and real differences are often
missed: where noise differs by 40 % between raters, a judge that is one more of them is told apart in 8 to 12 %, not
5 % (`benchmarks/results/coverage.md`). The interval then holds for these raters more surely than for others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from ...data_modules.ratings import RatingTable
from .agreement import Statistic
from .bootstrap import MAX_UNDEFINED, MIN_GROUPS, Resamples
from .rank_draws import spearman_draws
from .reliability import MIN_RATER_ITEMS

MIN_RATERS = 2
"""Fewest raters of an interval: how much raters differ cannot be seen from one."""

Verdict = Literal[
    "better than one rater", "not told apart from one rater", "worse than one rater", "too few items to tell"
]

AS_GOOD_AS_TRUE_SCORES = "agrees with people as well as the true scores would"

HALVINGS = 25
"""Random halvings of the groups, to tell the raters' differences from chance."""

_LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Judge and raters against the mean of the other raters, one row for each rater that can be compared.

    The first column is what was observed; then come the rows of `Resamples.counts`, then `HALVINGS` times two parts.
    """

    raters: tuple[str, ...]  # the raters, K of them
    judge: np.ndarray  # shape (K, columns), Spearman of the judge; NaN = undefined, then also in `rater`
    rater: np.ndarray  # shape (K, columns), Spearman of the rater on the same items
    weights: np.ndarray  # shape (K, columns), items that both stand on
    left_out: Mapping[str, str]  # rater -> why it is not compared
    items: np.ndarray  # the items that count, rising; positions in the table. Empty where dimensions are pooled.
    n_items: int  # their number; of pooled dimensions together
    one_over_others: float  # mean over the compared ratings of 1 / the number of other raters


@dataclass(frozen=True)
class LikeForLike:
    """A judge beside one rater; all statistics stand on the same ratings and draws."""

    judge: Statistic  # mean over raters of the judge's Spearman with the mean of the other raters; no interval
    rater: Statistic  # the same of the raters themselves, on the same items
    difference: Statistic  # judge - rater, with the 95 % interval for a further rater of this kind
    ratio: Statistic  # judge / rater, with the interval that belongs to it
    # the mean of how many raters would agree with these targets as the judge does; not rounded
    effective_raters: Statistic
    p: float | None  # two-sided, of a difference of 0; None without an interval
    verdict: Verdict  # from the interval of the difference
    n_items: int  # items that count; over several dimensions, those of each
    n_raters: int  # raters that are compared
    n_groups: int  # groups of these items
    left_out: Mapping[str, str]  # rater -> why it is not compared


def like_for_like(score: np.ndarray, table: RatingTable, resamples: Resamples) -> LikeForLike:
    """A judge and one rater on one dimension.

    Undefined, with the reason, where no rater can be compared; without intervals with fewer than `MIN_GROUPS` groups or
    `MIN_RATERS` raters that can be compared.

    Args:
        score: Shape (n,), judge scores of the n items of `table`; NaN = not scored, the item does not count.
        table: The ratings.
        resamples: Draws over the n items.
    """
    found = held_out(score, table, resamples)
    return compared(found, resamples.select(found.items))


def held_out(score: np.ndarray, table: RatingTable, resamples: Resamples) -> HeldOut:
    """Judge and each rater against the mean of the others; arguments as for `like_for_like`.

    A rater is left out that shares fewer than `MIN_RATER_ITEMS` scored items with others, or where the rater, the judge
    or the mean of the others is constant on them.
    """
    targets = table.others_mean()
    usable = ~np.isnan(targets) & ~np.isnan(score[table.items])
    whole = np.ones((1, resamples.counts.shape[1]), np.float32)
    counts = np.concatenate([whole, resamples.counts, halvings(resamples)])
    raters, left_out, used = [], {}, []
    rows = [np.empty((0, 3, len(counts)))]
    for rater_id, rated in zip(table.rater_ids, table.by_rater(), strict=True):
        own = rated[usable[rated]]
        items = table.items[own]
        if len(own) < MIN_RATER_ITEMS:
            left_out[rater_id] = f"shares {len(own)} items with other raters, at least {MIN_RATER_ITEMS} needed"
            continue
        codes = resamples.codes[items]
        both = spearman_draws(np.stack([score[items], table.scores[own]]), targets[own], codes, counts)
        if np.isnan(both[:, 0]).any():
            left_out[rater_id] = "this rater, the judge or the mean of the others is constant"
            continue
        undefined = np.isnan(both).any(axis=0)
        weights = counts @ np.bincount(codes, minlength=counts.shape[1])
        raters.append(rater_id)
        rows.append(np.stack([*np.where(undefined, np.nan, both), np.where(undefined, 0.0, weights)])[None])
        used.append(own)
    judge, rater, weights = np.moveaxis(np.concatenate(rows), 1, 0)
    rated = table.items[np.concatenate(used)] if used else np.empty(0, dtype=np.intp)
    one_over_others = float((1 / (table.counts[rated] - 1)).mean()) if used else math.nan
    items = np.unique(rated)
    return HeldOut(tuple(raters), judge, rater, weights, left_out, items, len(items), one_over_others)


def halvings(resamples: Resamples) -> np.ndarray:
    """Shape (2 x HALVINGS, groups), 1 = the group is in this half; two rows are one halving."""
    rng, groups = np.random.default_rng(0), resamples.counts.shape[1]
    first = np.stack([rng.permutation(groups) % 2 for _ in range(HALVINGS)])
    return np.stack([first, 1 - first], axis=1).reshape(2 * HALVINGS, groups).astype(np.float32)


def pooled(dimensions: Sequence[HeldOut]) -> HeldOut:
    """Several dimensions as one, each counting alike; a rater of several of them is one rater.

    Args:
        dimensions: Of one judge, from draws over the same groups. Those without a rater do not count.
    """
    dimensions = [one for one in dimensions if one.raters]
    names = tuple(dict.fromkeys(name for one in dimensions for name in one.raters))
    shape = (len(names), dimensions[0].judge.shape[1] if dimensions else 1)
    judge, rater, weights = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for one in dimensions:
        rows = [names.index(name) for name in one.raters]
        with np.errstate(invalid="ignore"):
            share = one.weights / one.weights.sum(axis=0)
        share = np.where(np.isnan(share), 0.0, share)
        weights[rows] += share
        judge[rows] += share * np.nan_to_num(one.judge)
        rater[rows] += share * np.nan_to_num(one.rater)
    with np.errstate(invalid="ignore", divide="ignore"):
        judge, rater = judge / weights, rater / weights
    left_out = {name: why for one in dimensions for name, why in one.left_out.items() if name not in names}
    mean = float(np.mean([one.one_over_others for one in dimensions])) if dimensions else math.nan
    n_items = sum(one.n_items for one in dimensions)
    return HeldOut(names, judge, rater, weights, left_out, np.empty(0, dtype=np.int64), n_items, mean)


def compared(found: HeldOut, resamples: Resamples, n: int | None = None) -> LikeForLike:
    """Means, intervals and verdict.

    Args:
        found: What `held_out` or `pooled` returns.
        resamples: The draws behind it, as the items see them that count.
        n: What the statistics count as `n`, where that is not the items (dimensions of `pooled`).
    """
    groups = resamples.n_groups
    counted = found.n_items if n is None else n
    verdict: Verdict = "too few items to tell"
    if not found.raters:
        reasons = "; ".join(dict.fromkeys(found.left_out.values())) or "there are no ratings"
        none = Statistic(None, n=counted, reason=f"no rater can be compared: {reasons}")
        return LikeForLike(none, none, none, none, none, None, verdict, 0, 0, groups, found.left_out)
    share = found.weights[:, 0] / found.weights[:, 0].sum()
    judge, rater = float(share @ found.judge[:, 0]), float(share @ found.rater[:, 0])
    difference, ratio = Statistic(judge - rater, n=counted), Statistic(None, n=counted)
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
        half = float(stats.t.ppf((1 + _LEVEL) / 2, spread.freedom))
        p = float(2 * stats.t.sf(abs(judge - rater) / error, spread.freedom)) if error > 0 else float(judge == rater)
        low, high = judge - rater - half * error, judge - rater + half * error
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
    """What tells judge - t x rater from 0."""

    items: np.ndarray  # (2, 2), covariance of (judge, rater) that comes from the items
    raters: float  # variance of judge - rater that comes from a further rater
    freedom: float  # degrees of freedom of both together


_CONTRAST = np.array([1.0, -1.0])


def _spread(found: HeldOut, share: np.ndarray, resamples: Resamples) -> _Spread | str:
    """What the intervals are made of, or why there are none."""
    groups, raters = resamples.n_groups, len(found.raters)
    if resamples.resamples == 0:
        return "no resamples"
    if groups < MIN_GROUPS:
        return f"{groups} groups, at least {MIN_GROUPS} needed"
    if raters < MIN_RATERS:
        return f"{raters} rater can be compared, at least {MIN_RATERS} needed"
    drawn = slice(1, 1 + resamples.resamples)
    weights = found.weights[:, drawn]
    kept = weights.sum(axis=0) > 0
    if (~kept).sum() > MAX_UNDEFINED * len(kept):
        return f"undefined in {(~kept).sum()} of {len(kept)} resamples"
    sums = [(np.nan_to_num(own[:, drawn]) * weights).sum(axis=0) for own in (found.judge, found.rater)]
    items = np.cov(np.stack(sums)[:, kept] / weights.sum(axis=0)[kept]) * groups / (groups - 1)
    halved = (found.judge - found.rater)[:, -2 * HALVINGS :]
    genuine = [_covariance(halved[:, h], halved[:, h + 1], share) for h in range(0, 2 * HALVINGS, 2)]
    if np.isnan(genuine).all():
        return "half of the groups hold too few items of each rater"
    concentration = float(share @ share)  # 1 / raters where all have as many items
    of_raters = max(0.0, float(np.nanmean(genuine))) * (1 + concentration)
    of_items = float(_CONTRAST @ items @ _CONTRAST)
    whole, observed = of_items + of_raters, (found.judge - found.rater)[:, 0]
    with_chance = _covariance(observed, observed, share) * (1 + concentration)
    unsure = max(of_raters, min(with_chance, whole) / 2)  # of_raters may be 0 by chance
    squares = of_items**2 / (groups - 1) + unsure**2 / (1 / concentration - 1)
    freedom = max(1.0, whole**2 / squares) if squares > 0 else groups - 1.0
    return _Spread(items, of_raters, freedom)


def _covariance(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> float:
    """Over raters, for independent ones; NaN with fewer than two that are defined."""
    defined = ~(np.isnan(first) | np.isnan(second))
    if defined.sum() < MIN_RATERS:
        return math.nan
    first, second, share = first[defined], second[defined], share[defined] / share[defined].sum()
    return float(share @ ((first - share @ first) * (second - share @ second)) / (1 - share @ share))


def _fieller(ratio: Statistic, judge: float, rater: float, spread: _Spread, half: float) -> Statistic:
    """With the interval: all t with |judge - t rater| <= half x its standard error, where these have two ends."""
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
    (1 + (k - 1) rel_1) and correlates by sqrt(rel_k rel_m) with the mean of m others. rel_1 is that with which one
    rater reaches what was observed; then rel_k = ratio^2 rel_1. The ends are those of the ratio, for this rel_1: they
    hold 1 where the ratio's hold 1. The formulas are for Pearson's correlation and an approximation for Spearman's.
    """
    if ratio.value is None:
        return Statistic(None, n=ratio.n, reason=ratio.reason)
    # rater^2 = rel_1^2 / (rel_1 + (1 - rel_1) / m), solved for rel_1
    squared, c = rater**2, one_over_others
    single = (squared * (1 - c) + math.sqrt((squared * (1 - c)) ** 2 + 4 * squared * c)) / 2

    def raters(times: float | None) -> float | None:
        if times is None or times <= 0:
            return None if times is None else 0.0
        reached = times**2 * single
        return reached * (1 - single) / (single * (1 - reached)) if reached < 1 else None

    value, low, high = (raters(end) for end in (ratio.value, ratio.low, ratio.high))
    reason = ratio.reason
    if value is None:
        reason = AS_GOOD_AS_TRUE_SCORES
    elif ratio.high is not None and high is None:
        reason = f"no upper end: within the interval it {AS_GOOD_AS_TRUE_SCORES}"
    return Statistic(value, low, high, n=ratio.n, reason=reason)
