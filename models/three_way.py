"""Which of two responses people prefer, whether they see no difference, and when a judge had better say nothing.

The people's verdict on two responses to one context is that of most raters who rated both; where as many prefer the one
as the other, it is no difference. Its probabilities follow from the difference of the two scores and from the standard
error of that difference (Thurstone, 1927; with ties: Glenn & David, 1960): with two numbers that are fitted to verdicts
of people on pairs that the judge was not trained on, a factor of the standard error and a width of ties. They take in
the judge's error and the raters' noise, whatever the share of each.

Whoever states the most error that they accept (`MAX_ERRORS`) gets a verdict only where the probability of the likeliest
one is high enough. The bound is chosen so that the share of wrong verdicts among those given stays below the promise in
95 % of calibrations (fixed-sequence testing: Bauer, 1991; Angelopoulos et al., 2021), with the verdicts of a group
counted as the fewer independent ones that they are worth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy.optimize import minimize
from scipy.special import ndtr
from scipy.stats import beta

from ..data_modules.errors import UserError, shown
from ..data_modules.schema import Dimension, Pair, PairDataset

Verdict = Literal["first", "second", "no difference"]
MAX_ERRORS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""Shares of wrong verdicts that can be promised."""
_CERTAINTY = 0.95  # of the promise, over calibrations
_STEPS = 20  # coverages that are tried
_FEWEST = 20  # verdicts and groups below which nothing is fitted
_MOST_ANSWERS = 100  # to one context of which every two are compared
_SMALLEST = 1e-6  # probability and standard error: no verdict is impossible


class Preference(NamedTuple):
    """Probabilities of the people's verdict on two responses; together 1."""

    first: float
    second: float
    no_difference: float

    @property
    def likeliest(self) -> Verdict:
        """The verdict of the highest probability."""
        verdicts: tuple[Verdict, ...] = ("first", "second", "no difference")
        return verdicts[int(np.argmax(self))]


@dataclass(frozen=True, slots=True)
class BesideNext:
    """What people will say of a response and the next one of an order: probabilities that they prefer it, prefer the
    next one, or see no difference, and the verdict."""

    better: float
    worse: float
    no_difference: float
    verdict: Literal["better", "worse", "no difference", "undecided"]


@dataclass(frozen=True)
class ThreeWay:
    """How differences of scores become verdicts of people."""

    n: Annotated[int, Field(ge=0)]  # verdicts that it was fitted on
    groups: Annotated[int, Field(ge=0)]  # that they belong to
    # standard deviation of what decides a verdict / standard error of the difference
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    # rating points within which what decides counts as no difference
    tie_width: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    # probability of the likeliest verdict from which it is given, for each of `MAX_ERRORS`; None = there is no such
    # bound: with so few verdicts, or so many errors, nothing can be promised
    decided_above: tuple[Annotated[float, Field(ge=0, le=1)] | None, ...]
    uses_error: bool = True  # False where nobody rated and all that is known are comparisons: the error counts as 1

    def __post_init__(self) -> None:
        if len(self.decided_above) != len(MAX_ERRORS):
            raise ValueError(f"decided_above; expected a bound or null for each of {', '.join(map(str, MAX_ERRORS))}")

    def preference(self, difference: float, standard_error: float) -> Preference:
        """What people will say, given by how many rating points the first response leads (above 0 = it is better) and
        the standard error of that.
        """
        standard_error = standard_error if self.uses_error else 1.0
        (row,) = probabilities(np.array([difference]), np.array([standard_error]), self.factor, self.tie_width)
        return Preference(*row.tolist())

    def verdict(self, preference: Preference, max_error: float | None = None) -> Verdict | None:
        """The likeliest verdict of `preference`; None = undecided. Without a `max_error` (one of `MAX_ERRORS`) there is
        one in any case.

        Raises:
            UserError: If there is no promise of that error.
        """
        if max_error is None:
            return preference.likeliest
        if max_error not in MAX_ERRORS:
            raise UserError(f"max_error {shown(max_error)}; expected {', '.join(map(str, MAX_ERRORS))}")
        bound = self.decided_above[MAX_ERRORS.index(max_error)]
        return preference.likeliest if bound is not None and max(preference) >= bound else None

    def beside(self, preference: Preference, max_error: float | None = None) -> BesideNext:
        """As `verdict`, of the first response beside the second."""
        match self.verdict(preference, max_error):
            case "first":
                return BesideNext(*preference, "better")
            case "second":
                return BesideNext(*preference, "worse")
            case verdict:
                return BesideNext(*preference, verdict or "undecided")


