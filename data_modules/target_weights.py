"""How much a training target counts: more where many raters stand behind it.

The mean of n raters is the true mean of an item and an error of variance ``within / n``. Where items have different
numbers of raters, a judge that takes all means for equally true learns the noise of those with few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .rating_table import RatingTable
from .schema import PairDataset


@dataclass(frozen=True)
class VarianceComponents:
    """What makes ratings differ, in squared rating points.

    Attributes:
        between: Variance of the items' true means; may come out negative.
        within: Variance of the ratings of one item, with the biases of raters in it.
    """

    between: float
    within: float


def variance_components(table: RatingTable) -> VarianceComponents | None:
    """One-way random-effects analysis of variance of unbalanced data, by the method of moments (Searle, Casella and
    McCulloch, 1992, chapter 3).

    Items with one rating tell about `between` only, items without any are left out.

    Returns:
        None where no item has two raters, or only one item was rated: then the two cannot be told apart.
    """
    item_means = table.sums / np.maximum(table.counts, 1)
    rated = table.counts > 0
    counts, means = table.counts[rated].astype(np.float64), item_means[rated]
    n_items, n_ratings = len(counts), len(table.scores)
    if n_items < 2 or n_ratings == n_items:
        return None
    within = np.square(table.scores - item_means[table.items]).sum() / (n_ratings - n_items)
    among = (counts * np.square(means - table.scores.mean())).sum() / (n_items - 1)
    raters = (n_ratings - np.square(counts).sum() / n_ratings) / (n_items - 1)  # in a balanced panel their number
    return VarianceComponents(float((among - within) / raters), float(within))


def reliability_weights(dataset: PairDataset) -> tuple[np.ndarray, tuple[str, ...]]:
    """Weights by the reliability of a mean of n raters, ``between / (between + within / n)`` (Shrout and Fleiss, 1979,
    ICC(1, n)), which is what weighted least squares asks for, up to a factor, where nothing is known about the items.

    A judge that explains much of `between` leaves less of it unexplained, and the best weights would then differ more:
    these are cautious. The variances are those of the ratings as they were given: a target that takes biases out has a
    smaller error.

    Args:
        dataset: Pairs and their ratings.

    Returns:
        Shape (pairs, dimensions), float64, on average 1 over the rated pairs of a dimension, 0 where nobody rated. And
        a note for each dimension where reliability cannot be estimated, because no pair has two raters or raters agree
        on one pair no more than on different ones: its weights are all 1.
    """
    pair_ids = [pair.pair_id for pair in dataset.pairs]
    columns, notes = [], []
    for dimension in dataset.card.dimensions:
        weights, why = item_weights(RatingTable.of(dataset.ratings, dimension.name, pair_ids))
        columns.append(weights)
        if why is not None:
            notes.append(f"{dimension.name}: {why}; all ratings weigh the same")
    return np.stack(columns, axis=1), tuple(notes)


def item_weights(table: RatingTable) -> tuple[np.ndarray, str | None]:
    """As `reliability_weights`, of one dimension: shape (items,), and why they are all 1, where they are."""
    rated = table.counts > 0
    equal = rated.astype(np.float64)
    if not rated.any():
        return equal, None
    found = variance_components(table)
    if found is None:
        return equal, "no reliability without an item that has two raters, and another item"
    if found.between <= 0:
        return equal, "no reliability, the ratings of one item differ as much as those of different items"
    weights = found.between / (found.between + found.within / np.maximum(table.counts, 1)) * equal
    return weights / weights[rated].mean(), None
