"""Sets the head of a judge to the closed-form regression of ratings on features of its frozen backbone.

Training starts or ends with this head, and one of the baselines consists of it. Both pass a `Reader`, which runs the
backbone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..data_modules.folds import even_folds
from ..data_modules.schema import Dimension, Pair
from .closed_form import EXACT, FOLDS, LANDMARKS, WIDTHS, FeatureBatch, Solution, fit
from .heads import Head, Prediction, build_head
from .judge import EmpathyJudge
from .settings import JudgeSettings

_SCALED_BY_BYTES = 200 * 2**20
"""Bytes of clip features that set the scale: those of the first pairs in random order that fit."""
OfClips = tuple[Tensor | None, Tensor | None]
"""See `HeadInput.raw`."""


class Reader(Protocol):
    """Runs a frozen judge over pairs, a portion at a time, the same in all processes."""

    judge: EmpathyJudge  # on its device, in evaluation mode

    def clip_features(self, pairs: Sequence[Pair]) -> Iterator[OfClips]:
        """What the head reads of their clips, on the CPU."""
        ...

    def features(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[Pair], np.ndarray]]:
        """Pairs, some of them perhaps repeated, and what the head would read of each `(pairs, features)`."""
        ...


@dataclass(frozen=True)
class Rated:
    """Distinct pairs to fit to, in random order."""

    pairs: Sequence[Pair]  # the n pairs
    targets: np.ndarray  # mean ratings `(n, dimensions)`, NaN = not rated
    weights: np.ndarray  # weight of each target `(n, dimensions)`
    groups: np.ndarray  # pairs of one group stay in one fold `(n,)`
    # variance of the ratings of a pair around its target, the mean over pairs, in squared rating points
    # `(dimensions,)`; None = unknown
    within: np.ndarray | None = None


def shuffled(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """Every pair once, in random order."""
    distinct = list({pair.pair_id: pair for pair in pairs}.values())
    return [distinct[number] for number in np.random.default_rng(seed).permutation(len(distinct))]


def standardise(reader: Reader, pairs: Sequence[Pair]) -> None:
    """Take the scale of the head's clip features from the first of these pairs; a `ValueError` if none can be read."""
    # A scale needs no more than some pairs, and the features of all clips would fill the memory
    measured, size = [], 0
    for values in reader.clip_features(pairs):
        measured.append(values)
        size += sum(tensor.nbytes for tensor in values if tensor is not None)
        if size > _SCALED_BY_BYTES:
            break
    if not measured:
        raise ValueError("no pair has audio that can be used")
    layers, functionals = (None if parts[0] is None else torch.cat(parts) for parts in zip(*measured, strict=True))
    reader.judge.head_input.standardise(layers, functionals)


