"""Augmentation as by another recording of the same speech: noise, a codec, a level.

The rating stays, because only the recording chain changes, which raters are told to ignore. Other changes are not here:
pitch, speaking rate and emotion are what people rate, so changing them is a probe of a judge (`eval/checks/`), not an
augmentation. Loudness lies between the two: keep `gain_db` within what a microphone's distance does.

Each clip of a pair gets draws of its own: context and response come from two devices.
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

from ..audio.decode import AudioSource, Clip, load_clip
from ..audio.encodings import MP3_RATES
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
    # `hash` of a text differs between processes
    pair_number = int.from_bytes(hashlib.sha256(pair.pair_id.encode()).digest()[:8], "little")

    def augmented(source: AudioSource, number: int) -> Clip:
        return augment_clip(load_clip(source), settings, np.random.default_rng([seed, epoch, pair_number, number]))

    turns = enumerate(pair.context, start=1)
    context = tuple(dataclasses.replace(turn, audio=augmented(turn.audio, number)) for number, turn in turns)
    return dataclasses.replace(pair, context=context, response=augmented(pair.response, 0))


def augment_clip(clip: Clip, settings: Augmentation, rng: np.random.Generator) -> Clip:
    """The clip after the steps that the draws select, with the same length and rate.

    Silence stays silence. A sample may come to lie beyond full scale, as it may in a file. How many draws are made does
    not depend on what they decide.
    """
    steps: list[tuple[float, Callable[[torch.Tensor, np.random.Generator], torch.Tensor]]] = [
        (settings.noise_probability, lambda x, draws: _noise(x, clip.rate, settings, draws)),
        (settings.codec_probability, lambda x, draws: _codec(x, clip.rate, settings, draws)),
        (settings.gain_probability, lambda x, draws: x * 10 ** (_draw(settings.gain_db, draws) / 20)),
    ]
    samples = torch.from_numpy(clip.samples.copy())
    # two draws that decide nothing: the steps get those that listening checks with published results have got
    rng.random()
    rng.integers(2**63)
    for probability, change in steps:
        decision, draws = rng.random(), np.random.default_rng(rng.integers(2**63))
        if decision < probability and samples.any():
            samples = change(samples, draws)
    return dataclasses.replace(clip, samples=samples.numpy())


def _draw(bounds: Sequence[float], rng: np.random.Generator) -> float:
    low, high = bounds
    return float(rng.uniform(low, high))


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
    # codecs clip at full scale, where a recording may lie beyond it
    peak = max(float(samples.abs().max()), _LOUDEST)
    scaled = samples / peak
    # MP3 has nine rates, Ogg Vorbis nearly all
    if codec == "mp3" and rate not in MP3_RATES:
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
