"""The listening checks change what they say and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.probes import context_swapped, response_only, silent

CONTEXT_FIELDS = {"context", "situation", "context_text", "context_speaker"}


def clip(level: float) -> Clip:
    return Clip(np.full(500, level, dtype=np.float32), 8000)


def pairs_in_groups(sizes: list[int]) -> list[Pair]:
    """Pairs of groups of these sizes; each group has its own context."""
    pairs = []
    for group, size in enumerate(sizes):
        context = (Turn("user", clip(group / 100)),)
        for _ in range(size):
            number = len(pairs)
            pairs.append(
                Pair(
                    f"p{number}", clip(-number / 1000), context, f"situation {group}", f"g{group}",
                    context_speaker=f"s{group}", context_text=f"c{group}", response_text=f"r{number}",
                )
            )  # fmt: skip
    return pairs


def unchanged(before: Pair, after: Pair, names: set[str]) -> bool:
    return all(getattr(before, name) == getattr(after, name) for name in names)


ALL_FIELDS = {field.name for field in fields(Pair)}


def test_response_only_takes_the_whole_context_and_nothing_else() -> None:
    pairs = pairs_in_groups([2, 2])
    for before, after in zip(pairs, response_only(pairs), strict=True):
        assert (after.context, after.situation, after.context_text, after.context_speaker) == (
            (),
            None,
            None,
            None,
        )
        assert unchanged(before, after, ALL_FIELDS - CONTEXT_FIELDS)


@pytest.mark.parametrize("sizes", [[1, 1], [3, 3], [5, 1, 1, 3], [4] * 30, [1] * 50])
def test_swapped_contexts_come_from_other_groups_and_each_is_used_once(sizes: list[int]) -> None:
    pairs = pairs_in_groups(sizes)
    for seed in range(5):
        swapped = context_swapped(pairs, seed)
        assert Counter(pair.situation for pair in swapped) == Counter(pair.situation for pair in pairs)
        for before, after in zip(pairs, swapped, strict=True):
            assert after.situation != before.situation
            donor = next(pair for pair in pairs if pair.situation == after.situation)
            assert unchanged(donor, after, {"context", "context_text", "context_speaker"})
            assert unchanged(before, after, ALL_FIELDS - CONTEXT_FIELDS)


def test_no_context_of_the_own_group_comes_back_where_each_pair_has_its_own() -> None:
    numbered = enumerate(pairs_in_groups([6, 3, 3]))
    pairs = [replace(pair, situation=f"situation {number}") for number, pair in numbered]
    group = {pair.situation: pair.group_id for pair in pairs}
    for seed in range(10):
        for after in context_swapped(pairs, seed):
            assert group[after.situation] != after.group_id


def test_a_group_of_more_than_half_gets_foreign_contexts_too() -> None:
    pairs = pairs_in_groups([8, 1, 2])
    for before, after in zip(pairs, context_swapped(pairs), strict=True):
        assert after.situation != before.situation
        assert after.response is before.response


def test_the_swap_is_seeded_and_random() -> None:
    pairs = pairs_in_groups([3] * 40)
    first, again, other = ([pair.situation for pair in context_swapped(pairs, seed)] for seed in (0, 0, 1))
    assert first == again
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 20
    # The contexts of one group do not go to another one together.
    assert len(set(first[:6])) > 3


def test_another_group_with_the_same_context_is_avoided_where_possible() -> None:
    pairs = pairs_in_groups([2] * 20)
    shared = [
        replace(pair, context=(Turn("user", clip(int(pair.group_id[1:]) % 2)),), situation=None) for pair in pairs
    ]
    for before, after in zip(shared, context_swapped(shared, seed=3), strict=True):
        before_clip, after_clip = before.context[0].audio, after.context[0].audio
        assert isinstance(before_clip, Clip)
        assert isinstance(after_clip, Clip)
        assert before_clip.samples[0] != after_clip.samples[0]


def test_one_group_cannot_be_swapped() -> None:
    with pytest.raises(DataError, match="the 4 pairs are all of one group"):
        context_swapped(pairs_in_groups([4]))


def test_a_pair_without_a_group_is_its_own_group() -> None:
    pairs = [replace(pair, group_id="") for pair in pairs_in_groups([1, 1, 1])]
    assert all(a.situation != b.situation for a, b in zip(pairs, context_swapped(pairs), strict=True))


def test_silence_lasts_as_long_as_the_clip_it_replaces(tmp_path: Path) -> None:
    stereo, embedded = tmp_path / "stereo.wav", tmp_path / "mono.flac"
    soundfile.write(stereo, np.random.default_rng(0).uniform(-1, 1, (4410, 2)), 44100)
    soundfile.write(embedded, np.full(1600, 0.5), 16000)
    situation: dict[str, Any] = {
        "situation": "she lost her cat",
        "context_text": "hello",
        "response_text": "hi",
    }
    pair = Pair("p", embedded.read_bytes(), (Turn("user", stereo), Turn("assistant", clip(0.5))), **situation)
    (after,) = silent([pair])
    clips = [turn.audio for turn in after.context] + [after.response]
    assert [turn.role for turn in after.context] == ["user", "assistant"]
    for quiet, samples, rate in zip(clips, (4410, 500, 1600), (44100, 8000, 16000), strict=True):
        assert isinstance(quiet, Clip)
        assert (len(quiet.samples), quiet.rate) == (samples, rate)
        assert not quiet.samples.any()
    assert (after.situation, after.context_text, after.response_text) == ("she lost her cat", None, None)


def test_silent_clips_share_their_memory() -> None:
    after = silent(pairs_in_groups([2, 2]))
    first, last = after[0].response, after[-1].response
    assert isinstance(first, Clip)
    assert isinstance(last, Clip)
    assert np.shares_memory(first.samples, last.samples)
