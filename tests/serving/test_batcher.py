"""The queue: who is scored with whom, who waits for whom, and who is never scored."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import numpy as np
import pytest
from empathy_judge.audio_inputs import make_pair
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Pair
from empathy_judge.serving.batcher import Batcher, Full

from .services import RATE, FakeScorer, until


def pairs(*names: str) -> list[Pair]:
    """Pairs of nothing much."""
    clip = Clip(np.full(RATE, 0.5, np.float32), RATE)
    return [make_pair(name, None, clip) for name in names]


@pytest.fixture
def sizes() -> list[int]:
    """How many pairs were scored at a time: nothing yet."""
    return []


@pytest.fixture
def batcher(scorer: FakeScorer, sizes: list[int]) -> Iterator[Batcher]:
    """One with room for six pairs, which waits for ever for those who are coming."""
    batcher = Batcher(scorer, 6, 1000.0, lambda pairs, seconds: sizes.append(pairs))  # type: ignore[arg-type]
    yield batcher
    scorer.open.set()
    batcher.announce(-batcher._coming)
    batcher.close()


def test_who_is_alone_does_not_wait(batcher: Batcher) -> None:
    begun = time.monotonic()
    (job,) = batcher.submit(pairs("a"), 0.9)
    assert job.future.result(10).points == {"empathy": 3.0}
    assert time.monotonic() - begun < 5  # of 1000
    assert (job.batch, job.waited < 5) == (1, True)


def test_those_who_are_coming_are_waited_for(batcher: Batcher, sizes: list[int]) -> None:
    batcher.announce(2)
    first = batcher.submit(pairs("a"), 0.9)
    batcher.announce(-1)
    second = batcher.submit(pairs("b"), 0.9)
    time.sleep(0.05)
    assert not first[0].future.done()
    batcher.announce(-1)  # the last one gave up
    assert [job.future.result(10).points["empathy"] for job in first + second] == [3.0, 3.0]
    until(lambda: sizes == [2])


def test_nobody_is_waited_for_when_the_batch_is_full(batcher: Batcher, sizes: list[int]) -> None:
    batcher.announce(1)
    jobs = batcher.submit(pairs(*"abcd"), 0.9)
    assert all(job.future.result(10) for job in jobs)
    until(lambda: sizes == [4])


def test_waiting_ends(scorer: FakeScorer) -> None:
    batcher = Batcher(scorer, 6, 0.02, lambda pairs, seconds: None)  # type: ignore[arg-type]
    batcher.announce(1)
    (job,) = batcher.submit(pairs("a"), 0.9)
    assert job.future.result(10)
    assert job.waited >= 0.02
    batcher.close()


def test_what_was_dropped_is_never_begun_and_its_place_is_free(batcher: Batcher, scorer: FakeScorer) -> None:
    scorer.open.clear()
    (first,) = batcher.submit(pairs("first"), 0.9)
    until(lambda: scorer.batches)
    gone, stay = batcher.submit(pairs(*"abcdef"), 0.9)[:3], batcher.submit
    assert batcher.is_full
    with pytest.raises(Full):
        stay(pairs("g"), 0.9)
    batcher.drop([*gone, first])  # the first was begun already
    assert batcher.waiting == 3
    with pytest.raises(Full):  # all or none
        batcher.submit(pairs(*"wxyz"), 0.9)
    (late,) = batcher.submit(pairs("late"), 0.9)
    scorer.open.set()
    assert late.future.result(10)
    assert first.future.result(10)
    assert [pair.pair_id for some, _ in scorer.batches for pair in some] == ["first", "d", "e", "f", "late"]


def test_those_with_long_texts_are_scored_alone_and_by_turns_with_others(batcher: Batcher, scorer: FakeScorer) -> None:
    scorer.open.clear()
    batcher.submit(pairs("first"), 0.9)
    until(lambda: scorer.batches)
    long = [dataclasses.replace(pair, situation="word " * 300) for pair in pairs(*"abc")]
    jobs = batcher.submit([*long, *pairs(*"xy")], 0.9)
    scorer.open.set()
    assert all(job.future.result(10) for job in jobs)
    found = ["".join(pair.pair_id for pair in some) for some, _ in scorer.batches]
    assert found == ["first", "a", "xy", "b", "c"]


def test_closing_scores_what_waits(batcher: Batcher, scorer: FakeScorer) -> None:
    scorer.open.clear()
    jobs = batcher.submit(pairs("first"), 0.9)
    until(lambda: scorer.batches)
    batcher.announce(1)
    jobs += batcher.submit(pairs(*"abcde"), 0.9)
    scorer.open.set()
    batcher.close()
    assert all(job.future.done() and job.future.result() for job in jobs)


def test_how_long_to_wait_grows_with_the_queue(batcher: Batcher, scorer: FakeScorer) -> None:
    assert batcher.retry_after() == 1
    scorer.open.clear()
    batcher.submit(pairs("first"), 0.9)
    until(lambda: scorer.batches)
    batcher.submit(pairs(*"abcdef"), 0.9)
    batcher._seconds_per_pair = 3.0
    assert batcher.retry_after() == 18
    batcher._seconds_per_pair = 1000.0
    assert batcher.retry_after() == 60
