"""How well answers to one question, asked several times, agree with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...data_modules.ratings import RatingTable
from .agreement import Statistic
from .bootstrap import Resamples, with_interval
from .icc import icc


@dataclass(frozen=True)
class Repeats:
    """Agreement of repeated answers.

    Attributes:
        within_sd: Standard deviation of a single answer around the mean of its item, pooled over items: root of the sum
            of squares over the sum of (answers - 1). In the unit of the answers.
        icc: ICC(1,1), see `icc`: the share of the variance of single answers that comes from the items.
        icc_of_mean: ICC(1,k): the same of the mean of an item's answers.
    """

    within_sd: Statistic
    icc: Statistic
    icc_of_mean: Statistic


def repeats(answers: Sequence[Sequence[float]], resamples: Resamples) -> Repeats:
    """Answers have no identity across items, hence the one-way forms of the intraclass correlation.

    Args:
        answers: Of each of n items, any number; finite. Items with fewer than two do not count.
        resamples: Draws over the same n items.

    Returns:
        Undefined, with the reason, without an item of two answers; `n` counts those that have.
    """
    counts = np.array([len(own) for own in answers], dtype=np.intp)
    kept = counts >= 2
    if not kept.any():
        none = Statistic(None, dropped=len(counts), reason="no item has two answers")
        return Repeats(none, none, none)
    items = np.repeat(np.arange(len(counts)), counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    scores = np.concatenate([np.asarray(own, dtype=np.float64) for own in answers])
    names = tuple(f"answer {number + 1}" for number in range(counts.max()))
    forms = icc(RatingTable(items, numbers, scores, len(counts), names), resamples)
    squares = np.array([np.square(np.asarray(own) - np.mean(own)).sum() for own in answers if len(own) >= 2])
    seen, freedom = resamples.select(kept), counts[kept] - 1

    def pooled(weights: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(weights @ squares / (weights @ freedom))

    point = Statistic(float(np.sqrt(squares.sum() / freedom.sum())), n=int(kept.sum()), dropped=int((~kept).sum()))
    return Repeats(with_interval(point, seen.apply(pooled), seen), forms["ICC(1,1)"], forms["ICC(1,k)"])
