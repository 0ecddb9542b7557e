"""Groups of pairs, and folds for cross-validation that keep groups together and have even numbers of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sklearn.model_selection import PredefinedSplit

    from .schema import Pair

_MOST_DRAWS = 32
_MOST_DEALT = 100_000  # groups in all draws together: with many groups any draw is even


def group_of(pair: Pair) -> str:
    """The group of a pair; a pair without one is a group of its own."""
    return pair.group_id or pair.pair_id


def even_folds(groups: Any, folds: int, seed: int) -> PredefinedSplit:
    """Folds of whole groups, drawn by `seed`; `.split()` gives the rows to fit and those left out, fold by fold.

    Groups of equal size come into the folds of `GroupKFold(folds, shuffle=True)`. That deals out numbers of groups: a
    group of 100 rows and three single ones make folds of 2 and 101. Here large groups are dealt first, each to the
    fold with the fewest rows, and of up to 32 draws the most even one is taken.

    Args:
        groups: One value for each row.
        folds: 2 or more.
        seed: Of the draws.

    Raises:
        ValueError: There are fewer groups than folds, or fewer than two folds.
    """
    from sklearn.model_selection import GroupKFold, PredefinedSplit  # heavy: not for who wants the group of a pair

    codes = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(codes)
    splits = GroupKFold(folds, shuffle=True, random_state=seed).split(codes, groups=codes)
    blocks = [np.unique(codes[rows]).tolist() for _, rows in splits]  # sorted: the order of rows changes nothing
    # Dealt in turns, groups of equal size come into the folds that GroupKFold gives them
    orders = [[code for turn in zip_longest(*blocks) for code in turn if code is not None]]
    rng = np.random.default_rng(seed)
    draws = max(1, min(_MOST_DRAWS, _MOST_DEALT // len(sizes)))
    orders += [rng.permutation(len(sizes)).tolist() for _ in range(draws - 1)]
    dealt = [_dealt(order, sizes, folds) for order in orders]
    fold_of = min(dealt, key=lambda fold_of: np.ptp(np.bincount(fold_of, sizes, folds)))
    return PredefinedSplit(fold_of[codes])


def _dealt(order: Sequence[int], sizes: np.ndarray, folds: int) -> np.ndarray:
    """Group -> fold. Within a factor of two in size the order stays: strictly by size, a seed would change nothing."""
    fold_of, rows_of = np.empty(len(sizes), int), np.zeros(folds, int)
    for code in sorted(order, key=lambda code: -math.floor(math.log2(sizes[code]))):
        fold_of[code] = rows_of.argmin()
        rows_of[fold_of[code]] += sizes[code]
    return fold_of
