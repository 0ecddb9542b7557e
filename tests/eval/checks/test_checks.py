"""The listening checks change what they say and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.audio.decode import Clip, decode
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset, Turn
from empathy_judge.eval import evaluate as module
from empathy_judge.eval.checks import CHECKS, DEFAULT_CHECKS
from empathy_judge.eval.evaluate import LEFT_OUT, evaluate
from empathy_judge.eval.listening import VOICE_CHECK, WORDS_CHECK, check_view, voice_and_words
from empathy_judge.eval.statistics.bootstrap import Resamples

from ..conftest import TEXTS, MeasureJudge, dataset_of, pitch_range, prosody_of, spoken_pairs
from .conftest import ALL_FIELDS, pairs_in_groups, unchanged


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
    judge = MeasureJudge(lambda pair: prosody_of(pair.response).level, "loudness")
    found = checks_of(judge, ("loudness", "gain"))
    assert found["gain"].mean_change == pytest.approx(6, abs=0.01)
    assert found["gain"].p95_change == pytest.approx(6, abs=0.01)
    levels = np.array([prosody_of(pair.response).level for pair in speech().pairs])
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
    resamples = Resamples.sample([pair.group_id for pair in pairs], 50, 0)
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
