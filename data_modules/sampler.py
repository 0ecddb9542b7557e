"""Which items a rank reads, in which order: a pure function of seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch
from torch.utils.data import Sampler

from .schema import Pair
from .stored_clips import StoredClip

Key = tuple[int, int]
"""An epoch and the position of an item: all that a data-loader process needs to know. It may outlive an epoch."""

WINDOW_BLOCKS = 16
"""Items are shuffled among those of so many blocks. A process keeps as many in memory (`stored_clips`)."""

_NEXT_PASS = 1_000_000  # epochs of a further pass within an epoch; no run has so many


@dataclass(frozen=True)
class Blocks:
    """How items are stored together and who reads them: who needs one item of a block reads all of it.

    Attributes:
        of_item: Number of the block that each item is in `(items,)`, ascending with the order in storage.
        batch_size: Items per batch.
        workers: Processes of a data loader, which get batches in turn; 0 = none.
        mixed: Whether items of several blocks are shuffled; False leaves that to `batching.ByTokens`.
    """

    of_item: np.ndarray
    batch_size: int = 1
    workers: int = 0
    mixed: bool = True


def row_groups(pairs: Sequence[Pair]) -> np.ndarray | None:
    """`Blocks.of_item` of pairs whose responses are embedded; None where one is not."""
    numbers: dict[tuple[int, int | None], int] = {}
    found = np.empty(len(pairs), dtype=np.int64)
    for index, pair in enumerate(pairs):
        clip = pair.response
        if not isinstance(clip, StoredClip) or clip.row_group is None:
            return None
        found[index] = numbers.setdefault((id(clip.file), clip.row_group), len(numbers))
    return found


class EpochSampler(Sampler[int]):
    """Shuffled by (seed, epoch), or in order; every rank a share of its own.

    All ranks get equally many items, a few of them twice: gradients must stay in step, and so must the forward passes
    of a model that is spread over the ranks. What is measured on items counts each of them once (`train.validation`).

    With clusters, items of one cluster stand together, so that a batch of all ranks holds whole clusters as far as they
    fit: the clusters are shuffled, and the items in each.

    With blocks each rank, and each of its data-loader processes, gets consecutive blocks of its own, so that hardly any
    block is read twice. Shuffled are the blocks, and then the items among those of `WINDOW_BLOCKS` blocks; the order
    also depends on batch size and number of processes.
    """

    def __init__(
        self,
        size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        blocks: Blocks | None = None,
        clusters: np.ndarray | None = None,
    ) -> None:
        """Share out.

        Args:
            size: Number of items.
            shuffle: Whether the order is random.
            seed: Of the order.
            rank: Number of this process.
            ranks: Number of processes.
            blocks: How items are stored together; not together with clusters.
            clusters: Number of the cluster of each item `(items,)`, from 0.
        """
        self.size, self.shuffle, self.seed, self.rank, self.ranks = size, shuffle, seed, rank, ranks
        self.blocks, self.clusters = blocks, clusters
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.blocks is not None:
            return iter(self._by_blocks(self.blocks))
        order = list(range(self.size))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
            if self.clusters is not None:
                places = torch.randperm(int(self.clusters.max(initial=0)) + 1, generator=generator).numpy()
                place_of_item = places[self.clusters]
                order.sort(key=lambda item: place_of_item[item])
        order = list(islice(cycle(order), len(self) * self.ranks))
        return iter(order[self.rank :: self.ranks])

    def __len__(self) -> int:
        return -(-self.size // self.ranks)

    def draw(self, epoch: int, count: int) -> list[int]:
        """The first so many items of an epoch, and of further passes in new orders where they do not suffice."""
        drawn: list[int] = []
        for number in range(-(-count // max(len(self), 1)) if self.size else 0):
            self.set_epoch(epoch + _NEXT_PASS * number)
            drawn += list(self)
        return drawn[:count]

    def _by_blocks(self, blocks: Blocks) -> list[int]:
        """This rank's items, batch after batch, each batch of the stream of blocks that its process reads."""
        order = np.arange(self.size)
        if self.shuffle:
            places = np.random.default_rng([self.seed, self.epoch]).permutation(int(blocks.of_item.max(initial=0)) + 1)
            order = np.argsort(places[blocks.of_item], kind="stable")
        start = self.rank * len(self)
        own = np.take(order, np.arange(start, start + len(self)), mode="wrap")
        batches = np.array_split(np.arange(len(own)), range(blocks.batch_size, len(own), blocks.batch_size))
        streams = max(blocks.workers, 1)
        lengths = [sum(map(len, batches[stream::streams])) for stream in range(streams)]
        parts = np.split(own, np.cumsum(lengths)[:-1])
        if self.shuffle and blocks.mixed:
            parts = [self._mixed(part, blocks, stream) for stream, part in enumerate(parts)]
        rest = [iter(part.tolist()) for part in parts]
        return [item for number, batch in enumerate(batches) for item in islice(rest[number % streams], len(batch))]

    def _mixed(self, items: np.ndarray, blocks: Blocks, stream: int) -> np.ndarray:
        """The items of a stream, shuffled within windows of blocks."""
        rng = np.random.default_rng([self.seed, self.epoch, self.rank, stream])
        begins = np.flatnonzero(np.diff(blocks.of_item[items])) + 1
        windows = np.split(items, begins[WINDOW_BLOCKS - 1 :: WINDOW_BLOCKS])
        return np.concatenate([rng.permutation(window) for window in windows])


class MixedSampler(Sampler[int]):
    """Items of several kinds in stated proportions, the same pattern on every rank.

    An epoch is one pass (to within an item) through the first kind that has a share; of the others as many items are
    drawn as their share asks for, more than once or not at all if need be, from a new order in every epoch.
    """

    def __init__(self, kinds: Sequence[EpochSampler], shares: Sequence[float]) -> None:
        """Mix.

        Args:
            kinds: The items of each kind; positions count on from one kind to the next.
            shares: Of each kind, in sum 1; a kind with a share has items.
        """
        self.kinds, self.shares = tuple(kinds), tuple(shares)
        self.leading = next(number for number, share in enumerate(shares) if share > 0)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        starts = np.cumsum([0, *(kind.size for kind in self.kinds)])
        streams = [iter(kind.draw(self.epoch, len(self))) for kind in self.kinds]
        drawn = np.zeros(len(self.kinds), dtype=np.int64)
        for count in range(1, len(self) + 1):
            # the kind that is furthest behind its share
            number = int(np.argmax(np.multiply(self.shares, count) - drawn))
            drawn[number] += 1
            yield int(starts[number]) + next(streams[number])

    def __len__(self) -> int:
        return round(len(self.kinds[self.leading]) / self.shares[self.leading])
