"""Measures of the delivery of a clip: statistics over its frames of pitch, level, voice, timing and spectrum.

They follow the groups of eGeMAPS (Eyben et al., 2016, doi 10.1109/TAFFC.2015.2457417). The acoustic baseline reads the
28 of `functionals`, on the frames of `prosody.track`. `delivery` adds the spectrum of short frames.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy import fft
from scipy.sparse import csr_array

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

_ROLLOFFS = (25, 50, 85, 95)  # per cent of a frame's power
_CEPSTRA = 13

SPECTRAL: Mapping[str, str] = MappingProxyType(
    {
        "alpha_ratio": "energy from 50 to 1000 Hz over that from 1 to 5 kHz (dB; Eyben et al., 2016)",
        "hammarberg": "strongest bin to 2 kHz over that from 2 to 5 kHz (dB; Hammarberg et al., 1980)",
        "slope_0_500": "straight line through the log spectrum to 500 Hz (dB per kHz; Eyben et al., 2016)",
        "slope_500_1500": "the same from 500 to 1500 Hz (dB per kHz)",
        "slope_1500_5000": "the same from 1500 to 5000 Hz (dB per kHz)",
        "flatness": "geometric over arithmetic mean of the bins (dB; 0 = white; Gray and Markel, 1974)",
        **{f"rolloff_{share}": f"frequency below which {share} % of the power lies (Hz)" for share in _ROLLOFFS},
        "centroid": "centre of gravity of the power to 8 kHz (Hz)",
        **{
            f"cepstrum_{k}": f"cepstral coefficient {k} of 64 mel bands (natural log; Davis and Mermelstein, 1980)"
            for k in range(1, _CEPSTRA + 1)
        },
        "relative_level": "power over the mean power of the active frames (dB)",
        "flux": "distance of the amplitude spectrum, at unit energy, from that of the frame before (0 to 1.42)",
    }
)
"""Name -> what is measured in a frame of 25 ms every 10 ms, and in which unit."""
_STATISTICS = ("mean", "sd", "p10", "median", "p90")
DELIVERY: tuple[str, ...] = (*FUNCTIONALS, *(f"{name}_{statistic}" for name in SPECTRAL for statistic in _STATISTICS))
"""Names of the measures of `delivery`: those of `FUNCTIONALS`, then five statistics of each of `SPECTRAL`."""

_REFERENCE = 55.0  # Hz
_FRAMES_PER_SECOND = RATE / HOP
_PAUSE = 5  # frames (0.1 s): shorter gaps are closures of consonants
_FINAL = 15  # frames (0.3 s)
_FFT = 1024
_THIRDS = 100.0 * 2 ** (np.arange(18) / 3)  # edges of third-octave bands, 100 to 5080 Hz
_FLOOR = 1e-12
_QUIET = 1e-6  # of the loudest band (-60 dB): changes below are leakage and rounding

_SHORT, _STEP, _BINS = 400, 160, 512  # 25 ms and 10 ms, transformed at 31.25 Hz
_HERTZ = fft.rfftfreq(_BINS, 1 / RATE)
_HANN = np.hanning(_SHORT + 1)[:-1]
_ACTIVE_DB = 35.0  # below the loudest; short frames fall between the periods of a low voice, so more than prosody's 30
_FAINT = 1e-9 * (_HANN.sum() / 2) ** 2  # 90 dB below a full-scale sine: less is noise of the recording and rounding


def _between(low: float, high: float) -> slice:
    return slice(*np.searchsorted(_HERTZ, [low, high]))


def _slopes() -> csr_array:
    """Weights over bins `(3, bins)` that give the slopes of `SPECTRAL`."""
    weights = np.zeros((3, len(_HERTZ)))
    for row, band in zip(weights, itertools.pairwise([0, 500, 1500, 5000]), strict=True):
        bins = _between(max(band[0], 1), band[1])  # bin 0 is left out: an offset is no voice
        centred = (_HERTZ[bins] - _HERTZ[bins].mean()) / 1000
        row[bins] = centred / (centred @ centred)
    return csr_array(weights)


def _mel(bands: int) -> csr_array:
    """Weights over bins `(bands, bins)`: triangles of equal width in mel (O'Shaughnessy, 1987) to 8 kHz."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + _HERTZ[-1] / 700), bands + 2) / 2595) - 1)
    rise = (_HERTZ - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - _HERTZ) / np.diff(edges)[1:, None]
    return csr_array(np.maximum(0, np.minimum(rise, fall)))


# Sparse, since a product of dense matrices may round by the number of threads
_SLOPES, _MEL = _slopes(), _mel(64)


def functionals(samples: np.ndarray) -> np.ndarray:
    """The measures of `FUNCTIONALS`.

    Args:
        samples: Mono `(samples,)` at `prosody.RATE` Hz, at least 0.05 s.

    Returns:
        Shape (len(FUNCTIONALS),), float64. Those of pitch, harmonicity and voiced stretches are NaN where fewer than
        `prosody.MIN_VOICED` frames are voiced; a slope or a change is NaN where there are fewer than two frames for it.
    """
    frames = prosody.track(samples)
    measures = {**_pitch(frames), **_level(frames), **_voice(frames), **_timing(frames), **_spectrum(samples, frames)}
    return np.array([measures[name] for name in FUNCTIONALS])


def delivery(samples: np.ndarray) -> np.ndarray:
    """The measures of `DELIVERY`: `functionals`, and statistics of short frames with speech.

    The clip is first scaled to a peak of 1, so that nothing but `level` depends on a gain. `level` is that of the clip
    as it came. Active frames are those within 35 dB of the loudest. The number of threads does not change the result.

    Args:
        samples: Mono `(samples,)` at `prosody.RATE` Hz, at least 0.05 s, finite.

    Returns:
        Shape (len(DELIVERY),), float64, never infinite. What `functionals` cannot tell is NaN. So are all statistics of
        `SPECTRAL` in a clip that does not vary (silence, an offset), and those of flux where no two active frames are
        neighbours.
    """
    peak = float(np.abs(samples).max()) or 1.0  # silence stays what it is
    scaled = np.asarray(samples, np.float64) / peak
    measures = functionals(scaled.astype(np.float32))
    # How loud somebody speaks is delivery; it is told once, and nothing else moves with the microphone's gain
    measures[list(FUNCTIONALS).index("level")] += 20 * np.log10(peak)
    return np.concatenate([measures, _short_frames(scaled)])


def _short_frames(samples: np.ndarray) -> np.ndarray:
    """Statistics of `SPECTRAL`."""
    # An offset of the recording would be the lowest band of every frame
    padded = np.pad(samples - samples.mean(), _SHORT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SHORT)[::_STEP]
    transformed: Any = fft.rfft(frames * _HANN, _BINS)  # SciPy has no type for it
    power = np.square(transformed.real)  # (frames, bins); where it can be in place, it is: fresh memory is slow
    power += np.square(transformed.imag)
    total = power.sum(1)
    if total.max() < _FAINT:
        return np.full(len(SPECTRAL) * len(_STATISTICS), np.nan)
    active = np.flatnonzero(total > total.max() * 10 ** (-_ACTIVE_DB / 10))
    power = power[active]
    # Below it is noise of the recording and rounding, of which logarithms would make the largest differences of all
    power += _FAINT
    total = power.sum(1)
    decibels = np.log10(power)
    decibels *= 10
    bands = power[:, _between(50, 1000)].sum(1), power[:, _between(1000, 5000)].sum(1)
    peaks = decibels[:, _between(0, 2000)].max(1), decibels[:, _between(2000, 5000)].max(1)
    measures = [
        10 * np.log10(bands[0] / bands[1]),
        peaks[0] - peaks[1],
        *(_SLOPES @ decibels.T),
        decibels.mean(1) - 10 * np.log10(power.mean(1)),
        *_rolloffs(power),
        np.einsum("fb,b->f", power, _HERTZ) / total,
        *fft.dct(np.log(_MEL @ power.T), axis=0, norm="ortho")[1 : _CEPSTRA + 1],
        10 * np.log10(total / total.mean()),
    ]
    amplitude = np.sqrt(power, out=power)
    amplitude /= np.sqrt(total)[:, None]
    changes = np.diff(amplitude, axis=0)[np.diff(active) == 1]
    flux = np.sqrt(np.einsum("fb,fb->f", changes, changes))
    return np.concatenate([_statistics(np.stack(measures)), _statistics(flux[None])])


def _rolloffs(power: np.ndarray) -> list[np.ndarray]:
    """Roll-off frequencies in Hz, each `(frames,)`; linear within a bin, which reaches half its width to both sides."""
    cumulated, rows, frequencies = power.cumsum(1), np.arange(len(power)), []
    for share in _ROLLOFFS:
        target = cumulated[:, -1] * (share / 100)
        bins = np.count_nonzero(cumulated < target[:, None], axis=1)
        excess = (cumulated[rows, bins] - target) / power[rows, bins]  # 0 to 1 of the bin
        frequencies.append(np.maximum(0, bins + 0.5 - excess) * _HERTZ[1])
    return frequencies


def _statistics(values: np.ndarray) -> np.ndarray:
    """Those of `_STATISTICS` of each row of `(measures, frames)`, one row after the other; NaN without frames."""
    if not values.shape[1]:
        return np.full(len(values) * len(_STATISTICS), np.nan)
    return np.stack([values.mean(1), values.std(1), *np.percentile(values, [10, 50, 90], axis=1)], 1).ravel()


def _pitch(frames: Track) -> dict[str, float]:
    pitch = 12 * np.log2(prosody.steady_pitch(frames) / _REFERENCE)
    positions = np.flatnonzero(~np.isnan(pitch))
    if not positions.size:
        return {name: np.nan for name in FUNCTIONALS if name.startswith("pitch")}
    voiced = pitch[positions]
    low, median, high = np.percentile(voiced, [10, 50, 90])
    return {
        "pitch_mean": voiced.mean(),
        "pitch_sd": voiced.std(),
        "pitch_p10": low,
        "pitch_median": median,
        "pitch_p90": high,
        "pitch_range": high - low,
        "pitch_slope": _slope(positions, voiced),
        # A question rises at its end, and a calm answer falls
        "pitch_final": voiced[-_FINAL:].mean() - voiced.mean(),
        "pitch_movement": _movement(positions, voiced),
    }


def _level(frames: Track) -> dict[str, float]:
    positions = np.flatnonzero(frames.active)
    level = frames.level[positions]
    low, high = np.percentile(level, [10, 90])
    return {
        "level": 10 * np.log10((10 ** (level / 10)).mean()),
        "level_sd": level.std(),
        "level_range": high - low,
        "level_slope": _slope(positions, level),
        "level_movement": _movement(positions, level),
    }


def _voice(frames: Track) -> dict[str, float]:
    voiced = ~np.isnan(frames.pitch)
    starts, lengths = _runs(voiced)
    has_voice = np.count_nonzero(voiced) >= prosody.MIN_VOICED
    harmonicity = frames.harmonicity[voiced] if has_voice else np.full(1, np.nan)
    return {
        "harmonicity_mean": harmonicity.mean(),
        "harmonicity_sd": harmonicity.std(),
        "voiced_share": np.count_nonzero(voiced) / np.count_nonzero(frames.active),
        "onset_rate": len(starts) / _seconds(frames),
        "voiced_run": lengths.mean() / _FRAMES_PER_SECOND if has_voice else np.nan,
    }


def _timing(frames: Track) -> dict[str, float]:
    active = np.flatnonzero(frames.active)
    silent = ~frames.active[active[0] : active[-1] + 1]
    _, lengths = _runs(silent)
    # The closure of a p or t is silent, too
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
    active = np.flatnonzero(frames.active)
    mean = power[active].mean(0)

    def between(low: float, high: float) -> np.ndarray:
        return mean[(hertz >= low) & (hertz < high)]

    edges = itertools.pairwise(_THIRDS)
    bands = np.stack([power[:, (hertz >= low) & (hertz < high)].mean(1) for low, high in edges], 1)
    # Relative to the loudest band: changes of almost silent bands are leakage
    decibels = 10 * np.log10(bands + _QUIET * bands.max())
    to_5k = hertz < 5000
    return {
        "tilt": _line(np.log2(_THIRDS[:-1]), 10 * np.log10(bands[active].mean(0))),
        "alpha_ratio": 10 * np.log10(between(50, 1000).sum() / between(1000, 5000).sum()),
        "hammarberg": 10 * np.log10(between(0, 2000).max() / between(2000, 5000).max()),
        "centroid": float((hertz * mean)[to_5k].sum() / mean[to_5k].sum()),
        "flux": _movement(active, decibels[active]) / _FRAMES_PER_SECOND,
    }


def _seconds(frames: Track) -> float:
    active = np.flatnonzero(frames.active)
    return float(active[-1] - active[0] + 1) / _FRAMES_PER_SECOND


def _runs(flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First positions and lengths of the stretches of True."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return changes[::2], changes[1::2] - changes[::2]


def _slope(where: np.ndarray, values: np.ndarray) -> float:
    """Slope per second of values at these frames."""
    return _line(where / _FRAMES_PER_SECOND, values)


def _line(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of least squares; NaN for a single point."""
    centred = x - x.mean()
    return float(_dot(centred, y) / _dot(centred, centred)) if len(x) > 1 else np.nan


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    """Dot product in stretches that OpenBLAS leaves to one thread: with several, the sum depends on their number."""
    return sum(float(x[start : start + 10_000] @ y[start : start + 10_000]) for start in range(0, len(x), 10_000))


def _movement(where: np.ndarray, values: np.ndarray) -> float:
    """Mean absolute change per second where the next frame is there, too; NaN where none is."""
    neighbours = np.diff(where) == 1
    changes = np.abs(np.diff(values, axis=0))[neighbours]
    return float(changes.mean() * _FRAMES_PER_SECOND) if changes.size else np.nan