def probabilities(difference: np.ndarray, error: np.ndarray, factor: float, tie_width: float) -> np.ndarray:
    """Probabilities `(verdicts, 3)` of first, second, no difference, of differences of scores and their standard
    errors, both `(verdicts,)` in rating points; the numbers are those of `ThreeWay`.
    """
    spread = factor * np.maximum(error, _SMALLEST)
    first, second = ndtr((difference - tie_width) / spread), ndtr((-difference - tie_width) / spread)
    return np.stack([first, second, np.maximum(1 - first - second, 0)], axis=-1)


def fit_three_way(
    difference: np.ndarray, error: np.ndarray | None, verdict: np.ndarray, groups: np.ndarray
) -> ThreeWay | None:
    """Fit both numbers by maximum likelihood, then the bounds.

    Args:
        difference: As for `probabilities`.
        error: As for `probabilities`; None = not known.
        verdict: Of the people `(verdicts,)`: 0 = first, 1 = second, 2 = no difference.
        groups: Group of each `(verdicts,)`.

    Returns:
        None where there are fewer than 20 verdicts or groups.
    """
    codes = np.unique(groups, return_inverse=True)[1]
    count = int(codes.max(initial=-1)) + 1
    if min(len(verdict), count) < _FEWEST:
        return None
    rows, uses_error = np.arange(len(verdict)), error is not None
    error = np.ones(len(verdict)) if error is None else error

    def loss(values: np.ndarray) -> float:
        found = probabilities(difference, error, math.exp(values[0]), math.exp(values[1]))
        return -float(np.log(np.maximum(found[rows, verdict], _SMALLEST)).mean())

    start = (0.0, math.log(max(float(np.median(error)) / 2, _SMALLEST)))
    fitted = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-7, "maxiter": 500})
    factor, width = (math.exp(min(max(value, -20.0), 20.0)) for value in fitted.x)
    found = probabilities(difference, error, factor, width)
    confidence, wrong = found.max(axis=1), found.argmax(axis=1) != verdict
    bounds = tuple(decided_above(confidence, wrong, codes, most) for most in MAX_ERRORS)
    return ThreeWay(len(verdict), count, factor, width, bounds, uses_error)


def decided_above(confidence: np.ndarray, wrong: np.ndarray, groups: np.ndarray, max_error: float) -> float | None:
    """The lowest bound of confidence at which no more than a share of the verdicts is wrong, with 95 % certainty.

    Ever more verdicts are let in, the surest first, as long as an upper limit of their share of errors (Clopper &
    Pearson, 1934) stays below. Verdicts of one group go wrong together: n of them count as n / design effect (Kish,
    1965).

    Args:
        confidence: Probability of the likeliest verdict `(verdicts,)`.
        wrong: Whether it was not that of the people `(verdicts,)`.
        groups: Codes from 0 `(verdicts,)`.
        max_error: The share.

    Returns:
        None = there is none.
    """
    effect = _design_effect(wrong, groups)
    order = np.argsort(-confidence, kind="stable")
    bound, fewest = None, math.log(1 - _CERTAINTY) / math.log(1 - max_error)
    for step in range(1, _STEPS + 1):
        lowest = confidence[order[math.ceil(len(order) * step / _STEPS) - 1]]
        kept = confidence >= lowest
        n, errors = kept.sum() / effect, wrong[kept].sum() / effect
        if n < fewest:  # even without an error nothing could be said
            continue
        if beta.ppf(_CERTAINTY, errors + 1, max(n - errors, _SMALLEST)) > max_error:
            break
        bound = float(lowest)
    return bound


def _design_effect(wrong: np.ndarray, groups: np.ndarray) -> float:
    """How many verdicts of a group count as one: variance of their mean over that of as many independent ones."""
    away = wrong - wrong.mean()
    independent = float((away**2).sum())
    return max(1.0, float((np.bincount(groups, away) ** 2).sum()) / independent) if independent > 0 else 1.0


