"""What the nano backbone is pre-trained on: clips with what is known or measured about their delivery."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from empathy_judge.audio.espeak import QUALITIES
from empathy_judge.audio.functionals import DELIVERY
from empathy_judge.checkpoints.nano.make.architecture import HOP, SECONDS

CORE = ("pitch", "pitch_range", "rate", "level", "pitch_shift", "harmonicity")
"""Measures that the language model is asked about; units in `NanoClip`."""
MEASURES = (*CORE, *(f"delivery_{name}" for name in DELIVERY))
"""Continuous targets: those of `CORE`, then all of `functionals.delivery`."""
LEVELS = [MEASURES.index(name) for name in ("level", "delivery_level")]
"""Columns of `MEASURES` that a gain in dB moves, one for one."""
RECORDINGS = ("clean", "muffled", "noisy", "distorted")
SEXES = ("f", "m")
LABELS = {"quality": QUALITIES, "sex": SEXES, "recording": RECORDINGS}
"""Categorical targets and their values."""
FRAMES_PER_TOKEN = 4
LONGEST_FRAMES = SECONDS * 16_000 // HOP


@dataclass(frozen=True)
class NanoClip:
    """One clip and its targets."""

    mel: np.ndarray  # log-mel spectrogram `(frames, bins)`, float16, as the feature extractor makes it
    # `MEASURES`: in octaves above 150 Hz, semitones, syllables per second, dB full scale, semitones and 0..1, then in
    # the units of `functionals`; NaN = unknown
    measures: np.ndarray
    labels: np.ndarray  # index of each of `LABELS`; -1 = unknown
    frames: np.ndarray  # octaves above 150 Hz (NaN = unvoiced) and dB full scale for each audio token `(tokens, 2)`
    # what a teacher says, float16: its states for each audio token `(tokens, values)`, and the statistics over time of
    # its layers `(layers, values)`; no values without a teacher
    states: np.ndarray
    summary: np.ndarray


class ClipStore:
    """Clips side by side in a few arrays, so that batches are cut out of them fast."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.mel, self.frames, self.measures, self.labels, self.states, self.summary = (
            torch.from_numpy(arrays[name]) for name in ("mel", "frames", "measures", "labels", "states", "summary")
        )
        self.mel_starts, self.token_starts = arrays["mel_starts"], arrays["token_starts"]

    @classmethod
    def of(cls, clips: list[NanoClip]) -> ClipStore:
        """Lay clips side by side."""
        return cls(
            {
                "mel": np.concatenate([clip.mel for clip in clips]),
                "frames": np.concatenate([clip.frames for clip in clips]),
                "measures": np.stack([clip.measures for clip in clips]),
                "labels": np.stack([clip.labels for clip in clips]),
                "states": np.concatenate([clip.states for clip in clips]),
                "summary": np.stack([clip.summary for clip in clips]),
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

    def digest(self) -> str:
        """SHA-256 of all arrays."""
        total = hashlib.sha256()
        for name in sorted(self.arrays):
            total.update(np.ascontiguousarray(self.arrays[name]).data)
        return total.hexdigest()

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
        longest = min(int(lengths.max()) + FRAMES_PER_TOKEN, LONGEST_FRAMES)
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
