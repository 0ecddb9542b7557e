"""How often a judge orders two items as people do.

Two statistics over pairs of items, which differ in what ties do:

- **pairwise accuracy** (acc_eq; Deutsch, Foster and Freitag, 2023): the share of pairs on which the judge says the same
  as people, one of: first better, second better, tie. A judge that scores with decimals hardly ever ties, so its scores
  count as tied when they differ by at most epsilon; `tie_calibration` chooses epsilon.
- **concordance index** (Harrell et al., 1982): pairs that people tie are left out, and those that the judge ties count
  half. It is (1 + Somers' D) / 2, and about 0.5 for a judge that knows nothing.

Pairs are those of all items, or only of items of one group (`within`). All pairs count the same: a group with more
items has more weight. In groups of one size that is the mean over groups that Deutsch et al. call group-by-item. Scores
are tied when they are equal as float64.

In a bootstrap resample, a group that lies in one resampled cluster is drawn with it, and copies of it are different
groups: its pairs count as often as the cluster was drawn. Where a group spans clusters (or there are no groups), a pair
counts as often as both of its items were drawn. An item and its own copy are never a pair; counted as the tie that they
are, they would raise the accuracy of every resample. A resample in which the judge's scores are constant counts by the
rule for ties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from .agreement import CONSTANT_TOLERANCE, Statistic
from .bootstrap import Estimate, Resamples
from .complete_items import CompleteItems
from .pair_counts import count_pairs

MAX_PAIRS = 250_000_000
"""Most pairs that are looked at one by one (those of 22,360 items): beyond it there is no interval."""

_BLOCK_VALUES = 1 << 20  # numbers held per temporary array: 8 MB, of which the processor's cache keeps a part

PairRule = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From judge and human differences of pairs (any shape): what each pair adds to numerator and denominator."""


def concordance_index(score: np.ndarray, human: np.ndarray, within: np.ndarray | None = None) -> Statistic:
    """Share of the pairs ordered by people that the judge orders alike; its ties count half (Harrell et al., 1982).

    Args:
        score: Shape (n,), judge; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        within: Shape (n,), the group of each item, to compare items of one group only; None compares all items.

    Returns:
        ``n`` counts items that have another one to be compared with. Undefined, with the reason, without a pair, and
        where either side ties all of them.

    Raises:
        ValueError: If shapes differ.
    """
    items, groups, empty = _compared(score, human, within)
    if empty.reason is not None:
        return empty
    counts = count_pairs(items.score, items.human, groups)
    ordered = (counts.pairs - counts.human_tied).sum()
    halves = (2 * counts.concordant + counts.judge_tied - counts.both_tied).sum()
    return replace(empty, value=float(halves / 2 / ordered))


def concordance_estimate(
    score: np.ndarray, human: np.ndarray, resamples: Resamples, within: np.ndarray | None = None
) -> Estimate:
    """`concordance_index` with its bootstrap interval; `resamples` are draws over the same n items."""
    return _estimate(concordance_index(score, human, within), score, human, within, resamples, _concordance)


