"""Regression of ratings on frozen features in closed form: ridge, or the same with a Gaussian kernel.

Both are one method. Each pair is compared with landmarks, which are training pairs: by a scalar product, or by a
Gaussian of the distance. Up to `EXACT` pairs every pair is a landmark, which is kernel ridge regression as in the
textbook (Saunders et al., 1998); above that, a sample of the pairs is (Nystroem; Williams & Seeger, 2001), and the
pairs are read once, one portion at a time, so that any number fits into memory. Cross-validation over groups chooses
the kernel, its width and the penalty, and also what is fitted: the ratings, or their ranks (Conover and Iman, 1981,
"Rank transformations as a bridge"). Agreement is measured by Spearman's correlation, at which least squares on ranks
aims more directly: where most ratings are equal, a few outliers count for less.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from ..core.errors import counted
from ..data_modules.folds import even_folds
from ..data_modules.schema import Dimension
from .settings import MOST_LANDMARKS

EXACT = MOST_LANDMARKS
"""Training pairs up to which every one of them is a landmark."""
LANDMARKS = 2_000
"""Landmarks where there are more pairs."""
MODEL_SELECTION_SIZE = 1_500
"""Pairs of the sample on which the kernel is chosen."""
FOLDS = 5
DIVISIONS = 3
"""Divisions into folds in which ratings and ranks are compared."""
MIN_GAIN = 0.01
"""By how much Spearman must be higher with ranks than with ratings: with few groups, a smaller lead is chance."""
WIDTHS: Sequence[float | None] = (None, 0.1, 0.25, 0.6)
"""Candidates: None = ridge; else the factor of the squared distance, whose mean over pairs is 2, in the exponent."""
PENALTIES = 10.0 ** np.arange(-4, 4.1, 0.5)
ERRORS = 2.0
"""Standard errors over groups by which the audio encoder alone must do better for the other blocks to be left out."""
_FAR = 1e3  # a coordinate far from all standardised features
_LEAST = 1e-9  # share of the largest eigenvalue; a direction with less is rounding error
_ROUNDING = 1e-12  # share of the sum of squares; a variance with less is rounding error


class FeatureBatch(NamedTuple):
    """Some training pairs."""

    features: np.ndarray  # standardised, float `(pairs, features)`
    targets: np.ndarray  # mean ratings, NaN = not rated `(pairs, dimensions)`
    weights: np.ndarray  # weight of each target, such as its number of ratings `(pairs, dimensions)`
    groups: np.ndarray  # pairs of one group stay in one fold `(pairs,)`


_Choice = tuple[float | None, tuple[int, ...]]
"""Width of a kernel, and the blocks that have no weight."""


@dataclass(frozen=True)
class Solution:
    """What was fitted: `bias + comparison(features) @ weights`, in rating points."""

    block_scale: np.ndarray  # factor of each feature, which makes the blocks weigh the same `(features,)`
    # features times `block_scale` of the landmarks of a kernel `(landmarks, features)`; None = ridge, whose weights are
    # those of the features themselves
    landmarks: np.ndarray | None
    weights: np.ndarray  # `(landmarks or features, dimensions)`
    bias: np.ndarray  # `(dimensions,)`
    record: Mapping[str, Any]  # what was chosen and how well it did on groups left out; fits strict JSON
    # standard deviation of single ratings around what is predicted for groups left out, rating points `(dimensions,)`;
    # None = unknown
    spread: np.ndarray | None = None

    @property
    def unexplained(self) -> float:
        """Squared error on groups left out, as a share of the variance of the targets; the mean over dimensions that
        have any."""
        return self.record["unexplained"][_name(self.record["width"], tuple(self.record["omitted"]))]

    @property
    def omits_first(self) -> bool:
        """Whether the first block, of the language model, has no weight."""
        return 0 in self.record.get("omitted", ())

    def in_words(self, dimensions: Sequence[Dimension]) -> str:
        """What was chosen, in one line."""
        if "comparisons" in self.record:
            loss = f"log loss {self.record['log_loss']:.3f} on groups left out"
            return f"logistic regression of {counted(self.record['comparisons'], 'comparison')}, {loss}"
        width, omitted, ranks = self.record["width"], self.record["omitted"], self.record["ranks"]
        read = ", of the audio encoder alone" if len(omitted) > 1 else ", without the language model" if omitted else ""
        explained = 1 - self.unexplained
        penalties = zip(dimensions, self.record["penalty"], strict=True)
        return (
            f"{_name(width, ())} kernel on {self.record['pairs']} pairs"
            f"{read}, explains {explained:.2f} of the variance of "
            f"{'the ranks' if ranks else 'ratings'} of groups left out; penalty "
            f"{', '.join(f'{dimension.name} {penalty:.3g}' for dimension, penalty in penalties)}"
        )

    def compared(self, features: np.ndarray) -> np.ndarray:
        """What is multiplied by `weights` `(pairs, landmarks or features)`."""
        if self.landmarks is None:
            return features
        return np.exp(-_squared_distances(features * self.block_scale, self.landmarks))

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Rating points `(pairs, dimensions)`, not clipped to the scale."""
        return self.bias + self.compared(features) @ self.weights

    def with_landmarks(self, count: int) -> Solution:
        """The same solution with more landmarks, whose weights are 0, so that judges of other pairs have as many; ridge
        stays as it is. They are so far from everything that training does not reach them either."""
        missing = 0 if self.landmarks is None else count - len(self.landmarks)
        if self.landmarks is None or missing <= 0:
            return self
        landmarks = np.pad(self.landmarks, ((0, missing), (0, 0)), constant_values=_FAR)
        return replace(self, landmarks=landmarks, weights=np.pad(self.weights, ((0, missing), (0, 0))))


