"""Which items a rank reads, in which order and in which batches: a pure function of seed and epoch.

Every epoch and every rank has the same number of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler

from .errors import UserError
from .schema import Pair
from .stored_clips import StoredClip

Key = tuple[int, int]
"""An epoch and the position of an item: all that a data-loader process needs to know. It may outlive an epoch."""

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
    """How items are stored together and who reads them: who needs one item of a block reads all of it."""

    of_item: np.ndarray  # number of the block that each item is in `(items,)`, ascending with the order in storage
    batch_size: int = 1  # items per batch
    workers: int = 0  # processes of a data loader, which get batches in turn; 0 = none
    mixed: bool = True  # whether items of several blocks are shuffled; False leaves that to `ByTokens`


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


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """Items shuffled by (seed, epoch), or in order; every rank a share of its own.

    All ranks get equally many items, a few of them twice: gradients must stay in step, and so must the forward passes
    of a model that is spread over the ranks. What is measured on items counts each of them once (`train.validation`).

    With clusters, items of one cluster stand together, so that a batch of all ranks holds whole clusters as far as they
    fit: the clusters are shuffled, and the items in each. A rank reads `run` items that stand together, then those
    behind the runs of the others.

    With blocks each rank, and each of its data-loader processes, gets consecutive blocks of its own, so that hardly any
    block is read twice. Shuffled are the blocks, and then the items among those of `WINDOW_BLOCKS` blocks; the order
    also depends on batch size and number of processes."""

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
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
            if self.clusters is not None:
                places = torch.randperm(int(self.clusters.max(initial=0)) + 1, generator=generator).numpy()
                place_of_item = places[self.clusters]
                order.sort(key=lambda item: place_of_item[item])
        order = list(islice(cycle(order), len(self) * self.ranks))
        own = list[int]()
        run = 1 if self.clusters is None else self.run or max(1, len(self))
        for begin in range(0, len(self), run):  # of each rank
            count = min(run, len(self) - begin)
            own += order[begin * self.ranks + self.rank * count :][:count]
        return own

    def draw(self, epoch: int, count: int) -> list[int]:
        """The first so many items of an epoch, and of further passes in new orders where they do not suffice."""
        passes = range(-(-count // max(len(self), 1)) if self.size else 0)
        return [item for number in passes for item in self.items(epoch + _NEXT_PASS * number)][:count]

    def _by_blocks(self, blocks: Blocks, epoch: int) -> list[int]:
        """Batch after batch, each of the stream of blocks that its process reads."""
        order = np.arange(self.size)
        if self.shuffle:
            places = np.random.default_rng([self.seed, epoch]).permutation(int(blocks.of_item.max(initial=0)) + 1)
            order = np.argsort(places[blocks.of_item], kind="stable")
        start = self.rank * len(self)
        own = np.take(order, np.arange(start, start + len(self)), mode="wrap")
        batches = np.array_split(np.arange(len(own)), range(blocks.batch_size, len(own), blocks.batch_size))
        streams = max(blocks.workers, 1)
        lengths = [sum(map(len, batches[stream::streams])) for stream in range(streams)]
        parts = np.split(own, np.cumsum(lengths)[:-1])
        if self.shuffle and blocks.mixed:
            for stream, items in enumerate(parts):  # within windows of blocks
                rng = np.random.default_rng([self.seed, epoch, self.rank, stream])
                begins = np.flatnonzero(np.diff(blocks.of_item[items])) + 1
                windows = np.split(items, begins[WINDOW_BLOCKS - 1 :: WINDOW_BLOCKS])
                parts[stream] = np.concatenate([rng.permutation(window) for window in windows])
        rest = [iter(part.tolist()) for part in parts]
        return [item for number, batch in enumerate(batches) for item in islice(rest[number % streams], len(batch))]


@dataclass(frozen=True, eq=False)
class MixedOrder:
    """Items of several kinds in stated proportions, the same pattern on every rank.

    An epoch is one pass (to within an item) through the first kind that has a share; of the others as many items are
    drawn as their share asks for, more than once or not at all if need be, from a new order in every epoch."""

    kinds: Sequence[EpochOrder]  # the items of each kind; positions count on from one kind to the next
    shares: Sequence[float]  # of each kind, in sum 1; a kind with a share has items

    def __len__(self) -> int:
        """Items of this rank."""
        leading = next(number for number, share in enumerate(self.shares) if share > 0)
        return round(len(self.kinds[leading]) / self.shares[leading])

    def items(self, epoch: int) -> list[int]:
        """Positions of this rank's items in an epoch."""
        starts = np.cumsum([0, *(kind.size for kind in self.kinds)])
        streams = [iter(kind.draw(epoch, len(self))) for kind in self.kinds]
        drawn = np.zeros(len(self.kinds), dtype=np.int64)
        mixed = []
        for count in range(1, len(self) + 1):
            # the kind that is furthest behind its share
            number = int(np.argmax(np.multiply(self.shares, count) - drawn))
            drawn[number] += 1
            mixed.append(int(starts[number]) + next(streams[number]))
        return mixed


