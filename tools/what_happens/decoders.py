"""Which container and codec is read whole by which decoder, and what this package does with it."""

from __future__ import annotations

import io
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import av  # pyright: ignore[reportMissingImports]
import librosa  # pyright: ignore[reportMissingImports]
import numpy as np
import soundfile
import torchaudio
from datasets import Audio
from empathy_judge.audio.decode import load_clip
from empathy_judge.core.errors import AudioError
from scipy.signal import correlate
from torchcodec.decoders import AudioDecoder  # pyright: ignore[reportMissingImports]

COUNT = 24_001
"""Samples of the recording: no multiple of any block or frame."""
SHIFT = 5_000
"""Largest delay that is looked for (samples); the recording repeats itself at no such distance."""
Samples = tuple[np.ndarray, int]


def voice(rate: int, count: int = COUNT) -> np.ndarray:
    """A voice of 130 to 190 Hz with five harmonics and syllables, which no codec changes beyond recognition."""
    times = np.arange(count) / rate
    turns = 2 * np.pi * np.cumsum(160 + 30 * np.sin(5 * times)) / rate
    tone = sum(np.sin(k * turns) / k for k in range(1, 6))
    return 0.2 * tone * (0.6 + 0.4 * np.sin(9 * times)) + np.random.default_rng(0).normal(0, 0.002, count)


