"""Speech to pre-train the nano backbone on: clips with what is known or measured about their delivery."""

from __future__ import annotations

import csv
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torchaudio
from transformers import WhisperFeatureExtractor

from ...data_modules import prosody
from ...data_modules.audio import decode
from ...data_modules.espeak import ACCENTS, QUALITIES, Tone, Voice, speak
from ...data_modules.parallel import progress
from ...data_modules.sample import replies, statements

MEASURES = ("pitch", "pitch_range", "rate", "level", "pitch_shift", "harmonicity")
"""Continuous targets; units in `Clip`."""
RECORDINGS = ("clean", "muffled", "noisy", "distorted")
SEXES = ("f", "m")
LABELS = {"quality": QUALITIES, "sex": SEXES, "recording": RECORDINGS}
"""Categorical targets and their values."""
FRAMES_PER_TOKEN = 4
_SHARD = 1000  # clips a worker makes from one state of the synthesiser and one seed
_MAX_FRAMES = 500  # the backbone's window of 10 s
_TRAIN_VOICES, _UNSEEN_VOICES = 240, 40
_ADULT = 16  # years; the voices of younger speakers do not tell their sex


@dataclass(frozen=True)
class Clip:
    """One clip and its targets.

    Attributes:
        mel: Log-mel spectrogram `(frames, bins)`, float16, as the feature extractor makes it.
        measures: `MEASURES` in octaves above 150 Hz, semitones, syllables per second, dB full scale, semitones and
            0..1; NaN = unknown.
        labels: Index of each of `LABELS`; -1 = unknown.
        frames: Octaves above 150 Hz (NaN = unvoiced) and dB full scale for each audio token `(tokens, 2)`.
    """

    mel: np.ndarray
    measures: np.ndarray
    labels: np.ndarray
    frames: np.ndarray


