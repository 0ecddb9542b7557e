"""Pairs of made sounds, to compare two forms of a judge where no recorded pairs are at hand."""

from __future__ import annotations

import numpy as np

from ...data_modules.audio import Clip
from ...data_modules.schema import Pair, Turn

COUNT = 16
_SHORTEST, _LONGEST = 0.5, 6.0  # seconds


def made_pairs(rate: int, longest: float) -> list[Pair]:
    """Sixteen pairs of tones, noise and sounds with the rhythm and resonances of speech, 0.5 to 6 s long.

    They are the same in every call. A quarter has no context, a quarter a situation.

    Args:
        rate: Hz.
        longest: Most seconds that a clip may have.
    """
    random = np.random.default_rng(0)
    ends = np.linspace(_SHORTEST, min(_LONGEST, 0.9 * longest), COUNT)
    pairs = []
    for number, seconds in enumerate(ends):
        context = () if number % 4 == 3 else (Turn("user", Clip(_speech(ends[-number - 1], rate, random), rate)),)
        make = (_speech, _speech, _tone, _noise)[number % 4]
        situation = "Someone tells of a hard day." if number % 4 == 1 else None
        pairs.append(Pair(f"made {number}", Clip(make(seconds, rate, random), rate), context, situation=situation))
    return pairs


def _tone(seconds: float, rate: int, random: np.random.Generator) -> np.ndarray:
    """A sine of 100 to 1000 Hz `(samples,)`."""
    return 0.3 * np.sin(2 * np.pi * random.uniform(100, 1_000) * _times(seconds, rate))


def _noise(seconds: float, rate: int, random: np.random.Generator) -> np.ndarray:
    return random.uniform(0.02, 0.2) * random.normal(size=len(_times(seconds, rate)))


def _speech(seconds: float, rate: int, random: np.random.Generator) -> np.ndarray:
    """Harmonics of a moving pitch under three resonances, four syllables in a second."""
    times = _times(seconds, rate)
    pitch = random.uniform(90, 240) * (1 + 0.2 * np.sin(2 * np.pi * random.uniform(0.2, 1) * times))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    resonances = random.uniform([300, 900, 2_200], [800, 2_000, 3_200])
    harmonics = np.arange(1, 16)
    levels = (1 / (1 + ((harmonics[:, None] * pitch.mean() - resonances) / 150) ** 2)).sum(1)
    sound = sum(level * np.sin(harmonic * phase) for harmonic, level in zip(harmonics, levels, strict=True))
    syllables = np.clip(np.sin(2 * np.pi * 2 * times + random.uniform(0, np.pi)) ** 2, 0.05, None)
    voiced = sound * syllables + 0.01 * random.normal(size=len(times))
    return random.uniform(0.1, 0.5) * voiced / np.abs(voiced).max()


def _times(seconds: float, rate: int) -> np.ndarray:
    return np.arange(round(seconds * rate)) / rate
