"""Judge scores mapped to human rating points, so that an error in points can be given for any judge.

A judge may use another scale than people, or part of it. A mapping learnt on some items and applied to others tells how
near its scores come once that is set right. It is fitted anew for each fold of groups on the groups of all other folds:
no item's mapping has seen the item's group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from scipy.optimize import isotonic_regression

from .agreement import Statistic, is_constant
from .bootstrap import CompleteItems, Resamples, estimate

Mapping = Literal["linear", "isotonic"]
MAPPINGS: tuple[Mapping, ...] = get_args(Mapping)

FOLDS = 5


@dataclass(frozen=True, eq=False)
class MappedScores:
    """Judge scores in human rating points.

    Attributes:
        scores: Shape (n,); NaN where either side was NaN, and everywhere if nothing could be fitted.
        mae: Mean absolute error of these scores.
        rmse: Their root mean squared error.
    """

    scores: np.ndarray
    mae: Statistic
    rmse: Statistic


def mapped_scores(
    score: np.ndarray, human: np.ndarray, groups: np.ndarray, mapping: Mapping, resamples: Resamples, seed: int = 0
) -> MappedScores:
    """Maps scores by cross-validation over groups.

    Intervals draw the errors of these mapped scores: they leave out that the mappings themselves would differ.

    Args:
        score: Shape (n,), judge, any unit; NaN is dropped with its item and counted.
        human: Shape (n,), rating points of the same items.
        groups: Shape (n,), the group of each item, names or numbers.
        mapping: ``linear`` (least squares) or ``isotonic`` (the rising step function of least squares, interpolated
            between the scores that it was fitted on and constant beyond them; Barlow et al., 1972). Both map a constant
            judge to the mean human score.
        resamples: Draws over the same n items.
        seed: Of the division of the groups into `FOLDS` folds, or as many as there are groups.

    Returns:
        Undefined, with the reason, with fewer than two groups.

    Raises:
        ValueError: If shapes differ.
    """
    items = CompleteItems.of(score, human)
    codes = items.codes(groups, "groups")
    n_groups = int(codes.max(initial=-1)) + 1
    mapped = np.full(len(items.kept), np.nan)
    empty = items.empty
    if empty.reason is None and n_groups < 2:
        empty = replace(empty, reason="1 group: no other one to fit a mapping on")
    if empty.reason is not None:
        return MappedScores(mapped, empty, empty)
    folds = min(FOLDS, n_groups)
    fold = (np.random.default_rng(seed).permutation(n_groups) % folds)[codes]
    own = np.empty(len(codes))
    for number in range(folds):
        held_out = fold == number
        fitted = _FITS[mapping](items.score[~held_out], items.human[~held_out])
        own[held_out] = fitted(items.score[held_out])
    mapped[items.kept] = own
    seen = resamples.select(items.kept)
    errors = {name: replace(estimate(name, own, items.human, seen), dropped=empty.dropped) for name in ("mae", "rmse")}
    return MappedScores(mapped, errors["mae"], errors["rmse"])


def _linear(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    centre, mean = x.mean(), y.mean()
    slope = 0.0 if is_constant(x) else ((x - centre) @ (y - mean)) / ((x - centre) @ (x - centre))
    return lambda score: mean + slope * (score - centre)


def _isotonic(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    distinct, code, times = np.unique(x, return_inverse=True, return_counts=True)
    rising = isotonic_regression(np.bincount(code, weights=y) / times, weights=times).x
    return lambda score: np.interp(score, distinct, rising)


_FITS = {"linear": _linear, "isotonic": _isotonic}
