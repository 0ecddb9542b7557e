"""Recordings of people that the nano backbone hears in pre-training. Nobody's ratings are read."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...data_modules import prosody
from ...data_modules.audio import audio_hash, decode
from ...data_modules.errors import UserError
from .architecture import SECONDS

FOLDERS = ("read_speech", "expressive_speech")
_ADULT = 16  # years; the voices of younger speakers do not tell their sex


@dataclass(frozen=True)
class Recording:
    """One recording."""

    file: Path  # where it lies
    speaker: str  # who speaks, apart from all speakers of other folders
    text: str | None  # what is said; None = unknown
    sex: str | None  # "f" or "m"; None = unknown
    source: str | None  # who is to be named for it; None = the folder as a whole


def find_recordings(data: Path) -> list[Recording]:
    """Those of `FOLDERS` in `data`, as their `metadata.csv` lists them.

    Raises:
        UserError: One of the folders is not there.
    """
    found = []
    for name in FOLDERS:
        table = data / name / "metadata.csv"
        if not table.exists():
            raise UserError(f"{table}: not found; give the folder that holds {' and '.join(FOLDERS)}")
        with table.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                # age and sex are known of read speech alone
                sex = row["gender"] if int(row.get("age") or 0) >= _ADULT else None
                speaker = row.get("speaker_id") or row["reader"]
                source = None
                if "license_url" in row:
                    version = row["license_url"].rstrip("/").rpartition("/")[2]
                    source = f"{row['title']} by {row['author']}, read by {row['reader']} (CC BY {version})"
                recording = Recording(data / name / row["clip"], f"{name}/{speaker}", row.get("text"), sex, source)
                found.append(recording)
    return found


def hold_out(recordings: Sequence[Recording], seed: int) -> tuple[list[Recording], list[Recording]]:
    """Those to train on, and those of a random sixth of the speakers of each folder."""
    rng = np.random.default_rng(seed)
    unseen: set[str] = set()
    for name in FOLDERS:
        speakers = sorted({own.speaker for own in recordings if own.speaker.startswith(f"{name}/")})
        unseen |= set(rng.choice(speakers, len(speakers) // 6, replace=False).tolist())
    return [own for own in recordings if own.speaker not in unseen], [
        own for own in recordings if own.speaker in unseen
    ]


def read(recording: Recording) -> np.ndarray:
    """Samples at `prosody.RATE` Hz, up to what the backbone hears at once."""
    return decode(recording.file, prosody.RATE)[: SECONDS * prosody.RATE]


def digest(recordings: Sequence[Recording]) -> str:
    """SHA-256 of all that is read, files included; where they lie does not matter."""
    total = hashlib.sha256()
    for own in recordings:
        total.update(repr((own.speaker, own.text, own.sex)).encode())
        total.update(bytes.fromhex(audio_hash(own.file)))
    return total.hexdigest()
