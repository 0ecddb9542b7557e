"""A pair dataset of noisy chirps with the lengths of conversation, to measure with."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import soundfile
from empathy_judge.data_modules.schema import DatasetCard, Dimension, write_dataset

RATE = 16_000


@dataclass(frozen=True)
class Conversations:
    """What is made.

    Attributes:
        training: Pairs of the split `train`.
        validation: Pairs of the split `validation`.
        responses: To each context.
        seconds: Shortest and longest clip. Lengths between are log-normal with the geometric mean of the two in the
            middle, and the two ends two standard deviations away, where they are cut off.
        embedded: Whether the clips are in the tables and not in files of their own.
    """

    training: int
    validation: int = 16
    responses: int = 4
    seconds: tuple[float, float] = (2.0, 8.0)
    embedded: bool = False


def write_conversations(folder: Path, wanted: Conversations) -> None:
    """Write the dataset, the same in every run. A chirp that rises more is rated better, so that there is something
    to learn."""
    rng = np.random.default_rng(0)
    (folder / "audio").mkdir(parents=True)
    rows, scores = [], []
    for split, pairs in (("train", wanted.training), ("validation", wanted.validation)):
        context = b""
        for number in range(pairs):
            group = f"{split}-{number // wanted.responses}"
            if number % wanted.responses == 0:
                context = _clip(folder, f"{group}-context", rng, wanted, 0.0)
            rise = rng.uniform(-1, 1)
            rows.append(
                {
                    "pair_id": f"{split}-{number}",
                    "group_id": group,
                    "split": split,
                    "context_audio": context,
                    "response_audio": _clip(folder, f"{split}-{number}", rng, wanted, rise),
                }
            )
            scores.append(float(np.clip(np.round(3 + 2 * rise), 1, 5)))
    pairs = pd.DataFrame(rows)
    ratings = pd.DataFrame(
        {"pair_id": pairs["pair_id"], "rater_id": "rule", "dimension": "rise", "score": scores},
    )
    card = DatasetCard("chirps", (Dimension("rise", 1, 5, 1),), "made to measure speed", "CC0-1.0", synthetic=True)
    write_dataset(folder, card, pairs, ratings)


def _clip(folder: Path, name: str, rng: np.random.Generator, wanted: Conversations, rise: float) -> str | bytes:
    """A chirp in noise: its file inside the folder, or its bytes."""
    shortest, longest = np.log(wanted.seconds)
    drawn = rng.normal((shortest + longest) / 2, (longest - shortest) / 4)
    count = int(np.exp(np.clip(drawn, shortest, longest)) * RATE)
    octaves = rng.uniform(7, 9) + rise * np.linspace(-0.5, 0.5, count)
    chirp = np.sin(2 * np.pi * np.cumsum(2.0**octaves) / RATE)
    encoded = io.BytesIO()
    samples = 0.2 * chirp + rng.normal(0, 0.03, count)
    soundfile.write(encoded, samples, RATE, subtype="PCM_16", format="WAV")
    if wanted.embedded:
        return encoded.getvalue()
    file = f"audio/{name}.wav"
    (folder / file).write_bytes(encoded.getvalue())
    return file
