"""Augmentation as by another recording of the same speech: noise, a room, a codec, a level, a shift in time.

The rating stays, because only the recording chain changes, which raters are told to ignore. Other changes are not here:
pitch, speaking rate and emotion are what people rate, so changing them is a probe of a judge (`eval/probes/`), not an
augmentation. Loudness lies between the two: keep `gain_db` within what a microphone's distance does.

Each clip of a pair gets draws of its own: context and response come from two devices in two rooms.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import soundfile
import torch
from torchaudio import functional

from .audio import AudioSource, Clip, load_clip
from .encodings import MP3_RATES
from .schema import Pair
from .settings import Augmentation

_LOUDEST = 1.0  # full scale: codecs clip beyond
_MOST_VORBIS = 200_000  # Hz: above, libsndfile 1.2 ends the process instead of refusing
_MOST_MP3 = 0.999  # of the compression: it refuses 1
_BLOCK = 1 << 20  # samples at a time: libsndfile copies them to the stack, and minutes of audio end the process


def augment_pair(pair: Pair, settings: Augmentation, seed: int, epoch: int) -> Pair:
    """The pair with each of its clips decoded and augmented.

    A function of its arguments: the same pair in the same epoch of the same run sounds the same, whatever the batch,
    the rank, the number of workers, and whether the run was interrupted. `seed` is that of the run; epochs are from 0.

    Raises:
        AudioError: If a clip cannot be read.
    """
    pair_number = int.from_bytes(hashlib.sha256(pair.pair_id.encode()).digest()[:8], "little")

    def heard(source: AudioSource, number: int) -> Clip:
        return augment_clip(load_clip(source), settings, np.random.default_rng([seed, epoch, pair_number, number]))

    turns = enumerate(pair.context, start=1)
    context = tuple(dataclasses.replace(turn, audio=heard(turn.audio, number)) for number, turn in turns)
    return dataclasses.replace(pair, context=context, response=heard(pair.response, 0))


def augment_clip(clip: Clip, settings: Augmentation, rng: np.random.Generator) -> Clip:
    """The clip after the steps that the draws select, with the same length and rate.

    Silence stays silence. A sample may come to lie beyond full scale, as it may in a file. How many draws are made does
    not depend on what they decide.
    """
    steps: list[tuple[float, Callable[[torch.Tensor, np.random.Generator], torch.Tensor]]] = [
        (settings.room_probability, lambda x, draws: _room(x, clip.rate, settings, draws)),
        (settings.noise_probability, lambda x, draws: _noise(x, clip.rate, settings, draws)),
        (settings.codec_probability, lambda x, draws: _codec(x, clip.rate, settings, draws)),
        (settings.gain_probability, lambda x, draws: x * 10 ** (_draw(settings.gain_db, draws) / 20)),
        (settings.shift_probability, lambda x, draws: _shift(x, clip.rate, settings, draws)),
    ]
    samples = torch.from_numpy(clip.samples.copy())
    for probability, change in steps:
        decision, draws = rng.random(), np.random.default_rng(rng.integers(2**63))
        if decision < probability and samples.any():
            samples = change(samples, draws)
    return dataclasses.replace(clip, samples=samples.numpy())


def _draw(bounds: Sequence[float], rng: np.random.Generator) -> float:
    low, high = bounds
    return float(rng.uniform(low, high))


def impulse_response(rt60: float, direct_db: float, rate: int, rng: np.random.Generator) -> torch.Tensor:
    """Noise under exp(-6.91 t / rt60), the decay of a diffuse field (60 dB in `rt60`), after a direct sound of 1.

    Args:
        rt60: Reverberation time (s).
        direct_db: Energy of the direct sound over that of the rest (dB).
        rate: Samples per second (Hz).
        rng: Random numbers of the noise.

    Returns:
        Shape (1.2 * rt60 * rate,), float32.
    """
    length = max(2, round(1.2 * rt60 * rate))
    tail = rng.standard_normal(length) * np.exp(-3 * np.log(10) * np.arange(length) / (rt60 * rate))
    tail[0] = 0.0
    tail *= 10 ** (-direct_db / 20) / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    return torch.from_numpy(tail.astype(np.float32))


def convolved(samples: torch.Tensor, response: torch.Tensor) -> torch.Tensor:
    """The whole convolution of two signals, `(len(samples) + len(response) - 1,)`."""
    size = len(samples) + len(response) - 1
    return torch.fft.irfft(torch.fft.rfft(samples, size) * torch.fft.rfft(response, size), size)


def _room(samples: torch.Tensor, rate: int, settings: Augmentation, rng: np.random.Generator) -> torch.Tensor:
    """The clip in a room, at its own level: what follows its end is cut off."""
    response = impulse_response(_draw(settings.room_rt60, rng), _draw(settings.room_direct_db, rng), rate, rng)
    wet = convolved(samples, response)[: len(samples)]
    return wet * (samples.square().mean() / wet.square().mean().clamp_min(1e-20)).sqrt()


def coloured_noise(length: int, slope: float, rate: int, rng: np.random.Generator) -> torch.Tensor:
    """Gaussian noise whose power falls with frequency to the power of `slope` (0 = white, 1 = pink), from 50 Hz."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum *= np.maximum(np.fft.rfftfreq(length, 1 / rate), 50.0) ** (-slope / 2)
    return torch.from_numpy(np.fft.irfft(spectrum, length).astype(np.float32))


def _noise(samples: torch.Tensor, rate: int, settings: Augmentation, rng: np.random.Generator) -> torch.Tensor:
    noise = coloured_noise(len(samples), rng.uniform(), rate, rng)
    return functional.add_noise(samples, noise, torch.tensor(_draw(settings.noise_snr, rng)))


def _codec(samples: torch.Tensor, rate: int, settings: Augmentation, rng: np.random.Generator) -> torch.Tensor:
    codec = settings.codecs[int(rng.integers(len(settings.codecs)))]
    peak = max(float(samples.abs().max()), _LOUDEST)  # codecs clip at full scale
    scaled = samples / peak
    if codec == "mp3" and rate not in MP3_RATES:  # MP3 has not every rate, Ogg Vorbis has more of them
        codec = "ogg"
    if codec == "mu_law" or (codec == "ogg" and rate > _MOST_VORBIS):
        return functional.mu_law_decoding(functional.mu_law_encoding(scaled, 256), 256) * peak
    buffer = io.BytesIO()
    file_format = ("MP3", "MPEG_LAYER_III") if codec == "mp3" else ("OGG", "VORBIS")
    compression = min(_draw(settings.codec_compression, rng), _MOST_MP3 if codec == "mp3" else 1.0)
    encoding: Any = {"subtype": file_format[1], "format": file_format[0], "compression_level": compression}
    with soundfile.SoundFile(buffer, "w", rate, 1, **encoding) as file:
        for block in scaled.split(_BLOCK):
            file.write(block.numpy())
    buffer.seek(0)
    decoded, _ = soundfile.read(buffer, dtype="float32")
    result = torch.zeros_like(samples)
    result[: len(decoded)] = torch.from_numpy(decoded[: len(samples)])
    return result * peak


def _shift(samples: torch.Tensor, rate: int, settings: Augmentation, rng: np.random.Generator) -> torch.Tensor:
    offset = round(_draw(settings.shift_seconds, rng) * rate)
    offset = max(-len(samples), min(offset, len(samples)))
    silence = samples.new_zeros(abs(offset))
    return torch.cat([silence, samples[: len(samples) - offset]] if offset >= 0 else [samples[-offset:], silence])
