"""What the checks do to a sound, measured on synthesised speech."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from empathy_judge.audio import prosody
from empathy_judge.audio.decode import Clip, decode
from empathy_judge.audio.espeak import Tone
from empathy_judge.eval.checks import recording, voice
from empathy_judge.eval.checks.voice import pulses

from ..conftest import prosody_of as measured
from .conftest import ELATED, LOUD, MAN, PLAIN, RATE, WOMAN, rms, rng, spoken

SPEECH = [(MAN, PLAIN), (WOMAN, PLAIN), (MAN, ELATED), (WOMAN, ELATED)]


def envelope_distance(one: Clip, other: Clip) -> float:
    """Root mean square difference (dB) of the shape of spectra: 12 bands from 300 Hz to 6 kHz, 64 ms by 64 ms."""
    levels = [_band_levels(decode(clip, RATE)) for clip in (one, other)]
    n = min(map(len, levels))
    return float(np.sqrt(np.nanmean((levels[0][:n] - levels[1][:n]) ** 2)))


def _band_levels(samples: np.ndarray) -> np.ndarray:
    """Bands less their mean, 40 dB deep; NaN in frames 30 dB below the loudest."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, 1024)[::256] * np.hanning(1024)
    power = np.abs(np.fft.rfft(frames)) ** 2
    edges = np.searchsorted(np.fft.rfftfreq(1024, 1 / RATE), np.geomspace(300, 6000, 13))
    total = power.sum(1)
    levels = np.maximum(np.add.reduceat(power, edges, axis=1)[:, :-1], 1e-4 * total[:, None] + 1e-12)
    levels[total < 1e-3 * total.max()] = np.nan
    return 10 * np.log10(levels) - 10 * np.log10(levels).mean(1, keepdims=True)


SAME_WORDS, OTHER_WORDS = 7.5, 11.5
"""dB of `envelope_distance`: the vocoder stays below the one, another sentence of the same voice above the other."""


@pytest.mark.parametrize(("speaker", "tone"), SPEECH)
def test_monotone_takes_intonation_and_leaves_words_level_and_duration(speaker, tone):
    clip = spoken(speaker, tone)
    flat = voice.monotone(clip, rng())
    before, after = measured(clip), measured(flat)
    assert before.pitch_range > 1.5
    assert after.pitch_range < 0.4
    assert after.pitch == pytest.approx(before.pitch, rel=0.03)
    assert len(flat.samples) == len(clip.samples)
    assert after.level == pytest.approx(before.level, abs=0.7)
    assert envelope_distance(clip, flat) < SAME_WORDS
    assert envelope_distance(clip, spoken(speaker, tone, text="I wanted to tell you about the garden.")) > OTHER_WORDS


@pytest.mark.parametrize(("speaker", "tone"), SPEECH)
def test_the_vocoder_keeps_pitch_when_it_is_asked_to(speaker, tone):
    clip = spoken(speaker, tone)
    before, after = measured(clip), measured(voice.resynthesis(clip, rng()))
    assert after.pitch == pytest.approx(before.pitch, rel=0.03)
    assert after.pitch_range == pytest.approx(before.pitch_range, abs=1.0)
    assert after.level == pytest.approx(before.level, abs=0.7)


def slow_level(clip: Clip) -> np.ndarray:
    """dB over 300 ms, where there is speech."""
    track = prosody.track(decode(clip, RATE))
    power = np.where(track.active, 10 ** (track.level / 10), 0)
    window = np.ones(15)
    found = np.convolve(power, window, "same") / np.maximum(np.convolve(track.active, window, "same"), 1)
    return 10 * np.log10(found[track.active])


def test_loudness_is_the_same_everywhere_and_for_all():
    soft, loud = spoken(MAN, Tone(level=-40)), spoken(MAN, LOUD)
    rising = Clip(loud.samples * np.geomspace(0.1, 1, len(loud.samples), dtype=np.float32), RATE)
    assert slow_level(rising).std() > 4
    for clip in (soft, loud, rising):
        flat = voice.level_flattened(clip)
        assert measured(flat).level == pytest.approx(voice.LEVEL, abs=0.8)
        assert slow_level(flat).std() < 1.8
        assert measured(flat).pitch == pytest.approx(measured(clip).pitch, rel=0.03)
        assert (len(flat.samples), flat.rate) == (len(clip.samples), clip.rate)


def test_flat_prosody_makes_two_tones_and_two_speakers_alike():
    found = []
    for speaker, tone in SPEECH:
        clip = spoken(speaker, tone)
        flat = voice.flat_prosody(clip, rng())
        found.append(measured(flat))
        assert len(flat.samples) == len(clip.samples)
        assert envelope_distance(clip, flat) < SAME_WORDS
    for name, spread in (("pitch", 2.0), ("pitch_range", 0.5), ("level", 0.8), ("harmonicity", 0.08)):
        values = [getattr(one, name) for one in found]
        assert max(values) - min(values) < spread, name
    assert found[0].pitch == pytest.approx(voice.FLAT_PITCH, rel=0.02)


