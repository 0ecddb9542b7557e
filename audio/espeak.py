"""Speech synthesis with espeak-ng through ctypes: any voice, any tone, no network.

espeak-ng is a formant synthesiser: its voices are text files of numbers. Instead of choosing among the voices it
ships, this module writes voice files of its own, so that speaker (pitch, vocal-tract length, accent) and voice
quality (modal, breathy, rough) vary independently and without limit.
"""

from __future__ import annotations

import ctypes
import multiprocessing.util
import os
import shutil
import tempfile
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

QUALITIES = ("modal", "breathy", "rough")
"""Voice qualities that a speaker can take on."""

ACCENTS = (
    "en-us", "en", "en-gb-scotland", "en-029", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc",
)  # fmt: skip
"""espeak-ng's English accents."""

_QUALITY_LINES = {
    "modal": ["roughness 0", "voicing 100", "breath 0 1 1 1 1 1 1 1"],
    "breathy": [
        "roughness 0", "voicing 45", "breath 55 55 42 34 20 14 8 4", "breathw 150 150 200 200 400 400 600 600",
    ],
    "rough": ["roughness 7", "flutter 18", "voicing 100", "breath 6 10 10 8 6 4 2 2"],
}  # fmt: skip


@dataclass(frozen=True)
class Voice:
    """Who speaks."""

    accent: str  # one of `ACCENTS`
    sex: str  # "f" or "m"
    pitch: float  # median pitch in Hz in a neutral tone
    tract: float  # formant frequencies relative to espeak-ng's default speaker (1.0); shorter vocal tracts are above 1

    @property
    def name(self) -> str:
        """A name that tells voices apart and says nothing about tone."""
        return f"{self.accent}-{self.sex}{round(self.pitch)}-{round(100 * self.tract)}"


@dataclass(frozen=True)
class Tone:
    """How it is said, relative to the speaker's neutral voice."""

    pitch: float = 0.0  # shift of the median pitch in semitones
    # pitch movement: 0 monotone, 1 neutral (about 3 semitones between the 10th and 90th percentile), 3 lively
    range: float = 1.0
    rate: float = 175.0  # speaking rate in words per minute (espeak-ng's scale, 80 to 400)
    level: float = -24.0  # loudness: RMS of the spoken part in dB relative to full scale
    quality: str = "modal"  # one of `QUALITIES`


def voice_file(voice: Voice, tone: Tone) -> str:
    """The espeak-ng voice file of a speaker in a tone.

    espeak-ng reads `pitch LOW HIGH` in Hz; the speech it makes then has its median well above LOW (measured: 0.9 +
    0.78 of the spread), so LOW moves down as the range widens to keep the median where the tone wants it.
    """
    spread = 0.42 * tone.range
    low = voice.pitch * 2 ** (tone.pitch / 12) / (0.9 + 0.78 * spread)
    scale = round(100 * voice.tract)
    header = ["language variant", "name variant", f"pitch {low:.0f} {low * (1 + spread):.0f}"]
    formants = [f"formant {i} {scale} 100 100" for i in range(9)]
    return "\n".join([*header, *formants, *_QUALITY_LINES[tone.quality]]) + "\n"


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4  # espeak_PARAMETER
_PEAK = 0.95  # of full scale; a louder tone is limited to it


class _Engine:
    """The one espeak-ng of this process (the C library keeps global state)."""

    def __init__(self) -> None:
        import espeakng_loader

        folder = Path(tempfile.mkdtemp(prefix="empathy-judge-voices-"))
        # A worker process ends without atexit, so TemporaryDirectory would stay behind; multiprocessing's own
        # finalizers run in workers and in the main process
        multiprocessing.util.Finalize(self, shutil.rmtree, (folder, True), exitpriority=0)
        # A data folder that links to the installed one but has a writable folder of voice variants
        data = folder / "espeak-ng-data"
        self._voice_files = data / "voices" / "!v"
        self._voice_files.mkdir(parents=True)
        for entry in Path(espeakng_loader.get_data_path()).iterdir():
            if entry.name != "voices":
                os.symlink(entry, data / entry.name)
        # A copy of its own: a library that is loaded once more under the same name keeps the state of the first
        library = shutil.copy(espeakng_loader.get_library_path(), folder)
        self._library = ctypes.CDLL(str(library))
        self.rate = self._library.espeak_Initialize(2, 0, str(data.parent).encode(), 0)  # 2 = synchronous retrieval
        if self.rate <= 0:
            raise RuntimeError("espeak-ng did not start: its data folder could not be read")
        self._chunks: list[np.ndarray] = []
        self._callback = _Callback(self._collect)  # kept alive: the C library calls it
        self._library.espeak_SetSynthCallback(self._callback)

    def _collect(self, wav, count: int, _events) -> int:
        if wav and count > 0:
            self._chunks.append(np.ctypeslib.as_array(wav, shape=(count,)).copy())
        return 0

    def speak(self, text: str, voice: Voice, tone: Tone) -> np.ndarray:
        definition = voice_file(voice, tone)
        # espeak-ng keeps voice names in 40 bytes and takes one that starts with a digit for a number
        variant = f"v{zlib.crc32(definition.encode()):08x}"
        path = self._voice_files / variant
        if not path.exists():
            path.write_text(definition)
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(zlib.crc32(f"{definition}{tone}{text}".encode())))
        if self._library.espeak_SetVoiceByName(f"{voice.accent}+{variant}".encode()) != 0:
            raise RuntimeError(f"espeak-ng has no accent {voice.accent!r}; expected {', '.join(ACCENTS)}")
        for parameter, value in ((_RATE, tone.rate), (_VOLUME, 100), (_PITCH, 50), (_RANGE, 50)):
            self._library.espeak_SetParameter(parameter, round(value), 0)
        self._chunks.clear()
        encoded = text.encode() + b"\0"
        self._library.espeak_Synth(encoded, len(encoded), 0, 0, 0, 1, None, None)
        return np.concatenate(self._chunks).astype(np.float32) / 32768.0


@cache
def _engine(process: int) -> _Engine:
    del process  # a forked worker must not share the parent's engine
    return _Engine()


def restart() -> None:
    """Forgets what was spoken: the next sentence is what a fresh process would make it.

    espeak-ng keeps state between sentences, so that a clip depends a little on those before it.
    """
    _engine.cache_clear()


def speak(text: str, voice: Voice, tone: Tone) -> tuple[np.ndarray, int]:
    """Synthesise one sentence.

    Returns:
        Samples, mono float32 `(samples,)`, and their rate in Hz. The loudness of the spoken part (RMS of its active
        frames) is set by `tone.level`, so that it does not depend on voice or quality; peaks are kept below full scale.
    """
    engine = _engine(os.getpid())
    samples = engine.speak(text, voice, tone)
    frame = engine.rate // 50
    frames = samples[: samples.size // frame * frame].reshape(-1, frame)
    power = np.mean(frames**2, axis=1)
    active = power > 1e-3 * power.max()
    rms = float(np.sqrt(power[active].mean()))
    gain = 10 ** (tone.level / 20) / rms
    return samples * min(gain, _PEAK / float(np.abs(samples).max())), engine.rate