class Position(NamedTuple):
    """Where a run stands: the number of an epoch and of the next batch in it."""

    epoch: int = 0
    batch: int = 0


class EpochBatches(Sampler[list[Key]]):
    """Batches of keys, epoch after epoch, from any position on."""

    def __init__(self, plan: FixedSize | ByTokens, start: Position, *, same: bool = False) -> None:
        """Start with a batch, for a run that goes on; later epochs are read whole. `same`: take the batches of the
        first epoch in every epoch."""
        self.plan, self.start, self.same = plan, start, same
        self.epoch = start.epoch

    @property
    def sampler(self) -> EpochBatches:
        """Lightning looks here for what it tells the epoch to: it expects a sampler inside a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; Lightning calls it before each."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch  # now: Lightning may make the iterator before it tells the epoch
        done = self.start.batch if epoch == self.start.epoch else 0
        for batch in self.plan.batches(0 if self.same else epoch)[done:]:
            yield [(epoch, item) for item in batch]

    def __len__(self) -> int:
        # of a whole epoch, also where its first batches are skipped: Lightning counts from there
        return self.plan.steps


class FixedSize:
    """Equally many items in each batch of a rank; the last batch may be smaller. Every epoch has `steps` batches."""

    def __init__(self, order: EpochOrder | MixedOrder, size: int) -> None:
        self.order, self.size = order, size
        self.steps = -(-len(order) // size)

    def batches(self, epoch: int) -> list[list[int]]:
        """Positions of the items of each batch."""
        items = self.order.items(epoch)
        return [items[start : start + self.size] for start in range(0, len(items), self.size)]


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
    together differs between epochs, the number of batches does not: the first epoch and a few to spare, for which the
    largest batches are halved. The largest batch of all comes first, so that too little memory shows at once.
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
        if (most := longest_of(kinds)) > budget:
            raise UserError(f"data.batch_tokens {budget}: one item has {most} tokens; expected {most} or more")
        rows = self._planned(0)
        items = sum(len(row[0]) for row in rows)
        self._rows = min(items, len(rows) + len(rows) // _SPARE)
        self.steps = self._rows * readers

    def batches(self, epoch: int) -> list[list[int]]:
        """Positions of the items of each batch."""
        rows = self._planned(epoch)
        if len(rows) > self._rows:  # more than there are to spare: what stands together is that of the first epoch
            rows = self._planned(0)
            order = np.random.default_rng([self._seed, epoch]).permutation(len(rows))
            rows = [rows[number] for number in order]
        rows = _cut_in_two(rows, self._rows)
        return [batch.tolist() for row in rows for batch in row[self._own]]

    def padding(self, epoch: int) -> float:
        """Share of the tokens of an epoch, over all ranks, that are padding."""
        lengths = np.concatenate([kind.lengths for kind in self._kinds])
        rows = [batch for row in _cut_in_two(self._planned(epoch), self._rows) for batch in row]
        padded = sum(lengths[batch].max() * len(batch) for batch in rows)
        return 1 - sum(lengths[batch].sum() for batch in rows) / padded

    def _planned(self, epoch: int) -> list[list[np.ndarray]]:
        """For each step the items of each reader; the steps of all kinds are mixed at random, the largest is first."""
        leading = next(kind for kind in self._kinds if kind.share)
        planned: list[list[list[np.ndarray]]] = []
        first = 0
        for number, kind in enumerate(self._kinds):
            if kind.share:
                count = round(len(leading.streams[0]) * kind.share / leading.share)
                orders = [np.array(stream.draw(epoch, count)) for stream in kind.streams]
                rng = np.random.default_rng([self._seed, epoch, number])
                rows = _cut(orders, kind, self._budget, rng)
                planned.append([[items + first for items in row] for row in rows])
            first += len(kind.lengths)
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(np.repeat(np.arange(len(planned)), [len(rows) for rows in planned]))
        rest = [iter(rows) for rows in planned]
        rows = [next(rest[kind]) for kind in order]
        lengths = np.concatenate([np.asarray(kind.lengths) * kind.rows for kind in self._kinds])
        largest = max(range(len(rows)), key=lambda row: max(lengths[batch].max() * len(batch) for batch in rows[row]))
        return [rows[largest], *rows[:largest], *rows[largest + 1 :]]


def longest_of(kinds: Sequence[Kind]) -> int:
    """Tokens of the longest item that is read; of a comparison those of both pairs, padding included."""
    return max(kind.rows * int(kind.lengths.max()) for kind in kinds if kind.share and len(kind.lengths))


def _cut(orders: Sequence[np.ndarray], kind: Kind, budget: int, rng: np.random.Generator) -> list[list[np.ndarray]]:
    """For each step equally many items of each order, of like length, in a random order of steps within windows.

    A step ends where its longest item times its number of items would pass the budget.
    """
    rows = []
    for start in range(0, len(orders[0]), kind.window):
        parts = [order[start : start + kind.window] for order in orders]
        keys = [kind.lengths[part] * rng.uniform(1, 1 + JITTER, len(part)) for part in parts]
        if kind.clusters is not None:
            numbers = [kind.clusters[part] for part in parts]
            keys = [_of_cluster(key, own) for key, own in zip(keys, numbers, strict=True)]
        parts = [part[np.argsort(key, kind="stable")] for part, key in zip(parts, keys, strict=True)]
        lengths = (np.max([kind.lengths[part] for part in parts], axis=0) * kind.rows).tolist()
        edges, longest, begun = [0], 0, 0
        for position, length in enumerate(lengths):
            if kind.clusters is None or kind.clusters[parts[0][position]] != kind.clusters[parts[0][begun]]:
                begun = position
            longest = max(longest, length)
            if longest * (position + 1 - edges[-1]) > budget:
                # where the cluster began, unless that is where the step did, or it does not fit
                whole = begun > edges[-1] and max(lengths[begun : position + 1]) * (position + 1 - begun) <= budget
                edges.append(begun if whole else position)
                longest = max(lengths[edges[-1] : position + 1])
        steps = [[part[begin:end] for part in parts] for begin, end in pairwise([*edges, len(parts[0])])]
        rows += [steps[number] for number in rng.permutation(len(steps))]
    return rows


def _of_cluster(keys: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """For each item the largest key of its cluster; keys were drawn, so that no two clusters have the same."""
    _, number = np.unique(clusters, return_inverse=True)
    largest = np.zeros(len(keys))
    np.maximum.at(largest, number, keys)
    return largest[number]


def _cut_in_two(rows: list[list[np.ndarray]], count: int) -> list[list[np.ndarray]]:
    """As many steps as asked for: the largest are cut in two."""
    while len(rows) < count:
        sizes = np.array([len(row[0]) for row in rows])
        order = np.argsort(-sizes, kind="stable")[: count - len(rows)]
        largest = {int(number) for number in order if sizes[number] > 1}
        halved = []
        for number, row in enumerate(rows):
            middle = len(row[0]) // 2
            halved += [[part[:middle] for part in row], [part[middle:] for part in row]] if number in largest else [row]
        rows = halved
    return rows