class Probe:
    """Fits the head to pairs; the features that it reads must be standardised before (`standardise`)."""

    def __init__(self, reader: Reader, rated: Rated, linear: bool = False, may_rank: bool = True) -> None:
        """Read the sample: all pairs, or where there are too many, as many as there shall be landmarks.

        Args:
            reader: Runs the backbone.
            rated: What to fit to.
            linear: Ridge on all that the head reads; False = the kernel is also chosen, and whether the language model
                counts.
            may_rank: Whether the choice between ratings and their ranks is also made.

        Raises:
            ValueError: If a dimension has ratings of fewer than two groups.
        """
        _check_groups(reader.judge.dimensions, rated.targets, rated.groups)
        self._reader, self._rated = reader, rated
        self._choice: dict[str, Any] = {
            "widths": (None,) if linear else WIDTHS, "may_omit": not linear, "may_rank": may_rank,
        }  # fmt: skip
        self._rows = {pair.pair_id: row for row, pair in enumerate(rated.pairs)}
        self._whole = len(rated.pairs) <= EXACT
        # The pairs are in random order, so the first of them are a sample
        sample = rated.pairs if self._whole else rated.pairs[:LANDMARKS]
        self._blocks = reader.judge.head_input.blocks
        self.sampled: list[Pair] = []  # the pairs of the sample that gives the landmarks
        parts = []
        for pairs, portion in self._portions(sample):
            self.sampled += pairs
            parts.append(portion)
        self._sample = FeatureBatch(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _portions(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[Pair], FeatureBatch]]:
        rated, seen = self._rated, set[str]()
        for batch, values in self._reader.features(pairs):
            # Ranks fill up their last batch with a pair that was there before (`SharedReader`): twice it would count
            # double
            new = [row for row, pair in enumerate(batch) if pair.pair_id not in seen]
            seen.update(pair.pair_id for pair in batch)
            rows = [self._rows[batch[row].pair_id] for row in new]
            portion = FeatureBatch(values[new], rated.targets[rows], rated.weights[rows], rated.groups[rows])
            yield [batch[row] for row in new], portion

    def fit(self) -> Solution:
        """Fit to all pairs.

        Raises:
            ValueError: If a dimension has ratings of fewer than two groups.
        """
        portions = None if self._whole else (portion for _, portion in self._portions(self._rated.pairs))
        return self._spread(fit(self._sample, self._blocks, portions, **self._choice))

    def _spread(self, solution: Solution) -> Solution:
        """The solution with what is known of how ratings spread around it."""
        rated = self._rated
        if rated.within is None:
            return solution
        # Ratings differ from the prediction by what it misses of their mean, and by what raters differ among
        # themselves
        missed = solution.unexplained * np.nanvar(rated.targets, axis=0)
        return replace(solution, spread=np.sqrt(rated.within + missed))

    def left_out(self, means: Tensor) -> Prediction:
        """Predictions for each of `sampled`, of heads that were not fitted to its group; kernel and penalty were also
        chosen without it. `means` = mean ratings `(dimensions,)`. Raises as `fit`."""
        judge, rows_of = self._reader.judge, (len(self.sampled), len(means))
        scores, deviations = torch.empty(rows_of), torch.full(rows_of, torch.nan)
        folds = even_folds(self._sample.groups, min(FOLDS, len(set(self._sample.groups.tolist()))), seed=0)
        # Whatever is chosen is chosen again without the fold, or its scores would be too good
        for fitted, rows in folds.split():
            portion = FeatureBatch(*(values[fitted] for values in self._sample))
            _check_groups(judge.dimensions, portion.targets, portion.groups, "without one fold, ")
            solution = self._spread(fit(portion, self._blocks, **self._choice))
            with torch.no_grad():
                compared = torch.from_numpy(solution.compared(self._sample.features[rows])).float()
                prediction = head_at(judge, solution, means)(compared)
            scores[rows] = prediction.score
            if prediction.deviation is not None:
                deviations[rows] = prediction.deviation
        return Prediction.from_stored(scores, deviations)


def _check_groups(dimensions: Sequence[Dimension], targets: np.ndarray, groups: np.ndarray, among: str = "") -> None:
    for dimension, column in zip(dimensions, targets.T, strict=True):
        if len(set(groups[~np.isnan(column)].tolist())) < 2:
            raise ValueError(f"{among}{dimension.name} has ratings of fewer than two groups")


def head_at(judge: EmpathyJudge, solution: Solution, means: Tensor) -> Head:
    """A head of the kind that a judge has, on the CPU, that predicts as the fitted solution; `means` = mean ratings
    `(dimensions,)`."""
    head = build_head(judge.settings.head, len(solution.weights), judge.dimensions, standardised=True)
    weights, bias = torch.from_numpy(solution.weights).float(), torch.from_numpy(solution.bias).float()
    spread = None if solution.spread is None else torch.from_numpy(solution.spread).float()
    head.start_from(weights, bias, means, spread)
    return head


def compare_as(judge: EmpathyJudge, solution: Solution, beside: bool = False) -> None:
    """Let a judge compare pairs with the landmarks of a solution, where it has some (`EmpathyJudge.compare_with`)."""
    if solution.landmarks is not None:
        judge.compare_with(torch.from_numpy(solution.landmarks), torch.from_numpy(solution.block_scale), beside)


def without_adapters(settings: JudgeSettings) -> JudgeSettings:
    """The settings of the same judge with a frozen backbone."""
    return replace(settings, lora=replace(settings.lora, parts=[], full_parts=[]))
