"""Which of two responses people prefer, whether they see no difference, and when a judge had better say nothing.

The people's verdict on two responses to one context is that of most raters who rated both; where equally many prefer
each of the two, it is no difference. Its probabilities follow from the difference of the two scores and the standard
error of that difference (Thurstone, 1927; with ties: Glenn & David, 1960), by two numbers: a factor of the standard
error and a width of ties. Both are fitted to verdicts of people on pairs that the judge was not trained on. They cover
the judge's error and the raters' noise, whatever the share of each.

A caller who states the largest share of errors to accept (`MAX_ERRORS`) gets a verdict only where the probability of
the likeliest one is high enough. The bound is chosen so that the share of wrong verdicts among those given stays below
the promise in 95 % of calibrations (fixed-sequence testing: Bauer, 1991; Angelopoulos et al., 2021).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy.special import betaincinv, ndtr

from ..core.errors import UserError, shown
from ..data_modules.schema import Dimension, Pair, PairDataset

Verdict = Literal["first", "second", "no difference"]
MAX_ERRORS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""Shares of wrong verdicts that can be promised."""
_CERTAINTY = 0.95  # of the promise, over calibrations
_STEPS = 20  # coverages that are tried
_FEWEST = 20  # verdicts and groups below which nothing is fitted
_MOST_ANSWERS = 100  # responses to one context that are compared in pairs
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
class OverNext:
    """What people will say of a response and the next one of an order: probabilities that they prefer it, prefer the
    next one, or see no difference, and the verdict."""

    better: float
    worse: float
    no_difference: float
    verdict: Literal["better", "worse", "no difference", "undecided"]


@dataclass(frozen=True)
class PreferenceModel:
    """How differences of scores become verdicts of people."""

    n: Annotated[int, Field(ge=0)]  # verdicts that it was fitted on
    groups: Annotated[int, Field(ge=0)]  # that they belong to
    # standard deviation of what decides a verdict / standard error of the difference
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    # rating points within which what decides counts as no difference
    tie_width: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    # probability of the likeliest verdict from which it is given, for each of `MAX_ERRORS`; None = there is no such
    # bound: with so few verdicts, or so many errors, nothing can be promised
    decided_above: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1)] | None, ...],
        Field(min_length=len(MAX_ERRORS), max_length=len(MAX_ERRORS)),
    ]
    uses_error: bool = True  # False where nobody rated and all that is known are comparisons: the error counts as 1

    def preference(self, difference: float, standard_error: float) -> Preference:
        """What people will say, given the lead of the first response in rating points (above 0 = it is better) and the
        standard error of that lead."""
        error = standard_error if self.uses_error else 1.0
        (row,) = probabilities(np.array([difference]), np.array([error]), self.factor, self.tie_width)
        return Preference(*row.tolist())

    def verdict(self, preference: Preference, max_error: float | None = None) -> Verdict | None:
        """The likeliest verdict; with a `max_error` (one of `MAX_ERRORS`) None where it is undecided.

        Raises:
            UserError: If `max_error` is not one of `MAX_ERRORS`.
        """
        if max_error is None:
            return preference.likeliest
        if max_error not in MAX_ERRORS:
            raise UserError(f"max_error {shown(max_error)}; expected {', '.join(map(str, MAX_ERRORS))}")
        bound = self.decided_above[MAX_ERRORS.index(max_error)]
        return preference.likeliest if bound is not None and max(preference) >= bound else None

    def over_next(self, preference: Preference, max_error: float | None = None) -> OverNext:
        """As `verdict`, for a response (the first) and the next one of an order."""
        words: Mapping[Verdict | None, Any] = {
            "first": "better", "second": "worse", "no difference": "no difference", None: "undecided",
        }  # fmt: skip
        return OverNext(*preference, words[self.verdict(preference, max_error)])


def probabilities(difference: np.ndarray, error: np.ndarray, factor: float, tie_width: float) -> np.ndarray:
    """Probabilities `(verdicts, 3)` of first, second, no difference, from differences of scores and their standard
    errors, both `(verdicts,)` in rating points; `factor` and `tie_width` are those of `PreferenceModel`."""
    # An error of 0 would make a verdict certain, and one wrong verdict infinitely unlikely
    spread = factor * np.maximum(error, _SMALLEST)
    first, second = ndtr((difference - tie_width) / spread), ndtr((-difference - tie_width) / spread)
    return np.stack([first, second, np.maximum(1 - first - second, 0)], axis=-1)