def fit(
    sample: FeatureBatch,
    blocks: np.ndarray,
    portions: Iterable[FeatureBatch] | None = None,
    widths: Sequence[float | None] = WIDTHS,
    seed: int = 0,
    may_omit: bool = False,
    may_rank: bool = False,
) -> Solution:
    """Fit all dimensions; they share the kernel, and each has its own penalty.

    Args:
        sample: All pairs, or as many of them in random order as there shall be landmarks at most.
        blocks: Number of the block of each feature `(features,)`; each block weighs the same, however many features it
            has.
        portions: All pairs, where `sample` is not all of them.
        widths: Kernels to choose from.
        seed: Seed of the division into folds.
        may_omit: Block 0 gets no weight where that does better on groups left out, and all but block 1 get none where
            that does better by `ERRORS` standard errors: of ten speakers, a smaller lead was chance
            (`benchmarks/results/real_ear.md`). A kernel cannot learn by itself that a block says nothing: all its
            features enter the distance.
        may_rank: Ranks among the ratings of the sample, with the mean and deviation of these, replace the ratings of
            all dimensions if predictions for groups left out then agree better by `MIN_GAIN`.

    Raises:
        ValueError: If a dimension has ratings of fewer than two groups.
    """
    # A block without variance (a backbone without language model) would be a kernel of one value: it is no choice
    vary = [bool(sample.features[:, blocks == block].var(0).any()) for block in range(int(blocks.max()) + 1)]
    omit: list[tuple[int, ...]] = [()]
    if may_omit and any(vary[1:]):
        omit = [(), (0,)] if vary[0] else [(0,)]
    # Block 1 is the audio encoder. To leave out the rest is only another choice where something else varies
    others = tuple(block for block in range(len(vary)) if block != 1)
    alone = others if may_omit and vary[1:2] == [True] and any(vary[2:]) else ()
    scales = {
        omitted: scale_blocks(sample.features, blocks, omitted) for omitted in (*omit, *([alone] if alone else ()))
    }

    def ranked(portion: FeatureBatch) -> np.ndarray:
        return _ranks(portion.targets, sample.targets)

    # Ratings and ranks side by side, since most of the time is spent on what does not depend on the targets
    # A candidate decomposes a matrix of all landmarks, in time that grows with the cube of their number: it is chosen
    # on a part of them
    subset, count = FeatureBatch(*(values[:MODEL_SELECTION_SIZE] for values in sample)), sample.targets.shape[1]
    columns = [slice(count), slice(count, 2 * count)] if may_rank else [slice(count)]
    if may_rank:
        targets = np.concatenate([subset.targets, ranked(subset)], 1)
        subset = subset._replace(targets=targets, weights=np.concatenate([subset.weights, subset.weights], 1))

    def equations_of(width: float | None, omitted: tuple[int, ...], division: int = 0) -> _NormalEquations:
        block_scale = scales[omitted]
        return _NormalEquations(subset.features * block_scale, width, seed + division).add(subset, block_scale)

    candidates: dict[_Choice, _NormalEquations] = {}
    known: dict[_Choice, list[tuple[np.ndarray, np.ndarray]]] = {}

    def best_among(choices: Iterable[_Choice], kind: slice) -> _Choice:
        for choice in (choices := list(choices)):
            if choice not in candidates:
                candidates[choice] = equations_of(*choice)
        return min(choices, key=lambda choice: _mean(candidates[choice].losses[:, kind].min(0), 1.0))

    def measured(choice: _Choice) -> list[tuple[np.ndarray, np.ndarray]]:
        """Errors and agreement in each division into folds."""
        if choice not in known:
            divisions = [candidates[choice], *(equations_of(*choice, n) for n in range(1, DIVISIONS))]
            known[choice] = [fitted.measure(subset, scales[choice[1]]) for fitted in divisions]
        return known[choice]

    def leads(choice: _Choice, other: _Choice, kind: slice) -> bool:
        """Whether its errors are smaller by far more than that differs between groups."""
        of_choice, of_other = (np.mean([errors for errors, _ in measured(one)], 0) for one in (choice, other))
        _, group = np.unique(subset.groups, return_inverse=True)
        # Summed over a group, since pairs of one speaker or script err alike and are no evidence of their own
        gains = np.bincount(group, (of_other - of_choice)[:, kind].mean(1))
        return bool(gains.sum() > ERRORS * gains.std(ddof=1) * np.sqrt(len(gains)))

    # 1. Kernel and blocks: the error on groups left out, for every width, with the first block and without it.
    # Dimensions share the kernel, and each takes the penalty that is best for it
    best_of = []
    for kind in columns:
        best = best_among(itertools.product(widths, omit), kind)
        if alone:
            # Two widths and not all: each further choice is another chance to be ahead by luck
            other = best_among([(width, alone) for width in dict.fromkeys((widths[0], best[0]))], kind)
            # Another division may put all ratings of a dimension with few into one fold
            with suppress(ValueError):
                best = other if leads(other, best, kind) else best
        best_of.append(best)
    # 2. Ratings or ranks
    ranks = False
    if may_rank:
        with suppress(ValueError):
            on_ratings, on_ranks = (
                _mean(np.mean([agreement for _, agreement in measured(best)], 0)[kind], 0.0)
                for best, kind in zip(best_of, columns, strict=True)
            )
            ranks = on_ranks > on_ratings + MIN_GAIN
    # 3. What was chosen is fitted to all pairs; where the sample was all of them, the sums are there already
    best, kind = best_of[ranks], columns[ranks]
    (width, omitted), equations = best, candidates[best]
    block_scale = scales[omitted]
    scaled = sample.features * block_scale
    # The choice was made on fewer pairs than there are, so the sums of the subset are not those of all
    if portions is not None or len(subset.groups) < len(scaled):
        equations, kind = _NormalEquations(scaled, width, seed), slice(count)
        for portion in [sample] if portions is None else portions:
            equations.add(portion._replace(targets=ranked(portion)) if ranks else portion, block_scale)
    weights, bias, penalties = (values[..., kind] for values in equations.solve())
    record = {
        "kernel": "linear" if width is None else "gaussian",
        "width": width,
        "omitted": list(omitted),
        "ranks": ranks,
        "penalty": penalties.tolist(),
        "unexplained": {
            _name(*choice): _mean(fitted.losses[:, columns[ranks]].min(0), 1.0) for choice, fitted in candidates.items()
        },
        "pairs": equations.pairs,
        "landmarks": len(scaled),
    }
    if width is None:
        # Scalar products with all landmarks, each times its weight, are one product with the weighted sum of landmarks
        return Solution(block_scale, None, block_scale[:, None] * (scaled.T @ weights), bias, record)
    # The width goes into the scale, so that whoever uses the solution need not know it
    return Solution(block_scale * np.sqrt(width), scaled * np.sqrt(width), weights, bias, record)


