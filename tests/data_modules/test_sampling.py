"""What a rank reads, in which batches: every item once, in step on every rank, in stated shares, block by block."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.sampling import (
    WINDOW_BLOCKS,
    Blocks,
    ByTokens,
    EpochBatches,
    EpochOrder,
    FixedSize,
    Kind,
    Position,
)
from empathy_judge.data_modules.settings import DataSettings


def times_read(blocks: np.ndarray, batches: list[list[int]], workers: int, kept_blocks: int) -> int:
    """How often blocks are read by processes that get batches in turn and keep so many blocks each."""
    read = 0
    for worker in range(workers):
        kept: dict[int, None] = {}
        for item in (item for batch in batches[worker::workers] for item in batch):
            read += blocks[item] not in kept
            kept.pop(blocks[item], None)
            kept[blocks[item]] = None
            if len(kept) > kept_blocks:
                del kept[next(iter(kept))]
    return read


def mixed(sizes: list[int], shares: list[float], epoch: int = 0, rank: int = 0, ranks: int = 1) -> list[int]:
    kinds = [EpochOrder(size, shuffle=True, seed=number, rank=rank, ranks=ranks) for number, size in enumerate(sizes)]
    order = FixedSize(kinds, 1, shares)
    items = [item for (item,) in order.batches(epoch)]
    assert len(items) == order.steps
    return items


def kinds_of(items: list[int], sizes: list[int]) -> list[int]:
    return np.searchsorted(np.cumsum(sizes), items, side="right").tolist()


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.0), (0.7, 0.2, 0.1), (0.25, 0.0, 0.75), (0.9, 0.1, 0.0)])
def test_every_stretch_of_an_epoch_has_the_stated_proportions(shares):
    sizes = [40, 7, 11]
    items = mixed(sizes, list(shares))
    found = kinds_of(items, sizes)
    for end in range(1, len(items) + 1):
        counts = Counter(found[:end])
        assert all(abs(counts[kind] - share * end) < 1.5 for kind, share in enumerate(shares))
    # The pairs of a batch are as many as a dry run without data says
    settings = DataSettings("", preference_share=shares[1], counterfactual_share=shares[2])
    for size in (1, 3, 4, 16):
        batches = [found[start : start + size] for start in range(0, len(found), size)]
        most = max(sum(1 + (kind > 0) for kind in batch) for batch in batches)
        assert 0 <= most - settings.pairs_in(size) <= (min(shares) > 0)  # of three kinds, one more
    rated = [item for item in items if item < 40]
    assert len(items) == round(40 / shares[0])
    assert len(set(rated)) >= 39  # one pass, to within an item
    others = Counter(item for item in items if item >= 40)
    for start, size, share in ((40, 7, shares[1]), (47, 11, shares[2])):
        times = [others[item] for item in range(start, start + size)]
        assert max(times) - min(times) <= 1 or share == 0  # used evenly


def test_without_comparisons_the_order_is_that_of_the_rated_pairs():
    plain = EpochOrder(13, shuffle=True, seed=0).items(5)
    assert mixed([13, 0, 0], [1.0, 0.0, 0.0], epoch=5) == plain
    assert sorted(mixed([0, 6, 0], [0.0, 1.0, 0.0])) == list(range(6))


def test_ranks_have_the_same_pattern_and_epochs_another_order():
    sizes, shares = [20, 9, 0], [0.6, 0.4, 0.0]
    first, second = (mixed(sizes, shares, 3, rank, 2) for rank in range(2))
    assert kinds_of(first, sizes) == kinds_of(second, sizes)
    assert mixed(sizes, shares, 3, 0, 2) == first
    assert mixed(sizes, shares, 4, 0, 2) != first
    together = [item for item in first + second if item < 20]
    assert len(together) == 20
    assert len(set(together)) >= 18


@pytest.mark.parametrize("ranks", [1, 2])
def test_clusters_stand_together(ranks):
    clusters = np.repeat(np.arange(6), 5)
    how = {"shuffle": True, "seed": 2, "ranks": ranks, "clusters": clusters}
    read = [EpochOrder(30, rank=rank, **how).items(0) for rank in range(ranks)]
    order = [item for both in zip(*read, strict=True) for item in both]
    assert sorted(order) == list(range(30))
    found = clusters[order]
    assert (np.diff(found) != 0).sum() == 5  # six clusters, one after the other
    assert found.tolist() != sorted(found)
    assert order[:5] != sorted(order[:5])


@pytest.mark.parametrize("run", [5, 0])
def test_a_device_reads_whole_clusters(run):
    """Where they are as large as its batches, and where it has all of an epoch's in one run."""
    clusters = np.repeat(np.arange(8), 5)
    read = [
        EpochOrder(40, shuffle=True, seed=1, rank=rank, ranks=2, clusters=clusters, run=run).items(3) for rank in (0, 1)
    ]
    assert sorted(read[0] + read[1]) == list(range(40))
    assert [(np.diff(clusters[own]) != 0).sum() for own in read] == [3, 3]


