"""How good predicted shares of raters are: two scores that are best, on average, where the prediction is the truth
(proper; Gneiting and Raftery, 2007), and what people and a constant would get in their place.

Everywhere K steps of a scale stand in the last axis, the lowest first: `predicted` are probabilities, `counts` raters
who gave each step, `(n, K)`, and shares are counts over their sum. Scores are penalties, 0 = perfect, `(n,)`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FLOOR = 0.001
"""Least probability in a log score: a judge that gives 0 to a step that somebody gave would have an infinite one. The
score is proper but for steps that fewer than some 0.3 % of raters give, whose probability need not be told from 0."""


def ranked_probability_score(predicted: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Sum over steps k of the squared difference of the shares at or below k, over K - 1 (Epstein, 1969; in this form
    Murphy, 1971): 0 to 1, and 1 where all raters are at one end of the scale and the prediction at the other.

    With shares of several raters it is the mean over raters of the score against each of them, less the score of the
    shares themselves against each of them, which no prediction changes.
    """
    # Cumulated, so that a prediction one step off is better than one three steps off; the last sum is always 0
    gaps = np.cumsum(predicted - shares, axis=-1)[..., :-1]
    return np.square(gaps).sum(axis=-1) / gaps.shape[-1]


def log_score(predicted: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Mean over raters of minus the logarithm of the probability of what they gave, at least `FLOOR`, in nats (Good,
    1952)."""
    return -(shares * np.log(np.maximum(predicted, FLOOR))).sum(axis=-1)


class Penalties(NamedTuple):
    """Both scores of one prediction of n items, `(n,)`."""

    rps: np.ndarray
    log: np.ndarray


def penalties(predicted: np.ndarray, counts: np.ndarray) -> Penalties:
    """Scores of a prediction, one for each item or one for all, against the shares of the raters."""
    shares = counts / counts.sum(axis=-1, keepdims=True)
    return Penalties(ranked_probability_score(predicted, shares), log_score(predicted, shares))


def penalties_of_people(counts: np.ndarray, constant: np.ndarray) -> tuple[Penalties, Penalties]:
    """What people get who predict the ratings of an item that are not theirs: one rater, and a smoothed panel.

    Each rater in turn is left out. One of the others, at random, predicts that everybody gives what they gave; the
    panel predicts the shares of all others together with one more rater, who gives `constant` `(K,)`. The score against
    who was left out, less that of the item's own shares against the same, is the score against the shares of a
    prediction from outside of the panel, as `penalties` gives it for a judge. NaN where an item has fewer than two
    raters.
    """
    n_raters, steps = counts.sum(axis=-1), np.eye(counts.shape[-1])
    enough = np.where(n_raters >= 2, n_raters, np.nan)
    shares = counts / enough[:, None]
    one_rater, panel = (Penalties(np.zeros(len(counts)), np.zeros(len(counts))) for _ in range(2))
    for step, given in enumerate(steps):
        # By step and not by rater: raters who gave the same are interchangeable
        left_out, others = shares[:, step], np.maximum(counts - given, 0)
        base = ranked_probability_score(shares, given)
        somebody, smoothed = others / (enough - 1)[:, None], (others + constant) / enough[:, None]
        one_rater.rps[:] += left_out * (somebody @ ranked_probability_score(steps, given) - base)
        one_rater.log[:] += left_out * (somebody @ log_score(steps, given))
        panel.rps[:] += left_out * (ranked_probability_score(smoothed, given) - base)
        panel.log[:] += left_out * log_score(smoothed, given)
    return one_rater, panel


def at_least(distributions: np.ndarray, step: int) -> np.ndarray:
    """Probability of a step or a higher one, of probabilities or shares `(n, K)`: `(n,)`, 0 to 1."""
    return np.clip(distributions[..., step:].sum(axis=-1), 0, 1)
