"""Another recording of the same speech: a filter, noise, a codec, a level, silence around it, another file."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import soundfile

from ...data_modules.audio import AudioSource, Clip

TELEPHONE = (300.0, 3400.0)
"""Hz; the band of analogue telephony (ITU-T G.120)."""
LOW_PASS = 400.0
"""Hz; up to here low-passed speech is as it was."""
TRANSITION = 100.0
"""Hz; over this width the filters go from passing to stopping."""
SNR = 20.0
"""dB; energy of the clip, pauses included, over that of the noise."""
CODEC_COMPRESSION = 0.8
"""Of MP3, from 0 (best) to 1 (smallest)."""
GAIN = 6.0
"""dB; clips become this much louder or softer."""
SILENCE = 0.5
"""Seconds of silence that come before or after a clip."""
_STOP_DB = 60.0
_FLAC_MAX_RATE = 655_350


def telephone(clip: Clip, rng: np.random.Generator | None = None) -> Clip:
    """The band of a telephone, at the level of the clip."""
    del rng
    return _filtered(clip, *TELEPHONE)


def low_pass(clip: Clip, rng: np.random.Generator | None = None) -> Clip:
    """What lies below `LOW_PASS`, at the level of the clip: pitch, timing and loudness, but hardly a word."""
    del rng
    return _filtered(clip, 0.0, LOW_PASS)


def _filtered(clip: Clip, low: float, high: float) -> Clip:
    """From `low` to `high` Hz as it was, `TRANSITION` beyond that 60 dB less, in phase (Kaiser, 1974); same level."""
    import torch
    from torchaudio import functional

    reach = round((_STOP_DB - 7.95) / (14.36 * TRANSITION / clip.rate) / 2)
    window = np.kaiser(2 * reach + 1, 0.1102 * (_STOP_DB - 8.7))
    response = _lowest(high + TRANSITION / 2, clip.rate, reach)
    if low > 0:
        response -= _lowest(low - TRANSITION / 2, clip.rate, reach)
    extra = -(len(clip.samples) + 4 * reach) % 1024  # transforms of such lengths are fast
    padded = torch.from_numpy(np.pad(clip.samples.astype(np.float64), (reach, reach + extra)))
    filtered = functional.fftconvolve(padded, torch.from_numpy(response * window), mode="valid").numpy()
    filtered = filtered[: len(clip.samples)]
    before, after = np.square(clip.samples, dtype=np.float64).sum(), np.square(filtered).sum()
    audible = after > before * 10 ** (-_STOP_DB / 10)
    gain = np.sqrt(before / after) if audible else 1.0
    return dataclasses.replace(clip, samples=(gain * filtered).astype(np.float32))


def _lowest(edge: float, rate: int, reach: int) -> np.ndarray:
    """Impulse response (2 * reach + 1,) of the ideal filter that lets through what lies below `edge` Hz."""
    share = min(1.0, 2 * edge / rate)
    return share * np.sinc(share * np.arange(-reach, reach + 1))


def noisy(clip: Clip, rng: np.random.Generator) -> Clip:
    """With noise between white and pink at `SNR`."""
    return _augmented(clip, rng, noise_probability=1.0, noise_snr=(SNR, SNR))


def coded(clip: Clip, rng: np.random.Generator) -> Clip:
    """Encoded and decoded as a small MP3 file (Ogg Vorbis where MP3 does not have the rate)."""
    compression = (CODEC_COMPRESSION, CODEC_COMPRESSION)
    return _augmented(clip, rng, codec_probability=1.0, codecs=("mp3",), codec_compression=compression)


def gained(clip: Clip, rng: np.random.Generator) -> Clip:
    """Louder or softer by `GAIN`, as a coin falls; nothing is clipped."""
    gain = GAIN if rng.random() < 0.5 else -GAIN
    return _augmented(clip, rng, gain_probability=1.0, gain_db=(gain, gain))


def _augmented(clip: Clip, rng: np.random.Generator, **settings: Any) -> Clip:
    from ...data_modules.augmentation import Augmentation, augment_clip

    return augment_clip(clip, Augmentation(**settings), rng)


def after_silence(clip: Clip, rng: np.random.Generator | None = None) -> Clip:
    """`SILENCE`, then the clip."""
    del rng
    return dataclasses.replace(clip, samples=np.pad(clip.samples, (round(SILENCE * clip.rate), 0)))


def before_silence(clip: Clip, rng: np.random.Generator | None = None) -> Clip:
    """The clip, then `SILENCE`."""
    del rng
    return dataclasses.replace(clip, samples=np.pad(clip.samples, (0, round(SILENCE * clip.rate))))


def other_file(clip: Clip, rng: np.random.Generator | None = None) -> AudioSource:
    """The bytes of a FLAC file of 16 bits (WAV where FLAC does not have the rate); beyond full scale it clips."""
    del rng
    memory = io.BytesIO()
    kind = "FLAC" if clip.rate <= _FLAC_MAX_RATE else "WAV"
    soundfile.write(memory, clip.samples, clip.rate, "PCM_16", format=kind)
    return memory.getvalue()
