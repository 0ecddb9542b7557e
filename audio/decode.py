"""Audio from a file, from encoded bytes or from samples, to mono float32 at a wanted rate.

soundfile decodes and torchaudio resamples: torchaudio's own loader needs FFmpeg by way of TorchCodec
(https://github.com/pytorch/audio/issues/4121).
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import re
import stat
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from ..core.errors import AudioError, os_reason, system_error
from ..core.files import file_hash
from ..core.spellings import spelling_hint
from .containers import PLAIN, wav_content, with_true_sizes, without_filling
from .encodings import id3_bytes, is_mp3, whole_flac, whole_mp3
from .ogg import opus_end, whole_ogg
from .stored_clips import StoredClip
from .unreadable import HEAD_BYTES, READ_RIGHTLY, check_read_rightly, unreadable

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
# For two rates without a large common divisor the kernel of torchaudio takes gigabytes; SciPy takes over here.
_MAX_KERNEL_VALUES = 1 << 24


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
        try:
            _check_rate(self.rate)
        except AudioError as error:
            raise error.at(name_of(self)) from None
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


def decode(source: AudioSource, rate: int, max_seconds: float | None = None) -> np.ndarray:
    """Reads a whole clip, averages its channels and resamples it.

    A file that ends early is refused, and so is one that holds more than would be read of it: several recordings in one
    file, or a length in the header that is too small.

    Args:
        source: Path, encoded bytes (any format that soundfile reads), samples, or a clip inside a dataset.
        rate: Wanted sample rate in Hz.
        max_seconds: Longest clip that is accepted. Nothing is ever cut off.

    Returns:
        Shape (n,), float32, full scale 1.0 (a loud clip may pass it, as it does in its file).

    Raises:
        AudioError: If the clip is missing, empty, truncated, not audio, shorter than 0.05 s, longer than
            `max_seconds`, or holds NaN, infinite or unscaled samples.
    """
    with memory_for(source):
        return resample(*_whole(source, max_seconds), rate)


def load_clip(source: AudioSource, max_seconds: float | None = None, name: str = "") -> Clip:
    """Reads a whole clip at its own rate, and gives it a name; otherwise as `decode`."""
    with memory_for(source, name):
        return Clip(*_whole(source, max_seconds, name), name or name_of(source))


def _whole(source: AudioSource, max_seconds: float | None, name: str = "") -> tuple[np.ndarray, int]:
    """The samples of a clip, which were checked `(n,)`, and their rate."""
    # The whole file at once: it is checked to its end before a sample of it counts
    content = source if isinstance(source, Clip) else _read(source)
    try:
        if isinstance(content, Clip):
            samples, rate = content.samples, content.rate
            _check_length(len(samples), rate, max_seconds)
        else:
            samples, rate = _decoded(content, max_seconds)
        _check_amplitude(samples, rate)
    except AudioError as error:
        raise error.at(name or name_of(source)) from None
    return samples, rate


@contextmanager
def memory_for(source: AudioSource, name: str = "") -> Iterator[None]:
    """Where memory does not suffice for what is done to a clip, that is an error of the clip: others go on.

    Raises:
        AudioError: If it does not.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch has the latter
        found = system_error(error)
        if found is None or found.errno != errno.ENOMEM:
            raise
        reason = f"{name or name_of(source)}: takes more memory than there is"
        raise AudioError(reason, "too large for the memory") from None


def probe(source: AudioSource, name: str = "", max_seconds: float | None = None) -> AudioInfo:
    """Duration, rate and channels from the header, without decoding.

    Raises:
        AudioError: If the clip is missing, empty, cut off or not audio; with `max_seconds`, also if `decode` would
            refuse its length.
    """
    with memory_for(source, name):
        content = source if isinstance(source, Clip) else _read(source)
    try:
        if isinstance(content, Clip):
            rate, channels, count = content.rate, 1, len(content.samples)
        else:
            sound, _, count = _open(content)
            with sound:
                rate, channels = sound.samplerate, sound.channels
        if max_seconds is not None:
            _check_length(count, rate, max_seconds)
    except AudioError as error:
        raise error.at(name or name_of(source)) from None
    return AudioInfo(count / rate, rate, channels)


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


