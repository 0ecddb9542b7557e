"""Which items a rank reads, in which order: a pure function of seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

import torch
from torch.utils.data import Sampler


class EpochSampler(Sampler[int]):
    """Shuffled by (seed, epoch), or in order; every rank a share of its own.

    Lightning calls `set_epoch` before each epoch, so that a resumed run reads what the uninterrupted one would have.
    """

    def __init__(self, size: int, *, shuffle: bool, seed: int = 0, rank: int = 0, ranks: int = 1) -> None:
        """With `shuffle` all ranks get equally many items, a few of them twice (gradients must stay in step); without,
        every item goes to exactly one rank."""
        self.size, self.shuffle, self.seed, self.rank, self.ranks = size, shuffle, seed, rank, ranks
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.size))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
            order = list(islice(cycle(order), len(self) * self.ranks))
        return iter(order[self.rank :: self.ranks])

    def __len__(self) -> int:
        if self.shuffle:
            return -(-self.size // self.ranks)
        return len(range(self.rank, self.size, self.ranks))
