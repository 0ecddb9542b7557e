"""Does a prompted judge stand by its answers?

Answers to one question, asked several times, should agree with each other. A comparison, asked in both orders, should
not depend on who comes first: a verdict lies between -1 and 1; 1 = the response in the first place is better, 0 = a
tie. Judges that are language models often have a position bias (Zheng et al., 2023, "Judging LLM-as-a-Judge with
MT-Bench and Chatbot Arena").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...data_modules.ratings import RatingTable
from .agreement import Statistic
from .bootstrap import Resamples, estimate
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

    def pooled(own: np.ndarray, freedom: np.ndarray) -> float:
        return math.sqrt(own.sum() / freedom.sum())

    within = estimate(pooled, squares, counts[kept] - 1, resamples=resamples.select(kept))
    return Repeats(replace(within, dropped=int((~kept).sum())), forms["ICC(1,1)"], forms["ICC(1,k)"])


@dataclass(frozen=True)
class Orders:
    """What both orders tell.

    Attributes:
        inconsistent: Share of comparisons whose two orders do not prefer the same response; a preference and a tie are
            not the same.
        first_preferred: Share of verdicts that prefer the first place, ties half: 0.5 = no position bias.
    """

    inconsistent: Statistic
    first_preferred: Statistic


def orders(verdicts: np.ndarray, resamples: Resamples) -> Orders:
    """Statistics of n comparisons.

    Args:
        verdicts: Shape (n, 2), finite: of the one order and of the other.
        resamples: Draws over the n comparisons.
    """
    if len(verdicts) == 0:
        none = Statistic(None, reason="0 comparisons")
        return Orders(none, none)
    one, other = np.sign(verdicts).T
    return Orders(
        estimate(np.mean, one != -other, resamples=resamples),
        estimate(np.mean, (2 + verdicts[:, 0] + verdicts[:, 1]) / 4, resamples=resamples),
    )
