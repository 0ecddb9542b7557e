"""The listening checks change what they say and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.data_modules.audio import Clip, decode
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset, Turn
from empathy_judge.eval import evaluate as module
from empathy_judge.eval.checks import CHECKS, DEFAULT_CHECKS
from empathy_judge.eval.checks.pairs import context_only, context_swapped, response_only, response_swapped, silent
from empathy_judge.eval.checks.recording import change_clips
from empathy_judge.eval.evaluate import LEFT_OUT, evaluate
from empathy_judge.eval.listening import VOICE_CHECK, WORDS_CHECK, check_view, voice_and_words
from empathy_judge.eval.statistics.bootstrap import Resamples

from .conftest import TEXTS, MeasureJudge, dataset_of, heard, pitch_range, spoken_pairs, tone_clip, tone_of

RESPONSE_FIELDS = {"response", "response_text", "response_speaker", "system_id"}
CONTEXT_FIELDS = {"context", "situation", "context_text", "context_speaker"}


def pairs_in_groups(sizes: list[int]) -> list[Pair]:
    """Pairs of groups of these sizes; each group has its own context."""
    pairs = []
    for group, size in enumerate(sizes):
        context = (Turn("user", tone_clip(group / 100)),)
        for _ in range(size):
            number = len(pairs)
            pairs.append(
                Pair(
                    f"p{number}", tone_clip(-number / 1000), context, f"situation {group}", f"g{group}",
                    context_speaker=f"s{group}", context_text=f"c{group}", response_text=f"r{number}",
                )
            )  # fmt: skip
    return pairs


def unchanged(before: Pair, after: Pair, names: set[str]) -> bool:
    return all(getattr(before, name) == getattr(after, name) for name in names)


ALL_FIELDS = {field.name for field in fields(Pair)}


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


def noisy_pairs() -> list[Pair]:
    """Two groups of two; the pairs of a group share the clip of their context."""
    rng = np.random.default_rng(0)
    made = [Clip(rng.normal(0, 0.1, 2400).astype(np.float32), 8000) for _ in range(6)]
    return [
        replace(pair, response=made[number], context=(Turn("user", made[4 + number // 2]),))
        for number, pair in enumerate(pairs_in_groups([2, 2]))
    ]


def sounds(pairs: Any) -> dict[str, list[list[float]]]:
    return {
        pair.pair_id: [decode(source, 8000).tolist() for source in (pair.context[0].audio, pair.response)]
        for pair in pairs
    }


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check.by_clip])
def test_a_check_of_clips_changes_clips_and_depends_on_nothing_but_them(name):
    pairs, check = noisy_pairs(), CHECKS[name]
    changed = check.apply(pairs, 3)
    gone = {"context", "response"} | ({"context_text", "response_text"} if name == "low_pass" else set())
    for before, after in zip(pairs, changed, strict=True):
        assert unchanged(before, after, ALL_FIELDS - gone)
        assert (after.response_text is None) == (name == "low_pass")
        assert after.context[0].role == "user"
    assert changed[0].context[0].audio is changed[1].context[0].audio
    # Order and portion do not matter, nor whether the clip is in memory or in a file.
    assert sounds(check.apply(pairs[::-1], 3)) == sounds(changed)
    assert sounds(check.apply(pairs[1:2], 3)) == {"p1": sounds(changed)["p1"]}
    assert all(
        own != new
        for one, other in zip(sounds(pairs).values(), sounds(changed).values(), strict=True)
        for own, new in zip(one, other, strict=True)
    )
    if name in ("noise", "gain", "speaker", "flat_prosody"):  # what they draw follows the seed
        assert any(sounds(check.apply(pairs, seed)) != sounds(changed) for seed in (0, 1, 2))


# ---------------------------------------------------------------- judges of known hearing are told apart by the checks


@cache
def speech() -> PairDataset:
    """Rated by the range of pitch of the response, with a little noise."""
    rng = np.random.default_rng(0)
    ranges = {pair.pair_id: pitch_range(pair.response) for pair in spoken_pairs()}
    rows = [(name, f"r{n}", "empathy", own + rng.normal(0, 0.2)) for name, own in ranges.items() for n in range(3)]
    return dataset_of(spoken_pairs(), rows, Dimension("empathy", -1, 14))


def checks_of(judge: MeasureJudge, checks: Sequence[str], **options: Any) -> dict[str, Any]:
    report = evaluate(judge, speech(), split=None, checks=checks, resamples=100, **options).report
    return {name: results["empathy"] for name, results in report.checks.items()}


def test_a_judge_of_intonation_loses_it_with_pitch_and_nothing_else():
    judge = MeasureJudge(lambda pair: pitch_range(pair.response), "intonation")
    gone, kept = ("silent", "flat_prosody", "monotone"), ("low_pass", "gain", "noise")
    found = checks_of(judge, (*gone, *kept))
    assert list(found) == [name for name in CHECKS if name in gone + kept]
    for name in ("flat_prosody", "monotone"):
        assert found[name].drop.value > 0.5, name
        assert found[name].drop.low > 0.2, name
    assert found["silent"].spearman.value is None
    for name in kept:
        assert abs(found[name].drop.value) < 0.1, name
    gain = found["gain"]
    assert gain.p95_change / gain.judge_sd < gain.tolerance
    assert check_view("gain", gain, gain.spearman).mark == "stays"
    assert found["monotone"].p95_change > found["monotone"].mean_change > 0.5


def test_a_judge_of_loudness_is_caught_by_the_gain():
    judge = MeasureJudge(lambda pair: heard(pair.response).level, "loudness")
    found = checks_of(judge, ("loudness", "gain"))
    assert found["gain"].mean_change == pytest.approx(6, abs=0.01)
    assert found["gain"].p95_change == pytest.approx(6, abs=0.01)
    levels = np.array([heard(pair.response).level for pair in speech().pairs])
    assert found["gain"].judge_sd == pytest.approx(levels.std(), abs=1e-9)
    assert check_view("gain", found["gain"], found["gain"].spearman).mark == "moves"
    # All clips are at one level, so next to nothing of the spread is left.
    assert found["loudness"].mean_change > 0.7 * found["loudness"].judge_sd


def test_judges_of_voice_and_of_words_have_their_index():
    def voice(pair: Pair) -> float:
        return pitch_range(pair.response)

    def words(pair: Pair) -> float:
        return float(TEXTS.index(pair.response_text)) if pair.response_text else 1.0

    pairs = speech().pairs
    sides = [pairs, *(CHECKS[name].apply(pairs, 0) for name in (VOICE_CHECK, WORDS_CHECK))]
    ranges, said = (np.array([[measure(pair) for pair in side] for side in sides]) for measure in (voice, words))
    resamples = Resamples.draw([pair.group_id for pair in pairs], 50, 0)
    found = {
        name: voice_and_words(*scores, resamples)["index"].value
        for name, scores in {"voice": ranges, "words": said, "both": ranges / 4 + said}.items()
    }
    assert None not in found.values()
    assert found["voice"] > 0.9
    assert found["words"] < 0.1
    assert 0.2 < found["both"] < 0.8


def test_pairs_that_a_check_leaves_out_are_counted(make_dataset, make_tone_judge):
    dataset = make_dataset()
    lonely = [replace(pair, group_id=pair.pair_id) if number < 8 else pair for number, pair in enumerate(dataset.pairs)]
    crowd = replace(dataset, pairs=tuple(lonely))
    found = evaluate(make_tone_judge(noise=0.1), crowd, split=None, checks=["response_swapped"], resamples=20)
    report, items = found.report, found.items
    check = report.checks["response_swapped"]["empathy"]
    left_out = items["response_swapped_status"] == LEFT_OUT
    assert left_out[:8].all()
    assert check.failed == {LEFT_OUT: int(left_out.sum())}
    assert check.n == 80 - left_out.sum()
    assert items.loc[left_out, "response_swapped_score"].isna().all()
    assert check.drop.value > 0.5
    assert check.expects == "drop"


def test_clips_are_changed_in_portions_with_whole_groups(make_dataset, monkeypatch):
    dataset = make_dataset(n_groups=10, per_group=3)

    def measure(pair: Pair) -> float:
        return float(np.square(decode(pair.response, 8000)).mean())

    whole = evaluate(MeasureJudge(measure, "power"), dataset, split=None, checks=["noise"], resamples=10)
    judge = MeasureJudge(measure, "power")
    monkeypatch.setattr(module, "_PORTION", 12)
    parts = evaluate(judge, dataset, split=None, checks=["noise"], resamples=10)
    assert judge.seen == [30, 12, 12, 6]
    pd.testing.assert_frame_equal(parts.items, whole.items)
    assert parts.report.checks == whole.report.checks


def test_checks_are_run_as_asked_for(make_dataset):
    dataset = make_dataset(n_groups=4, per_group=2)
    judge = MeasureJudge(lambda pair: float(len(decode(pair.response, 8000))), "lengths")
    assert set(evaluate(judge, dataset, split=None, resamples=5).report.checks) == set(DEFAULT_CHECKS)
    everything = evaluate(judge, dataset, split=None, checks="all", resamples=5).report.checks
    assert list(everything) == list(CHECKS)
    assert everything["silent"]["empathy"].mean_change == 0  # silence is as long
    for checks, run in (((), []), ("silent", ["silent"]), (["gain", "silent", "gain"], ["silent", "gain"])):
        assert list(evaluate(judge, dataset, split=None, checks=checks, resamples=5).report.checks) == run