def order_of(blocks: np.ndarray, batch: int, workers: int, epoch: int = 0, **options: Any) -> list[int]:
    order = EpochOrder(len(blocks), blocks=Blocks(blocks, batch, workers), **options)
    items = order.items(epoch)
    assert len(items) == len(order)
    return items


def uneven_blocks(items: int) -> np.ndarray:
    """Blocks of 1 to 9 items."""
    sizes = np.random.default_rng(1).integers(1, 10, items)
    return np.repeat(np.arange(items), sizes)[:items]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("items", [0, 1, 7, 500])
def test_every_item_once(items, ranks, workers):
    blocks = uneven_blocks(items)
    for shuffle in (True, False):
        read = [order_of(blocks, 4, workers, shuffle=shuffle, rank=rank, ranks=ranks) for rank in range(ranks)]
        counts = Counter(item for part in read for item in part)
        assert set(counts) == set(range(items))
        assert {len(part) for part in read} == {-(-items // ranks)}
        assert sum(counts.values()) - items == -items % ranks


def test_seed_epoch_and_rank():
    blocks = uneven_blocks(300)
    orders = {
        tuple(order_of(blocks, 4, 2, shuffle=True, seed=seed, epoch=epoch, rank=rank, ranks=2))
        for seed in range(2) for epoch in range(3) for rank in range(2)
    }  # fmt: skip
    assert len(orders) == 12
    again = order_of(blocks, 4, 2, shuffle=True, seed=1, epoch=2, rank=1, ranks=2)
    assert tuple(again) in orders


def test_batches_mix_blocks():
    blocks = np.repeat(np.arange(64), 32)
    order = order_of(blocks, 16, 0, shuffle=True)
    per_batch = [len(set(blocks[batch])) for batch in np.array(order).reshape(-1, 16)]
    assert min(per_batch) >= 6
    assert np.mean(per_batch) > 9  # 16 out of as many blocks at random: 10.3


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (2, 3)])
def test_blocks_are_hardly_read_twice(shuffle, ranks, workers):
    """Each process keeps the blocks of one window and no more."""
    blocks = np.repeat(np.arange(400), 8)
    read = 0
    for rank in range(ranks):
        order = order_of(blocks, 16, workers, shuffle=shuffle, rank=rank, ranks=ranks)
        batches = [order[start : start + 16] for start in range(0, len(order), 16)]
        read += times_read(blocks, batches, max(workers, 1), WINDOW_BLOCKS)
    # one window may begin in the middle of a block, once for each process and window
    assert 400 <= read <= 400 * 1.01 + 2 * ranks * max(workers, 1)


