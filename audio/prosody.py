"""What the signal says about delivery: pitch, pitch range, loudness, harmonicity, rate."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .decode import resample

if TYPE_CHECKING:
    import torch  # takes seconds, which `agreement` and `plan`, without audio, should not wait for

RATE = 16_000
"""Hz; clips are measured at this rate."""
HOP = 320
"""Samples between frames (20 ms)."""
_WINDOW = 800  # 50 ms: three periods of the lowest pitch
_LOWEST, _HIGHEST = 65.0, 550.0  # Hz
_LAGS = slice(int(RATE / _HIGHEST), int(RATE / _LOWEST) + 1)
_N_FFT = 1_056  # without wrapping around up to the largest lag: 800 + 246; of small factors, which an FFT likes
_VOICED = 0.45  # autocorrelation peak above which a frame counts as voiced (Boersma, 1993)
_OCTAVE_COST = 0.02  # favours the shorter of two equally good periods (Boersma, 1993)
MIN_VOICED = 10
"""Voiced frames (0.2 s) below which nothing is said about a voice."""
_OCTAVE_ERROR = 9.0  # semitones from the median beyond which a pitch is taken for a tracking error
_SILENCE_DB = 30.0  # frames this far below the loudest are pauses
_BLOCK = 3_000  # frames at a time (60 s): those of an hour would take 4 GB


@dataclass(frozen=True)
class Track:
    """Frame-level measures, one value per 20 ms."""

    pitch: np.ndarray  # fundamental frequency in Hz `(frames,)`, NaN where unvoiced
    level: np.ndarray  # RMS in dB relative to full scale `(frames,)`
    harmonicity: np.ndarray  # autocorrelation peak `(frames,)`, 0 to 1
    active: np.ndarray  # frames that hold speech rather than a pause `(frames,)`


@dataclass(frozen=True)
class Prosody:
    """Clip-level measures; NaN where the clip has too little voiced speech to tell."""

    pitch: float  # median fundamental frequency in Hz
    pitch_range: float  # distance between its 10th and 90th percentile in semitones
    level: float  # RMS of the frames that hold speech, in dB relative to full scale
    harmonicity: float  # mean autocorrelation peak of the voiced frames, 0 to 1
    seconds: float  # from the first to the last frame that holds speech


def track(samples: np.ndarray) -> Track:
    """Measure pitch and level frame by frame.

    Pitch is the best peak of the windowed autocorrelation divided by that of the window (Boersma, 1993), without his
    path search; a three-frame median removes single octave errors.

    Args:
        samples: Mono `(samples,)` at `RATE` Hz, at least one frame long.
    """
    import torch

    padded = torch.nn.functional.pad(torch.from_numpy(np.ascontiguousarray(samples)), (_WINDOW // 2, _WINDOW // 2))
    window, of_window, cost = _window()
    parts = []
    for frames in padded.unfold(0, _WINDOW, HOP).split(_BLOCK):
        # digital silence has -120 dB, not minus infinity, and a correlation of 0, not NaN
        level = 10 * torch.log10(frames.square().mean(-1) + 1e-12)
        centred = (frames - frames.mean(-1, keepdim=True)) * window
        correlation = _autocorrelation(centred)
        # 1e-9: a silent frame has a correlation of 0 at every lag, and 0 / 0 would be a voice of no pitch
        normalised = correlation[:, _LAGS] / (correlation[:, :1] + 1e-9) / of_window
        best_lag = (normalised - cost).argmax(-1)
        parts.append((level, best_lag, normalised.gather(1, best_lag[:, None])[:, 0].clamp(0, 1)))
    level, best_lag, peak = map(torch.cat, zip(*parts, strict=True))
    # Relative to the loudest frame, since recordings differ in level by more than speech and pauses do
    active = level > level.max() - _SILENCE_DB
    pitch = RATE / (best_lag + _LAGS.start).double()
    pitch[~(active & (peak > _VOICED))] = torch.nan
    smoothed = torch.nn.functional.pad(pitch, (1, 1), value=torch.nan).unfold(0, 3, 1).nanmedian(-1).values
    # The median has filled frames at the edges of voiced stretches: no pitch was heard there
    smoothed[pitch.isnan()] = torch.nan
    return Track(smoothed.numpy(), level.double().numpy(), peak.double().numpy(), active.numpy())


@cache
def _window() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The window of a frame, its autocorrelation at each lag, by which that of a windowed frame falls with the lag, and
    what a lag costs."""
    import torch

    window = torch.hann_window(_WINDOW)
    correlation = _autocorrelation(window)
    lags = torch.arange(_LAGS.start, _LAGS.stop)
    return window, correlation[_LAGS] / correlation[0], _OCTAVE_COST * torch.log2(lags * _LOWEST / RATE)


