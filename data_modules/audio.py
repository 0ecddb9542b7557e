"""Audio from a file, from encoded bytes or from samples, to mono float32 at a wanted rate.

soundfile decodes and torchaudio resamples: torchaudio's own loader needs FFmpeg by way of TorchCodec
(https://github.com/pytorch/audio/issues/4121).
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import soundfile

from .containers import PLAIN, joined_problem, wav_content, with_true_sizes, without_filling
from .encodings import Mp3, id3_bytes, is_mp3, whole_flac, whole_mp3
from .errors import AudioError, os_reason
from .folders import file_hash
from .ogg import opus_end, whole_ogg
from .spellings import spelling_hint
from .stored_clips import StoredClip
from .unreadable import EXPECTED, HEAD_BYTES, read_wrongly, unreadable

MIN_SECONDS = 0.05
"""Shorter clips are refused."""
RATE_RANGE = (4_000, 384_000)
"""Accepted sample rates (Hz), those that microphones have. Any other rate means a wrong header: resampling a
small file takes minutes from 655,350 Hz, and all memory from 1 Hz."""
MAX_AMPLITUDE = 10.0
"""Full scale is 1.0. Decoders of lossy files pass it by some 6 dB, mixing by a few more; samples 20 dB beyond it are
integers that were never scaled, whatever was made of them since."""
CLIPPED = 0.02
"""Share of the samples at full scale from which a clip counts as clipped: none of 1,760 real recordings has it."""
_FULL_SCALE = 0.999
# The highest value of G.711 is 0.980 (mu-law) or 0.984 (A-law), of 8 bits 0.992.
_LEAST_FULL_SCALE = 0.98
# Means of whole numbers over 2, 3, 4, 6 or 8 channels are whole multiples of a 24th; float32 errs less than this.
_WHOLE, _ROUNDING = 24, 1e-3
_BLOCK_FRAMES = 1 << 18
# libsndfile's log of a wav, au, aiff, rf64 or w64 file whose samples are not as long as declared.
_LENGTH_NOTE = re.compile(r"^ *(?:data|Data Size|SSND) *: (\d+) \(should be (\d+)\)", re.MULTILINE)
# libsndfile passes over a last page of Opus that is cut or damaged, and logs where the one before it ends.
_OPUS_END = re.compile(r"^ *Last Granule pos *: (\d+)", re.MULTILINE)
# What stands behind an ID3 tag: it may be in front of any file.
_NOT_MP3 = (b"OggS", b"fLaC", b"NIST", *PLAIN)
# For two rates without a large common divisor the kernel of torchaudio takes gigabytes; SciPy takes over here.
_MAX_KERNEL_VALUES = 1 << 24
_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, eq=False)
class Clip:
    """Samples in memory.

    Raises:
        AudioError: If the samples are not one-dimensional floats or the rate is absurd.
    """

    samples: np.ndarray  # `(n,)`, mono, float32, full scale 1.0; other float types are converted, integers are refused
    rate: int  # samples per second (Hz)
    name: str = ""  # what messages call it; empty = its length

    def __post_init__(self) -> None:
        if self.samples.ndim != 1 or not np.issubdtype(self.samples.dtype, np.floating):
            raise AudioError(
                f"samples have shape {self.samples.shape} and type {self.samples.dtype}; "
                "expected one-dimensional float samples, full scale 1.0",
                "not supported",
            )
        _check_rate(self.rate, _name(self))
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, which is refused
            object.__setattr__(self, "samples", np.ascontiguousarray(self.samples, dtype=np.float32))

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return len(self.samples) / self.rate


AudioSource = str | Path | bytes | Clip | StoredClip
"""A path, encoded bytes, samples, or a clip inside a dataset."""


@dataclass(frozen=True)
class AudioInfo:
    """Duration (seconds), sample rate (Hz) and number of channels of a clip as it is stored."""

    seconds: float
    rate: int
    channels: int


def decode(source: AudioSource, rate: int, max_seconds: float | None = None, name: str | None = None) -> np.ndarray:
    """Reads a whole clip, averages its channels and resamples it.

    A file that ends early is refused, and so is one that holds more than would be read of it: several recordings in one
    file, or a length in the header that is too small.

    Args:
        source: Path, encoded bytes (any format that soundfile reads), samples, or a clip inside a dataset.
        rate: Wanted sample rate in Hz.
        max_seconds: Longest clip that is accepted. Nothing is ever cut off.
        name: What messages call the clip; by default its path.

    Returns:
        Shape (n,), float32, full scale 1.0 (a loud clip may pass it, as it does in its file).

    Raises:
        AudioError: If the clip is missing, empty, truncated, not audio, shorter than 0.05 s, longer than
            `max_seconds`, or holds NaN, infinite or unscaled samples.
    """
    samples, own_rate = _samples(source, max_seconds, name or _name(source))
    return resample(samples, own_rate, rate)


def load_clip(source: AudioSource, max_seconds: float | None = None, name: str | None = None) -> Clip:
    """Reads a whole clip at its own rate; otherwise as `decode`."""
    name = name or _name(source)
    return Clip(*_samples(source, max_seconds, name), name)


def _samples(source: AudioSource, max_seconds: float | None, name: str) -> tuple[np.ndarray, int]:
    """The samples of a whole clip `(n,)`, channels averaged, and their rate.

    Reads blocks, so that a wrong header cannot claim all memory.
    """
    source = source.read_checked() if isinstance(source, StoredClip) else source
    if isinstance(source, Clip):
        _check_length(len(source.samples), source.rate, max_seconds, name)
        _check_amplitude(source.samples, source.rate, name)
        return source.samples, source.rate
    with _opened(source, name) as (sound, skipped, count):
        rate = sound.samplerate
        _check_length(count, rate, max_seconds, name)
        blocks, frames = [], 0
        try:
            # none is asked for behind the last: there may be a tag, which is no frame of FLAC
            while len(block := sound.read(min(_BLOCK_FRAMES, skipped + count - frames), "float32", always_2d=True)):
                blocks.append(block.mean(axis=1))
                frames += len(block)
        except soundfile.SoundFileError as error:
            message = f"{name}: the file is damaged, decoding stopped after {frames} samples ({error})"
            raise AudioError(message, "the file is damaged") from None
    samples = np.concatenate(blocks)[skipped : skipped + count] if blocks else np.zeros(0, np.float32)
    if len(samples) != count:
        message = f"{name}: the file is cut off, {len(samples)} of {count} samples are there"
        raise AudioError(message, "the file is cut off")
    _check_amplitude(samples, rate, name)
    return samples, rate


def probe(source: AudioSource, name: str | None = None) -> AudioInfo:
    """Duration, rate and channels from the header, without decoding.

    Raises:
        AudioError: If the clip is missing, empty, cut off or not audio.
    """
    name = name or _name(source)
    source = source.read_checked() if isinstance(source, StoredClip) else source
    if isinstance(source, Clip):
        return AudioInfo(source.seconds, source.rate, 1)
    with _opened(source, name) as (sound, _, count):
        return AudioInfo(count / sound.samplerate, sound.samplerate, sound.channels)


def audio_hash(source: AudioSource) -> str:
    """SHA-256 (hex) of the encoded bytes, or of rate and samples for a `Clip`: same content, same hash.

    Raises:
        AudioError: If a file cannot be read.
    """
    if isinstance(source, Clip):
        return hashlib.sha256(f"{source.rate}\n".encode() + source.samples.tobytes()).hexdigest()
    if isinstance(source, StoredClip):
        source = source.read()
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    try:
        return file_hash(source)
    except OSError as error:
        raise AudioError(f"{source}: cannot be read ({os_reason(error)})", "cannot be read") from None


def _name(source: AudioSource) -> str:
    if isinstance(source, StoredClip):
        return source.name
    if isinstance(source, Clip):
        return source.name or f"<{len(source.samples)} samples>"
    return f"<{len(source)} bytes of audio>" if isinstance(source, bytes) else str(source)


@contextmanager
def _opened(source: str | Path | bytes, name: str) -> Iterator[tuple[soundfile.SoundFile, int, int]]:
    """Opens encoded audio; yields it, how many of its frames to skip, and how many follow that are the clip.

    Refuses unusable files before decoding.
    """
    try:
        size = len(source) if isinstance(source, bytes) else _file_size(Path(source), name)
        if size == 0:
            raise AudioError(f"{name}: the file is empty (0 bytes)", "the file is empty")
        checked = _with_true_length(source, name)
        sound = _sound(checked)
        if not isinstance(checked, Mp3) and sound.subtype.startswith("MPEG_LAYER"):
            with sound:
                _check_complete(sound, checked, name)
            stored = _content(checked)
            frames = stored if sound.format == "MP3" else wav_content(io.BytesIO(stored))
            checked = _checked(whole_mp3, frames, name)
            sound = _sound(checked)
    except FileNotFoundError:
        raise AudioError(f"{name}: no such file{spelling_hint(str(source))}", "no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a zero byte
        raise AudioError(f"{name}: cannot be read ({os_reason(error)})", "cannot be read") from None
    except soundfile.SoundFileError as error:
        raise _unreadable(source, name, getattr(error, "error_string", "")) from None
    with sound:
        if sound.format == "RAW":  # so does, by their names, what libsndfile does not know: *.au, *.snd, *.vox, *.gsm
            raise _unreadable(source, name, "")
        if (problem := read_wrongly(sound, _head(source))) is not None:
            raise AudioError(f"{name}: {problem}", "not supported")
        _check_rate(sound.samplerate, name)
        _check_complete(sound, source if isinstance(checked, Mp3) else checked, name)
        skipped, count = (checked.skipped, checked.samples) if isinstance(checked, Mp3) else (0, sound.frames)
        if sound.format == "WAV" and sound.subtype in ("IMA_ADPCM", "MS_ADPCM"):
            with _file(source) as file:
                count = without_filling(file, count)
        if count <= 0:
            raise AudioError(f"{name}: the file holds no samples", "the file is empty")
        yield sound, skipped, count


def _unreadable(source: str | Path | bytes, name: str, reason: str) -> AudioError:
    message, is_recording = unreadable(_head(source), reason)
    return AudioError(f"{name}: {message}", "not supported" if is_recording else "not a sound file")


def _head(source: str | Path | bytes) -> bytes:
    with _file(source) as file:
        file.seek(id3_bytes(file.read(10), 0))
        return file.read(HEAD_BYTES)


class _ReadForward(soundfile.SoundFile):
    """soundfile 0.14 seeks after each block that it reads, wherever it can.

    In MP3, libsndfile 1.2.2 then decodes on without the bytes of earlier frames that it needs, and the first samples of
    the next block are others. In Ogg and FLAC with a hole it fills the declared length with samples that it has already
    read, so that a damaged file looks whole.
    """

    def seekable(self) -> bool:
        return False


class _Bytes(io.BytesIO):
    """Bytes for libsndfile, which steps back beyond the beginning of some damaged files.

    An error in this call would be printed with a traceback, and go no further.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return super().seek(max(offset, 0) if whence == io.SEEK_SET else offset, whence)