def lengths_of(items: int, seed: int = 0) -> np.ndarray:
    """Tokens of pairs of two clips of 2 to 8 s at 25 tokens a second, with 40 of text."""
    return 40 + np.random.default_rng(seed).integers(50, 200, (items, 2)).sum(1)


def kind(lengths: np.ndarray, readers: int, seed: int = 0, blocks: np.ndarray | None = None, **values) -> Kind:
    given = None if blocks is None else Blocks(blocks, mixed=False)
    streams = [
        EpochOrder(len(lengths), shuffle=True, seed=seed, rank=reader, ranks=readers, blocks=given)
        for reader in range(readers)
    ]
    return Kind(streams, lengths, **values)


def plans(lengths: np.ndarray, budget: int, ranks: int, seed: int = 0, readers: int = 1, **values) -> list[ByTokens]:
    kinds = [kind(lengths, ranks * readers, seed, **values)]
    return [ByTokens(kinds, budget, seed=seed, rank=rank, ranks=ranks) for rank in range(ranks)]


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize(("items", "ranks", "readers"), [(1, 1, 1), (7, 3, 1), (500, 1, 1), (501, 4, 1), (500, 2, 3)])
def test_batches_by_tokens_have_every_item_once_and_ranks_in_step(items, ranks, readers, epoch):
    lengths, budget = lengths_of(items), 2_000
    found = [plan.batches(epoch) for plan in plans(lengths, budget, ranks, readers=readers)]
    counts = Counter(item for batches in found for batch in batches for item in batch)
    assert set(counts) == set(range(items))
    assert sum(counts.values()) - items == -items % (ranks * readers)
    steps = {plan.steps for plan in plans(lengths, budget, ranks, readers=readers)}
    assert {len(batches) for batches in found} == steps
    for together in zip(*found, strict=True):
        assert len({len(batch) for batch in together}) == 1
        assert all(0 < max(lengths[batch]) * len(batch) <= budget for batch in together)


def test_the_largest_batch_comes_first():
    lengths = lengths_of(1_000)
    (plan,) = plans(lengths, 3_000, 1)
    sizes = [max(lengths[batch]) * len(batch) for batch in plan.batches(2)]
    assert sizes[0] == max(sizes)


@pytest.mark.parametrize(("ranks", "most"), [(1, 0.05), (8, 0.06)])
def test_little_is_padding(ranks, most):
    lengths = lengths_of(4_000)
    plan = plans(lengths, 4_000, ranks)[0]
    batches = [batch for one in plans(lengths, 4_000, ranks) for batch in one.batches(1)]
    padded = sum(max(lengths[batch]) * len(batch) for batch in batches)
    share = 1 - sum(lengths[batch].sum() for batch in batches) / padded
    assert share == pytest.approx(plan.padding(1))
    assert share < most
    at_random = np.random.default_rng(0).permutation(4_000).reshape(-1, 16)
    assert 1 - lengths.sum() / (lengths[at_random].max(1) * 16).sum() > 0.2


def test_epochs_differ_in_what_stands_together_and_repeat():
    (plan,) = plans(lengths_of(400), 2_000, 1)
    together = [{frozenset(pair) for batch in plan.batches(n) for pair in pairwise(sorted(batch))} for n in range(3)]
    assert plan.batches(1) == plans(lengths_of(400), 2_000, 1)[0].batches(1)
    assert plan.batches(1) != plans(lengths_of(400), 2_000, 1, seed=1)[0].batches(1)
    assert len(together[0] & together[1]) < 0.5 * len(together[0])
    assert len({plan.steps, *(len(plan.batches(epoch)) for epoch in range(20))}) == 1


