"""Speech to pre-train the nano backbone on: synthetic speech, whose settings are known, and recordings of people, whose
ratings are not read."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from empathy_judge.audio import prosody
from empathy_judge.audio.decode import audio_hash, decode, resample
from empathy_judge.audio.espeak import ACCENTS, QUALITIES, Tone, Voice, speak
from empathy_judge.audio.functionals import delivery
from empathy_judge.checkpoints.nano.make.architecture import HOP, MEL_BINS, SECONDS
from empathy_judge.checkpoints.nano.make.clips import FRAMES_PER_TOKEN, LABELS, RECORDINGS, SEXES, ClipStore, NanoClip
from empathy_judge.checkpoints.nano.make.teacher import taught
from empathy_judge.core.errors import UserError
from empathy_judge.core.processes import in_fresh_processes, progress
from empathy_judge.data_modules.sample import replies, statements
from torchaudio import functional
from transformers import WhisperFeatureExtractor

_SHARD = 500  # clips a worker makes from one state of the synthesiser and one seed
_TRAIN_VOICES, _UNSEEN_VOICES = 240, 40
_LONG = 0.025  # share of synthetic clips of several sentences
_LONG_SECONDS = (10.0, 26.0)
FOLDERS = ("read_speech", "expressive_speech")
_ADULT = 16  # years; the voices of younger speakers do not tell their sex


@dataclass(frozen=True)
class Recording:
    """A recording of a person."""

    file: Path  # where it lies
    speaker: str  # who speaks, distinct from the speakers of other folders
    text: str | None  # what is said; None = unknown
    sex: str | None  # "f" or "m"; None = unknown
    source: str | None  # the credit that it needs; None = that of the folder as a whole


def find_recordings(data: Path) -> list[Recording]:
    """The recordings of `FOLDERS` in `data`, as their `metadata.csv` lists them.

    Raises:
        UserError: If one of the folders is not there.
    """
    recordings = []
    for name in FOLDERS:
        table = data / name / "metadata.csv"
        if not table.exists():
            raise UserError(f"{table}: not found; give the folder that holds {' and '.join(FOLDERS)}")
        with table.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                # age and sex are known for read speech only
                sex = row["gender"] if int(row.get("age") or 0) >= _ADULT else None
                speaker = row.get("speaker_id") or row["reader"]
                source = None
                if "license_url" in row:
                    version = row["license_url"].rstrip("/").rpartition("/")[2]
                    source = f"{row['title']} by {row['author']}, read by {row['reader']} (CC BY {version})"
                recording = Recording(data / name / row["clip"], f"{name}/{speaker}", row.get("text"), sex, source)
                recordings.append(recording)
    return recordings


def hold_out(recordings: Sequence[Recording], seed: int) -> tuple[list[Recording], list[Recording]]:
    """Recordings to train on, and held-out ones, of a random sixth of the speakers of each folder."""
    rng = np.random.default_rng(seed)
    unseen: set[str] = set()
    for name in FOLDERS:
        speakers = sorted({recording.speaker for recording in recordings if recording.speaker.startswith(f"{name}/")})
        unseen |= set(rng.choice(speakers, len(speakers) // 6, replace=False).tolist())
    return [recording for recording in recordings if recording.speaker not in unseen], [
        recording for recording in recordings if recording.speaker in unseen
    ]


def read(recording: Recording) -> np.ndarray:
    """Samples at `prosody.RATE` Hz, up to what the backbone takes at once."""
    return decode(recording.file, prosody.RATE)[: SECONDS * prosody.RATE]


def digest(recordings: Sequence[Recording]) -> str:
    """SHA-256 of all that is read, files included; where they lie does not matter."""
    total = hashlib.sha256()
    for recording in recordings:
        total.update(repr((recording.speaker, recording.text, recording.sex)).encode())
        total.update(bytes.fromhex(audio_hash(recording.file)))
    return total.hexdigest()


def build_corpora(
    folder: Path, recordings: list[Recording], clips: int, seed: int, teacher: Path | None = None
) -> dict[str, ClipStore]:
    """The training corpus, which a `teacher` hears, and the held-out ones, made once and kept in `folder`.

    Returns:
        "train"; "unseen_voices" (synthetic, speakers that are not in training) and, with `recordings`, "real"
        (of speakers that are not in training).
    """
    voices = make_voices(_TRAIN_VOICES + _UNSEEN_VOICES, seed)
    shards = {
        "train": list(synthetic_shards(clips, voices[_UNSEEN_VOICES:], seed, teacher)),
        "unseen_voices": list(synthetic_shards(max(clips // 16, _UNSEEN_VOICES), voices[:_UNSEEN_VOICES], seed + 1)),
    }
    if recordings:
        train, unseen = hold_out(recordings, seed)
        shards["train"] += real_shards(train, seed, teacher)
        shards["real"] = list(real_shards(unseen, seed + 1))
    folder.mkdir(parents=True, exist_ok=True)
    stores = {}
    for name, packages in shards.items():
        path = folder / f"{name}.npz"
        if not path.exists():
            ClipStore.of(collect(packages, name)).save(path)
        stores[name] = ClipStore.load(path)
    return stores


def make_voices(count: int, seed: int) -> list[Voice]:
    """Random speakers: half women, half men, every accent."""
    rng = np.random.default_rng(seed)
    voices = []
    for index in range(count):
        woman = index % 2 == 0
        pitch = rng.uniform(165, 245) if woman else rng.uniform(88, 142)
        tract = rng.uniform(1.08, 1.22) if woman else rng.uniform(0.9, 1.04)
        voices.append(Voice(str(rng.choice(ACCENTS)), "f" if woman else "m", float(pitch), float(tract)))
    return voices


def synthetic_shards(
    count: int, voices: list[Voice], seed: int, teacher: Path | None = None
) -> Iterator[Callable[[], list[NanoClip]]]:
    """Work packages that each synthesise up to `_SHARD` clips in random tones."""
    for shard, start in enumerate(range(0, count, _SHARD)):
        yield partial(_speak_shard, min(_SHARD, count - start), voices, seed * 100_000 + shard, teacher)


def real_shards(
    recordings: list[Recording], seed: int, teacher: Path | None = None
) -> Iterator[Callable[[], list[NanoClip]]]:
    """Work packages over recordings, each of which makes three clips: as it is, in another voice, and degraded."""
    for start in range(0, len(recordings), _SHARD // 5):
        yield partial(_read_shard, recordings[start : start + _SHARD // 5], seed * 100_000 + start, teacher)


def collect(shards: Iterable[Callable[[], list[NanoClip]]], label: str, workers: int = 2) -> list[NanoClip]:
    """Run work packages in fresh processes: espeak-ng keeps state between sentences, so a shard's bytes depend on
    nothing but its seed only if it starts from a new process."""
    packages = list(shards)
    results = in_fresh_processes(_run, packages, workers)
    return [clip for clips in progress(results, label, len(packages)) for clip in clips]


def _run(package: Callable[[], list[NanoClip]]) -> list[NanoClip]:
    torch.set_num_threads(1)
    return package()


def _speak_shard(count: int, voices: list[Voice], seed: int, teacher: Path | None) -> list[NanoClip]:
    rng = np.random.default_rng(seed)
    sentences = statements()[::2] + replies()[::2]
    clips = []
    for _ in range(count):
        voice = voices[rng.integers(len(voices))]
        tone = Tone(
            pitch=float(rng.uniform(-5, 6)),
            range=float(rng.uniform(0, 3)),
            rate=float(rng.uniform(105, 265)),
            level=float(rng.uniform(-40, -16)),
            quality=str(rng.choice(QUALITIES)),
        )
        text = _words(sentences, tone.rate, rng)
        samples = _surround(_to_rate(*speak(text, voice, tone)), rng)
        pitched = samples
        if tone.quality != "modal":  # the tracker does not follow breathy and rough voices: measure a modal twin
            twin = _to_rate(*speak(text, voice, replace(tone, quality="modal")))
            pitched = np.zeros_like(samples)
            start = int(np.argmax(np.abs(samples) > 0.05 * np.abs(samples).max()))
            twin = twin[: pitched.size - start]
            pitched[start : start + twin.size] = twin
        labels = {"quality": QUALITIES.index(tone.quality), "sex": SEXES.index(voice.sex)}
        recording = int(rng.choice(len(RECORDINGS), p=(0.55, 0.15, 0.15, 0.15)))
        clips.append(_describe(samples, pitched, text, labels, tone.pitch, recording, rng))
    return taught(clips, teacher)


def _words(sentences: list[str], rate: float, rng: np.random.Generator) -> str:
    """One sentence, or seldom so many that they take about `_LONG_SECONDS` at so many words per minute."""
    seconds = rng.uniform(*_LONG_SECONDS) if rng.random() < _LONG else 0.0
    text = ""
    while not text or len(text.split()) * 60 / rate < seconds:
        text = f"{text} {sentences[rng.integers(len(sentences))]}".strip()
    return text


def _read_shard(recordings: list[Recording], seed: int, teacher: Path | None) -> list[NanoClip]:
    rng = np.random.default_rng(seed)
    clips = []
    for recording in recordings:
        samples = read(recording)
        labels = {} if recording.sex is None else {"sex": SEXES.index(recording.sex)}
        clips.append(_describe(samples, samples, recording.text, labels, float("nan"), 0, rng))
        altered = _to_level(_in_another_voice(samples, rng), rng)
        clips.append(_describe(altered, altered, recording.text, {}, float("nan"), 0, rng))
        degraded = int(rng.integers(1, len(RECORDINGS)))
        samples = _to_level(samples, rng)
        clips.append(_describe(samples, samples, recording.text, labels, float("nan"), degraded, rng))
    return taught(clips, teacher)


def _describe(
    samples: np.ndarray,
    pitched: np.ndarray,
    text: str | None,
    labels: dict[str, int],
    pitch_shift: float,
    recording: int,
    rng: np.random.Generator,
) -> tuple[NanoClip, np.ndarray]:
    """A clip of up to the backbone's window, and the samples that are heard; the rate of a longer one, or of unknown
    words, is unknown."""
    if samples.size > SECONDS * prosody.RATE:
        samples, pitched, text = samples[: SECONDS * prosody.RATE], pitched[: SECONDS * prosody.RATE], None
    frames = prosody.track(samples)
    voiced = prosody.track(pitched)
    whole, tones = prosody.summarise(frames), prosody.summarise(voiced)
    recorded = _degrade(samples, RECORDINGS[recording], rng)
    mel = _mel(recorded)
    octaves = np.log2(voiced.pitch / 150)
    per_token = _per_token(np.stack([octaves, frames.level], 1), mel.shape[0] // FRAMES_PER_TOKEN)
    core = [
        np.log2(tones.pitch / 150),
        pitch_range(per_token[:, 0]),
        float("nan") if text is None else prosody.count_syllables(text) / whole.seconds,
        whole.level,
        pitch_shift,
        whole.harmonicity,
    ]
    targets = {**labels, "recording": recording}
    clip = NanoClip(
        mel=mel.astype(np.float16),
        # the voice as it was spoken, and the signal as it was recorded
        measures=np.concatenate([core, delivery(recorded)]).astype(np.float32),
        labels=np.array([targets.get(name, -1) for name in LABELS], np.int64),
        frames=per_token,
        states=np.empty((len(per_token), 0), np.float16),
        summary=np.empty((0, 0), np.float16),
    )
    return clip, recorded


def pitch_range(octaves: np.ndarray) -> float:
    """Semitones between the 20th and 80th percentile of token pitches `(tokens,)`, NaN with fewer than four voiced
    ones.

    Tokens more than 9 semitones off the median are tracking errors. Of several spreads tried, this one follows the
    range that the synthesiser was asked for best (Spearman 0.89 over 250 clips; 10th to 90th percentile 0.82).
    """
    voiced = octaves[~np.isnan(octaves)]
    near = voiced[np.abs(voiced - np.median(voiced)) < 0.75] if voiced.size else voiced
    return float(12 * np.subtract(*np.percentile(near, [80, 20]))) if near.size >= 4 else float("nan")


def _per_token(values: np.ndarray, tokens: int) -> np.ndarray:
    """Average 20 ms frames `(frames, 2)` over audio tokens; a token with no voiced frame stays NaN."""
    values = values[: tokens * FRAMES_PER_TOKEN].reshape(tokens, FRAMES_PER_TOKEN, -1)
    count = (~np.isnan(values)).sum(1)
    return np.where(count > 0, np.nansum(values, 1) / np.maximum(count, 1), np.nan).astype(np.float32)


@lru_cache(maxsize=1)
def _extractor() -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=MEL_BINS, hop_length=HOP, chunk_length=SECONDS, n_fft=1024)


def _mel(samples: np.ndarray) -> np.ndarray:
    # zeros after the end, as in a padded batch, so that the last frames look the same here and in use
    padded = np.concatenate([samples, np.zeros(2048, np.float32)])
    features = _extractor()(padded, sampling_rate=prosody.RATE, padding="do_not_pad", truncation=False)
    return np.asarray(features["input_features"][0]).T[: samples.size // HOP]


def _to_rate(samples: np.ndarray, rate: int) -> np.ndarray:
    return resample(samples, rate, prosody.RATE)


def _in_another_voice(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Play up to 15 % faster or 20 % slower: pitch, formants and rate move together."""
    speed = int(rng.choice([17, 18, 19, 21, 22, 23]))
    return resample(samples, speed, 20)


