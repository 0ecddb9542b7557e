"""Batches by tokens: every item once, equally many on every rank, of like length, and as many in every epoch."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from empathy_judge.data_modules import measuring
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.measuring import DURATIONS_FILE, clip_seconds
from empathy_judge.data_modules.sampling import Blocks, ByTokens, EpochBatches, EpochOrder, Kind, Position
from empathy_judge.data_modules.schema import PairDataset


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
def test_every_item_once_and_ranks_in_step(items, ranks, readers, epoch):
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


def test_blocks_are_hardly_read_twice():
    """Every data-loader process of every rank has blocks of its own, a window of them at a time."""
    blocks = np.repeat(np.arange(200), 8)
    lengths = lengths_of(len(blocks))
    readers, window = 2, 16 * 8
    read = 0
    for plan in plans(lengths, 2_000, 2, readers=readers, blocks=blocks, window=window):
        batches = plan.batches(1)
        for worker in range(readers):
            kept: dict[int, None] = {}
            for item in (item for batch in batches[worker::readers] for item in batch):
                read += blocks[item] not in kept
                kept.pop(blocks[item], None)
                kept[blocks[item]] = None
                if len(kept) > 18:  # those of a window, and two that lie across its ends
                    del kept[next(iter(kept))]
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


# ---------------------------------------------------------------- durations


def test_durations_are_read_once(dataset_folder, tmp_path, monkeypatch):
    import shutil

    folder = Path(shutil.copytree(dataset_folder, tmp_path / "data"))
    (folder / DURATIONS_FILE).unlink(missing_ok=True)
    dataset = PairDataset.load(folder)
    found = clip_seconds(dataset)
    for pair in dataset.pairs:
        for source in (pair.response, *(turn.audio for turn in pair.context)):
            assert found[source] == pytest.approx(measuring.probe(source).seconds)
    monkeypatch.setattr(measuring, "probe", None)
    assert clip_seconds(PairDataset.load(folder)) == found
    stored = json.loads((folder / DURATIONS_FILE).read_text())
    monkeypatch.undo()
    name = next(iter(stored["seconds"]))
    for damage in ({"content_hash": "x"}, {"seconds": {name: -1}}, {"seconds": {}}, {"seconds": None}):
        (folder / DURATIONS_FILE).write_text(json.dumps({**stored, **damage}))
        assert clip_seconds(PairDataset.load(folder)) == found
