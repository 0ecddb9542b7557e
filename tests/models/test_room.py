"""How many items are computed at once."""

from __future__ import annotations

import pytest
from empathy_judge.models.room import Room


def test_batches_become_smaller_where_memory_runs_out_and_stay_so():
    room, seen = Room(size=4), []

    def compute(batch):
        seen.append(tuple(batch))
        if sum(batch) > 20:
            raise MemoryError
        return [2 * item for item in batch]

    items = [9, 9, 8, 8, 8, 7, 7, 7, 6]
    assert room.run(items, items, compute, lambda item: -1) == [2 * item for item in items]
    assert seen[:2] == [(9, 9, 8, 8), (9, 9)]
    assert all(len(batch) == 2 for batch in seen[1:-1])
    seen.clear()
    assert room.run([9, 9, 8], [9, 9, 8], compute, lambda item: -1) == [18, 18, 16]
    assert seen == [(9, 9), (8,)]  # it remembers
    assert Room(4).run([30, 28], [30, 28], compute, lambda item: -1) == [-1, -1]
    assert Room(4).run([], [], compute, lambda item: -1) == []


def test_short_items_do_not_wait_for_a_long_one():
    seen = []

    def compute(batch):
        seen.append(list(batch))
        return batch

    lengths = [100, 41, 40, 40, 35, 10, 9]
    assert Room(4).run(lengths, lengths, compute, lambda item: -1) == lengths
    assert seen == [[100], [41, 40, 40, 35], [10, 9]]


def test_other_errors_are_no_matter_of_memory():
    def fail(batch):
        raise RuntimeError("another")

    with pytest.raises(RuntimeError, match="another"):
        Room(4).run([1], [1], fail, lambda item: -1)