def pairwise_accuracy(
    score: np.ndarray, human: np.ndarray, within: np.ndarray | None = None, epsilon: float = 0.0
) -> Statistic:
    """Share of all pairs on which judge and people agree about order or tie (Deutsch et al., 2023: acc_eq).

    Args:
        score: Shape (n,), judge; NaN is dropped with its item and counted.
        human: Shape (n,), the same items.
        within: Shape (n,), the group of each item, to compare items of one group only; None compares all items.
        epsilon: The judge ties two items when its scores differ by at most this; judge's points.

    Returns:
        ``n`` counts items that have another one to be compared with. Undefined, with the reason, without a pair, and
        where the scores of either side are constant.

    Raises:
        ValueError: If shapes differ or epsilon is negative or NaN.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon {epsilon}; accepted: 0 or more")
    items, groups, empty = _compared(score, human, within)
    if empty.reason is not None:
        return empty
    counts = count_pairs(items.score, items.human, groups, epsilon)
    return replace(empty, value=float((counts.concordant + counts.both_tied).sum() / counts.pairs.sum()))


def pairwise_accuracy_estimate(
    score: np.ndarray,
    human: np.ndarray,
    resamples: Resamples,
    within: np.ndarray | None = None,
    epsilon: float = 0.0,
) -> Estimate:
    """`pairwise_accuracy` with its bootstrap interval; `resamples` are draws over the same n items.

    Epsilon is the same in every resample. With a calibrated one the interval leaves out the uncertainty of its choice.
    """

    def agreeing(judge: np.ndarray, people: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.sign(judge)
        order[np.abs(judge) <= epsilon] = 0
        return order == np.sign(people), np.ones(judge.shape, dtype=bool)

    return _estimate(pairwise_accuracy(score, human, within, epsilon), score, human, within, resamples, agreeing)


def _compared(
    score: np.ndarray, human: np.ndarray, within: np.ndarray | None
) -> tuple[CompleteItems, np.ndarray, Statistic]:
    """The items, the group of each (n,), and a statistic that counts those with a partner, or says what is missing."""
    items = CompleteItems.of(score, human)
    labels = np.zeros(len(items.kept), dtype=np.intp) if within is None else within
    groups = items.codes(labels, "within")
    where = "" if within is None else " within groups"
    partnered = int((np.bincount(groups)[groups] > 1).sum())
    empty = items.empty
    if empty.reason is None and partnered == 0:
        return items, groups, replace(empty, reason=f"no pair{where}: {empty.n} items")
    constant = [side for side, own in (("judge", items.score), ("human", items.human)) if not _orders_any(own, groups)]
    if empty.reason is None and constant:
        empty = replace(empty, reason=f"the {' and the '.join(constant)} scores are constant{where}")
    return items, groups, replace(empty, n=partnered)


def _orders_any(values: np.ndarray, groups: np.ndarray) -> bool:
    """Whether some group has values that differ by more than rounding."""
    order = np.lexsort((values, groups))
    apart = np.diff(values[order]) > CONSTANT_TOLERANCE * np.abs(values).max(initial=0.0)
    return bool((apart & (np.diff(groups[order]) == 0)).any())


def _concordance(judge: np.ndarray, people: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    people = np.sign(people)
    ordered = people != 0
    return (ordered + np.sign(judge) * people) / 2, ordered


def _estimate(
    point: Statistic,
    score: np.ndarray,
    human: np.ndarray,
    within: np.ndarray | None,
    resamples: Resamples,
    rule: PairRule,
) -> Estimate:
    undefined = np.full(len(resamples.counts), np.nan)
    if point.value is None or len(undefined) == 0:
        return Estimate(point, undefined)
    items, groups, _ = _compared(score, human, within)
    sizes = np.bincount(groups)
    pairs = int((sizes * (sizes - 1) // 2).sum())
    if pairs > MAX_PAIRS:
        return Estimate(
            replace(point, reason=f"no interval: {pairs} pairs, at most {MAX_PAIRS} are resampled"), undefined
        )
    seen = resamples.select(items.kept)
    above, below = _pair_sums(items.score, items.human, groups, seen, rule)
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = np.where(below > 0, above / below, np.nan)
    return Estimate.of(point, draws, seen)


def _pair_sums(x: np.ndarray, y: np.ndarray, groups: np.ndarray, resamples: Resamples, rule: PairRule) -> np.ndarray:
    """Numerator and denominator of a rule over the pairs within groups, in every resample; shape (2, resamples)."""
    order = np.lexsort((resamples.codes, groups))
    x, y, clusters = x[order], y[order], resamples.codes[order]
    sizes = np.bincount(groups)
    ends = np.cumsum(sizes)
    whole = np.zeros((2, resamples.counts.shape[1]))  # of groups that lie in one cluster, by cluster
    sums = np.zeros((2, len(resamples.counts)))
    for start, end in zip(ends - sizes, ends, strict=True):
        present, starts = np.unique(clusters[start:end], return_index=True)
        if len(present) == 1:
            for _, values in _pair_blocks(x[start:end], y[start:end], rule):
                whole[:, present[0]] += [side.sum() for side in values]
        else:
            counts = resamples.counts[:, present].astype(np.float64)
            sums += _between_clusters(x[start:end], y[start:end], starts, counts, rule)
    return sums + whole @ resamples.counts.T


def _between_clusters(
    x: np.ndarray, y: np.ndarray, starts: np.ndarray, counts: np.ndarray, rule: PairRule
) -> np.ndarray:
    """The sums of `_pair_sums` over the pairs of one group, whose items are sorted by cluster.

    Each is c' S c, with c the counts of a resample over clusters and S the sums over the pairs between two clusters.

    Args:
        x: Shape (n,).
        y: Shape (n,).
        starts: Shape (clusters,), the first item of each.
        counts: Shape (resamples, clusters).
        rule: Applied to each pair.
    """
    sums = np.zeros((2, len(counts)))
    for first, values in _pair_blocks(x, y, rule):
        rows = len(values[0])
        low, high = np.searchsorted(starts, (first, first + rows - 1), side="right") - 1
        columns = np.maximum(starts[low:] - first, 0)
        for index, side in enumerate(values):
            between = np.add.reduceat(side, columns, axis=1, dtype=np.float64)
            between = np.add.reduceat(between, columns[: high - low + 1], axis=0)
            sums[index] += ((counts[:, low:] @ between.T) * counts[:, low : high + 1]).sum(axis=1)
    return sums


def _pair_blocks(x: np.ndarray, y: np.ndarray, rule: PairRule) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """Each pair once: the first of some rows of items, and the rule for these beside it and all later items.

    The rule's two arrays have the shape (rows, items from the first row on), with 0 where there is no pair of a row
    with a later item.
    """
    step = max(1, _BLOCK_VALUES // len(x))
    for first in range(0, len(x), step):
        rows = slice(first, first + step)
        values = rule(x[rows, None] - x[first:], y[rows, None] - y[first:])
        for side in values:
            side[:, : len(side)] = np.triu(side[:, : len(side)], 1)
        yield first, values
