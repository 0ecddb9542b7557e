"""Probabilities and quantiles of distributions, and mean ranks: what `scipy.stats` gives, whose import takes a second.

Each is the function of `scipy.special` that the distribution of `scipy.stats` (1.17) calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special


def normal_below(x: Any) -> Any:
    """Probability that a standard normal variable is at most x."""
    return special.ndtr(x)


def normal_quantile(p: Any) -> Any:
    """The value that a standard normal variable is below with probability p."""
    return special.ndtri(p)


def t_quantile(p: float, freedom: float) -> float:
    """The value that Student's t is below with probability p."""
    return float(special.stdtrit(freedom, p))


def t_two_sided(t: float, freedom: float) -> float:
    """Probability that Student's t is at least as far from 0."""
    return float(2 * special.stdtr(freedom, -abs(t)))


def f_quantile(p: float, above: float, below: float) -> float:
    """The value that F with these degrees of freedom is below with probability p."""
    return float(special.fdtri(above, below, p))


def f_above(f: float, above: float, below: float) -> float:
    """Probability that F with these degrees of freedom is above f."""
    return float(special.fdtrc(above, below, f))


def binomial_from(hits: float, n: float, share: float) -> float:
    """Probability of so many hits or more in n trials with this share of hits."""
    return float(special.bdtrc(hits - 1, int(n), share)) if hits > 0 else 1.0


def noncentral_t_beyond(limit: float, freedom: float, shift: float) -> float:
    """Probability that noncentral t is above the limit, or below its negative."""
    return float(1 - special.nctdtr(freedom, shift, limit) + special.nctdtr(freedom, shift, -limit))


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on, shape (n,); equal values get the mean of theirs."""
    _, code, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[code]