def written(samples: np.ndarray, rate: int, kind: str, subtype: str | None = None) -> bytes:
    """As libsndfile writes it."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def converted(rate: int, *options: str, pipe: str | None = None, suffix: str = "", channels: int = 1) -> bytes:
    """As FFmpeg writes it, to a file or, with the name of a format, into a pipe, where it cannot go back."""
    wave = np.repeat(voice(rate)[:, None], channels, 1)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "a.wav"), Path(folder, f"b{suffix}")
        source.write_bytes(written(wave, rate, "WAV", "PCM_16"))
        end = ["-f", pipe, "-"] if pipe else [str(target)]
        command = ["ffmpeg", "-v", "error", "-bitexact", "-i", str(source), *options, *end]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        return made.stdout if pipe else target.read_bytes()


def without_page(ogg: bytes) -> bytes:
    """An Ogg file that has lost the page in its middle."""
    starts = [n for n in range(len(ogg)) if ogg.startswith(b"OggS", n)] + [len(ogg)]
    lost = len(starts) // 2
    return ogg[: starts[lost]] + ogg[starts[lost + 1] :]


def sphere(samples: np.ndarray, rate: int) -> bytes:
    """NIST SPHERE of 16 bits, low byte first."""
    lines = (f"sample_count -i {len(samples)}", f"sample_rate -i {rate}", "channel_count -i 1", "sample_n_bytes -i 2")
    head = "\n".join(("NIST_1A", "   1024", *lines, "sample_byte_format -s2 01", "sample_coding -s3 pcm", "end_head\n"))
    return head.encode().ljust(1024) + (samples * 32767).astype("<i2").tobytes()


def cases() -> Iterator[tuple[str, str, bytes, int]]:
    """What the page calls a file (those of "two in one" hold the recording twice), its suffix and bytes, and the
    rate of the recording (Hz)."""
    wave = voice(16_000)
    wav = written(wave, 16_000, "WAV", "PCM_16")
    flac = written(wave, 16_000, "FLAC", "PCM_16")
    opus = converted(48_000, "-c:a", "libopus", "-page_duration", "60000", suffix=".opus")
    mp3 = converted(16_000, "-q:a", "4", suffix=".mp3")
    yield "WAV, 16 bits", ".wav", wav, 16_000
    yield "WAV of a pipe, sizes unknown", ".wav", converted(16_000, pipe="wav"), 16_000
    yield "WAV, half of it", ".wav", wav[: len(wav) // 2], 16_000
    yield "WAV, two in one", ".wav", wav * 2, 16_000
    yield "WAV, floats", ".wav", written(wave, 16_000, "WAV", "FLOAT"), 16_000
    yield "WAV, IMA ADPCM", ".wav", converted(16_000, "-c:a", "adpcm_ima_wav", suffix=".wav"), 16_000
    yield "WAV, GSM 6.10", ".wav", written(voice(8_000), 8_000, "WAV", "GSM610"), 8_000
    yield (
        "Wave64, floats, 6 channels",
        ".w64",
        converted(16_000, "-c:a", "pcm_f32le", suffix=".w64", channels=6),
        16_000,
    )
    yield "FLAC", ".flac", flac, 16_000
    yield "FLAC of a pipe, length unknown", ".flac", converted(16_000, pipe="flac"), 16_000
    yield "FLAC, half of it", ".flac", flac[: len(flac) // 2], 16_000
    yield "MP3 with LAME's header", ".mp3", mp3, 16_000
    bare = converted(16_000, "-q:a", "4", "-write_xing", "0", suffix=".mp3")
    yield "MP3 of variable rate, no header", ".mp3", bare, 16_000
    yield "MP3, half of it", ".mp3", mp3[: len(mp3) // 2], 16_000
    yield "MP3, two in one", ".mp3", mp3 * 2, 16_000
    yield "Ogg Vorbis", ".ogg", converted(16_000, "-c:a", "libvorbis", suffix=".ogg"), 16_000
    yield "Ogg Opus", ".opus", opus, 48_000
    yield "Ogg Opus, half of it", ".opus", opus[: len(opus) // 2], 48_000
    yield "Ogg Opus, a page lost", ".opus", without_page(opus), 48_000
    yield "Ogg Opus, two in one", ".opus", opus * 2, 48_000
    yield "AIFF, 16 bits", ".aiff", written(wave, 16_000, "AIFF", "PCM_16"), 16_000
    yield "AU, mu-law", ".au", written(wave, 16_000, "AU", "ULAW"), 16_000
    yield "CAF, ALAC", ".caf", written(wave, 16_000, "CAF", "ALAC_16"), 16_000
    yield "SPHERE", ".sph", sphere(wave, 16_000), 16_000
    yield "M4A, AAC", ".m4a", converted(48_000, "-c:a", "aac", suffix=".m4a"), 48_000
    yield "WebM, Opus", ".webm", converted(48_000, "-c:a", "libopus", suffix=".webm"), 48_000
    yield "WMA", ".wma", converted(48_000, "-c:a", "wmav2", suffix=".wma"), 48_000
    yield "text, named .au", ".au", b"pair_id,rater_id,score\n" * 900, 16_000


def by_soundfile(path: Path) -> Samples:
    samples, rate = soundfile.read(path, always_2d=True)
    return samples.mean(1), rate


def by_librosa(path: Path) -> Samples:
    samples, rate = librosa.load(path, sr=None)
    return samples, int(rate)


def by_av(path: Path) -> Samples:
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp")
        frames = [part for frame in container.decode(stream) for part in resampler.resample(frame)]
        frames += resampler.resample(None)
        return np.concatenate([frame.to_ndarray() for frame in frames], 1).mean(0), stream.rate


def by_torchcodec(path: Path) -> Samples:
    found = AudioDecoder(str(path)).get_all_samples()
    return found.data.mean(0).numpy(), found.sample_rate


def by_torchaudio(path: Path) -> Samples:
    samples, rate = torchaudio.load(str(path))
    return samples.mean(0).numpy(), rate


def by_datasets(path: Path) -> Samples:
    found = Audio().decode_example({"path": str(path), "bytes": None}).get_all_samples()
    return found.data.mean(0).numpy(), found.sample_rate


def by_us(path: Path) -> Samples:
    clip = load_clip(path)
    return clip.samples, clip.rate


READERS: dict[str, Callable[[Path], Samples]] = {
    "soundfile": by_soundfile,
    "librosa": by_librosa,
    "PyAV": by_av,
    "torchcodec": by_torchcodec,
    "this package": by_us,
}
SAME = (by_torchaudio, by_datasets)
"""What decodes by torchcodec."""


def verdict(read: Callable[[Path], Samples], path: Path, truth: np.ndarray, rate: int) -> str:
    """What a reader makes of a file, against the recording."""
    try:
        samples, found = read(path)
    except AudioError as error:
        text = str(error).removeprefix(f"{path}: ").split(";")[0]
        return f"refused: {text if error.kind == 'cannot be used' else error.kind}"
    except Exception:
        return "error"
    if found != rate:
        return f"at {found:,} Hz"
    if not len(samples):
        return "nothing"
    more = len(samples) - len(truth)
    match = correlate(samples, truth)[len(truth) - 1 - SHIFT : len(truth) + SHIFT]
    lag = int(match.argmax()) - SHIFT
    # a hole leaves half of the samples in their places
    if match.max() < (0.3 if more else 0.9) * np.linalg.norm(samples) * np.linalg.norm(truth):
        return f"{more:+,} samples, others" if more else "other samples"
    parts = [f"{more:+,}"] if more else []
    parts += [f"{'late' if lag > 0 else 'early'} by {abs(lag):,}"] if lag else []
    return ", ".join(parts) or "whole"


def measure() -> dict[str, Any]:
    """The table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, suffix, data, rate) in enumerate(cases()):
            path = Path(folder, f"{number}{suffix}")
            path.write_bytes(data)
            truth = np.tile(voice(rate), 1 + name.endswith("two in one"))
            rows.append([name, *(verdict(read, path, truth, rate) for read in READERS.values())])
            if any(verdict(read, path, truth, rate) != rows[-1][4] for read in SAME):
                raise RuntimeError(f"{name}: torchaudio or datasets reads other samples than torchcodec")
    everywhere = [row for row in rows if set(row[1:]) == {"whole"}]
    rows = [row for row in rows if row not in everywhere]
    rows.insert(0, ["; ".join(row[0] for row in everywhere), *everywhere[0][1:]])
    named = ("soundfile", "librosa", "av", "torchcodec", "torchaudio", "datasets")
    ffmpeg = subprocess.run(["ffmpeg", "-version"], check=True, capture_output=True, text=True).stdout.split()[2]
    versions = {name: version(name).split("+")[0] for name in named}
    versions |= {"libsndfile": soundfile.__libsndfile_version__, "FFmpeg of torchcodec": ffmpeg}
    return {
        "versions": versions,
        "columns": ["file", "soundfile", "librosa", "PyAV", "torchcodec, torchaudio, `datasets`", "this package"],
        "rows": rows,
    }
