"""What the mean of several raters reaches against the mean of the others.

All of it is classical test theory (Lord and Novick, 1968): a rating is a true score plus noise. With rel_1 the
reliability of a single rating, the mean of k ratings has the reliability rel_k = k rel_1 / (1 + (k - 1) rel_1)
(Spearman, 1910; Brown, 1910) and correlates with the true scores by sqrt(rel_k). rel_1 comes from
`Reliability.panel_reliability`, which is computed from ranks: the formulas are for Pearson's correlation and an
approximation for Spearman's, as `reliability` describes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ...data_modules.ratings import RatingTable
from .agreement import Statistic
from .bootstrap import Resamples, with_interval
from .reliability import MIN_RATER_ITEMS, mean_spearman

CHOICES = 100
"""Most choices of k raters whose correlations are averaged; where there are not more in all, each is made once."""


@dataclass(frozen=True, eq=False)
class RatersCeiling:
    """Spearman of the mean of k randomly chosen raters with the mean of the others.

    Attributes:
        expected: What classical test theory predicts, sqrt(rel_k rel_others), for the items with more than k raters.
        measured: Mean over choices of k raters of the correlation on these items.
    """

    expected: Statistic
    measured: Statistic


def single_reliability(panel_reliability: Statistic, table: RatingTable, resamples: Resamples) -> Statistic:
    """Reliability of a single rating, from that of the panel mean over all rated items (Spearman-Brown, backwards).

    Items may have different numbers of ratings: with l the noise variance of a rating over the variance of the true
    scores and c the mean of 1 / ratings, the panel mean has the reliability 1 / (1 + l c), and a rating 1 / (1 + l).

    Args:
        panel_reliability: Of `table`, by `reliability.measure`.
        table: The ratings.
        resamples: Draws over the items of `table`, those of `panel_reliability`.
    """
    whole = panel_reliability
    if whole.value is None:
        return whole
    c = float((1 / table.counts[table.counts > 0]).mean())
    return with_interval(Statistic(_of_part(whole.value, c), n=whole.n), _of_part(whole.draws, c), resamples)


def raters_ceiling(
    table: RatingTable, panel_reliability: Statistic, resamples: Resamples, k: int, seed: int
) -> RatersCeiling:
    """What the mean of k raters reaches against the mean of the other raters of the panel.

    Chosen are k raters of the panel, the same ones for all items; an item that they did not all rate gets others, in a
    random order that is the same for all items. Items with k raters or fewer are left out.

    Args:
        table: The ratings.
        panel_reliability: Of `table`, by `reliability.measure`.
        resamples: Draws over the items of `table`, those of `panel_reliability`.
        k: Raters, at least 1.
        seed: Of the choices.

    Returns:
        Undefined, with the reason, where fewer than `reliability.MIN_RATER_ITEMS` items have more than k raters.
    """
    if k < 1:
        raise ValueError(f"k {k}; expected 1 or more")
    items = np.flatnonzero(table.counts > k)
    if len(items) < MIN_RATER_ITEMS:
        raters = "1 rater" if k == 1 else f"{k} raters"
        reason = f"{len(items)} items with more than {raters}, at least {MIN_RATER_ITEMS} needed"
        nothing = Statistic(None, n=len(items), reason=reason)
        return RatersCeiling(nothing, nothing)
    seen, others = resamples.select(items), float((1 / (table.counts[items] - k)).mean())
    expected = single_reliability(panel_reliability, table, resamples)
    if expected.value is not None:
        value, draws = (
            np.sqrt(_of_mean(single, 1 / k) * _of_mean(single, others)) for single in (expected.value, expected.draws)
        )
        expected = with_interval(Statistic(float(value), n=len(items)), draws, seen, correlation=True)
    choices = _choices(len(table.rater_ids), k, np.random.default_rng(seed))
    divisions = (_means(table, order, k) for order in choices)
    return RatersCeiling(expected, mean_spearman(((one[items], other[items]) for one, other in divisions), seen))


def _of_part(whole: Any, c: float) -> Any:
    """Reliability of a single rating where that of means with c as the mean of 1 / ratings is `whole`."""
    return whole * c / (1 - whole + whole * c)


def _of_mean(single: Any, c: float) -> Any:
    """The inverse of `_of_part`."""
    return single / (single + (1 - single) * c)


def _choices(n_raters: int, k: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Shape (raters,), each rater's place in line; the k chosen ones stand in front."""
    every = list(combinations(range(n_raters), k)) if math.comb(n_raters, k) <= CHOICES else None
    for number in rng.permutation(CHOICES if every is None else len(every)):
        order = rng.permutation(n_raters)
        if every is not None:
            order[list(every[number])] -= n_raters
        yield order


def _means(table: RatingTable, order: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Per item the mean of the first k of its raters and of the rest, each (items,); undefined without a rest."""
    rows = np.lexsort((order[table.raters], table.items))
    items = table.items[rows]
    position = np.arange(len(items)) - (np.cumsum(table.counts) - table.counts)[items]
    chosen = np.bincount(items, weights=table.scores[rows] * (position < k), minlength=table.n_items)
    with np.errstate(invalid="ignore", divide="ignore"):
        return chosen / np.minimum(table.counts, k), (table.sums - chosen) / (table.counts - k)