def _autocorrelation(frames: torch.Tensor) -> torch.Tensor:
    """Of frames `(..., _WINDOW)`, right up to the largest lag."""
    import torch

    spectrum = torch.fft.rfft(frames, _N_FFT)
    # The square of a magnitude without its root, which takes five times as long
    return torch.fft.irfft(torch.addcmul(spectrum.real.square(), spectrum.imag, spectrum.imag), _N_FFT)


def steady_pitch(frames: Track) -> np.ndarray:
    """Pitch in Hz `(frames,)` without what is taken for tracking errors, which lie far from the median.

    NaN at these frames, at unvoiced ones, and everywhere in a clip with fewer than `MIN_VOICED` voiced frames.
    """
    voiced = frames.pitch[~np.isnan(frames.pitch)]
    if len(voiced) < MIN_VOICED:
        return np.full_like(frames.pitch, np.nan)
    # In semitones, in which an octave error is 12 for every voice
    distance = np.abs(12 * np.log2(frames.pitch / np.median(voiced)))
    return np.where(distance < _OCTAVE_ERROR, frames.pitch, np.nan)


class ClipFacts(NamedTuple):
    """Measurements of one clip."""

    seconds: float  # duration
    level: float  # RMS of the frames that are not pauses, dB relative to full scale
    voiced: float  # seconds in which a voice has a pitch; 0 where there are too few to tell
    pitch: float  # median fundamental frequency in Hz; NaN without a voice


def clip_facts(windows: Sequence[np.ndarray], rate: int) -> ClipFacts:
    """Measure a decoded clip: mono samples at `rate` Hz, one piece after the other."""
    samples = np.concatenate(windows)
    frames = track(samples if rate == RATE else resample(samples, rate, RATE))
    pitch = steady_pitch(frames)
    voiced = pitch[~np.isnan(pitch)]
    # As power and not in dB: a mean of dB is pulled down by soft frames, and is no level of anything
    power = np.mean(10 ** (frames.level[frames.active] / 10))
    return ClipFacts(
        seconds=len(samples) / rate,
        level=float(10 * np.log10(power)),
        voiced=len(voiced) * HOP / RATE,
        pitch=float(np.median(voiced)) if len(voiced) else math.nan,
    )


def voiced_shares(pieces: Sequence[np.ndarray], rate: int) -> list[float]:
    """Share of the voiced frames of a clip in each of its pieces, in sum 1; without a voice, of its duration.

    The pieces, two or more, are mono samples at `rate` Hz, one after the other; which frames hold speech is decided
    over all of them.
    """
    voiced = np.flatnonzero(~np.isnan(steady_pitch(track(resample(np.concatenate(pieces), rate, RATE))))) * HOP / RATE
    ends = np.cumsum([len(piece) for piece in pieces])
    frames = np.bincount(np.searchsorted(ends[:-1] / rate, voiced, side="right"), minlength=len(pieces))
    # A clip that only breathes or whispers is weighed by its seconds
    amounts = frames if frames.any() else np.diff(ends, prepend=0)
    return (amounts / amounts.sum()).tolist()


def summarise(frames: Track) -> Prosody:
    """Clip-level measures of a track."""
    pitch = steady_pitch(frames)
    active = np.flatnonzero(frames.active)
    power = 10 ** (frames.level[frames.active] / 10)
    if not np.isnan(pitch).all():
        low, median, high = np.nanpercentile(pitch, [10, 50, 90])
        harmonicity = float(frames.harmonicity[~np.isnan(frames.pitch)].mean())
    else:
        low = median = high = harmonicity = float("nan")
    return Prosody(
        pitch=float(median),
        pitch_range=float(12 * np.log2(high / low)),
        level=float(10 * np.log10(power.mean())),
        harmonicity=harmonicity,
        seconds=float((active[-1] - active[0] + 1) * HOP / RATE),
    )


def count_syllables(text: str) -> int:
    """Syllables of an English sentence, estimated as groups of vowel letters (a final silent e is not counted)."""
    words = re.findall(r"[a-z]+", text.lower())
    return sum(max(1, len(re.findall(r"[aeiouy]+", re.sub(r"(?<=[^l])e$", "", word)))) for word in words)
