"""Comparisons that were made in both orders: does the verdict depend on who comes first?

A verdict lies between -1 and 1; 1 = the response in the first place is better, 0 = a tie. Judges that are language
models often have a taste for a place (Zheng et al., 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .agreement import Statistic
from .bootstrap import Resamples, mean_with_interval


@dataclass(frozen=True)
class Orders:
    """What both orders tell.

    Attributes:
        inconsistent: Share of comparisons whose two orders do not prefer the same response; a preference and a tie are
            not the same.
        first_preferred: Share of verdicts that prefer the first place, ties half: 0.5 = no taste for a place.
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
        mean_with_interval((one != -other).astype(np.float64), resamples),
        mean_with_interval((2 + verdicts[:, 0] + verdicts[:, 1]) / 4, resamples),
    )
