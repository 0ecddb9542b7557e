"""What is in the voice is flattened, or all but it is taken away."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...data_modules.audio import MIN_SECONDS, Clip, decode
from .vocoder import listen, resynthesise

LEVEL = -26.0
"""dB relative to full scale; what flattened clips have wherever there is speech."""
FLAT_PITCH = 150.0
"""Hz; the one pitch of flattened prosody, between those of men and women."""
FLAT_PERIODICITY = 0.9
"""Share of harmonic power in voiced stretches of flattened prosody: voice quality is gone."""
TEMPO = 1.25
"""Clips become this much faster or slower."""
SPEAKER = 106
"""Percent of pitch and formants of a smaller speaker: a semitone up; a larger one is as much below."""
_SMOOTH_FRAMES = 6.0  # standard deviation of the level contour's smoothing (120 ms): syllables go, sounds stay
_TEMPO_WINDOW = 0.046  # s


def resynthesis(clip: Clip, rng: np.random.Generator) -> Clip:
    """Through the vocoder with its own pitch and periodicity: what `monotone` and `whisper` do besides."""
    heard = listen(clip)
    return resynthesise(heard, heard.pitch, heard.periodic, rng)


def monotone(clip: Clip, rng: np.random.Generator) -> Clip:
    """Through the vocoder at the median of its pitch."""
    heard = listen(clip)
    return resynthesise(heard, np.full_like(heard.pitch, heard.median_pitch), heard.periodic, rng)


def whisper(clip: Clip, rng: np.random.Generator) -> Clip:
    """Through the vocoder with noise alone: no voice, no pitch; words, timing and level contour stay."""
    heard = listen(clip)
    return resynthesise(heard, heard.pitch, np.zeros_like(heard.periodic), rng)


def level_flattened(clip: Clip, rng: np.random.Generator | None = None) -> Clip:
    """Every stretch of speech at `LEVEL`, over some 120 ms; pauses follow their surroundings. Silence stays silence."""
    from ...data_modules import prosody

    del rng
    if not clip.samples.any():
        return clip
    track = prosody.track(decode(clip, prosody.RATE))
    reach = np.arange(-3 * int(_SMOOTH_FRAMES), 3 * int(_SMOOTH_FRAMES) + 1)
    kernel = np.exp(-0.5 * (reach / _SMOOTH_FRAMES) ** 2)
    power = np.convolve(np.where(track.active, 10 ** (track.level / 10), 0.0), kernel)
    weight = np.convolve(track.active.astype(float), kernel)
    inner = slice(len(reach) // 2, len(reach) // 2 + len(track.level))
    frames = np.flatnonzero(track.active)
    gain = LEVEL - 10 * np.log10(power[inner][frames] / weight[inner][frames])
    seconds = np.arange(len(clip.samples)) / clip.rate
    change = 10 ** (np.interp(seconds, frames * prosody.HOP / prosody.RATE, gain) / 20)
    return dataclasses.replace(clip, samples=(clip.samples * change).astype(np.float32))


def flat_prosody(clip: Clip, rng: np.random.Generator) -> Clip:
    """One pitch, one periodicity and one level for all clips; what is left of the delivery is its timing."""
    heard = listen(clip)
    periodic = np.where(heard.periodic > 0, FLAT_PERIODICITY, 0.0)
    return level_flattened(resynthesise(heard, np.full_like(heard.pitch, FLAT_PITCH), periodic, rng))


def tempo(clip: Clip, rng: np.random.Generator) -> Clip:
    """Faster or slower by `TEMPO`, as a coin falls; pitch and level stay. What is too short to be faster is slower."""
    faster = rng.random() < 0.5 and clip.seconds > MIN_SECONDS * TEMPO
    factor = TEMPO if faster else 1 / TEMPO
    return dataclasses.replace(clip, samples=_stretched(clip, round(len(clip.samples) / factor)))


def other_speaker(clip: Clip, rng: np.random.Generator) -> Clip:
    """A smaller or a larger speaker, as a coin falls: pitch and formants by `SPEAKER`; timing and level stay."""
    import torch
    from torchaudio import functional

    ratio = (SPEAKER, 100) if rng.random() < 0.5 else (100, SPEAKER)
    scaled = functional.resample(torch.from_numpy(clip.samples.copy()), *ratio).numpy()
    return dataclasses.replace(clip, samples=_stretched(Clip(scaled, clip.rate), len(clip.samples)))


def _stretched(clip: Clip, length: int) -> np.ndarray:
    """Samples (length,) of the clip at another tempo: a phase vocoder (Flanagan and Golden, 1966), at its level."""
    import torch
    from torchaudio import functional

    size = 1 << round(np.log2(_TEMPO_WINDOW * clip.rate))
    hop, window = size // 4, torch.hann_window(size)
    samples = torch.from_numpy(np.pad(clip.samples, (0, max(0, size - len(clip.samples)))))
    spectrum = torch.stft(samples, size, hop, window=window, return_complex=True)
    advance = torch.linspace(0, torch.pi * hop, size // 2 + 1)[:, None]
    stretched = functional.phase_vocoder(spectrum, len(clip.samples) / length, advance)
    changed = torch.istft(stretched, size, hop, window=window, length=length).numpy()
    level = np.sqrt(np.square(clip.samples).mean() / max(np.square(changed).mean(), 1e-20))
    return changed * level
