"""Rated pairs and comparisons in stated proportions, the same pattern on every rank."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from empathy_judge.data_modules.sampling import EpochOrder, MixedOrder


def mixed(sizes: list[int], shares: list[float], epoch: int = 0, rank: int = 0, ranks: int = 1) -> list[int]:
    kinds = [EpochOrder(size, shuffle=True, seed=number, rank=rank, ranks=ranks) for number, size in enumerate(sizes)]
    order = MixedOrder(kinds, shares)
    items = order.items(epoch)
    assert len(items) == len(order)
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
