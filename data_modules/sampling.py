"""The items, order and batches of a rank: a pure function of seed and epoch.

In three steps, which this file takes in turn: `EpochOrder` says in which order a rank reads the items of one kind,
`FixedSize` and `ByTokens` make batches of the items of all kinds, and `EpochBatches` hands them to Lightning, epoch
after epoch. Every epoch and every rank has the same number of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Sampler

from ..audio.stored_clips import StoredClip
from ..core.errors import UserError
from .schema import Pair

WINDOW_BLOCKS = 16
"""Items are shuffled among those of so many blocks. A process keeps as many in memory (`stored_clips`)."""

_NEXT_PASS = 1_000_000  # epochs of a further pass within an epoch; no run has so many
WINDOW = 8_192
"""Items among which those of like length are brought together, where nothing else sets a limit."""
JITTER = 0.06
"""Lengths are taken as up to this share longer when they are compared: otherwise the same items would stand together in
every epoch. It costs about half as much padding."""
_SPARE = 50  # one batch in so many more than the first epoch needs: other epochs may need a few more


@dataclass(frozen=True)
class Blocks:
    """Blocks of items that are stored together: reading one item reads its whole block."""

    of_item: np.ndarray  # number of the block that each item is in `(items,)`, ascending with the order in storage
    batch_size: int = 1  # items per batch
    workers: int = 0  # processes of a data loader, which get batches in turn; 0 = none
    mixed: bool = True  # whether items of several blocks are shuffled; False leaves that to `ByTokens`


def row_groups(pairs: Sequence[Pair]) -> np.ndarray | None:
    """`Blocks.of_item` of pairs whose responses are embedded; None where one is not."""
    block_numbers: dict[tuple[int, int | None], int] = {}
    blocks = np.empty(len(pairs), dtype=np.int64)
    for index, pair in enumerate(pairs):
        clip = pair.response
        if not isinstance(clip, StoredClip) or clip.row_group is None:
            return None
        blocks[index] = block_numbers.setdefault((id(clip.file), clip.row_group), len(block_numbers))
    return blocks


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """Items shuffled by (seed, epoch), or in order; every rank a share of its own.

    All ranks get equally many items, a few of them twice: gradients must stay in step, and so must the forward passes
    of a model that is spread over the ranks. What is measured on items counts each of them once (`train.validation`).

    With clusters, items of one cluster stand together, so that a batch of all ranks holds whole clusters as far as they
    fit: the clusters are shuffled, and the items in each. A rank reads `run` items that stand together, then those
    behind the runs of the others.

    With blocks each rank, and each of its data-loader processes, gets consecutive blocks of its own, so that hardly any
    block is read twice. Blocks are shuffled, then items within windows of `WINDOW_BLOCKS` blocks; the order also
    depends on batch size and number of processes."""

    size: int  # number of items
    shuffle: bool  # whether the order is random
    seed: int = 0  # of the order
    rank: int = 0  # number of this process
    ranks: int = 1  # number of processes
    blocks: Blocks | None = None  # how items are stored together; not together with clusters
    clusters: np.ndarray | None = None  # number of the cluster of each item `(items,)`, from 0
    run: int = 1  # with clusters, the items of a batch; 0 = all of a rank

    def __len__(self) -> int:
        """Items of this rank."""
        return -(-self.size // self.ranks)

    def items(self, epoch: int) -> list[int]:
        """Positions of this rank's items in an epoch."""
        if self.blocks is not None:
            return self._by_blocks(self.blocks, epoch)
        order = list(range(self.size))
        if self.shuffle:
            # seeds so far apart that no epoch of one has the order of an epoch of the next
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
            if self.clusters is not None:
                positions = torch.randperm(int(self.clusters.max(initial=0)) + 1, generator=generator).numpy()
                item_positions = positions[self.clusters]
                order.sort(key=lambda item: item_positions[item])
        # Filled up from the start, so that all ranks have equally many: one without a batch would leave the others
        # waiting
        order = list(islice(cycle(order), len(self) * self.ranks))
        share = list[int]()
        run = 1 if self.clusters is None else self.run or max(1, len(self))
        for start in range(0, len(self), run):  # of each rank
            count = min(run, len(self) - start)
            share += order[start * self.ranks + self.rank * count :][:count]
        return share

    def draw(self, epoch: int, count: int) -> list[int]:
        """The first `count` items of an epoch, and of further passes in new orders if there are fewer."""
        passes = range(-(-count // max(len(self), 1)) if self.size else 0)
        return [item for number in passes for item in self.items(epoch + _NEXT_PASS * number)][:count]

    def _by_blocks(self, blocks: Blocks, epoch: int) -> list[int]:
        """Batch after batch, each of the stream of blocks that its process reads."""
        order = np.arange(self.size)
        if self.shuffle:
            positions = np.random.default_rng([self.seed, epoch]).permutation(int(blocks.of_item.max(initial=0)) + 1)
            order = np.argsort(positions[blocks.of_item], kind="stable")
        start = self.rank * len(self)
        # Wrapped, so that all ranks have equally many
        share = np.take(order, np.arange(start, start + len(self)), mode="wrap")
        batches = np.array_split(np.arange(len(share)), range(blocks.batch_size, len(share), blocks.batch_size))
        streams = max(blocks.workers, 1)
        lengths = [sum(map(len, batches[stream::streams])) for stream in range(streams)]
        stream_items = np.split(share, np.cumsum(lengths)[:-1])
        if self.shuffle and blocks.mixed:
            for stream, items in enumerate(stream_items):  # within windows of blocks
                rng = np.random.default_rng([self.seed, epoch, self.rank, stream])
                block_starts = np.flatnonzero(np.diff(blocks.of_item[items])) + 1
                windows = np.split(items, block_starts[WINDOW_BLOCKS - 1 :: WINDOW_BLOCKS])
                stream_items[stream] = np.concatenate([rng.permutation(window) for window in windows])
        # A data loader takes its batches from its processes in turn
        queues = [iter(items.tolist()) for items in stream_items]
        return [item for number, batch in enumerate(batches) for item in islice(queues[number % streams], len(batch))]


class FixedSize:
    """Equally many items in each batch, of several kinds in stated proportions, the same pattern on every rank.

    An epoch is one pass (to within an item) through the first kind that has a share; of the others as many items are
    drawn as their share asks for, more than once or not at all if need be, from a new order in every epoch. Every epoch
    has `steps` batches, of which the last may be smaller."""

    def __init__(self, kinds: Sequence[EpochOrder], size: int, shares: Sequence[float] = (1.0,)) -> None:
        """`size` items a batch; `shares` are in sum 1, and a kind with a share has items. Positions count on from one
        kind to the next."""
        self._kinds, self._size, self._shares = kinds, size, shares
        leading = next(number for number, share in enumerate(shares) if share > 0)
        self._items = round(len(kinds[leading]) / shares[leading])
        self.steps = -(-self._items // size)

    def batches(self, epoch: int) -> list[list[int]]:
        """Positions of the items of each batch."""
        starts = np.cumsum([0, *(kind.size for kind in self._kinds)])
        streams = [iter(kind.draw(epoch, self._items)) for kind in self._kinds]
        drawn = np.zeros(len(self._kinds), dtype=np.int64)
        items = []
        for count in range(1, self._items + 1):
            # the kind that is furthest behind its share
            index = int(np.argmax(np.multiply(self._shares, count) - drawn))
            drawn[index] += 1
            items.append(int(starts[index]) + next(streams[index]))
        return [items[start : start + self._size] for start in range(0, len(items), self._size)]


@dataclass(frozen=True)
class Kind:
    """Items of one kind, which a batch by tokens is made of."""

    # the order of its items for each reader: every data-loader process of every rank, those of a rank one after the
    # other
    streams: Sequence[EpochOrder]
    lengths: np.ndarray  # tokens of each item `(items,)`; of a comparison those of its longer pair
    rows: int = 1  # pairs of an item: 2 of a comparison
    clusters: np.ndarray | None = None  # as in `EpochOrder`: items of one stay together, by the longest of them
    share: float = 1.0  # of all items
    window: int = WINDOW  # items of a reader among which those of like length are brought together


class ByTokens:
    """Batches of a rank that hold about equally many tokens, padding included, made of items of like length.

    On every rank a batch has the same number of items, of one kind, and those of all ranks are of like length, so that
    no rank waits for another and the losses of all ranks can be put together (`train.collate`). Every epoch is one
    pass through the first kind; of the others as many items are drawn as their share asks for. Which items stand
    together differs between epochs, the number of batches does not: it is that of the first epoch and a few to spare,
    and the largest batches are halved to reach it. The largest batch of all comes first, so that too little memory
    shows at once.
    """

    def __init__(self, kinds: Sequence[Kind], budget: int, *, seed: int, rank: int, ranks: int) -> None:
        """Plan batches of at most `budget` tokens on one rank, padding included; positions count on from one kind to
        the next.

        Raises:
            UserError: If a single item has more tokens.
        """
        self._kinds, self._budget, self._seed = tuple(kinds), budget, seed
        readers = len(kinds[0].streams) // ranks
        self._own = slice(rank * readers, (rank + 1) * readers)
        if (longest := longest_of(kinds)) > budget:
            raise UserError(f"data.batch_tokens {budget}: one item has {longest} tokens; expected {longest} or more")
        # Lightning asks for the number of batches once, so epochs may not differ in it
        steps = self._planned(0)
        items = sum(len(step[0]) for step in steps)
        # Some to spare, since other epochs mix lengths in other ways and may need a few more
        self._steps = min(items, len(steps) + len(steps) // _SPARE)
        self.steps = self._steps * readers

    def batches(self, epoch: int) -> list[list[int]]:
        """Positions of the items of each batch."""
        steps = self._planned(epoch)
        if len(steps) > self._steps:  # more than planned for: take the batches of the first epoch, in another order
            steps = self._planned(0)
            order = np.random.default_rng([self._seed, epoch]).permutation(len(steps))
            steps = [steps[index] for index in order]
        steps = _halved(steps, self._steps)
        return [batch.tolist() for step in steps for batch in step[self._own]]

    def padding(self, epoch: int) -> float:
        """Share of the tokens of an epoch, over all ranks, that are padding."""
        lengths = np.concatenate([kind.lengths for kind in self._kinds])
        batches = [batch for step in _halved(self._planned(epoch), self._steps) for batch in step]
        padded = sum(lengths[batch].max() * len(batch) for batch in batches)
        return 1 - sum(lengths[batch].sum() for batch in batches) / padded

    def _planned(self, epoch: int) -> list[list[np.ndarray]]:
        """For each step the items of each reader; the steps of all kinds are mixed at random, the largest is first."""
        leading = next(kind for kind in self._kinds if kind.share)
        planned: list[list[list[np.ndarray]]] = []
        offset = 0
        for index, kind in enumerate(self._kinds):
            if kind.share:
                count = round(len(leading.streams[0]) * kind.share / leading.share)
                orders = [np.array(stream.draw(epoch, count)) for stream in kind.streams]
                rng = np.random.default_rng([self._seed, epoch, index])
                steps = _steps_of(orders, kind, self._budget, rng)
                planned.append([[items + offset for items in step] for step in steps])
            offset += len(kind.lengths)
        rng = np.random.default_rng([self._seed, epoch])
        # Only the kinds are mixed: the steps of each keep their order, which is random already
        order = rng.permutation(np.repeat(np.arange(len(planned)), [len(steps) for steps in planned]))
        queues = [iter(steps) for steps in planned]
        steps = [next(queues[kind]) for kind in order]
        lengths = np.concatenate([np.asarray(kind.lengths) * kind.rows for kind in self._kinds])
        largest = max(
            range(len(steps)), key=lambda step: max(lengths[batch].max() * len(batch) for batch in steps[step])
        )
        # The largest first: if memory runs out it does so in the first minute, and not in the night
        return [steps[largest], *steps[:largest], *steps[largest + 1 :]]


def longest_of(kinds: Sequence[Kind]) -> int:
    """Tokens of the longest item that is read; of a comparison those of both pairs, padding included."""
    return max(kind.rows * int(kind.lengths.max()) for kind in kinds if kind.share and len(kind.lengths))


def _steps_of(
    orders: Sequence[np.ndarray], kind: Kind, budget: int, rng: np.random.Generator
) -> list[list[np.ndarray]]:
    """For each step equally many items of each order, of like length, in a random order of steps within windows."""
    steps = []
    for start in range(0, len(orders[0]), kind.window):
        parts = [_by_length(order[start : start + kind.window], kind, rng) for order in orders]
        # By the longest over ranks: they wait for each other at every step
        lengths = np.max([kind.lengths[part] for part in parts], axis=0) * kind.rows
        clusters = None if kind.clusters is None else kind.clusters[parts[0]]
        edges = _step_edges(lengths.tolist(), clusters, budget)
        window_steps = [[part[begin:end] for part in parts] for begin, end in pairwise(edges)]
        steps += [window_steps[index] for index in rng.permutation(len(window_steps))]
    return steps


def _by_length(items: np.ndarray, kind: Kind, rng: np.random.Generator) -> np.ndarray:
    """The items, shortest first to within `JITTER`; those of a cluster together, by the longest of them."""
    # Sorted strictly, the same items would share a batch in every epoch
    keys = kind.lengths[items] * rng.uniform(1, 1 + JITTER, len(items))
    if kind.clusters is not None:  # keys are random, so no two clusters share one
        keys = pd.Series(keys).groupby(kind.clusters[items]).transform("max").to_numpy()
    return items[np.argsort(keys, kind="stable")]


def _step_edges(lengths: Sequence[int], clusters: np.ndarray | None, budget: int) -> list[int]:
    """Where steps begin, and the end: a step ends before its longest item times its number of items passes the budget,
    if possible between two clusters."""
    edges, longest, cluster_start = [0], 0, 0
    for position, length in enumerate(lengths):
        if clusters is None or clusters[position] != clusters[cluster_start]:
            cluster_start = position
        longest = max(longest, length)
        if longest * (position + 1 - edges[-1]) > budget:
            # where the cluster began, unless that is where the step did, or it does not fit
            cluster = lengths[cluster_start : position + 1]
            fits = cluster_start > edges[-1] and max(cluster) * len(cluster) <= budget
            edges.append(cluster_start if fits else position)
            longest = max(lengths[edges[-1] : position + 1])
    return [*edges, len(lengths)]


def _halved(steps: list[list[np.ndarray]], count: int) -> list[list[np.ndarray]]:
    """The steps, of which the largest are cut in two until there are `count`."""
    while len(steps) < count:
        sizes = np.array([len(step[0]) for step in steps])
        order = np.argsort(-sizes, kind="stable")[: count - len(steps)]
        largest = {int(i) for i in order if sizes[i] > 1}
        halved = []
        for i, step in enumerate(steps):
            middle = len(step[0]) // 2
            halved += [[part[:middle] for part in step], [part[middle:] for part in step]] if i in largest else [step]
        steps = halved
    return steps


# ---------------------------------------------------------------- what Lightning reads

Key = tuple[int, int]
"""An epoch and the position of an item: all that a data-loader process needs to know. It may outlive an epoch."""


class Position(NamedTuple):
    """Position of a run: the number of an epoch and of the next batch in it."""

    epoch: int = 0
    batch: int = 0


class EpochBatches(Sampler[list[Key]]):
    """Batches of keys, epoch after epoch, from any position on."""

    def __init__(self, plan: FixedSize | ByTokens, start: Position, *, same: bool = False) -> None:
        """Start with any batch, to resume a run; later epochs are read whole. `same`: take the batches of the
        first epoch in every epoch."""
        self.plan, self.start, self.same = plan, start, same
        self.epoch = start.epoch

    @property
    def sampler(self) -> EpochBatches:
        """The object whose `set_epoch` Lightning calls: it expects a sampler inside a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; Lightning calls it before each."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch  # read only now: Lightning may make the iterator before it sets the epoch
        done = self.start.batch if epoch == self.start.epoch else 0
        for batch in self.plan.batches(0 if self.same else epoch)[done:]:
            yield [(epoch, item) for item in batch]

    def __len__(self) -> int:
        # of a whole epoch, also where its first batches are skipped: Lightning counts from there
        return self.plan.steps
