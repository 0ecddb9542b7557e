"""What filter, noise, codec and gain do to a sound, measured on synthesised speech."""

from __future__ import annotations

import pytest
from empathy_judge.eval.checks import recording

from ..conftest import prosody_of as measured
from .conftest import ELATED, MAN, PLAIN, WOMAN, band_energy, rms, rng, spoken


@pytest.mark.parametrize("rate", [16000, 44100])
def test_low_passed_speech_has_pitch_and_level_and_no_consonants(rate):
    clip = spoken(WOMAN, ELATED, rate)
    low = recording.low_pass(clip)
    fall = band_energy(clip.samples, 500, rate / 2, rate) - band_energy(low.samples, 500, rate / 2, rate)
    assert fall > 40
    assert measured(low).pitch == pytest.approx(measured(clip).pitch, rel=0.03)
    assert measured(low).pitch_range == pytest.approx(measured(clip).pitch_range, abs=1.5)
    assert rms(low.samples) == pytest.approx(rms(clip.samples), abs=1e-3)
    assert len(low.samples) == len(clip.samples)


def test_noise_lies_as_far_below_as_it_says():
    clip = spoken(MAN, PLAIN)
    noise = recording.noisy(clip, rng()).samples - clip.samples
    assert rms(clip.samples) - rms(noise) == pytest.approx(recording.SNR, abs=0.05)


def test_the_codec_loses_what_is_high_and_keeps_pitch_and_level():
    clip = spoken(MAN, ELATED)
    coded = recording.coded(clip, rng())
    assert len(coded.samples) == len(clip.samples)
    error = rms(clip.samples) - rms(coded.samples - clip.samples)
    assert 3 < error < 25  # dB below the speech: audible, not destroyed
    assert measured(coded).pitch == pytest.approx(measured(clip).pitch, rel=0.02)
    assert measured(coded).level == pytest.approx(measured(clip).level, abs=0.5)


def test_gain_is_six_decibels_either_way():
    clip = spoken(MAN, PLAIN)
    found = {round(rms(recording.gained(clip, rng(seed)).samples) - rms(clip.samples), 3) for seed in range(8)}
    assert found == {6.0, -6.0}