def fit_three_way(
    difference: np.ndarray, error: np.ndarray | None, verdict: np.ndarray, groups: np.ndarray
) -> PreferenceModel | None:
    """Fit factor and tie width by maximum likelihood, then the bounds.

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
        predicted = probabilities(difference, error, math.exp(values[0]), math.exp(values[1]))
        return -float(np.log(np.maximum(predicted[rows, verdict], _SMALLEST)).mean())

    from scipy.optimize import minimize  # not where judges alone are loaded: it takes half a second

    # In logarithms, so that both stay above 0
    start = (0.0, math.log(max(float(np.median(error)) / 2, _SMALLEST)))
    # Two numbers and a loss that is flat where verdicts are certain: no gradient is needed
    fitted = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-7, "maxiter": 500})
    factor, width = (math.exp(min(max(value, -20.0), 20.0)) for value in fitted.x)
    predicted = probabilities(difference, error, factor, width)
    confidence, wrong = predicted.max(axis=1), predicted.argmax(axis=1) != verdict
    bounds = tuple(decided_above(confidence, wrong, codes, max_error) for max_error in MAX_ERRORS)
    return PreferenceModel(len(verdict), count, factor, width, bounds, uses_error)


def decided_above(confidence: np.ndarray, wrong: np.ndarray, groups: np.ndarray, max_error: float) -> float | None:
    """The lowest bound of confidence at which at most `max_error` of the verdicts are wrong, with 95 % certainty.

    More and more verdicts are included, the surest first, as long as an upper limit of their share of errors (Clopper &
    Pearson, 1934) is not above `max_error`. Verdicts of one group are wrong together: n of them count as n / design
    effect (Kish, 1965).

    Args:
        confidence: Probability of the likeliest verdict `(verdicts,)`.
        wrong: Whether it differs from that of the people `(verdicts,)`.
        groups: Code of each verdict's group, from 0 `(verdicts,)`.
        max_error: The largest share of wrong verdicts.

    Returns:
        None = there is none.
    """
    # How many verdicts of a group count as one: the variance of their mean over that of as many independent ones
    away = wrong - wrong.mean()
    independent = float((away**2).sum())
    effect = max(1.0, float((np.bincount(groups, away) ** 2).sum()) / independent) if independent > 0 else 1.0
    order = np.argsort(-confidence, kind="stable")
    bound, fewest = None, math.log(1 - _CERTAINTY) / math.log(1 - max_error)
    for step in range(1, _STEPS + 1):
        # A step ends at a value, with all verdicts that share it: users see the value alone
        lowest = confidence[order[math.ceil(len(order) * step / _STEPS) - 1]]
        selected = confidence >= lowest
        n, errors = selected.sum() / effect, wrong[selected].sum() / effect
        if n < fewest:  # even without an error nothing could be said
            continue
        # The first failure ends it: to go on and pick a later success would break the promise of the sequence
        if betaincinv(errors + 1, max(n - errors, _SMALLEST), _CERTAINTY) > max_error:
            break
        bound = float(lowest)
    return bound


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
    for position, pair in enumerate(pairs):
        if pair.context or pair.situation_or_none:
            turns = tuple((turn.role, turn.audio) for turn in pair.context)
            contexts.setdefault((turns, pair.situation_or_none), []).append(position)
    votes: dict[tuple[int, int], np.ndarray] = {}
    for positions in contexts.values():
        # Pairs grow with the square: a context with thousands of responses would be most of the data
        for comparison in itertools.combinations(positions[:_MOST_ANSWERS], 2):
            difference = values[comparison[0]] - values[comparison[1]]
            if np.isfinite(difference).any():
                votes[comparison] = np.array([(difference > 0).sum(), (difference < 0).sum(), (difference == 0).sum()])
    if part.preferences is not None:
        preferences = part.preferences.loc[part.preferences["dimension"] == dimension.name]
        position_of = {pair.pair_id: position for position, pair in enumerate(pairs)}
        for better, worse, strength in preferences[["chosen_id", "rejected_id", "strength"]].itertuples(index=False):
            if better in position_of and worse in position_of:
                chosen, rejected = position_of[better], position_of[worse]
                counts = votes.setdefault((min(chosen, rejected), max(chosen, rejected)), np.zeros(3, np.int64))
                counts[2 if strength == 0 else int(chosen > rejected)] += 1
    first, second = np.array([*votes], dtype=np.int64).reshape(-1, 2).T
    return first, second, np.array([*votes.values()], dtype=np.int64).reshape(-1, 3)


def verdict_of(counts: np.ndarray) -> np.ndarray:
    """The people's verdicts `(comparisons,)`, 0 = first, 1 = second, 2 = no difference, from counts of `comparisons`.

    Where as many raters see no difference as prefer one response, the verdict is that response.
    """
    return np.where(counts[:, 0] == counts[:, 1], 2, counts.argmax(axis=1))


def against_one_rater(found: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often a judge, and how often one rater, gives the verdict of the other raters.

    Args:
        found: The judge's verdicts `(comparisons,)`.
        counts: Counts of `comparisons` `(comparisons, 3)`.

    Returns:
        For each comparison, the share of its raters for whom the judge agrees with the other raters, and the share of
        raters who agree with the other raters; NaN where there is one rater.
    """
    judge, rater = np.zeros((2, len(counts)))
    for answer in range(3):
        # Without the rater who is compared: with them, their own vote would agree with them
        verdict = verdict_of(counts - np.eye(3, dtype=np.int64)[answer])  # of the other raters
        judge += counts[:, answer] * (verdict == found)
        rater += counts[:, answer] * (verdict == answer)
    total = np.where(counts.sum(axis=1) > 1, counts.sum(axis=1), np.nan)
    return judge / total, rater / total


def quality(found: np.ndarray, verdict: np.ndarray, bins: int = 10) -> Mapping[str, float]:
    """How well probabilities `(verdicts, 3)` match the verdicts of people `(verdicts,)`.

    Returns:
        ``accuracy`` (three-way), ``brier`` (sum over the three verdicts of squared error, 0 to 2; Brier, 1950), ``ece``
        (expected calibration error of the likeliest verdict's probability, in `bins` of equal numbers; Naeini et al.,
        2015).
    """
    confidence, right = found.max(axis=1), found.argmax(axis=1) == verdict
    parts = np.array_split(np.argsort(confidence, kind="stable"), min(bins, len(verdict)))
    gaps = sum(len(part) * abs(confidence[part].mean() - right[part].mean()) for part in parts) / len(verdict)
    brier = np.square(found - np.eye(3)[verdict]).sum(axis=1).mean()
    return {"accuracy": float(right.mean()), "brier": float(brier), "ece": float(gaps)}