def build_corpora(folder: Path, real_speech: Path | None, clips: int, seed: int) -> dict[str, ClipStore]:
    """The training corpus and the held-out ones, made once and kept in `folder`.

    Returns:
        "train"; "unseen_voices" (synthetic, speakers that training has not heard) and, with `real_speech`, "real"
        (recordings of speakers that training has not heard).
    """
    voices = make_voices(_TRAIN_VOICES + _UNSEEN_VOICES, seed)
    shards = {
        "train": list(synthetic_shards(clips, voices[_UNSEEN_VOICES:], seed)),
        "unseen_voices": list(synthetic_shards(max(clips // 16, _UNSEEN_VOICES), voices[:_UNSEEN_VOICES], seed + 1)),
    }
    if real_speech is not None:
        rows = read_metadata(real_speech)
        speakers = sorted({row["speaker_id"] for row in rows})
        unseen = set(np.random.default_rng(seed).choice(speakers, len(speakers) // 6, replace=False).tolist())
        train = [row for row in rows if row["speaker_id"] not in unseen]
        shards["train"] += real_shards(train, real_speech, 3, seed)
        shards["real"] = list(
            real_shards([row for row in rows if row["speaker_id"] in unseen], real_speech, 2, seed + 1)
        )
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


def synthetic_shards(count: int, voices: list[Voice], seed: int) -> Iterator[Callable[[], list[Clip]]]:
    """Work packages that each synthesise up to `_SHARD` clips in random tones."""
    for shard, start in enumerate(range(0, count, _SHARD)):
        yield partial(_speak_shard, min(_SHARD, count - start), voices, seed * 100_000 + shard)


def real_shards(rows: list[dict[str, str]], folder: Path, copies: int, seed: int) -> Iterator[Callable[[], list[Clip]]]:
    """Work packages over recordings listed in `metadata.csv`; each is used clean once and degraded `copies -
    1` times."""
    for start in range(0, len(rows), _SHARD // 5):
        yield partial(_read_shard, rows[start : start + _SHARD // 5], folder, copies, seed * 100_000 + start)


def read_metadata(folder: Path) -> list[dict[str, str]]:
    """Rows of `metadata.csv` (clip, speaker_id, text, gender, age) of a folder of real read speech."""
    with open(folder / "metadata.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def collect(shards: Iterable[Callable[[], list[Clip]]], label: str, workers: int = 2) -> list[Clip]:
    """Run work packages in fresh processes: espeak-ng keeps state between sentences, so a shard's bytes depend on
    nothing but its seed only if it starts from a new process."""
    packages = list(shards)
    with multiprocessing.get_context("forkserver").Pool(workers, maxtasksperchild=1) as pool:
        made = pool.imap(_run, packages, chunksize=1)
        clips = [clip for clips in progress(made, label, len(packages)) for clip in clips]
        pool.close()
        pool.join()  # workers that are terminated instead leave their voice files behind
    return clips


def _run(package: Callable[[], list[Clip]]) -> list[Clip]:
    torch.set_num_threads(1)
    return package()


def _speak_shard(count: int, voices: list[Voice], seed: int) -> list[Clip]:
    rng = np.random.default_rng(seed)
    texts = statements()[::2] + replies()[::2]
    clips = []
    for _ in range(count):
        voice, text = voices[rng.integers(len(voices))], texts[rng.integers(len(texts))]
        tone = Tone(
            pitch=float(rng.uniform(-5, 6)),
            range=float(rng.uniform(0, 3)),
            rate=float(rng.uniform(105, 265)),
            level=float(rng.uniform(-40, -16)),
            quality=str(rng.choice(QUALITIES)),
        )
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
    return clips


def _read_shard(rows: list[dict[str, str]], folder: Path, copies: int, seed: int) -> list[Clip]:
    rng = np.random.default_rng(seed)
    clips = []
    for row in rows:
        samples = decode(folder / row["clip"], prosody.RATE)[: 10 * prosody.RATE]
        labels = {"sex": SEXES.index(row["gender"])} if int(row["age"]) >= _ADULT else {}
        for copy in range(copies):
            recording = 0 if copy == 0 else int(rng.integers(1, len(RECORDINGS)))
            clips.append(_describe(samples, samples, row["text"], labels, float("nan"), recording, rng))
    return clips


def _describe(
    samples: np.ndarray,
    pitched: np.ndarray,
    text: str,
    labels: dict[str, int],
    pitch_shift: float,
    recording: int,
    rng: np.random.Generator,
) -> Clip:
    frames = prosody.track(samples)
    voiced = prosody.track(pitched)
    whole, tones = prosody.summarise(frames), prosody.summarise(voiced)
    mel = _mel(_degrade(samples, RECORDINGS[recording], rng))
    octaves = np.log2(voiced.pitch / 150)
    per_token = _per_token(np.stack([octaves, frames.level], 1), mel.shape[0] // FRAMES_PER_TOKEN)
    measures = [
        np.log2(tones.pitch / 150),
        pitch_range(per_token[:, 0]),
        prosody.count_syllables(text) / whole.seconds,
        whole.level,
        pitch_shift,
        whole.harmonicity,
    ]
    known = {**labels, "recording": recording}
    return Clip(
        mel=mel.astype(np.float16),
        measures=np.array(measures, np.float32),
        labels=np.array([known.get(name, -1) for name in LABELS], np.int64),
        frames=per_token,
    )


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


def _mel(samples: np.ndarray) -> np.ndarray:
    from .architecture import HOP, MEL_BINS, SECONDS

    extractor = WhisperFeatureExtractor(feature_size=MEL_BINS, hop_length=HOP, chunk_length=SECONDS, n_fft=1024)
    # zeros after the end, as in a padded batch, so that the last frames look the same here and in use
    padded = np.concatenate([samples, np.zeros(2048, np.float32)])
    features = extractor(padded, sampling_rate=prosody.RATE, padding="do_not_pad", truncation=False)["input_features"][
        0
    ]
    return np.asarray(features).T[: samples.size // HOP]


def _to_rate(samples: np.ndarray, rate: int) -> np.ndarray:
    return torchaudio.functional.resample(torch.from_numpy(samples), rate, prosody.RATE).numpy()


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
            signal = torchaudio.functional.lowpass_biquad(signal, prosody.RATE, cutoff)
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


class ClipStore:
    """Clips side by side in a few arrays, so that batches are cut out of them fast."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.mel, self.frames, self.measures, self.labels = (
            torch.from_numpy(arrays[name]) for name in ("mel", "frames", "measures", "labels")
        )
        self.mel_starts, self.token_starts = arrays["mel_starts"], arrays["token_starts"]

    @classmethod
    def of(cls, clips: list[Clip]) -> ClipStore:
        """Lay clips side by side."""
        return cls(
            {
                "mel": np.concatenate([clip.mel for clip in clips]),
                "frames": np.concatenate([clip.frames for clip in clips]),
                "measures": np.stack([clip.measures for clip in clips]),
                "labels": np.stack([clip.labels for clip in clips]),
                "mel_starts": np.cumsum([0] + [clip.mel.shape[0] for clip in clips]),
                "token_starts": np.cumsum([0] + [clip.frames.shape[0] for clip in clips]),
            }
        )

    def save(self, path: Path) -> None:
        """Write everything to one `.npz` file."""
        np.savez(path, **self.arrays)  # pyright: ignore[reportArgumentType] takes the names for its own arguments

    @classmethod
    def load(cls, path: Path) -> ClipStore:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(dict(file))

    def __len__(self) -> int:
        return len(self.measures)

    def tokens(self, index: int) -> int:
        """Audio tokens of a clip."""
        return int(self.token_starts[index + 1] - self.token_starts[index])

    def batch(self, indices: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mel `(batch, bins, frames)` with silence as padding, frames per clip `(batch,)`, and token targets
        `(batch, tokens, 2)` with NaN as padding."""
        indices = list(indices)
        spans = [slice(self.mel_starts[i], self.mel_starts[i] + FRAMES_PER_TOKEN * self.tokens(i)) for i in indices]
        mels = [self.mel[span].float() for span in spans]
        lengths = torch.tensor([len(mel) for mel in mels])
        longest = min(int(lengths.max()) + FRAMES_PER_TOKEN, _MAX_FRAMES)
        # silence as the extractor writes it: 80 dB below the clip's loudest bin, but not under its floor
        floors = [max(float(mel.max()) - 2.0, -1.5) for mel in mels]
        mel = torch.stack(
            [
                torch.nn.functional.pad(m, (0, 0, 0, longest - len(m)), value=f)
                for m, f in zip(mels, floors, strict=True)
            ]
        )
        targets = torch.full((len(indices), longest // FRAMES_PER_TOKEN, 2), torch.nan)
        for row, i in enumerate(indices):
            targets[row, : self.tokens(i)] = self.frames[self.token_starts[i] : self.token_starts[i + 1]]
        return mel.transpose(1, 2), lengths, targets
