"""The ratings of one dimension as arrays: what every statistic about raters is computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from .ratings import SECONDS


@dataclass(frozen=True, eq=False)
class RatingTable:
    """The ratings of one dimension, in long form; no item has two ratings by one rater.

    Attributes:
        items: Shape (ratings,), position of the rated item, 0 to `n_items` - 1.
        raters: Shape (ratings,), position of the rater in `rater_ids`.
        scores: Shape (ratings,), float64, rating points.
        n_items: Number of items.
        rater_ids: The raters, each with at least one rating.
        seconds: Shape (ratings,), float64, time that the rater took, NaN = unknown; None = the ratings have no times.
    """

    items: np.ndarray
    raters: np.ndarray
    scores: np.ndarray
    n_items: int
    rater_ids: tuple[str, ...]
    seconds: np.ndarray | None = None

    @classmethod
    def of(cls, ratings: pd.DataFrame, dimension: str, pair_ids: Sequence[str]) -> RatingTable:
        """The ratings of `pair_ids` on `dimension`; items are numbered in the order of `pair_ids`."""
        index = pd.Index(pair_ids, dtype=object)
        rows = ratings.loc[(ratings["dimension"] == dimension) & ratings["pair_id"].isin(list(pair_ids))]
        raters, rater_ids = pd.factorize(rows["rater_id"], sort=True)
        scores = rows["score"].to_numpy(np.float64)
        return cls(
            index.get_indexer(pd.Index(rows["pair_id"])),
            raters,
            scores,
            len(index),
            tuple(map(str, rater_ids)),
            rows[SECONDS].to_numpy(np.float64) if SECONDS in rows else None,
        )

    @cached_property
    def counts(self) -> np.ndarray:
        """Ratings per item, shape (n_items,)."""
        return np.bincount(self.items, minlength=self.n_items)

    @cached_property
    def sums(self) -> np.ndarray:
        """Sum of the ratings per item, shape (n_items,)."""
        return np.bincount(self.items, weights=self.scores, minlength=self.n_items)

    def shared(self) -> np.ndarray:
        """Positions of the items with at least two raters."""
        return np.flatnonzero(self.counts >= 2)

    def others_mean(self) -> np.ndarray:
        """Per rating the mean of the other raters of its item, shape (ratings,); NaN where there is none."""
        others = self.counts[self.items] - 1
        rest = self.sums[self.items] - self.scores
        return np.where(others > 0, rest / np.maximum(others, 1), np.nan)

    def by_rater(self) -> list[np.ndarray]:
        """Positions of the ratings of each rater, rising."""
        order = np.argsort(self.raters, kind="stable")
        ends = np.cumsum(np.bincount(self.raters, minlength=len(self.rater_ids)))
        return np.split(order, ends)[: len(self.rater_ids)]
