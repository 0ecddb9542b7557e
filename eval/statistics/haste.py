"""Raters who take far less time than the others do for the same items."""

from __future__ import annotations

import numpy as np

from ...data_modules.ratings import RatingTable
from .reliability import MIN_RATER_ITEMS

FAST_RATIO = 1 / 3
MIN_OTHERS = 2


def fast_raters(table: RatingTable) -> dict[int, str]:
    """Who is too fast, and the evidence: position in `RatingTable.rater_ids` -> numbers in words.

    The rule: on more than half of at least `MIN_RATER_ITEMS` items, the rater took less than `FAST_RATIO` of the time
    that the others took for the same item (their median; of an even number the lower of the two in the middle). Times
    are compared within items because long clips take everybody longer. The items need `MIN_OTHERS` other raters in
    all: of two raters nobody knows whether one is fast or the other slow. Unknown times do not count.
    """
    if table.seconds is None:
        return {}
    others = _others_median(table.items, table.seconds)
    compared = ~np.isnan(others)
    fast = compared & (table.seconds < FAST_RATIO * others)
    n_raters = len(table.rater_ids)
    n_items = np.bincount(table.raters[compared], minlength=n_raters)
    n_fast = np.bincount(table.raters[fast], minlength=n_raters)
    found: dict[int, str] = {}
    for position in np.flatnonzero((n_items >= MIN_RATER_ITEMS) & (n_fast > n_items / 2)):
        own = compared & (table.raters == position)
        same_items = compared & np.isin(table.items, table.items[own])
        if len(np.unique(table.raters[same_items])) <= MIN_OTHERS:
            continue
        found[int(position)] = (
            f"took less than a third of the others' time on {n_fast[position]} of {n_items[position]} items; median "
            f"{np.median(table.seconds[own]):.1f} s, of the others {np.median(others[own]):.1f} s"
        )
    return found


def _others_median(items: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Per rating the lower median time of the other raters of its item, shape (ratings,); NaN where there is none."""
    others = np.full(len(seconds), np.nan)
    known = np.flatnonzero(~np.isnan(seconds))
    order = known[np.lexsort((seconds[known], items[known]))]  # by item, each from the fastest to the slowest
    counts = np.unique(items[order], return_counts=True)[1]
    counts, starts = np.repeat(counts, counts), np.repeat(np.cumsum(counts) - counts, counts)
    rank = np.arange(len(order)) - starts
    middle = (counts - 2) // 2  # among the others, who are one fewer
    shared = counts > 1
    others[order[shared]] = seconds[order[(starts + middle + (middle >= rank))[shared]]]
    return others
