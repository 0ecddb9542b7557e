"""Pitch, level and rate of signals and of speech whose tone is known."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.audio import prosody
from empathy_judge.audio.decode import resample
from empathy_judge.audio.espeak import Tone, Voice, restart, speak

TEXT = "The parcel came on Tuesday with the morning post."


def _measure(voice: Voice, tone: Tone) -> prosody.Prosody:
    restart()  # whatever was spoken before
    return prosody.summarise(prosody.track(resample(*speak(TEXT, voice, tone), prosody.RATE)))


def test_noise_has_no_pitch():
    found = prosody.summarise(prosody.track(np.random.default_rng(0).normal(0, 0.1, prosody.RATE).astype(np.float32)))
    assert np.isnan(found.pitch)
    assert found.level == pytest.approx(-20, abs=0.5)


@pytest.mark.parametrize("voice", [Voice("en-us", "m", 105, 1.0), Voice("en", "f", 200, 1.16)])
def test_tone_is_heard(voice):
    neutral = _measure(voice, Tone())
    assert neutral.pitch == pytest.approx(voice.pitch, rel=0.06)
    shift = 12 * np.log2(_measure(voice, Tone(pitch=4)).pitch / neutral.pitch)
    assert shift == pytest.approx(4, abs=0.8)
    ranges = [_measure(voice, Tone(range=r)).pitch_range for r in (0.1, 1, 3)]
    assert ranges[0] < 0.8 < ranges[1] < ranges[2]
    levels = [_measure(voice, Tone(level=level)).level for level in (-38, -24)]
    assert levels[1] - levels[0] == pytest.approx(14, abs=0.5)
    durations = [_measure(voice, Tone(rate=rate)).seconds for rate in (120, 240)]
    assert durations[0] / durations[1] > 1.6
    assert _measure(voice, Tone(quality="breathy")).harmonicity < neutral.harmonicity - 0.15


@pytest.mark.parametrize(("text", "count"), [("The parcel came on Tuesday.", 7), ("I see.", 2), ("a table", 3)])
def test_syllables(text, count):
    assert prosody.count_syllables(text) == count
