"""What a clip's delivery amounts to: statistics over its frames of pitch, level, voice, timing and spectrum.

They follow the groups of eGeMAPS (Eyben et al., 2016, doi 10.1109/TAFFC.2015.2457417) on the frames of
`prosody.track`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from . import prosody
from .prosody import HOP, RATE, Track

FUNCTIONALS: Mapping[str, str] = MappingProxyType(
    {
        "pitch_mean": "mean pitch of the voiced frames (semitones above 55 Hz)",
        "pitch_sd": "its standard deviation over frames (semitones)",
        "pitch_p10": "10th percentile of pitch (semitones above 55 Hz)",
        "pitch_median": "median pitch (semitones above 55 Hz)",
        "pitch_p90": "90th percentile of pitch (semitones above 55 Hz)",
        "pitch_range": "from the 10th to the 90th percentile (semitones)",
        "pitch_slope": "straight line through all voiced frames (semitones per second)",
        "pitch_final": "mean of the last 0.3 s of voiced frames above the mean of all (semitones)",
        "pitch_movement": "mean absolute change between neighbouring voiced frames (semitones per second)",
        "level": "power of the frames with speech (dB relative to full scale)",
        "level_sd": "standard deviation of their levels (dB)",
        "level_range": "from the 10th to the 90th percentile of their levels (dB)",
        "level_slope": "straight line through their levels (dB per second)",
        "level_movement": "mean absolute change between neighbouring frames with speech (dB per second)",
        "harmonicity_mean": "mean autocorrelation peak of the voiced frames (0 to 1; breath and roughness lower it)",
        "harmonicity_sd": "its standard deviation over voiced frames",
        "voiced_share": "voiced frames among those with speech (0 to 1)",
        "onset_rate": "beginnings of voiced stretches per second, about the rate of syllables",
        "voiced_run": "mean length of a voiced stretch (seconds)",
        "seconds": "from the first to the last frame with speech",
        "pause_share": "frames without speech between them (0 to 1)",
        "pause_rate": "pauses of at least 0.1 s per second",
        "pause_longest": "the longest pause (seconds; 0 = none)",
        "tilt": "straight line through the long-term spectrum from 100 to 5000 Hz (dB per octave)",
        "alpha_ratio": "energy from 50 to 1000 Hz over that from 1 to 5 kHz (dB; Frokjaer-Jensen and Prytz, 1976)",
        "hammarberg": "strongest peak to 2 kHz over that from 2 to 5 kHz (dB; Hammarberg et al., 1980)",
        "centroid": "centre of gravity of the long-term spectrum to 5 kHz (Hz)",
        "flux": "mean absolute change of a third-octave band between neighbouring frames with speech (dB)",
    }
)
"""Name -> what it is and in which unit, in the order of `functionals`."""

_REFERENCE = 55.0  # Hz
_FRAMES_PER_SECOND = RATE / HOP
_PAUSE = 5  # frames (0.1 s): shorter gaps are closures of consonants
_FINAL = 15  # frames (0.3 s)
_FFT = 1024
_THIRDS = 100.0 * 2 ** (np.arange(18) / 3)  # edges of third-octave bands, 100 to 5080 Hz
_FLOOR = 1e-12
_QUIET = 1e-6  # of the loudest band (-60 dB): changes below are leakage and rounding


def functionals(samples: np.ndarray) -> np.ndarray:
    """The measures of `FUNCTIONALS`.

    Args:
        samples: Mono `(samples,)` at `prosody.RATE` Hz, at least 0.05 s.

    Returns:
        Shape (len(FUNCTIONALS),), float64. Those of pitch, harmonicity and voiced stretches are NaN where fewer than
        `prosody.MIN_VOICED` frames are voiced; a slope or a change is NaN where there are fewer than two frames for it.
    """
    frames = prosody.track(samples)
    found = {**_pitch(frames), **_level(frames), **_voice(frames), **_timing(frames), **_spectrum(samples, frames)}
    return np.array([found[name] for name in FUNCTIONALS])


def _pitch(frames: Track) -> dict[str, float]:
    pitch = 12 * np.log2(prosody.steady_pitch(frames) / _REFERENCE)
    where = np.flatnonzero(~np.isnan(pitch))
    if not where.size:
        return {name: np.nan for name in FUNCTIONALS if name.startswith("pitch")}
    voiced = pitch[where]
    low, median, high = np.percentile(voiced, [10, 50, 90])
    return {
        "pitch_mean": voiced.mean(),
        "pitch_sd": voiced.std(),
        "pitch_p10": low,
        "pitch_median": median,
        "pitch_p90": high,
        "pitch_range": high - low,
        "pitch_slope": _slope(where, voiced),
        "pitch_final": voiced[-_FINAL:].mean() - voiced.mean(),
        "pitch_movement": _movement(where, voiced),
    }


def _level(frames: Track) -> dict[str, float]:
    where = np.flatnonzero(frames.active)
    level = frames.level[where]
    low, high = np.percentile(level, [10, 90])
    return {
        "level": 10 * np.log10((10 ** (level / 10)).mean()),
        "level_sd": level.std(),
        "level_range": high - low,
        "level_slope": _slope(where, level),
        "level_movement": _movement(where, level),
    }


def _voice(frames: Track) -> dict[str, float]:
    voiced = ~np.isnan(frames.pitch)
    starts, lengths = _runs(voiced)
    heard = np.count_nonzero(voiced) >= prosody.MIN_VOICED
    harmonicity = frames.harmonicity[voiced] if heard else np.full(1, np.nan)
    return {
        "harmonicity_mean": harmonicity.mean(),
        "harmonicity_sd": harmonicity.std(),
        "voiced_share": np.count_nonzero(voiced) / np.count_nonzero(frames.active),
        "onset_rate": len(starts) / _seconds(frames),
        "voiced_run": lengths.mean() / _FRAMES_PER_SECOND if heard else np.nan,
    }


def _timing(frames: Track) -> dict[str, float]:
    where = np.flatnonzero(frames.active)
    silent = ~frames.active[where[0] : where[-1] + 1]
    _, lengths = _runs(silent)
    pauses = lengths[lengths >= _PAUSE]
    return {
        "seconds": _seconds(frames),
        "pause_share": silent.mean(),
        "pause_rate": len(pauses) / _seconds(frames),
        "pause_longest": pauses.max(initial=0) / _FRAMES_PER_SECOND,
    }


def _spectrum(samples: np.ndarray, frames: Track) -> dict[str, float]:
    window = torch.hann_window(_FFT)
    waves = torch.from_numpy(np.ascontiguousarray(samples))
    transformed = torch.stft(waves, _FFT, HOP, window=window, pad_mode="constant", return_complex=True)
    power = transformed.abs().square().double().T.numpy() / float(window.square().sum()) + _FLOOR  # (frames, bins)
    hertz = np.fft.rfftfreq(_FFT, 1 / RATE)
    where = np.flatnonzero(frames.active)
    mean = power[where].mean(0)

    def between(low: float, high: float) -> np.ndarray:
        return mean[(hertz >= low) & (hertz < high)]

    edges = itertools.pairwise(_THIRDS)
    bands = np.stack([power[:, (hertz >= low) & (hertz < high)].mean(1) for low, high in edges], 1)
    decibels = 10 * np.log10(bands + _QUIET * bands.max())
    to_5k = hertz < 5000
    return {
        "tilt": _line(np.log2(_THIRDS[:-1]), 10 * np.log10(bands[where].mean(0))),
        "alpha_ratio": 10 * np.log10(between(50, 1000).sum() / between(1000, 5000).sum()),
        "hammarberg": 10 * np.log10(between(0, 2000).max() / between(2000, 5000).max()),
        "centroid": float((hertz * mean)[to_5k].sum() / mean[to_5k].sum()),
        "flux": _movement(where, decibels[where]) / _FRAMES_PER_SECOND,
    }


def _seconds(frames: Track) -> float:
    where = np.flatnonzero(frames.active)
    return float(where[-1] - where[0] + 1) / _FRAMES_PER_SECOND


def _runs(flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First positions and lengths of the stretches of True."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return changes[::2], changes[1::2] - changes[::2]


def _slope(where: np.ndarray, values: np.ndarray) -> float:
    """Per second, of values at these frames."""
    return _line(where / _FRAMES_PER_SECOND, values)


def _line(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of least squares; NaN for a single point."""
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred)) if len(x) > 1 else np.nan


def _movement(where: np.ndarray, values: np.ndarray) -> float:
    """Mean absolute change per second where the next frame is there, too; NaN where none is."""
    neighbours = np.diff(where) == 1
    changes = np.abs(np.diff(values, axis=0))[neighbours]
    return float(changes.mean() * _FRAMES_PER_SECOND) if changes.size else np.nan
