"""Measures of signals whose delivery is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from empathy_judge.data_modules.functionals import FUNCTIONALS, functionals

RATE = 16_000
Buzz = Callable[..., np.ndarray]


def measured(samples: np.ndarray) -> dict[str, float]:
    return dict(zip(FUNCTIONALS, functionals(samples.astype(np.float32)), strict=True))


def noise(seconds: float = 2.0) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, round(seconds * RATE))


@pytest.mark.parametrize("hertz", [90.0, 150.0, 300.0])
def test_a_steady_voice(hertz: float, make_buzz: Buzz) -> None:
    found = measured(make_buzz(hertz, 1.0))
    for name in ("pitch_mean", "pitch_median", "pitch_p10", "pitch_p90"):
        assert found[name] == pytest.approx(12 * np.log2(hertz / 55), abs=0.25)
    for name in ("pitch_range", "pitch_sd", "pitch_slope", "pitch_final"):
        assert found[name] == pytest.approx(0, abs=0.25)
    assert found["harmonicity_mean"] > 0.95
    assert found["voiced_share"] > 0.95
    assert found["onset_rate"] == pytest.approx(1.0, abs=0.05)
    assert found["voiced_run"] == pytest.approx(1.0, abs=0.06)
    assert found["seconds"] == pytest.approx(1.0, abs=0.03)


def test_a_rising_voice(make_buzz: Buzz) -> None:
    seconds = np.arange(2 * RATE) / RATE
    found = measured(make_buzz(120 * 2 ** (seconds / 2), 2.0))  # an octave in two seconds
    assert found["pitch_slope"] == pytest.approx(6.0, abs=0.2)
    assert found["pitch_movement"] == pytest.approx(6.0, abs=0.7)
    assert found["pitch_range"] == pytest.approx(0.8 * 12, abs=0.4)
    assert found["pitch_final"] == pytest.approx(6 * (1.85 - 1.0), abs=0.3)
    falling = measured(make_buzz(240 * 2 ** (-seconds / 2), 2.0))
    assert falling["pitch_slope"] == pytest.approx(-6.0, abs=0.2)
    assert falling["pitch_final"] == pytest.approx(-6 * (1.85 - 1.0), abs=0.3)


def test_a_voice_that_grows_louder(make_buzz: Buzz) -> None:
    seconds = np.arange(2 * RATE) / RATE
    steady = make_buzz(150, 2.0, 0.01)
    found, plain = measured(steady * 10 ** (10 * seconds / 20)), measured(steady)
    assert found["level_slope"] == pytest.approx(10.0, abs=0.3)
    assert found["level_range"] == pytest.approx(16.0, abs=0.5)
    assert abs(plain["level_slope"]) < 0.2
    expected = 10 * np.log10(np.mean((steady * 10 ** (10 * seconds / 20)) ** 2))
    assert found["level"] == pytest.approx(expected, abs=0.4)  # half of the last frame lies behind the end


def test_a_pause(make_buzz: Buzz) -> None:
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


def test_spectra() -> None:
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


def test_what_has_no_voice_has_no_pitch_and_the_rest_is_finite() -> None:
    lacking = {name for name in FUNCTIONALS if name.startswith(("pitch", "harmonicity"))} | {"voiced_run"}
    for samples in (noise(), np.zeros(RATE), noise(0.05)):
        found = measured(samples)
        assert {name for name, value in found.items() if np.isnan(value)} == lacking
        assert found["voiced_share"] <= 0.05


def test_gain_changes_the_level_and_nothing_else(make_buzz: Buzz) -> None:
    seconds = np.arange(RATE) / RATE
    samples = make_buzz(150 + 30 * np.sin(8 * seconds), 1.0) + 0.01 * noise(1.0)
    loud, soft = measured(samples), measured(samples / 2)
    assert loud.pop("level") - soft.pop("level") == pytest.approx(20 * np.log10(2), abs=1e-3)
    for name, value in loud.items():
        assert soft[name] == pytest.approx(value, rel=1e-3, abs=1e-3), name
