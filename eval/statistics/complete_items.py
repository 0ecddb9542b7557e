"""The items of two vectors of scores that count, by the rules of `agreement`, and statistics of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .agreement import Statistic, bias
from .bootstrap import Resamples, with_interval

Kernel = Callable[[np.ndarray], np.ndarray]
"""From how often each item is taken, shape (rows, n), to a statistic, shape (rows,), NaN = undefined."""


@dataclass(frozen=True, eq=False)
class CompleteItems:
    """Judge and human scores of the items where neither is NaN.

    Attributes:
        kept: Shape (n before), which items these are.
        score: Shape (n,), float64.
        human: Shape (n,), float64.
        empty: A statistic without value that counts them; it has a reason where nothing can be computed, because there
            are no items or infinite scores.
    """

    kept: np.ndarray
    score: np.ndarray
    human: np.ndarray
    empty: Statistic

    @classmethod
    def of(cls, score: np.ndarray, human: np.ndarray) -> CompleteItems:
        """Drops items where either side is NaN.

        Args:
            score: Shape (n,), judge.
            human: Shape (n,), the same items.

        Raises:
            ValueError: If the shapes differ or are not (n,).
        """
        x, y = np.asarray(score, dtype=np.float64), np.asarray(human, dtype=np.float64)
        empty = replace(bias(x, y), value=None)  # bias is defined wherever anything is
        kept = ~(np.isnan(x) | np.isnan(y))
        return cls(kept, x[kept], y[kept], empty)

    def codes(self, labels: np.ndarray, name: str) -> np.ndarray:
        """Labels of all items as numbers from 0 in their sorted order, shape (n,), of the items that count.

        Args:
            labels: Shape (n before,), names or numbers.
            name: What they are, for the error.

        Raises:
            ValueError: If there is not one label per item.
        """
        labels = np.asarray(labels)
        if labels.shape != self.kept.shape:
            raise ValueError(f"{name} of shape {labels.shape} for {len(self.kept)} items; accepted: one per item")
        return np.unique(labels[self.kept], return_inverse=True)[1]


def measured(items: CompleteItems, seen: Resamples, kernel: Kernel, undefined: str = "") -> Statistic:
    """The kernel on all items, once each, with the interval of its values in every resample.

    Args:
        items: The items; without any the statistic is undefined.
        seen: Draws over these items.
        kernel: The statistic.
        undefined: The reason where the kernel is NaN on all items.
    """
    if items.empty.reason is not None:
        return items.empty
    value = float(kernel(np.ones((1, len(items.score))))[0])
    if np.isnan(value):
        return replace(items.empty, reason=undefined)
    return with_interval(replace(items.empty, value=value), seen.apply(kernel), seen)
