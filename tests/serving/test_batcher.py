"""The queue: who is scored with whom, who waits for whom, and who is never scored."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.scoring.audio_inputs import make_pair
from empathy_judge.serving.batcher import Batcher, Full, QueuedPair, work_of

from ..conftest import until
from .services import RATE, FakeScorer

CLIP = Clip(np.full(RATE, 0.5, np.float32), RATE)


def jobs(names: str, work: int = 1, seconds: float = 10.0) -> list[QueuedPair]:
    """A pair of nothing much for each letter."""
    return [QueuedPair(make_pair(name, None, CLIP), 0.9, work, seconds) for name in names]


@pytest.fixture
def batcher(scorer) -> Iterator[Batcher]:
    """One with room for twelve pairs."""
    batcher = Batcher(scorer, 12, lambda pairs, seconds: None, pytest.fail)  # type: ignore[arg-type]
    yield batcher
    scorer.open.set()
    batcher.close()


def submitted(batcher: Batcher, some: list[QueuedPair]) -> list[QueuedPair]:
    """These, one after the other."""
    for job in some:
        batcher.submit([job])
    return some


def held_up(batcher: Batcher, scorer: FakeScorer) -> QueuedPair:
    """A job that does not end until the judge may go on."""
    scorer.open.clear()
    (first,) = submitted(batcher, jobs("1"))
    until(lambda: scorer.batches)
    return first


def order(scorer: FakeScorer) -> list[str]:
    """Names of pairs, by batches."""
    return ["".join(pair.pair_id for pair in some) for some, _ in scorer.batches]


def test_what_comes_while_the_judge_is_free_is_scored_at_once(batcher):
    (job,) = submitted(batcher, jobs("a"))
    assert getattr(job.future.result(10), "points", None) == {"empathy": 3.0}
    assert (job.batch, job.waited < 5) == (1, True)


def test_who_is_told_that_a_gpu_is_lost(scorer, monkeypatch):
    """Not of any other error, nor where it lacks memory alone."""
    lost: list[Exception] = []
    batcher = Batcher(scorer, 12, lambda pairs, seconds: None, lost.append)  # type: ignore[arg-type]
    errors = [ValueError("x"), torch.OutOfMemoryError("CUDA out of memory."), torch.AcceleratorError("CUDA error: x")]
    for error in errors:
        monkeypatch.setattr(scorer, "assess_pairs", mock.Mock(side_effect=error))
        (job,) = submitted(batcher, jobs("a"))
        assert job.future.exception(10) is error
    assert lost == errors[2:]
    batcher.close()


def test_what_was_dropped_is_never_begun_and_its_place_is_free(batcher, scorer):
    first = held_up(batcher, scorer)
    batcher.submit(gone := jobs("abcdef"))
    submitted(batcher, jobs("ghijkl"))
    with pytest.raises(Full):
        batcher.submit(jobs("m"))
    batcher.drop([*gone, first])  # the first was begun already
    assert [job.pair.pair_id for job in batcher.jobs] == list("ghijkl")
    with pytest.raises(Full):  # all or none
        batcher.submit(jobs("nopqrst"))
    (late,) = submitted(batcher, jobs("z"))
    scorer.open.set()
    assert late.future.result(10)
    assert first.future.result(10)
    assert order(scorer) == ["1", "ghij", "klz"]


def test_closing_scores_what_waits(batcher, scorer):
    first = held_up(batcher, scorer)
    waiting = submitted(batcher, jobs("abcde"))
    scorer.open.set()
    batcher.close()
    assert all(job.future.done() and job.future.result() for job in (first, *waiting))


@pytest.mark.parametrize(
    ("windows", "situation", "work"), [(1, "", 1), (6, "x" * 999, 6), (1, "x" * 1000, 2), (5, "\N{BOUQUET}" * 750, 20)]
)
def test_work_is_windows_each_with_the_whole_text(windows, situation, work):
    assert work_of(windows, situation) == work


@pytest.mark.parametrize(("seconds", "situation", "cost"), [(2, "", 5), (90, "", 90), (90, "x" * 1000, 180)])
def test_a_pair_costs_what_is_read_for_it_and_never_less_than_a_few_seconds(seconds, situation, cost):
    assert QueuedPair(make_pair("a", None, CLIP, situation), 0.9, seconds=seconds).cost == cost


def test_who_came_first_is_scored_first_and_those_with_long_texts_or_much_audio_alone(batcher, scorer):
    held_up(batcher, scorer)
    batcher.submit(jobs("uv"))
    text = QueuedPair(make_pair("a", None, CLIP, "x" * 1000), 0.9)
    batcher.submit([text, *jobs("w"), *jobs("c", seconds=61.0)])
    last = submitted(batcher, jobs("xyz"))
    scorer.open.set()
    batcher.close()
    assert all(job.future.result(10) for job in last)
    assert order(scorer) == ["1", "uvwx", "a", "c", "yz"]


def test_nothing_is_let_in_that_would_have_to_wait_too_long(scorer):
    batcher = Batcher(scorer, 100, lambda pairs, seconds: None, pytest.fail, patience=30.0)  # type: ignore[arg-type]
    held_up(batcher, scorer)
    submitted(batcher, jobs("abc"))
    submitted(batcher, jobs("x", work=2, seconds=20.0))  # and one is being scored
    batcher.pace = 0.5  # 10 s of audio take 5 s
    assert batcher.seconds() == 30.0
    assert batcher.has_place()
    assert not batcher.has_place(long=True)  # half of the time is for short pairs
    with pytest.raises(Full):
        batcher.submit(jobs("l", seconds=61.0))
    batcher.pace = 0.51
    assert not batcher.has_place()
    with pytest.raises(Full):
        batcher.submit(jobs("y"))
    scorer.open.set()
    batcher.close()
    assert 0 < batcher.pace < 0.51  # it was measured
