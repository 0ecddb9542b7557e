"""Rated pairs for a Lightning trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
from rich.console import Console
from torch.utils.data import DataLoader

from .audit import check_splits
from .augmentation import NO_AUGMENTATION, Augmentation
from .errors import DataError
from .near_identical import near_identical
from .rated_pairs import RatedPair, RatedPairs
from .sampler import Blocks, EpochKeys, EpochSampler, row_groups
from .schema import Dimension, PairDataset
from .targets import TargetName

Collate = Callable[[Sequence[RatedPair]], Any]


class PairDataModule(L.LightningDataModule):
    """Reads a pair dataset with a split. The model brings the collate function: only it knows its backbone's inputs."""

    def __init__(
        self,
        path: str,
        batch_size: int = 16,
        eval_batch_size: int = 32,
        num_workers: int = 0,
        train_split: list[str] | str = "train",
        validation_split: list[str] | str = "validation",
        augmentation: Augmentation = NO_AUGMENTATION,
        target: TargetName = "mean",
        seed: int = 0,
    ) -> None:
        """Settings; nothing is read before `setup`.

        Args:
            path: Folder of the pair dataset, or its address (``hf://datasets/OWNER/NAME``, ``s3://...``).
            batch_size: Pairs per training step and device.
            eval_batch_size: Pairs per validation step and device.
            num_workers: Processes that decode audio; 0 = none beside the trainer.
            train_split: Split or splits to train on, such as fold1, fold2 and fold3.
            validation_split: Split or splits that choose the best checkpoint.
            augmentation: Of training clips, in the processes that decode them; off by default.
            target: What training pairs should score: mean of the raters, mean of their z-scores (in rating points),
                mean corrected for their biases, the full histogram (with the histogram head), or each single rating.
                Validation and test always use plain means.
            seed: Of the order in which pairs are read, and of augmentation.
        """
        super().__init__()
        self.path = path
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.num_workers = num_workers
        self.train_splits = _names(train_split)
        self.validation_splits = _names(validation_split)
        self.augmentation = augmentation
        self.target: TargetName = target
        self.seed = seed
        self.collate: Collate | None = None
        self.first_epoch = 0  # of a resumed run: workers start before Lightning sets the sampler's epoch

    def prepare_data(self) -> None:
        """Let one process of several compare all audio where that was not done yet; `setup` then reads the result."""
        if self.trainer is not None and self.trainer.world_size > 1:
            near_identical(PairDataset.load(self.path))

    def setup(self, stage: str) -> None:
        """Load the dataset and check its split.

        Raises:
            DataError: If the folder breaks the data contract, has not all of the splits, one split is to be trained on
                and validated on, or the splits share what `audit` refuses.
        """
        self.dataset = PairDataset.load(self.path)
        check_splits(self.dataset)
        both = set(self.train_splits) & set(self.validation_splits)
        if both:
            raise DataError(f"train_split and validation_split: both hold {min(both)!r}; accepted: different splits")
        self.train = RatedPairs(self.dataset.subset(self.train_splits), self.augmentation, self.seed, self.target)
        if self.trainer is None or self.trainer.is_global_zero:
            for note in self.train.notes:
                Console(stderr=True).print(f"training targets: {note}", markup=False, soft_wrap=True)
        self.validation = RatedPairs(self.dataset.subset(self.validation_splits))

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
        groups = row_groups(pairs.pairs)
        blocks = None if groups is None else Blocks(groups, batch_size, self.num_workers)
        sampler = EpochSampler(len(pairs), shuffle=shuffle, seed=self.seed, rank=rank, ranks=ranks, blocks=blocks)
        sampler.set_epoch(self.first_epoch)
        return DataLoader(
            pairs,
            batch_size,
            sampler=EpochKeys(sampler),
            collate_fn=self.collate,
            num_workers=self.num_workers,
            drop_last=False,
        )


def _names(splits: list[str] | str) -> tuple[str, ...]:
    return (splits,) if isinstance(splits, str) else tuple(splits)