def _sound(source: str | Path | bytes | Mp3) -> soundfile.SoundFile:
    if isinstance(source, Mp3):
        source = source.data
    if not isinstance(source, bytes) and Path(source).suffix.lower() == ".raw":  # soundfile asks for rate and channels
        source = Path(source).read_bytes()
    return _ReadForward(_Bytes(source) if isinstance(source, bytes) else str(source))


def _checked(check: Callable[[_In], _Out], content: _In, name: str) -> _Out:
    try:
        return check(content)
    except AudioError as error:
        raise error.at(name) from None


def _file_size(path: Path, name: str) -> int:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(f"{name}: not a file", "cannot be read")
    return status.st_size


def _file(source: str | Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")


def _content(source: str | Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else Path(source).read_bytes()


def _with_true_length(source: str | Path | bytes, name: str) -> str | Path | bytes | Mp3:
    """Refuses files that would be read in part, or with headers for samples.

    Returns the source; or the file without the tags around it, and with the number of its samples in the header.
    """
    with _file(source) as file:
        head = file.read(4)
        if head in PLAIN:
            return _plain(file, name) or source
    has_tag = head[:3] == b"ID3"
    if not (has_tag or is_mp3(head) or head in (b"OggS", b"fLaC")):
        return source
    content = _content(source)
    tagged = content[id3_bytes(content, 0) :]
    head = tagged[:4]
    if head in PLAIN:
        return _plain(io.BytesIO(tagged), name) or tagged
    if is_mp3(head) or (has_tag and head not in _NOT_MP3):
        return _checked(whole_mp3, content, name)
    if head not in (b"OggS", b"fLaC"):
        return tagged
    completed = _checked(whole_ogg if head == b"OggS" else whole_flac, tagged, name)
    return source if completed is content else completed


def _plain(file: BinaryIO, name: str) -> bytes | None:
    file.seek(0)
    start = file.read(12)
    if start[:4] == b"FORM" and start[8:11] != b"AIF":  # not left to libsndfile, which has trouble with some
        raise AudioError(f"{name}: a FORM file that is no AIFF, which cannot be read; {EXPECTED}", "not supported")
    if (problem := joined_problem(file)) is not None:
        raise AudioError(f"{name}: the file {problem}")
    return _checked(with_true_sizes, file, name)


def _check_complete(sound: soundfile.SoundFile, source: str | Path | bytes, name: str) -> None:
    """Refuses a file shorter than its header says, which libsndfile reads and only notes in its log."""
    for declared, found in _LENGTH_NOTE.findall(sound.extra_info):
        missing = int(declared) - int(found)
        if missing > 0:
            message = f"{name}: the file is cut off, its last {missing} bytes are missing"
            raise AudioError(message, "the file is cut off")
    opus = _OPUS_END.search(sound.extra_info)
    if "Ogg: Junk after the last page" in sound.extra_info or (opus and int(opus[1]) < opus_end(_content(source))):
        raise AudioError(f"{name}: the file is cut off in the middle of an Ogg page", "the file is cut off")


def _check_rate(rate: int, name: str) -> None:
    if not RATE_RANGE[0] <= rate <= RATE_RANGE[1]:
        message = f"{name}: sample rate {rate} Hz; expected {RATE_RANGE[0]} to {RATE_RANGE[1]} Hz"
        raise AudioError(message, "not supported")


def _check_length(frames: int, rate: int, max_seconds: float | None, name: str) -> None:
    if frames == 0:
        raise AudioError(f"{name}: there are no samples", "the file is empty")
    seconds = frames / rate
    if seconds < MIN_SECONDS:
        raise AudioError(
            f"{name}: lasts {_beside(seconds, MIN_SECONDS)} s; expected at least {MIN_SECONDS} s", "too short"
        )
    if max_seconds is not None and seconds > max_seconds:
        message = f"{name}: lasts {_beside(seconds, max_seconds)} s; expected at most {max_seconds:g} s"
        raise AudioError(message, "too long")


def _beside(seconds: float, limit: float) -> str:
    """A duration with as many digits as it takes to differ from the limit: 10.00006 beside 10."""
    candidates = (f"{seconds:.{digits}f}" for digits in range(1 if limit >= 1 else 3, 12))
    return next(
        (text for text in candidates if (float(text) > limit) == (seconds > limit) and float(text) != limit),
        f"{seconds!r}",
    )


def _check_amplitude(samples: np.ndarray, rate: int, name: str) -> None:
    """Refuses samples that are not finite or were never scaled to 1.0.

    Those of a quiet recording are within `MAX_AMPLITUDE`, but they are all whole, or means of whole numbers. Only 0 and
    1 remain: a square wave.
    """
    bad = ~(np.abs(samples) <= MAX_AMPLITUDE)  # written so that NaN is bad too
    if bad.any():
        first = int(bad.argmax())
        raise AudioError(
            f"{name}: sample {first} (at {first / rate:.2f} s) is {samples[first]:g}, {int(bad.sum())} such "
            "samples; expected finite samples with full scale 1.0",
            "not finite or not scaled",
        )
    if (peak := np.abs(samples).max()) > 1:
        steps = samples * _WHOLE
        if (np.abs(steps - np.rint(steps)) < _ROUNDING).all():
            raise AudioError(
                f"{name}: the samples are whole numbers up to {peak:g}, not scaled; expected finite samples with full "
                "scale 1.0",
                "not finite or not scaled",
            )


def is_clipped(clip: Clip) -> bool:
    """Whether `CLIPPED` of the samples of a clip, at the rate at which it was made, are at full scale or beyond.

    Encodings of 8 bits (G.711, PCM) end before 1.0. So runs of the highest value of a clip, or of its lowest, count as
    full scale, too, where that is at least the 0.98 of mu-law.
    """
    samples = clip.samples
    highest, lowest = float(samples.max()), float(samples.min())
    at_end = ((samples == highest) & (highest >= _LEAST_FULL_SCALE)) | (
        (samples == lowest) & (lowest <= -_LEAST_FULL_SCALE)
    )
    clipped = np.abs(samples) >= _FULL_SCALE
    run = at_end[1:] & at_end[:-1]
    clipped[1:] |= run
    clipped[:-1] |= run
    return bool(np.mean(clipped) >= CLIPPED)


def resample(samples: np.ndarray, source_rate: int, rate: int) -> np.ndarray:
    """Mono samples `(samples,)` at another rate (Hz), by interpolation with a windowed sinc (Smith and Gossett, 1984).

    The sinc has 6 zero crossings on each side under a Hann window, and its edge at 0.99 of the lower Nyquist frequency.
    """
    if source_rate == rate:
        return samples
    divisor = math.gcd(source_rate, rate)
    up, down = rate // divisor, source_rate // divisor
    if up * (down + 12) > _MAX_KERNEL_VALUES:
        from scipy.signal import resample_poly

        return np.ascontiguousarray(resample_poly(samples, up, down), dtype=np.float32)
    import torch
    from torchaudio import functional

    with torch.inference_mode():
        return functional.resample(torch.tensor(samples), source_rate, rate).numpy()