class _NormalEquations:
    """Normal equations of each fold, summed over portions, in coordinates whose penalty is the plain squared norm."""

    def __init__(self, landmarks: np.ndarray, width: float | None, seed: int) -> None:
        self._landmarks, self._width, self._seed = landmarks, width, seed
        values, vectors = np.linalg.eigh(self._compare(landmarks))
        # Pairs that are nearly alike give a direction of almost no length, by whose root the next line would divide
        significant = values > _LEAST * values[-1]
        self._map = vectors[:, significant] / np.sqrt(values[significant])  # from comparisons to coordinates
        # Sums of each fold, from which those without it follow by subtraction: no pair is read again for a fold or a
        # penalty
        self._sums: dict[tuple[int, int], list[Any]] = {}  # (fold, dimension) -> X'X, X'y, X'1, y'y, y'1, 1'1
        self._folds: dict[Any, int] = {}
        self.pairs = self._dimensions = 0

    def _compare(self, scaled: np.ndarray) -> np.ndarray:
        if self._width is None:
            return scaled @ self._landmarks.T
        return np.exp(-self._width * _squared_distances(scaled, self._landmarks))

    def add(self, portion: FeatureBatch, block_scale: np.ndarray) -> _NormalEquations:
        """Add the pairs of a portion."""
        assert "losses" not in vars(self)
        folds = self._fold_of(portion.groups)
        coordinates = self._compare(portion.features * block_scale) @ self._map
        self.pairs, self._dimensions = self.pairs + len(folds), portion.targets.shape[1]
        # Dimensions are mostly rated together, and then share their largest sums
        shared: dict[tuple[int, bytes], tuple[np.ndarray, np.ndarray]] = {}
        for fold in range(FOLDS):
            for dimension in range(self._dimensions):
                rated = (folds == fold) & ~np.isnan(portion.targets[:, dimension])
                x, y, w = coordinates[rated], portion.targets[rated, dimension], portion.weights[rated, dimension]
                key = fold, rated.tobytes() + w.tobytes()
                if key not in shared:
                    shared[key] = (x * w[:, None]).T @ x, w @ x
                xx, x1 = shared[key]
                terms = [xx, (w * y) @ x, x1, w @ y**2, w @ y, w.sum()]
                if (before := self._sums.get((fold, dimension))) is not None:
                    terms = [a + b for a, b in zip(before, terms, strict=True)]
                self._sums[fold, dimension] = terms
        return self

    def _fold_of(self, groups: np.ndarray) -> np.ndarray:
        """Folds of groups, of even size; a group keeps its fold."""
        new = [group for group in dict.fromkeys(groups.tolist()) if group not in self._folds]
        if not self._folds and len(new) > 1:
            splits = even_folds(groups, min(FOLDS, len(new)), self._seed)
            for fold, (_, left_out) in enumerate(splits.split()):
                self._folds |= dict.fromkeys(groups[left_out].tolist(), fold)
        else:
            # Later portions bring new groups, when those before have their folds: these are dealt out in turn
            self._folds |= {group: (len(self._folds) + n) % FOLDS for n, group in enumerate(new)}
        return np.array([self._folds[group] for group in groups.tolist()])

    def _summed(self, dimension: int, without: int | None = None) -> list[Any]:
        sums = [self._sums[fold, dimension] for fold in range(FOLDS) if fold != without]
        return [sum(values) for values in zip(*sums, strict=True)]

    @cached_property
    def losses(self) -> np.ndarray:
        """Squared error on the folds left out, as a share of the variance `(penalties, dimensions)`; NaN where the
        targets of a dimension are all equal. After this, no pairs may be added."""
        losses, decomposed = np.zeros((len(PENALTIES), self._dimensions)), dict[int | None, Any]()
        for dimension in range(self._dimensions):
            totals = self._summed(dimension)
            if sum(self._sums[fold, dimension][5] > 0 for fold in range(FOLDS)) < 2:
                raise ValueError(f"dimension {dimension} has ratings of fewer than two groups")
            for fold in range(FOLDS):
                xx, xy, x1, yy, y1, n = self._sums[fold, dimension]
                if n == 0:
                    continue
                betas, biases = self._solved(dimension, fold, decomposed)
                for number, (beta, bias) in enumerate(zip(betas, biases, strict=True)):
                    # The squared error from the sums alone, as the pairs themselves are gone
                    error = yy - 2 * (beta @ xy + bias * y1) + beta @ xx @ beta + 2 * bias * (beta @ x1) + bias**2 * n
                    losses[number, dimension] += error
            # Shares of the variance, so that dimensions on scales of other lengths weigh the same in their mean
            losses[:, dimension] /= _variance(*totals[3:])
        return losses

    def _solved(
        self, dimension: int, without: int | None, decomposed: dict[int | None, Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the coordinates, and the bias, for each penalty, from all folds but one; the bias is not
        penalised. Dimensions that are rated together share what is `decomposed` without this fold."""
        xx, xy, x1, _, y1, n = self._summed(dimension, without)
        decomposition = decomposed.get(without)
        if decomposition is None or not np.array_equal(decomposition[0], xx):
            # without the mean: the bias is that of centred coordinates
            values, vectors = np.linalg.eigh(xx - np.outer(x1, x1) / n)
            decomposition = decomposed[without] = xx, np.maximum(values, 0), vectors
        _, values, vectors = decomposition
        rotated = vectors.T @ (xy - x1 * y1 / n)
        # The penalties are meant for all pairs, and this sum has a share of them
        scale = n / self.pairs
        betas = (rotated / (values + scale * PENALTIES[:, None])) @ vectors.T
        return betas, (y1 - betas @ x1) / n

    def left_out(self, portion: FeatureBatch, block_scale: np.ndarray) -> np.ndarray:
        """Predictions for pairs that were added, from the folds without them `(pairs, dimensions)`; NaN where a pair is
        not rated."""
        folds, best, decomposed = self._fold_of(portion.groups), self.losses.argmin(0), dict[int | None, Any]()
        coordinates = self._compare(portion.features * block_scale) @ self._map
        predicted = np.full(portion.targets.shape, np.nan)
        for dimension in range(self._dimensions):
            for fold in range(FOLDS):
                rated = (folds == fold) & ~np.isnan(portion.targets[:, dimension])
                betas, biases = self._solved(dimension, fold, decomposed)
                own = best[dimension]
                predicted[rated, dimension] = coordinates[rated] @ betas[own] + biases[own]
        return predicted

    def measure(self, portion: FeatureBatch, block_scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `left_out` is worth.

        Returns:
            Weighted squared errors as shares of the variance `(pairs, dimensions)`, 0 where there is none; and
            Spearman with the ratings `(dimensions,)`, the mean over folds, except those where either is constant; 0 if
            no fold remains, NaN where the targets of a dimension are all equal.
        """
        folds, predicted = self._fold_of(portion.groups), self.left_out(portion, block_scale)
        variance = np.array([_variance(*self._summed(dimension)[3:]) for dimension in range(self._dimensions)])
        errors = np.nan_to_num(portion.weights * (predicted - portion.targets) ** 2 / variance)
        agreements = np.where(np.isnan(variance), np.nan, 0.0)
        for dimension in range(self._dimensions):
            correlations = []
            for fold in range(FOLDS):
                rated = (folds == fold) & ~np.isnan(portion.targets[:, dimension])
                predictions, ratings = predicted[rated, dimension], portion.targets[rated, dimension]
                if rated.sum() > 2 and np.ptp(predictions) > 0 and np.ptp(ratings) > 0:
                    # Within a fold: predictions of two folds come from two fits, whose levels need not agree
                    correlations.append(np.corrcoef(rankdata(predictions), rankdata(ratings))[0, 1])
            if correlations:
                agreements[dimension] = np.mean(correlations)
        return errors, agreements

    def solve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights of the landmarks, biases and penalties of all dimensions."""
        best = self.losses.argmin(0)
        decomposed: dict[int | None, Any] = {}
        solutions = [self._solved(dimension, None, decomposed) for dimension in range(self._dimensions)]
        betas = np.stack([betas[number] for (betas, _), number in zip(solutions, best, strict=True)], 1)
        biases = np.array([biases[number] for (_, biases), number in zip(solutions, best, strict=True)])
        return self._map @ betas, biases, PENALTIES[best]


def _variance(yy: float, y1: float, n: float) -> float:
    """Squared deviations from the mean; NaN where targets are all equal, so that a share of them is no rounding."""
    variance = yy - y1**2 / n
    return variance if variance > _ROUNDING * yy else np.nan


def _mean(values: np.ndarray, otherwise: float) -> float:
    """Mean over the dimensions whose targets differ, all others being NaN."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else otherwise


def scale_blocks(features: np.ndarray, blocks: np.ndarray, omitted: Sequence[int] = ()) -> np.ndarray:
    """Factors that make the variances of each block add up to 1 / blocks, where only blocks that vary are counted."""
    totals = np.bincount(blocks, features.var(0))
    totals[list(omitted)] = 0.0
    # A block that is all zeros, such as a context that no pair has, must not take weight from the others
    counts = totals > 0
    factors = np.where(counts, 1 / np.sqrt(np.where(counts, totals, 1.0)), 0.0)
    return factors[blocks] / np.sqrt(max(1, counts.sum()))


def _ranks(targets: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Mean ranks of targets among the known ones, both `(pairs, dimensions)`, scaled to the mean and deviation of the
    latter, in rating points. NaN stays NaN, and a dimension whose known targets are all equal stays as it is."""
    ranked = targets.astype(np.float64)
    for column in range(targets.shape[1]):
        ordered = np.sort(known[~np.isnan(known[:, column]), column])
        of_known, ranks = (
            (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right")) / 2
            for values in (ordered, targets[:, column])
        )
        if len(ordered) and np.ptp(ordered) > 0:
            # In rating points, since the head and its calibration know no other unit
            spread = ordered.mean() + ordered.std() * (ranks - of_known.mean()) / of_known.std()
            ranked[:, column] = np.where(np.isnan(targets[:, column]), np.nan, spread)
    return ranked


def _name(width: float | None, omitted: tuple[int, ...]) -> str:
    read = ", of the second block alone" if len(omitted) > 1 else ", without the first block" if omitted else ""
    return ("linear" if width is None else f"gaussian {width:g}") + read


def _squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Squared distances `(first, second)`."""
    # One matrix product, in place of an array (first, second, features). Rounding may take it below 0
    squares = (first**2).sum(1)[:, None] + (second**2).sum(1)[None]
    return np.maximum(squares - 2 * first @ second.T, 0)
