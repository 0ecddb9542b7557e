"""What one step of training reads, item by item: rated pairs, and comparisons of two pairs.

Without Lightning, which takes seconds to load: every data-loader process that is started anew imports this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .augmentation import NO_AUGMENTATION, Augmentation, augment_pair
from .comparisons import Comparison
from .sampling import Key
from .schema import Pair, PairDataset
from .targets import TargetName, Weighting, training_targets


@dataclass(frozen=True)
class RatedPair:
    """A pair with the human score to predict per dimension.

    Attributes:
        index: Position among the items of `RatedPairs`; tells them apart when several ranks score them.
        pair: What is judged.
        scores: Rating points `(dimensions,)`, NaN where nobody rated.
        weights: How much each score counts `(dimensions,)`, float32, 0 where nobody rated.
        histogram: How many raters gave each score of the scale `(dimensions, steps)`, int32; None where a dimension has
            no steps (`Targets.histograms`).
        rater: Position of the rater in `RatedPairs.rater_ids` where the item is the judgement of one; otherwise -1.
    """

    index: int
    pair: Pair
    scores: Tensor
    weights: Tensor
    histogram: Tensor | None = None
    rater: int = -1


class RatedPairs(Dataset[RatedPair]):
    """The rated pairs of one or more splits. A key is an epoch and a position: augmentation differs between epochs.

    With the target ``single`` a pair stands there once for each of its raters.

    Attributes:
        pairs: The pair of each item.
        scores: What to predict `(items, dimensions)`, float32, rating points; NaN = not rated.
        weights: How much each score counts `(items, dimensions)`, float32.
        histograms: As `Targets.histograms`.
        rater_ids: The raters, for ``single``; otherwise empty.
        rater_counts: Items of each rater `(raters,)`, int64; empty where there are none.
        notes: What was done to the targets that a person should know, one line each.
    """

    def __init__(
        self,
        dataset: PairDataset,
        augmentation: Augmentation = NO_AUGMENTATION,
        seed: int = 0,
        target: TargetName = "mean",
        weighting: Weighting = "equal",
    ) -> None:
        targets = training_targets(dataset, target, weighting)
        self.pairs = tuple(dataset.pairs[position] for position in targets.pairs)
        self.notes = targets.notes
        self.augmentation, self.seed = augmentation, seed
        self.scores = torch.from_numpy(np.array(targets.scores, dtype=np.float32, order="C"))
        self.weights = torch.from_numpy(np.array(targets.weights, dtype=np.float32, order="C"))
        self.histograms = None if targets.histograms is None else torch.from_numpy(targets.histograms)
        raters = np.full(len(self.pairs), -1) if targets.raters is None else targets.raters
        self._raters = torch.from_numpy(raters)
        self.rater_ids = targets.rater_ids
        self.rater_counts = torch.bincount(self._raters[self._raters >= 0], minlength=len(self.rater_ids))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: Key) -> RatedPair:
        epoch, index = key
        pair = self.pairs[index]
        if self.augmentation.active:
            pair = augment_pair(pair, self.augmentation, self.seed, epoch)
        histogram = None if self.histograms is None else self.histograms[index]
        return RatedPair(index, pair, self.scores[index], self.weights[index], histogram, int(self._raters[index]))


class TrainingItems(Dataset[RatedPair | Comparison]):
    """Rated pairs, then comparisons, under one row of positions. Keys are those of `RatedPairs`."""

    def __init__(self, rated: RatedPairs, comparisons: Sequence[Comparison]) -> None:
        self.rated, self.comparisons = rated, tuple(comparisons)

    def __len__(self) -> int:
        return len(self.rated) + len(self.comparisons)

    def __getitem__(self, key: Key) -> RatedPair | Comparison:
        epoch, position = key
        if position < len(self.rated):
            return self.rated[key]
        comparison = self.comparisons[position - len(self.rated)]
        augmentation, seed = self.rated.augmentation, self.rated.seed
        if not augmentation.active:
            return comparison
        chosen = augment_pair(comparison.chosen, augmentation, seed, epoch)
        return replace(comparison, chosen=chosen, rejected=augment_pair(comparison.rejected, augmentation, seed, epoch))