def _to_level(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Scale to a random RMS from -40 to -16 dB full scale, since the loudness of recordings is arbitrary."""
    rms = float(np.sqrt(np.mean(samples**2)))
    return (samples * (10 ** (rng.uniform(-40, -16) / 20) / rms)).astype(np.float32)


def _surround(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Put a clip between up to 0.4 s of room noise, under which it also lies."""
    before, after = (rng.uniform(0, 0.4, 2) * prosody.RATE).astype(int)
    samples = np.pad(samples, (before, after))
    floor = 10 ** (rng.uniform(-85, -60) / 20)
    return (samples + floor * rng.standard_normal(samples.size)).astype(np.float32)


def _degrade(samples: np.ndarray, recording: str, rng: np.random.Generator) -> np.ndarray:
    if recording == "muffled":
        cutoff = float(rng.uniform(900, 2500))
        signal = torch.from_numpy(samples)
        for _ in range(3):
            signal = functional.lowpass_biquad(signal, prosody.RATE, cutoff)
        return signal.numpy()
    rms = float(np.sqrt(np.mean(samples**2)))
    if recording == "noisy":
        noise = rng.standard_normal(samples.size) * rms * 10 ** (-rng.uniform(3, 18) / 20)
        return (samples + noise).astype(np.float32)
    if recording == "distorted":
        limit = rms * 10 ** (rng.uniform(-4, 6) / 20)
        clipped = np.clip(samples, -limit, limit)
        steps = 2.0 ** rng.uniform(2, 5)
        return (np.round(clipped / limit * steps) / steps * limit).astype(np.float32)
    return samples
