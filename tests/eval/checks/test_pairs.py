"""Checks of whole pairs change what they say and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.checks import CHECKS
from empathy_judge.eval.checks.pairs import context_only, context_swapped, response_only, response_swapped, silent
from empathy_judge.eval.checks.recording import change_clips

from ..conftest import tone_clip, tone_of
from .conftest import ALL_FIELDS, pairs_in_groups, unchanged

RESPONSE_FIELDS = {"response", "response_text", "response_speaker", "system_id"}


CONTEXT_FIELDS = {"context", "situation", "context_text", "context_speaker"}


def test_response_only_takes_the_whole_context_and_nothing_else():
    pairs = pairs_in_groups([2, 2])
    for before, after in zip(pairs, response_only(pairs), strict=True):
        assert (after.context, after.situation, after.context_text, after.context_speaker) == ((), None, None, None)
        assert unchanged(before, after, ALL_FIELDS - CONTEXT_FIELDS)


@pytest.mark.parametrize("sizes", [[1, 1], [3, 3], [5, 1, 1, 3], [4] * 30, [1] * 50])
def test_swapped_contexts_come_from_other_groups_and_each_is_used_once(sizes):
    pairs = pairs_in_groups(sizes)
    for seed in range(5):
        swapped = context_swapped(pairs, seed)
        assert Counter(pair.situation for pair in swapped) == Counter(pair.situation for pair in pairs)
        for before, after in zip(pairs, swapped, strict=True):
            assert after.situation != before.situation
            donor = next(pair for pair in pairs if pair.situation == after.situation)
            assert unchanged(donor, after, {"context", "context_text", "context_speaker"})
            assert unchanged(before, after, ALL_FIELDS - CONTEXT_FIELDS)


def test_a_group_of_more_than_half_gets_foreign_contexts_too():
    pairs = pairs_in_groups([8, 1, 2])
    for before, after in zip(pairs, context_swapped(pairs), strict=True):
        assert after.situation != before.situation
        assert after.response is before.response


def test_the_swap_is_seeded_and_random():
    pairs = pairs_in_groups([3] * 40)
    first, again, other = ([pair.situation for pair in context_swapped(pairs, seed)] for seed in (0, 0, 1))
    assert first == again
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 20
    # The contexts of one group do not go to another one together.
    assert len(set(first[:6])) > 3


def test_another_group_with_the_same_context_is_avoided_where_possible():
    pairs = pairs_in_groups([2] * 20)
    shared = [
        replace(pair, context=(Turn("user", tone_clip(int(pair.group_id[1:]) % 2)),), situation=None) for pair in pairs
    ]
    for before, after in zip(shared, context_swapped(shared, seed=3), strict=True):
        assert tone_of(before.context[0].audio) != tone_of(after.context[0].audio)


def test_silence_lasts_as_long_as_the_clip_it_replaces(tmp_path):
    stereo, embedded = tmp_path / "stereo.wav", tmp_path / "mono.flac"
    soundfile.write(stereo, np.random.default_rng(0).uniform(-1, 1, (4410, 2)), 44100)
    soundfile.write(embedded, np.full(1600, 0.5), 16000)
    situation: dict[str, Any] = {"situation": "she lost her cat", "context_text": "hello", "response_text": "hi"}
    pair = Pair("p", embedded.read_bytes(), (Turn("user", stereo), Turn("assistant", tone_clip(0.5))), **situation)
    (after,) = silent([pair])
    clips = [turn.audio for turn in after.context] + [after.response]
    assert [turn.role for turn in after.context] == ["user", "assistant"]
    for quiet, samples, rate in zip(clips, (4410, 800, 1600), (44100, 8000, 16000), strict=True):
        assert isinstance(quiet, Clip)
        assert (len(quiet.samples), quiet.rate) == (samples, rate)
        assert not quiet.samples.any()
    assert (after.situation, after.context_text, after.response_text) == ("she lost her cat", None, None)


def test_an_unreadable_clip_is_left_to_the_judge(tmp_path):
    broken = [
        replace(pair, response=tmp_path / f"{number}.wav", context=(Turn("user", tmp_path / "gone.wav"),))
        for number, pair in enumerate(pairs_in_groups([2, 2]))
    ]
    assert [pair.response for pair in silent(broken)] == [pair.response for pair in broken]
    assert change_clips(broken, lambda clip, rng: clip, 0) == tuple(broken)
    assert len(context_swapped(broken)) == len(response_swapped(broken)) == 4
    assert CHECKS["response_swapped"].refuses(broken) is None


@pytest.mark.parametrize("sizes", [[2], [3, 2], [5, 4, 1, 2], [7] * 10])
def test_swapped_responses_come_from_the_own_group_and_each_is_used_once(sizes):
    pairs = [replace(pair, system_id=f"m-{pair.pair_id}") for pair in pairs_in_groups(sizes)]
    by_text = {pair.response_text: pair for pair in pairs}
    for seed in range(4):
        swapped = response_swapped(pairs, seed)
        alone = {f"g{group}" for group, size in enumerate(sizes) if size == 1}
        assert [pair.pair_id for pair in swapped] == [pair.pair_id for pair in pairs if pair.group_id not in alone]
        assert len({pair.response_text for pair in swapped}) == len(swapped)
        for after in swapped:
            before = next(pair for pair in pairs if pair.pair_id == after.pair_id)
            donor = by_text[after.response_text]
            assert donor.group_id == before.group_id
            assert donor.response is not before.response
            assert unchanged(donor, after, RESPONSE_FIELDS)
            assert unchanged(before, after, ALL_FIELDS - RESPONSE_FIELDS)


def test_a_response_never_comes_back_as_the_same_sound():
    """A crossed group: three responses, each to four contexts."""
    pairs = [replace(pair, response=tone_clip(number % 3)) for number, pair in enumerate(pairs_in_groups([12]))]
    seen = set()
    for seed in range(5):
        swapped = response_swapped(pairs, seed)
        levels = [tone_of(pair.response) for pair in swapped]
        assert all(level != number % 3 for number, level in enumerate(levels))
        assert Counter(levels) == {0: 4, 1: 4, 2: 4}
        seen.add(tuple(levels))
    assert len(seen) > 1
    # Ten of one response, one of another: the ten get the one, the one gets one of the ten.
    uneven = [replace(pair, response=tone_clip(number == 0)) for number, pair in enumerate(pairs_in_groups([11]))]
    assert [tone_of(pair.response) for pair in response_swapped(uneven)] == [0] + [1] * 10


def test_responses_that_cannot_be_swapped_are_refused():
    for pairs in (pairs_in_groups([1, 1, 1]), [replace(pair, response=tone_clip(0)) for pair in pairs_in_groups([3])]):
        assert CHECKS["response_swapped"].refuses(pairs) == "no group has two different responses"


def test_context_only_silences_the_response_and_nothing_else():
    pairs = [replace(pair, response_speaker="r") for pair in pairs_in_groups([2, 1])]
    for before, after in zip(pairs, context_only(pairs), strict=True):
        assert isinstance(before.response, Clip)
        assert isinstance(after.response, Clip)
        assert (len(after.response.samples), after.response.rate) == (len(before.response.samples), 8000)
        assert not after.response.samples.any()
        assert (after.response_text, after.response_speaker) == (None, None)
        assert unchanged(before, after, ALL_FIELDS - RESPONSE_FIELDS | {"system_id"})
