"""Checks of the recording: filter, noise, codec and level. Also the function that changes every clip of pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...audio.decode import AudioSource, Clip, audio_hash, load_clip
from ...core.errors import AudioError
from ...core.processes import map_threads
from ...data_modules.schema import Pair, Turn
from ...data_modules.settings import Augmentation

LOW_PASS = 400.0
"""Hz; upper edge of the pass band of the low-pass filter."""
TRANSITION = 100.0
"""Hz; width of the filter's transition band."""
SNR = 20.0
"""dB; energy of the clip, pauses included, over that of the noise."""
CODEC_COMPRESSION = 0.8
"""Compression of the MP3 file, from 0 (best) to 1 (smallest)."""
GAIN = 6.0
"""dB; clips become this much louder or softer."""
# dB of attenuation, at which nothing of a word is heard any more
_STOP_DB = 60.0

ClipChange = Callable[[Clip, np.random.Generator], Clip]
"""Returns a changed clip from a clip and a random generator."""


def change_clips(
    pairs: Sequence[Pair], change: ClipChange, seed: int, *, keeps_words: bool = True, context: bool = True
) -> tuple[Pair, ...]:
    """The pairs with every clip of context and response changed.

    Random draws depend on the samples of a clip, its rate and `seed`: pairs that share a clip still share it, and the
    order of pairs, the batch and the file format do not matter. A clip that cannot be read stays, so that the judge
    reports the error.

    Args:
        pairs: Pairs with audio of any kind.
        change: Called once per distinct clip, in several threads.
        seed: Seed of the draws.
        keeps_words: Whether the words are still audible; if not, the transcripts of changed clips are removed.
        context: Whether context turns are changed, too, or the response alone.
    """

    sources = dict.fromkeys(source for pair in pairs for source in (pair.clips if context else [pair.response]))

    def changed(source: AudioSource) -> AudioSource:
        try:
            clip = load_clip(source)
        except AudioError:
            return source
        # Seeded by the sound itself: the order of pairs and the format of the file change nothing
        return change(clip, np.random.default_rng([seed, int(audio_hash(clip)[:16], 16)]))

    changed_clips = dict(zip(sources, map_threads(changed, sources, "changing clips", len(sources)), strict=True))
    transcripts = ("context_text", "response_text") if context else ("response_text",)
    # A prompted judge that reads transcripts would otherwise hear words that are gone
    removed = {} if keeps_words else dict.fromkeys(transcripts)
    return tuple(
        dataclasses.replace(
            pair,
            context=tuple(Turn(turn.role, changed_clips[turn.audio]) for turn in pair.context)
            if context
            else pair.context,
            response=changed_clips[pair.response],
            **removed,
        )
        for pair in pairs
    )


def by_clip(change: ClipChange, **options: bool) -> Callable[[Sequence[Pair], int], tuple[Pair, ...]]:
    """`change_clips` of pairs and a seed."""

    def apply(pairs: Sequence[Pair], seed: int) -> tuple[Pair, ...]:
        return change_clips(pairs, change, seed, **options)

    return apply


def low_pass(clip: Clip, rng: np.random.Generator | None = None) -> Clip:
    """The clip below `LOW_PASS`, at its former level: pitch, timing and loudness, but hardly a word.

    The filter has linear phase (Kaiser, 1974); `TRANSITION` above the edge it attenuates by 60 dB.
    """
    import torch  # only where a clip is changed: reports, which name the checks, begin without it
    from torchaudio import functional

    # Kaiser's estimates of the length and the shape of a window with this attenuation
    reach = round((_STOP_DB - 7.95) / (14.36 * TRANSITION / clip.rate) / 2)
    window = np.kaiser(2 * reach + 1, 0.1102 * (_STOP_DB - 8.7))
    share = min(1.0, 2 * (LOW_PASS + TRANSITION / 2) / clip.rate)
    response = share * np.sinc(share * np.arange(-reach, reach + 1))  # of the ideal filter
    # Transforms of such lengths are fast
    extra = -(len(clip.samples) + 4 * reach) % 1024
    # In float64: at -60 dB float32's rounding of a loud clip would be part of what is left
    padded = torch.from_numpy(np.pad(clip.samples.astype(np.float64), (reach, reach + extra)))
    filtered = functional.fftconvolve(padded, torch.from_numpy(response * window), mode="valid").numpy()
    filtered = filtered[: len(clip.samples)]
    before, after = np.square(clip.samples, dtype=np.float64).sum(), np.square(filtered).sum()
    # Of a clip without anything below the edge, a gain would raise what rounding leaves
    audible = after > before * 10 ** (-_STOP_DB / 10)
    gain = np.sqrt(before / after) if audible else 1.0
    return dataclasses.replace(clip, samples=(gain * filtered).astype(np.float32))


def noisy(clip: Clip, rng: np.random.Generator) -> Clip:
    """With noise between white and pink at `SNR`."""
    return _augmented(clip, rng, noise_probability=1.0, noise_snr=(SNR, SNR))


def coded(clip: Clip, rng: np.random.Generator) -> Clip:
    """Encoded and decoded as a small MP3 file (Ogg Vorbis where MP3 does not have the rate)."""
    compression = (CODEC_COMPRESSION, CODEC_COMPRESSION)
    return _augmented(clip, rng, codec_probability=1.0, codecs=("mp3",), codec_compression=compression)


def gained(clip: Clip, rng: np.random.Generator) -> Clip:
    """Louder or softer by `GAIN`, drawn for each clip; nothing is clipped."""
    gain = GAIN if rng.random() < 0.5 else -GAIN
    return _augmented(clip, rng, gain_probability=1.0, gain_db=(gain, gain))


def _augmented(clip: Clip, rng: np.random.Generator, **settings: Any) -> Clip:
    from ...data_modules.augmentation import augment_clip  # imports torch

    return augment_clip(clip, Augmentation(**settings), rng)
