"""Rated pairs for a Lightning trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .errors import DataError
from .sampler import EpochSampler
from .schema import Dimension, Pair, PairDataset
from .splits import check_splits


@dataclass(frozen=True)
class RatedPair:
    """A pair with its mean human score per dimension.

    Attributes:
        index: Position in the split; tells pairs apart when several ranks score them.
        pair: What is judged.
        scores: Rating points `(dimensions,)`, NaN where nobody rated.
    """

    index: int
    pair: Pair
    scores: Tensor


class RatedPairs(Dataset[RatedPair]):
    """The rated pairs of one split."""

    def __init__(self, dataset: PairDataset) -> None:
        self.pairs = dataset.pairs
        self.scores = torch.tensor(dataset.mean_scores().to_numpy(), dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> RatedPair:
        return RatedPair(index, self.pairs[index], self.scores[index])


Collate = Callable[[Sequence[RatedPair]], Any]


class PairDataModule(L.LightningDataModule):
    """Reads a pair dataset with a split. The model brings the collate function: only it knows its backbone's inputs."""

    def __init__(
        self,
        path: str,
        batch_size: int = 16,
        eval_batch_size: int = 32,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        """Settings; nothing is read before `setup`.

        Args:
            path: Folder of the pair dataset.
            batch_size: Pairs per training step and device.
            eval_batch_size: Pairs per validation step and device.
            num_workers: Processes that decode audio; 0 = none beside the trainer.
            seed: Of the order in which pairs are read.
        """
        super().__init__()
        self.path = path
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.collate: Collate | None = None
        self.first_epoch = 0  # of a resumed run: workers start before Lightning sets the sampler's epoch

    def setup(self, stage: str) -> None:
        """Load the dataset and check its split.

        Raises:
            DataError: If the folder breaks the data contract, has no train or validation split, or a group, speaker or
                clip lies in two splits.
        """
        self.dataset = PairDataset.load(self.path)
        check_splits(self.dataset)
        self.train = RatedPairs(self.dataset.subset("train"))
        self.validation = RatedPairs(self.dataset.subset("validation"))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What was rated."""
        return self.dataset.card.dimensions

    def train_dataloader(self) -> DataLoader:
        """Shuffled training pairs of this rank."""
        return self._loader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Validation pairs of this rank; every pair is on exactly one rank."""
        return self._loader(self.validation, self.eval_batch_size, shuffle=False)

    def _loader(self, pairs: RatedPairs, batch_size: int, *, shuffle: bool) -> DataLoader:
        if self.collate is None or self.trainer is None:
            raise DataError("PairDataModule: the model sets `collate` before data is read; use it with JudgeModule")
        rank, ranks = self.trainer.global_rank, self.trainer.world_size
        sampler = EpochSampler(len(pairs), shuffle=shuffle, seed=self.seed, rank=rank, ranks=ranks)
        sampler.set_epoch(self.first_epoch)
        return DataLoader(
            pairs,
            batch_size,
            sampler=sampler,
            collate_fn=self.collate,
            num_workers=self.num_workers,
            drop_last=False,
        )
