"""Measures of signals whose delivery is known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchaudio
from empathy_judge.audio import prosody
from empathy_judge.audio.decode import decode
from empathy_judge.audio.functionals import DELIVERY, FUNCTIONALS, SPECTRAL, delivery, functionals
from scipy import fft

from ..conftest import loaded, real_data
from ..pages import DOCS

RATE = 16_000


def measured(samples: np.ndarray) -> dict[str, float]:
    return dict(zip(FUNCTIONALS, functionals(samples.astype(np.float32)), strict=True))


def noise(seconds: float = 2.0) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, round(seconds * RATE))


@pytest.mark.parametrize("hertz", [80.0, 90.0, 120.0, 150.0, 220.0, 300.0, 400.0])
def test_a_steady_voice(hertz, make_buzz):
    voice = make_buzz(hertz, 1.0)
    summary = prosody.summarise(prosody.track(voice))
    assert summary.pitch == pytest.approx(hertz, rel=0.02)
    assert summary.pitch_range < 0.3
    found = measured(voice)
    for name in ("pitch_mean", "pitch_median", "pitch_p10", "pitch_p90"):
        assert found[name] == pytest.approx(12 * np.log2(hertz / 55), abs=0.25)
    for name in ("pitch_range", "pitch_sd", "pitch_slope", "pitch_final"):
        assert found[name] == pytest.approx(0, abs=0.25)
    assert found["harmonicity_mean"] > 0.95
    assert found["voiced_share"] > 0.95
    assert found["onset_rate"] == pytest.approx(1.0, abs=0.05)
    assert found["voiced_run"] == pytest.approx(1.0, abs=0.06)
    assert found["seconds"] == pytest.approx(1.0, abs=0.03)


def test_a_rising_voice(make_buzz):
    seconds = np.arange(2 * RATE) / RATE
    found = measured(make_buzz(120 * 2 ** (seconds / 2), 2.0))  # an octave in two seconds
    assert found["pitch_slope"] == pytest.approx(6.0, abs=0.2)
    assert found["pitch_movement"] == pytest.approx(6.0, abs=0.7)
    assert found["pitch_range"] == pytest.approx(0.8 * 12, abs=0.4)
    assert found["pitch_final"] == pytest.approx(6 * (1.85 - 1.0), abs=0.3)
    falling = measured(make_buzz(240 * 2 ** (-seconds / 2), 2.0))
    assert falling["pitch_slope"] == pytest.approx(-6.0, abs=0.2)
    assert falling["pitch_final"] == pytest.approx(-6 * (1.85 - 1.0), abs=0.3)


def test_a_voice_that_grows_louder(make_buzz):
    seconds = np.arange(2 * RATE) / RATE
    steady = make_buzz(150, 2.0, 0.01)
    found, plain = measured(steady * 10 ** (10 * seconds / 20)), measured(steady)
    assert found["level_slope"] == pytest.approx(10.0, abs=0.3)
    assert found["level_range"] == pytest.approx(16.0, abs=0.5)
    assert abs(plain["level_slope"]) < 0.2
    expected = 10 * np.log10(np.mean((steady * 10 ** (10 * seconds / 20)) ** 2))
    assert found["level"] == pytest.approx(expected, abs=0.4)  # half of the last frame lies behind the end


def test_a_pause(make_buzz):
    word = make_buzz(150, 0.6)
    found = measured(np.concatenate([word, np.zeros(round(0.4 * RATE)), word]))
    assert found["seconds"] == pytest.approx(1.6, abs=0.03)
    assert found["pause_longest"] == pytest.approx(0.4, abs=0.06)
    assert found["pause_share"] == pytest.approx(0.25, abs=0.05)
    assert found["pause_rate"] == pytest.approx(1 / 1.6, abs=0.03)
    assert found["onset_rate"] == pytest.approx(2 / 1.6, abs=0.05)
    unbroken = measured(word)
    assert [unbroken[name] for name in ("pause_longest", "pause_share", "pause_rate")] == [0, 0, 0]
    closure = measured(np.concatenate([word, np.zeros(round(0.08 * RATE)), word]))  # as in a stop consonant
    assert closure["pause_rate"] == 0


def test_spectra():
    white, brown = measured(noise()), measured(0.05 * np.cumsum(noise()))
    assert white["tilt"] == pytest.approx(0.0, abs=0.3)
    assert brown["tilt"] == pytest.approx(-6.02, abs=0.5)
    assert white["alpha_ratio"] == pytest.approx(10 * np.log10(950 / 4000), abs=0.3)
    assert white["centroid"] == pytest.approx(2500, rel=0.03)
    time = np.arange(RATE) / RATE
    two = measured(0.3 * np.sin(2 * np.pi * 500 * time) + 0.03 * np.sin(2 * np.pi * 3000 * time))
    assert two["hammarberg"] == pytest.approx(20.0, abs=0.1)
    assert two["alpha_ratio"] == pytest.approx(20.0, abs=0.1)
    assert two["flux"] < 1.0 < white["flux"]


def delivered(samples: np.ndarray) -> dict[str, float]:
    return dict(zip(DELIVERY, delivery(samples), strict=True))


def shaped(decibels: Callable[[np.ndarray], np.ndarray], seconds: float = 4.0) -> np.ndarray:
    """Noise with this spectrum over Hz."""
    spectrum = np.fft.rfft(noise(seconds))
    hertz = np.fft.rfftfreq(round(seconds * RATE), 1 / RATE)
    return np.fft.irfft(spectrum * 10 ** (decibels(hertz) / 20))


def test_delivery_begins_with_the_functionals_and_the_page_lists_everything(make_buzz):
    samples = make_buzz(150 + 30 * np.sin(np.arange(RATE) / 2000), 1.0)
    assert DELIVERY[: len(FUNCTIONALS)] == tuple(FUNCTIONALS)
    assert len(DELIVERY) == len(set(DELIVERY)) == 158
    np.testing.assert_allclose(delivery(samples)[: len(FUNCTIONALS)], functionals(samples), rtol=1e-3, atol=1e-3)
    hooks, page = loaded(DOCS / "hooks.py"), (DOCS / "reference" / "statistics.md").read_text(encoding="utf-8")
    for of, measures in (("clip", FUNCTIONALS), ("frames", SPECTRAL)):
        assert hooks.DELIVERY.format(of) in page
        table = hooks.delivery_table(of)
        assert all(f"| `{name}` | {what} |" in table for name, what in measures.items())


def test_short_frames_of_white_noise():
    found = delivered(noise(4.0))
    for name in ("slope_0_500", "slope_500_1500", "slope_1500_5000"):
        assert found[f"{name}_mean"] == pytest.approx(0.0, abs=1.0)
    assert found["flatness_mean"] == pytest.approx(-10 * np.euler_gamma / np.log(10), abs=0.05)  # of exponential bins
    assert found["centroid_mean"] == pytest.approx(4000, rel=0.01)
    for share in (25, 50, 85, 95):
        assert found[f"rolloff_{share}_median"] == pytest.approx(80 * share, rel=0.02)
    assert found["alpha_ratio_mean"] == pytest.approx(10 * np.log10(950 / 4000), abs=0.4)  # a mean of logs


def test_short_frames_of_known_spectra():
    found = delivered(shaped(lambda hertz: -6 * hertz / 1000))
    for name in ("slope_0_500", "slope_500_1500", "slope_1500_5000"):
        assert found[f"{name}_mean"] == pytest.approx(-6.0, abs=1.0)
    time = np.arange(RATE) / RATE
    tone, faint = np.sin(2 * np.pi * 500 * time), np.sin(2 * np.pi * 3000 * time)
    two = delivered(0.3 * tone + 0.03 * faint)
    assert two["hammarberg_median"] == pytest.approx(20.0, abs=0.1)
    assert two["alpha_ratio_median"] == pytest.approx(20.0, abs=0.1)
    one = delivered(0.3 * tone)
    for name in ("rolloff_50", "centroid"):
        assert one[f"{name}_median"] == pytest.approx(500, abs=2)
    assert one["rolloff_25_median"] < 500 < one["rolloff_85_median"] < 540
    assert one["flux_median"] < 1e-3
    jumping = delivered(np.where(time % 0.1 < 0.05, tone, faint))
    assert 1.0 < jumping["flux_mean"] * 10 / 2 < 2 * np.sqrt(2)  # two jumps in ten frames, each over some frames
    loud = delivered(np.where(time < 0.5, 1.0, 0.1) * tone)
    assert loud["relative_level_p90"] - loud["relative_level_p10"] == pytest.approx(20.0, abs=0.1)
    assert loud["relative_level_p90"] == pytest.approx(10 * np.log10(2 / 1.01), abs=0.1)


def test_cepstra_are_those_of_torchaudio():
    samples = shaped(lambda hertz: -3 * hertz / 1000, 1.0)
    mel = torchaudio.transforms.MelSpectrogram(RATE, 512, 400, 160, n_mels=64, pad_mode="constant").double()
    expected = fft.dct(mel(torch.from_numpy(samples)).log().numpy(), axis=0, norm="ortho")[1:14]
    found = delivered(samples)
    for k, values in enumerate(expected, 1):
        assert found[f"cepstrum_{k}_mean"] == pytest.approx(values.mean(), abs=0.02)
        assert found[f"cepstrum_{k}_sd"] == pytest.approx(values.std(), abs=0.02)


@pytest.mark.parametrize("gain", [0.37, 1e-3, 3.0, 1000.0])
def test_a_gain_changes_the_level_and_nothing_else(gain, make_buzz):
    samples = make_buzz(150 + 30 * np.sin(np.arange(RATE) / 2000), 1.0).astype(np.float64) + 0.001 * noise(1.0)
    found, louder = delivered(samples), delivered(gain * samples)
    assert louder.pop("level") - found.pop("level") == pytest.approx(20 * np.log10(gain), abs=1e-6)
    for name, value in found.items():
        assert louder[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name


def test_an_offset_of_the_recorder_is_not_measured():
    samples = 0.2 * shaped(lambda hertz: -3 * hertz / 1000)
    plain, offset = delivered(samples), delivered(samples + 0.02)
    for name in ("slope_0_500", "flatness", "centroid", "cepstrum_1"):
        assert offset[f"{name}_mean"] == pytest.approx(plain[f"{name}_mean"], rel=5e-3)


UNVARYING = {"silence": np.zeros(RATE), "an offset": np.full(RATE, 0.3), "a short offset": np.full(800, -1.0)}
ODD = {
    "noise": noise(),
    "a click": np.eye(1, RATE, RATE // 2)[0], "a click at the end": np.eye(1, RATE, RATE - 1)[0],
    "two clicks": np.eye(2, RATE, RATE // 3).sum(0), "0.05 s": noise(0.05), "clipped": np.clip(30 * noise(), -1, 1),
    "half silent": np.concatenate([np.zeros(RATE), noise()]), "hardly anything": 1e-35 * noise(),
}  # fmt: skip


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("kind", [*UNVARYING, *ODD])
def test_what_has_no_voice_has_no_pitch_and_the_rest_is_measured_or_not_told(kind):
    found = delivered((UNVARYING | ODD)[kind].astype(np.float32))
    lacking = {name for name in FUNCTIONALS if name.startswith(("pitch", "harmonicity"))} | {"voiced_run"}
    if kind in UNVARYING:
        lacking |= {name for name in DELIVERY if name not in FUNCTIONALS}
    assert {name for name, value in found.items() if np.isnan(value)} == lacking
    assert not np.isinf(list(found.values())).any()
    assert found["voiced_share"] <= 0.05 or kind not in ("silence", "noise", "0.05 s")


@pytest.mark.long
def test_the_number_of_threads_changes_no_bit():
    program = (
        "import numpy as np, sys; from empathy_judge.audio.functionals import delivery;"
        "time = np.arange(16_000 * 210) / 16_000;"
        "tone = sum(np.sin(900 * k * time + 3 * np.sin(5 * time)) / k for k in range(1, 9));"
        "long = 0.1 * tone + 0.01 * np.random.default_rng(0).normal(size=len(time));"
        "sys.stdout.write(''.join(delivery(one.astype(np.float32)).tobytes().hex() for one in (long[:40_000], long)))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 2 * 16 * len(DELIVERY)


def test_real_speech():
    """Everything can be told of acted German sentences, and nothing depends on how loud they were recorded."""
    clips = sorted(real_data("emodb").rglob("*.flac"))[::60]
    assert clips
    for clip in clips:
        samples = decode(clip, RATE)
        found, soft = delivery(samples), delivery(samples / 64)
        assert np.isfinite(found).all()
        assert [name for name, one, other in zip(DELIVERY, found, soft, strict=True) if one != other] == ["level"]