def test_an_epoch_that_needs_more_batches_than_there_are_takes_those_of_the_first():
    """Few items, so that there is none to spare."""
    lengths = lengths_of(60, seed=3)
    (plan,) = plans(lengths, 1_000, 1)
    first = {frozenset(batch) for batch in plan.batches(0)}
    same = [epoch for epoch in range(1, 40) if {frozenset(batch) for batch in plan.batches(epoch)} == first]
    assert 0 < len(same) < 39
    orders = {tuple(map(tuple, plan.batches(epoch))) for epoch in same}
    assert len(orders) == len(same) or len(same) == 1
    for epoch in range(40):
        assert len(plan.batches(epoch)) == plan.steps
        assert sorted(item for batch in plan.batches(epoch) for item in batch) == list(range(60))


def test_kinds_have_their_shares_and_do_not_mix():
    rated, compared = lengths_of(300), lengths_of(90, seed=1)
    kinds = [kind(rated, 2, share=0.75), kind(compared, 2, seed=1, share=0.25, rows=2)]
    found = [ByTokens(kinds, 2_000, seed=0, rank=rank, ranks=2).batches(0) for rank in range(2)]
    counts = Counter(item for batches in found for batch in batches for item in batch)
    assert all(counts[item] == 1 for item in range(300))
    assert sum(counts[item] for item in range(300, 390)) == 100  # a third of 300
    for batch in (batch for batches in found for batch in batches):
        assert len({item < 300 for item in batch}) == 1
        longest = max([*rated, *(2 * compared)][item] for item in batch)
        assert longest * len(batch) <= 2_000


def test_blocks_are_hardly_read_twice_in_batches_by_tokens():
    """Every data-loader process of every rank has blocks of its own, a window of them at a time."""
    blocks = np.repeat(np.arange(200), 8)
    lengths = lengths_of(len(blocks))
    readers, window = 2, 16 * 8
    every = plans(lengths, 2_000, 2, readers=readers, blocks=blocks, window=window)
    # those of a window, and two that lie across its ends
    read = sum(times_read(blocks, plan.batches(1), readers, 18) for plan in every)
    assert 200 <= read < 200 * 1.2


@pytest.mark.parametrize("ranks", [1, 3])
def test_groups_stay_together_in_batches_by_tokens(ranks):
    """So that a context that its responses share is read once."""
    lengths, clusters = lengths_of(600), np.random.default_rng(1).permutation(600) // 4
    streams = [EpochOrder(600, shuffle=True, rank=rank, ranks=ranks, clusters=clusters, run=0) for rank in range(ranks)]
    given = [Kind(streams, lengths, clusters=clusters)]
    found = [ByTokens(given, 4_000, seed=0, rank=rank, ranks=ranks).batches(3) for rank in range(ranks)]
    assert sorted({item for batches in found for batch in batches for item in batch}) == list(range(600))
    parts = Counter(int(cluster) for batches in found for batch in batches for cluster in {*clusters[batch]})
    assert np.mean([count == 1 for count in parts.values()]) > 0.75  # the others are cut by the budget
    at_random = [batch for one in plans(lengths, 4_000, 1) for batch in one.batches(3)]
    assert Counter(c for batch in at_random for c in {*clusters[batch].tolist()}).most_common()[-1][1] > 1
    assert all(max(lengths[batch]) * len(batch) <= 4_000 for batches in found for batch in batches)


def test_one_item_that_is_too_long_is_named_by_its_tokens():
    with pytest.raises(UserError, match=r"data.batch_tokens 100: one item has \d+ tokens; expected \d+ or more"):
        plans(lengths_of(10), 100, 1)


def test_a_run_goes_on_at_any_batch():
    (plan,) = plans(lengths_of(200), 2_000, 1)
    whole = [list(EpochBatches(plan, Position(epoch))) for epoch in range(3)]
    batches = EpochBatches(plan, Position(1, 4))
    assert len(batches) == plan.steps == len(whole[0])
    assert list(batches) == whole[1][4:]
    batches.set_epoch(2)
    assert list(batches) == whole[2]
    again = EpochBatches(plan, Position(), same=True)
    again.set_epoch(7)
    assert list(again) == [[(7, item) for item in batch] for batch in plan.batches(0)]
