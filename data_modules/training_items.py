"""What one step of training reads: rated pairs, and comparisons of two pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch.utils.data import Dataset

from .augmentation import augment_pair
from .comparisons import Comparison
from .rated_pairs import RatedPair, RatedPairs
from .sampler import Key


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