def known_by(source: AudioSource) -> Hashable:
    """A small key of a clip, whatever the clip is. A file that was changed is another clip."""
    if isinstance(source, bytes | Clip):
        return audio_hash(source)
    if isinstance(source, str | Path):
        with suppress(OSError):  # the error is raised when the file is read
            facts = Path(source).stat()
            # times may be copied with a file (rsync -t), all but ctime
            return str(source), facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
    return source


def name_of(source: AudioSource) -> str:
    """What messages call a clip."""
    if isinstance(source, StoredClip):
        return source.name
    if isinstance(source, Clip):
        return source.name or f"<{len(source.samples)} samples>"
    return f"<{len(source)} bytes of audio>" if isinstance(source, bytes) else str(source)


def _read(source: str | Path | bytes | StoredClip) -> bytes:
    """The encoded bytes of a clip."""
    if isinstance(source, StoredClip):
        return source.read_checked()
    if isinstance(source, bytes):
        return source
    path = Path(source)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: a pipe would wait for a writer
            raise AudioError(f"{source}: not a file", "cannot be read")
        return path.read_bytes()
    except FileNotFoundError:
        raise AudioError(f"{source}: no such file{spelling_hint(str(source))}", "no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a zero byte
        raise AudioError(f"{source}: cannot be read ({os_reason(error)})", "cannot be read") from None


def _decoded(content: bytes, max_seconds: float | None) -> tuple[np.ndarray, int]:
    """The samples of an encoded clip `(n,)`, channels averaged, and their rate."""
    sound, skipped, count = _open(content)
    with sound:
        rate = sound.samplerate
        _check_length(count, rate, max_seconds)
        # in blocks, so that a wrong header cannot claim all memory
        blocks, frames = [], 0
        try:
            # none is asked for behind the last: there may be a tag, which is no frame of FLAC
            while len(block := sound.read(min(_BLOCK_FRAMES, skipped + count - frames), "float32", always_2d=True)):
                # The mean, since a sum of channels would pass full scale; of one channel it takes as long as decoding
                blocks.append(block.mean(axis=1) if block.shape[1] > 1 else block[:, 0])
                frames += len(block)
        except soundfile.SoundFileError as error:
            message = f"the file is damaged, decoding stopped after {frames} samples ({error})"
            raise AudioError(message, "the file is damaged") from None
    # An encoder's delay stands in front of the clip, and its filling behind
    samples = np.concatenate(blocks)[skipped : skipped + count] if blocks else np.zeros(0, np.float32)
    if len(samples) != count:
        raise AudioError(f"the file is cut off, {len(samples)} of {count} samples are there", "the file is cut off")
    return samples, rate


def _open(content: bytes) -> tuple[soundfile.SoundFile, int, int]:
    """Opens encoded audio as one whole recording; refuses what would be read in part, or with headers for samples.

    Returns:
        The open file, how many of its frames to skip, and how many follow that are the clip.
    """
    if not content:
        raise AudioError("the file is empty (0 bytes)", "the file is empty")
    has_tag = content.startswith(b"ID3")  # which may stand in front of any format
    whole = content[id3_bytes(content, 0) :] if has_tag else content
    head, start, mp3 = whole[:HEAD_BYTES], whole[:4], None
    if start in PLAIN:
        whole = with_true_sizes(whole)
    elif start == b"OggS":
        whole = whole_ogg(whole)
    elif start == b"fLaC":
        whole = whole_flac(whole)
    # what follows a tag is MP3 even where it does not begin with a frame; SPHERE is read without a count
    elif is_mp3(start) or (has_tag and start != b"NIST"):
        mp3 = whole_mp3(content)
    try:
        sound = _ReadForward(_Bytes(whole if mp3 is None else mp3.data))
        if mp3 is None and sound.subtype.startswith("MPEG_LAYER"):  # within WAV, or behind bytes that are no frame
            _check_complete(sound, whole)
            mp3 = whole_mp3(whole if sound.format == "MP3" else wav_content(whole))
            sound = _ReadForward(_Bytes(mp3.data))
    except soundfile.SoundFileError as error:
        raise unreadable(head, getattr(error, "error_string", "")) from None
    if sound.format not in READ_RIGHTLY:
        check_read_rightly(sound, head)
    _check_rate(sound.samplerate)
    _check_complete(sound, whole)
    skipped, count = (0, sound.frames) if mp3 is None else (mp3.skipped, mp3.samples)
    if sound.format == "WAV" and sound.subtype in ("IMA_ADPCM", "MS_ADPCM"):
        count = without_filling(whole, count)
    if count <= 0:
        raise AudioError("the file holds no samples", "the file is empty")
    return sound, skipped, count


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


def _check_complete(sound: soundfile.SoundFile, content: bytes) -> None:
    """Refuses a file shorter than its header says, which libsndfile reads and only notes in its log."""
    for declared, found in _LENGTH_NOTE.findall(sound.extra_info):
        missing = int(declared) - int(found)
        if missing > 0:
            raise AudioError(f"the file is cut off, its last {missing} bytes are missing", "the file is cut off")
    opus = _OPUS_END.search(sound.extra_info)
    if "Ogg: Junk after the last page" in sound.extra_info or (opus and int(opus[1]) < opus_end(content)):
        raise AudioError("the file is cut off in the middle of an Ogg page", "the file is cut off")


def _check_rate(rate: int) -> None:
    if not RATE_RANGE[0] <= rate <= RATE_RANGE[1]:
        raise AudioError(f"sample rate {rate} Hz; expected {RATE_RANGE[0]} to {RATE_RANGE[1]} Hz", "not supported")


def _check_length(frames: int, rate: int, max_seconds: float | None) -> None:
    if frames == 0:
        raise AudioError("there are no samples", "the file is empty")
    seconds = frames / rate
    if seconds < MIN_SECONDS:
        text = _seconds_text(seconds, MIN_SECONDS)
        raise AudioError(f"lasts {text} s; expected at least {MIN_SECONDS} s", "too short")
    if max_seconds is not None and seconds > max_seconds:
        text = _seconds_text(seconds, max_seconds)
        raise AudioError(f"lasts {text} s; expected at most {max_seconds:g} s", "too long")


def _seconds_text(seconds: float, limit: float) -> str:
    """A duration with as many digits as it takes to differ from the limit: 10.00006 where the limit is 10."""
    candidates = (f"{seconds:.{digits}f}" for digits in range(1 if limit >= 1 else 3, 12))
    return next(
        (text for text in candidates if (float(text) > limit) == (seconds > limit) and float(text) != limit),
        f"{seconds!r}",
    )


def _check_amplitude(samples: np.ndarray, rate: int) -> None:
    """Refuses samples that are not finite or were never scaled to 1.0.

    Those of a quiet recording are within `MAX_AMPLITUDE`, but they are all whole, or means of whole numbers. Only 0 and
    1 remain: a square wave.
    """
    peak = np.abs(samples).max()  # NaN if one is
    if not peak <= MAX_AMPLITUDE:
        bad = ~(np.abs(samples) <= MAX_AMPLITUDE)  # written so that NaN is bad too
        first = int(bad.argmax())
        found = f"sample {first} (at {first / rate:.2f} s) is {samples[first]:g}, {int(bad.sum())} such samples"
    elif peak > 1 and _are_whole(samples):
        found = f"the samples are whole numbers up to {peak:g}, not scaled"
    else:
        return
    raise AudioError(f"{found}; expected finite samples with full scale 1.0", "not finite or not scaled")


def _are_whole(samples: np.ndarray) -> bool:
    steps = samples * _WHOLE
    return bool((np.abs(steps - np.rint(steps)) < _ROUNDING).all())


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
