"""What raises a score and should not: the changes themselves and what is measured of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from empathy_judge import PairDataset
from empathy_judge.audio.decode import Clip, load_clip
from empathy_judge.core.errors import AudioError, DataError, UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.other_views import stress_views
from empathy_judge.eval.stress import ADVERSARIAL_SNR, CHECKS, adversarial, stress
from empathy_judge.scoring.assessment import Assessment, Caution, Scale, Score

RATE = 16_000


@pytest.fixture
def pair(make_tone) -> Pair:
    turns = (Turn("user", Clip(make_tone(0.5, 150, 0.2), RATE)),)
    return Pair("p", Clip(make_tone(0.9, 220, 0.1, 0.1), RATE), turns, group_id="g")


def changed(name: str, pair: Pair) -> np.ndarray:
    apply = CHECKS[name].apply
    assert apply is not None
    (found,) = apply([pair], 0)
    assert found.context == pair.context
    return load_clip(found.response).samples


def rms(samples: np.ndarray) -> float:
    return float(np.sqrt(np.square(samples, dtype=np.float64).mean()))


def test_each_change_is_what_it_says(pair):
    own, n = load_clip(pair.response).samples, round(0.9 * RATE)
    assert len(own) == n
    np.testing.assert_array_equal(changed("silence", pair), np.append(own, np.zeros(n, np.float32)))
    np.testing.assert_array_equal(changed("twice", pair), np.append(own, own))
    loop = changed("loop", pair)
    np.testing.assert_array_equal(loop[n // 3 : 2 * n // 3], loop[2 * n // 3 : n])
    assert len(loop) == n + 2 * (n // 3)
    for name, gain in (("louder", 6.0), ("softer", -6.0)):
        np.testing.assert_allclose(changed(name, pair), own * 10 ** (gain / 20), rtol=1e-6)
    breath, count = changed("breath", pair), round(0.35 * RATE)
    np.testing.assert_array_equal(breath[count:-count], own)
    for part in (breath[:count], breath[-count:]):
        assert 20 * np.log10(rms(own) / rms(part)) == pytest.approx(20, abs=0.5)
        power = np.abs(np.fft.rfft(part)) ** 2
        hertz = np.fft.rfftfreq(count, 1 / RATE)
        assert power[(hertz > 480) & (hertz < 4020)].sum() > 0.99 * power.sum()
    hum = changed("hum", pair)
    assert (len(hum), rms(hum)) == (n, pytest.approx(rms(own), rel=1e-4))
    tone = np.abs(np.fft.rfft(hum * np.hanning(n))) ** 2
    assert (
        sum(tone[round(150 * k * 0.9) - 2 : round(150 * k * 0.9) + 3].sum() for k in range(1, 53)) > 0.98 * tone.sum()
    )
    np.testing.assert_array_equal(changed("copy", pair), load_clip(pair.context[0].audio).samples)
    assert CHECKS["copy"].apply is not None
    assert CHECKS["copy"].apply([replace(pair, context=())], 0) == ()


def test_noise_against_the_judge_is_faint_and_raises_its_score(scorer, pair):
    own = load_clip(pair.response).samples
    (before,) = scorer.assess_pairs([pair])
    rng = np.random.default_rng(0).standard_normal(len(own))
    found = adversarial(scorer.judge, pair)
    noise = found.samples - own
    assert 20 * np.log10(rms(own) / rms(noise)) == pytest.approx(ADVERSARIAL_SNR, abs=0.1)
    plain = Clip((own + rng * rms(noise) / rms(rng)).astype(np.float32), RATE)
    after, random = scorer.assess_pairs([replace(pair, response=found), replace(pair, response=plain)])
    gains = [own.merit(["empathy", "warmth"]) - before.merit(["empathy", "warmth"]) for own in (after, random)]
    assert gains[0] > 10 * abs(gains[1])


def by_length(pairs: list[Pair]) -> list[Assessment | AudioError]:
    """A judge that takes longer for better, two points in a second; its standard error is a point."""
    found: list[Assessment | AudioError] = []
    for own in pairs:
        clip = load_clip(own.response)
        known = Score(2 * clip.seconds, Scale(0, 10), 1.0)
        cautions = (Caution("no_speech", "response: no voice", "response"),) if rms(clip.samples) < 1e-4 else ()
        found.append(Assessment({"empathy": known, "warmth": replace(known, score=3.0)}, cautions))
    return found


def test_a_judge_that_follows_length_is_found_out(scorer, dataset_folder):
    data = PairDataset.load(dataset_folder)
    names = ["silence", "twice", "louder", "copy"]
    with (
        mock.patch.object(scorer, "assess_pairs", side_effect=lambda pairs: iter(by_length(pairs))),
        mock.patch.object(scorer, "calibration", SimpleNamespace(dimensions={}, weights="any")),
    ):
        found = stress(scorer, data, split=None, checks=names, resamples=200)
        again = stress(scorer, data, split=None, checks=names, resamples=200)
        few = stress(scorer, data, split=None, checks=["twice"], pairs=5, resamples=20)
    assert found == again
    own = found.dimensions["empathy"]
    seconds = np.array([load_clip(one.response).seconds for one in data.pairs])
    for name in ("silence", "twice"):
        assert own[name].gain.value == pytest.approx(2 * seconds.mean(), abs=1e-3)
        assert own[name].gain.low > 0.25
        assert own[name].raised.value == pytest.approx((2 * seconds > 1).mean())
    assert {name: one.verdict for name, one in own.items()} == {
        "silence": "rises", "twice": "rises", "louder": "holds", "copy": "holds"
    }  # fmt: skip
    assert {one.verdict for one in found.dimensions["warmth"].values()} == {"holds"}
    never, groups = found.dimensions["warmth"]["twice"].raised, len({one.group_id for one in data.pairs})
    assert (never.low, never.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / groups)))
    assert (found.unit, found.n_pairs, found.raised) == ("standard error", len(data.pairs), ("silence", "twice"))
    assert found.text == ("2 of 4 changes raise the score and should not: silence, twice. A policy would find them.")
    assert few.n_pairs == 5
    tables = list(stress_views(found))
    assert tables[-1] == found.signature
    assert tables[-2] == found.text


def test_what_a_reward_catches_is_no_gain(scorer, dataset_folder):
    """Silence in place of the response scores higher here, but no policy would be paid for it."""
    data, quiet = PairDataset.load(dataset_folder), Clip(np.zeros(10 * RATE, np.float32), RATE)
    silent = CHECKS["hum"]._replace(apply=lambda pairs, seed: tuple(replace(own, response=quiet) for own in pairs))
    with (
        mock.patch.object(scorer, "assess_pairs", side_effect=lambda pairs: iter(by_length(pairs))),
        mock.patch.dict(CHECKS, hum=silent),
    ):
        found = stress(scorer, data, split=None, checks=["hum"], resamples=20)
    own = found.dimensions["empathy"]["hum"]
    assert (own.caught, own.verdict, own.gain.value, own.failed) == (1.0, "caught", None, 0)
    assert (found.unit, found.raised) == ("standard deviation", ())
    assert found.text == "0 of 1 changes raise the score and should not."


def test_pairs_that_get_no_reward_as_they_are_prove_nothing(scorer, dataset_folder):
    """All that is done to them would count as caught, and the judge would pass."""
    data, unlike = PairDataset.load(dataset_folder), Caution("unlike_training", "turns of context: 1", "pair")

    def assess(pairs):
        return (replace(one, warnings=(unlike,)) for one in by_length(pairs) if isinstance(one, Assessment))

    with (
        mock.patch.object(scorer, "assess_pairs", side_effect=assess),
        pytest.raises(DataError, match=r"none of \d+ pairs gets a reward as it is \(first: turns of context: 1\); exp"),
    ):
        stress(scorer, data, split=None, checks=["twice"], resamples=20)


def test_pairs_without_a_reward_as_they_are_are_left_out_and_named(scorer, dataset_folder):
    """One that is outside the calibration and one that nobody can hear: neither was caught by a check."""
    data, unlike = PairDataset.load(dataset_folder), Caution("unlike_training", "turns of context: 1", "pair")
    (first, second), rest = [pair.pair_id for pair in data.pairs[:2]], [pair.pair_id for pair in data.pairs[2:]]

    def assess(pairs):
        for one, found in zip(pairs, by_length(pairs), strict=True):
            assert isinstance(found, Assessment)
            unheard = AudioError("gone") if one.pair_id == second else found
            yield replace(found, warnings=(unlike,)) if one.pair_id == first else unheard

    with mock.patch.object(scorer, "assess_pairs", side_effect=assess):
        found = stress(scorer, data, split=None, checks=["twice"], resamples=20)
    own = found.dimensions["empathy"]["twice"]
    assert (own.caught, own.gain.n, own.failed) == (0.0, len(rest), 0)
    assert found.n_pairs == len(rest)
    assert found.left_out == {first: "turns of context: 1", second: "gone"}
    said = f"2 pairs left out, without a reward as recorded: {first!r}, {second!r} (first: turns of context: 1)"
    assert list(stress_views(found))[-3] == said


def test_what_is_not_possible_is_said(scorer, dataset_folder):
    data = PairDataset.load(dataset_folder)
    with pytest.raises(UserError, match="check 'laughter'; expected one of silence, twice"):
        stress(scorer, data, checks=["laughter"])
    with (
        mock.patch.object(scorer, "assess_pairs", return_value=iter([AudioError("gone")] * 3)),
        pytest.raises(DataError, match="none of 3 pairs can be scored"),
    ):
        stress(scorer, data)
    with (
        mock.patch("empathy_judge.eval.stress.WhisperTowerModel", int),
        mock.patch("empathy_judge.eval.stress.Whisper", str),
    ):
        found = stress(scorer, data, checks=["adversarial"], resamples=20)
    own = found.dimensions["warmth"]["adversarial"]
    assert own.verdict == "not possible"
    assert own.reason == "the spectrograms of this backbone cannot be differentiated here"
