"""Synthesised speech, and measures of a sound."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import numpy as np
from empathy_judge.audio.decode import Clip, resample
from empathy_judge.audio.espeak import Tone, Voice, restart, speak
from empathy_judge.data_modules.schema import Pair, Turn

from ..conftest import tone_clip

RATE = 16_000
TEXT = "The parcel came on Tuesday with the morning post."
MAN, WOMAN = Voice("en-us", "m", 105, 1.0), Voice("en", "f", 200, 1.16)
ELATED, PLAIN, LOUD = Tone(pitch=4, range=2.7, rate=205), Tone(), Tone(level=-18)


@cache
def spoken(speaker: Voice, tone: Tone, rate: int = RATE, text: str = TEXT) -> Clip:
    restart()  # whatever was spoken before
    samples, made = speak(text, speaker, tone)
    return Clip(resample(samples, made, rate), rate)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rms(samples: np.ndarray) -> float:
    return float(10 * np.log10(np.square(samples, dtype=np.float64).mean()))


def band_energy(samples: np.ndarray, low: float, high: float, rate: int = RATE) -> float:
    """dB."""
    power = np.abs(np.fft.rfft(samples.astype(np.float64) * np.hanning(len(samples)))) ** 2
    hertz = np.fft.rfftfreq(len(samples), 1 / rate)
    return float(10 * np.log10(power[(hertz >= low) & (hertz < high)].sum() + 1e-30))


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