# Labels, and how good verdicts are


def comparisons(
    part: PairDataset, pairs: Sequence[Pair], dimension: Dimension
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What people say of every two of these pairs with one context (audio and situation) that somebody rated both, or
    that somebody compared (`PairDataset.preferences`).

    Returns:
        Positions of the first and of the second response in `pairs`, each `(comparisons,)`, and how many raters prefer
        the first, prefer the second, and see no difference `(comparisons, 3)`.
    """
    rows = part.ratings[part.ratings["dimension"] == dimension.name]
    wide = rows.pivot_table(index="pair_id", columns="rater_id", values="score", aggfunc="mean")
    values = wide.reindex([pair.pair_id for pair in pairs]).to_numpy(np.float64)
    values = values if dimension.higher_is_better else -values
    contexts: dict[Hashable, list[int]] = {}
    for place, pair in enumerate(pairs):
        if pair.context or pair.situation:
            turns = tuple((turn.role, turn.audio) for turn in pair.context)
            contexts.setdefault((turns, pair.situation), []).append(place)
    found: dict[tuple[int, int], np.ndarray] = {}
    for places in contexts.values():
        for two in itertools.combinations(places[:_MOST_ANSWERS], 2):
            apart = values[two[0]] - values[two[1]]
            if np.isfinite(apart).any():
                found[two] = np.array([(apart > 0).sum(), (apart < 0).sum(), (apart == 0).sum()])
    if part.preferences is not None:
        own = part.preferences[part.preferences["dimension"] == dimension.name]
        at = {pair.pair_id: place for place, pair in enumerate(pairs)}
        for better, worse, strength in own[["chosen_id", "rejected_id", "strength"]].itertuples(index=False):
            if better in at and worse in at:
                one, other = at[better], at[worse]
                counts = found.setdefault((min(one, other), max(one, other)), np.zeros(3, np.int64))
                counts[2 if strength == 0 else int(one > other)] += 1
    first, second = np.array([*found], dtype=np.int64).reshape(-1, 2).T
    return first, second, np.array([*found.values()], dtype=np.int64).reshape(-1, 3)


def verdict_of(counts: np.ndarray) -> np.ndarray:
    """The people's verdicts `(comparisons,)`, 0 = first, 1 = second, 2 = no difference, of `comparisons` that have one.

    Where as many see no difference as prefer one, that one has it.
    """
    return np.where(counts[:, 0] == counts[:, 1], 2, counts.argmax(axis=1))


def beside_one_rater(found: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often one rater, and how often a judge, says what the other raters say.

    Args:
        found: The judge's verdicts `(comparisons,)`.
        counts: Of `comparisons`.

    Returns:
        Of each comparison the share of its raters with whose fellows the judge agrees, and the share of those who agree
        with their fellows; NaN where there is one rater.
    """
    judge, rater = np.zeros((2, len(counts)))
    for said in range(3):
        others = counts - np.eye(3, dtype=np.int64)[said]
        verdict = verdict_of(others)
        judge += counts[:, said] * (verdict == found)
        rater += counts[:, said] * (verdict == said)
    total = np.where(counts.sum(axis=1) > 1, counts.sum(axis=1), np.nan)
    return judge / total, rater / total


def quality(found: np.ndarray, verdict: np.ndarray, bins: int = 10) -> Mapping[str, float]:
    """How good probabilities `(verdicts, 3)` are, beside the verdicts of people `(verdicts,)`.

    Returns:
        ``accuracy`` (three-way), ``brier`` (sum over the three verdicts of squared error, 0 to 2; Brier, 1950), ``ece``
        (expected calibration error of the likeliest verdict's probability, in `bins` of equal numbers; Naeini et al.,
        2015).
    """
    confidence, right = found.max(axis=1), found.argmax(axis=1) == verdict
    parts = np.array_split(np.argsort(confidence, kind="stable"), min(bins, len(verdict)))
    gaps = sum(len(own) * abs(confidence[own].mean() - right[own].mean()) for own in parts) / len(verdict)
    brier = np.square(found - np.eye(3)[verdict]).sum(axis=1).mean()
    return {"accuracy": float(right.mean()), "brier": float(brier), "ece": float(gaps)}