@pytest.mark.parametrize(("speaker", "tone"), SPEECH)
def test_another_speaker_has_the_same_intonation_a_semitone_away(speaker, tone):
    clip = spoken(speaker, tone)
    before = measured(clip)
    found = []
    for seed in range(6):
        changed = voice.other_speaker(clip, rng(seed))
        after = measured(changed)
        found.append(12 * np.log2(after.pitch / before.pitch))
        assert after.pitch_range == pytest.approx(before.pitch_range, rel=0.25)
        assert rms(changed.samples) == pytest.approx(rms(clip.samples), abs=0.02)
        assert len(changed.samples) == len(clip.samples)
    assert min(found) < 0 < max(found)
    assert max(found) - min(found) == pytest.approx(2, abs=0.25)


def test_another_speaker_has_formants_elsewhere_too():
    """Noise through one resonance at 2000 Hz: its centre moves by 6 %."""
    hertz = np.fft.rfftfreq(4 * RATE, 1 / RATE)
    resonance = 1 / (1 + ((hertz - 2000) / 60) ** 2)
    noise = np.fft.irfft(np.fft.rfft(rng(1).standard_normal(4 * RATE)) * resonance)
    clip = Clip((0.1 * noise / noise.std()).astype(np.float32), RATE)
    centres = []
    for seed in range(6):
        power = np.abs(np.fft.rfft(voice.other_speaker(clip, rng(seed)).samples)) ** 2
        centres.append(float((hertz * power).sum() / power.sum()))
    assert max(centres) == pytest.approx(2000 * 1.06, rel=0.005)
    assert min(centres) == pytest.approx(2000 / 1.06, rel=0.005)


def test_another_speaker_is_the_same_whatever_sign_an_fft_gives_the_zeros_of_silence(monkeypatch):
    noise = rng(2).normal(scale=0.1, size=RATE // 2).astype(np.float32)
    clip = Clip(np.concatenate([np.zeros(RATE // 2, np.float32), noise]), RATE)
    plain = torch.stft

    def negative_zeros(*args: object, **options: object) -> torch.Tensor:
        found = torch.view_as_real(plain(*args, **options))  # pyright: ignore[reportArgumentType]
        signed = torch.where(found == 0, torch.tensor([-0.0, 0.0]), found)
        return torch.view_as_complex(signed.contiguous())

    expected = voice.other_speaker(clip, rng(0)).samples
    monkeypatch.setattr(torch, "stft", negative_zeros)
    np.testing.assert_array_equal(voice.other_speaker(clip, rng(0)).samples, expected)


def test_pulses_have_unit_power_and_their_pitch():
    train = pulses(np.full(RATE, 123.4))
    assert np.square(train).mean() == pytest.approx(1, rel=0.05)
    spectrum = np.abs(np.fft.rfft(train * np.hanning(RATE)))
    assert abs(int(spectrum[60:180].argmax()) + 60 - 123.4) < 1
    assert pulses(np.full(10, 100.0)).tolist() == [0.0] * 10  # no period fits


CHANGES = [
    voice.resynthesis, voice.monotone, voice.level_flattened, voice.flat_prosody, voice.other_speaker,
    recording.low_pass, recording.noisy, recording.coded, recording.gained,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_odd_clips_come_through_and_draws_repeat(change):
    odd = {
        "silence": Clip(np.zeros(1600, dtype=np.float32), RATE),
        "constant": Clip(np.full(800, 0.3, dtype=np.float32), 8000),
        "short": Clip(rng(1).normal(0, 0.1, 202).astype(np.float32), 4000),
        "loud": Clip(rng(2).normal(0, 2.0, 2205).astype(np.float32), 44100),
        "soft": Clip(rng(3).normal(0, 1e-6, 1600).astype(np.float32), RATE),
        "click": Clip(np.eye(1, 1600, 800, dtype=np.float32)[0], RATE),
        "fast": Clip(rng(4).normal(0, 0.1, 9600).astype(np.float32), 192_000),
    }
    for name, clip in odd.items():
        before = clip.samples.copy()
        one, again = (change(clip, rng(5)) for _ in range(2))
        np.testing.assert_array_equal(one.samples, again.samples, err_msg=name)
        np.testing.assert_array_equal(clip.samples, before, err_msg=name)
        assert np.isfinite(one.samples).all(), name
        assert np.abs(one.samples).max() < 100, name
        assert one.samples.any() == clip.samples.any() or name == "soft", name
        assert one.seconds == pytest.approx(clip.seconds, abs=1e-3), name
